// native/call_site.hpp: part of bind.cpp: the line of the user's source that made a call.
//
// That is the first Python frame that is neither in unisono nor in torch, whose own layers stand
// between the user and a registered backend; if there is none, the first outside unisono. Which
// code belongs to whom, and which instruction is which call_site, are looked up once and then kept,
// so that a call in a loop makes no string.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <string>

#include "log.hpp"

#if PY_VERSION_HEX < 0x030c0000
#define Py_BUILD_CORE 1
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE
#endif

namespace unisono {

#if PY_VERSION_HEX < 0x030c0000

/// One frame of this thread, on the way out to its callers. Python's public functions make an
/// object of every frame that they are asked about, which costs as much as a small all_reduce.
class Frame {
public:
    Frame() : frame_(PyThreadState_Get()->cframe->current_frame) {}
    explicit operator bool() const { return frame_ != nullptr; }
    PyCodeObject* code() const { return frame_->f_code; }
    int instruction() const {
        return _PyInterpreterFrame_LASTI(frame_) * static_cast<int>(sizeof(_Py_CODEUNIT));
    }
    void go_back() { frame_ = frame_->previous; }

private:
    _PyInterpreterFrame* frame_;
};

#else

/// One frame of this thread, on the way out to its callers.
class Frame {
public:
    Frame() : frame_(PyThreadState_GetFrame(PyThreadState_Get())) { look(); }
    Frame(const Frame& other) : frame_(other.frame_) {
        Py_XINCREF(frame_);
        look();
    }
    Frame& operator=(const Frame&) = delete;
    ~Frame() {
        Py_XDECREF(code_);
        Py_XDECREF(frame_);
    }
    explicit operator bool() const { return frame_ != nullptr; }
    PyCodeObject* code() const { return code_; }
    int instruction() const { return PyFrame_GetLasti(frame_); }
    void go_back() {
        PyFrameObject* back = PyFrame_GetBack(frame_);
        Py_DECREF(frame_);
        Py_DECREF(code_);
        frame_ = back;
        look();
    }

private:
    void look() { code_ = frame_ == nullptr ? nullptr : PyFrame_GetCode(frame_); }

    PyFrameObject* frame_;
    PyCodeObject* code_;
};

#endif

/// All of it runs with the GIL held, which guards the caches.
class CallSiteFinder {
public:
    /// Called once, when the module is loaded: what Python is asked here may let other threads run.
    /// Never freed, for Python may be gone when it would be.
    static void prepare() { instance_ = new CallSiteFinder; }

    /// The call_site of the call that is being made in this thread.
    static CallSite current() { return instance_->find(); }

private:
    enum class Owner : std::uint8_t { unisono, torch, user };

    /// Entries hold a reference, so that no other code can get the address of theirs.
    struct Known {
        PyCodeObject* code = nullptr;
        Owner owner = Owner::user;
    };
    struct Spot {
        PyCodeObject* code = nullptr;
        int instruction = -1;
        CallSite call_site;
    };
    static constexpr std::size_t slots = 1024;
    static constexpr int deepest = 100;  // frames to look at

    CallSiteFinder() {
        namespace nb = nanobind;
        own_ = folder(nb::module_::import_("unisono").ptr());  // it is being imported already
        PyObject* here = PyImport_GetModule(nb::str("os").ptr());
        if (here != nullptr) {
            const nb::object module = nb::steal(here);
            const nb::object path = nb::steal(PyObject_CallMethod(module.ptr(), "getcwd", nullptr));
            if (path.is_valid()) here_ = text_of(path.ptr()) + "/";
        }
        PyErr_Clear();  // the working group_members may be gone
    }

    CallSite find() {
        PyCodeObject* theirs = nullptr;  // the first that is torch's
        int instruction = 0;
        Frame frame;
        for (int depth = 0; frame && depth < deepest; ++depth, frame.go_back()) {
            const Owner owner = owner_of(frame.code());
            if (owner == Owner::user) return call_site_of(frame.code(), frame.instruction());
            if (owner == Owner::torch && theirs == nullptr) {
                theirs = frame.code();  // it runs further out, so it stays
                instruction = frame.instruction();
            }
        }
        return theirs == nullptr ? CallSite{} : call_site_of(theirs, instruction);
    }

    Owner owner_of(PyCodeObject* code) {
        Known& known = known_[hash(code, 0)];
        if (known.code == code) return known.owner;
        const std::string file = text_of(code->co_filename);
        Owner owner = Owner::user;
        if (!own_.empty() && file.starts_with(own_)) {
            owner = Owner::unisono;
        } else if (PyObject* torch = PyImport_GetModule(nanobind::str("torch").ptr())) {
            const std::string theirs = folder(torch);
            Py_DECREF(torch);
            if (!theirs.empty() && file.starts_with(theirs)) owner = Owner::torch;
            // What torch decorates its functions with stands between them and the user.
            for (const char* glue : {"/typing_extensions.py", "/contextlib.py", "/warnings.py"})
                if (file.ends_with(glue)) owner = Owner::torch;
        }
        Py_INCREF(code);
        Py_XDECREF(known.code);
        known = {code, owner};
        return owner;
    }

    CallSite call_site_of(PyCodeObject* code, int instruction) {
        Spot& spot = spots_[hash(code, instruction)];
        if (spot.code == code && spot.instruction == instruction) return spot.call_site;
        std::string file = text_of(code->co_filename);
        if (!here_.empty() && file.starts_with(here_)) file.erase(0, here_.size());
        const int line = PyCode_Addr2Line(code, instruction);
        const CallSite call_site = keep(file + ":" + std::to_string(line));
        Py_INCREF(code);
        Py_XDECREF(spot.code);
        spot = {code, instruction, call_site};
        return call_site;
    }

    /// A number for a text: the one it has, or the next; none once all are given out.
    CallSite keep(std::string text) {
        if (text.size() >= call_site_bytes) {
            std::size_t cut = text.size() - (call_site_bytes - 4);
            while ((text[cut] & 0xc0) == 0x80) ++cut;  // not in the middle of a character
            text = "..." + text.substr(cut);
        }
        for (std::size_t id = 1; id < count_; ++id)
            if (texts_[id] == text) return {static_cast<std::uint16_t>(id), texts_[id].c_str()};
        if (count_ == log_call_sites) return {};
        texts_[count_] = std::move(text);
        const auto id = static_cast<std::uint16_t>(count_++);
        return {id, texts_[id].c_str()};
    }

    static std::size_t hash(const PyCodeObject* code, int instruction) {
        const auto address = reinterpret_cast<std::uintptr_t>(code) >> 4;
        return (address ^ address >> 10 ^ static_cast<std::uintptr_t>(instruction)) % slots;
    }

    /// A string of Python in UTF-8; what cannot be written so becomes a question mark.
    static std::string text_of(PyObject* text) {
        std::string result;
        if (PyObject* bytes = PyUnicode_AsEncodedString(text, "utf-8", "replace")) {
            result.assign(PyBytes_AS_STRING(bytes),
                          static_cast<std::size_t>(PyBytes_GET_SIZE(bytes)));
            Py_DECREF(bytes);
        }
        PyErr_Clear();
        return result;
    }

    /// The folder of a package, with a slash; empty if it has no file.
    static std::string folder(PyObject* module) {
        std::string path;
        if (PyObject* file = PyObject_GetAttrString(module, "__file__")) {
            if (PyUnicode_Check(file)) path = text_of(file);
            Py_DECREF(file);
        }
        PyErr_Clear();
        return path.substr(0, path.rfind('/') + 1);
    }

    static inline CallSiteFinder* instance_ = nullptr;

    std::string own_, here_;
    std::array<Known, slots> known_{};
    std::array<Spot, slots> spots_{};
    std::array<std::string, log_call_sites> texts_{};
    std::size_t count_ = 1;
};

}  // namespace unisono
