// native/call_site.hpp: finds the source line of the user that makes a call.
//
// That is the first Python frame outside unisono and torch (torch's own layers are between the user
// and a registered backend); if there is none, the first frame outside unisono. Who owns a code
// object, and which call site an instruction is, are cached, so that a call in a loop builds no
// string.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <string>
#include <utility>

#include "log.hpp"

#if PY_VERSION_HEX < 0x030e0000
#define Py_BUILD_CORE 1
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE
#endif

namespace unisono {

#if PY_VERSION_HEX < 0x030e0000

/// A frame of this thread; go_back() moves on to its caller. Python's public functions create an
/// object for every frame, which costs as much as a small all_reduce.
class Frame {
public:
    Frame() {
        PyThreadState* thread = PyThreadState_Get();
#if PY_VERSION_HEX < 0x030d0000
        frame_ = thread->cframe->current_frame;
#else
        frame_ = thread->current_frame;
#endif
        skip_own_frames_of_interpreter();
    }
    explicit operator bool() const { return frame_ != nullptr; }
    PyCodeObject* code() const {
#if PY_VERSION_HEX < 0x030d0000
        return frame_->f_code;
#else
        return reinterpret_cast<PyCodeObject*>(frame_->f_executable);
#endif
    }
    int instruction() const {
#if PY_VERSION_HEX < 0x030c0000
        return _PyInterpreterFrame_LASTI(frame_) * static_cast<int>(sizeof(_Py_CODEUNIT));
#else
        return PyUnstable_InterpreterFrame_GetLasti(frame_);
#endif
    }
    void go_back() {
        frame_ = frame_->previous;
        skip_own_frames_of_interpreter();
    }

private:
    /// Since 3.12 the interpreter puts a frame of its own where C calls Python.
    void skip_own_frames_of_interpreter() {
#if PY_VERSION_HEX >= 0x030c0000
        while (frame_ != nullptr && frame_->owner == FRAME_OWNED_BY_CSTACK)
            frame_ = frame_->previous;
#endif
    }

    _PyInterpreterFrame* frame_;
};

#else

/// A frame of this thread; go_back() moves on to its caller.
class Frame {
public:
    Frame() : frame_(PyThreadState_GetFrame(PyThreadState_Get())) { update_code(); }
    Frame(const Frame& other) : frame_(other.frame_) {
        Py_XINCREF(frame_);
        update_code();
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
        update_code();
    }

private:
    void update_code() { code_ = frame_ == nullptr ? nullptr : PyFrame_GetCode(frame_); }

    PyFrameObject* frame_;
    PyCodeObject* code_;
};

#endif

/// Finds and caches call sites. Everything runs with the GIL held, which guards the caches.
class CallSiteFinder {
public:
    /// Called once, when the module is loaded, because these calls of Python may release the GIL.
    /// Never freed, because Python may be finalized before static destructors run.
    static void prepare() { instance_ = new CallSiteFinder; }

    /// The call site of the call that this thread makes now.
    static CallSite current() { return instance_->find(); }

private:
    enum class Owner : std::uint8_t { unisono, torch, user };

    /// Cached by address; they hold a reference, so that the address cannot be used again.
    struct CachedOwner {
        PyCodeObject* code = nullptr;
        Owner owner = Owner::user;
    };
    struct CachedCallSite {
        PyCodeObject* code = nullptr;
        int instruction = -1;
        CallSite call_site;
    };
    static constexpr std::size_t cache_slots = 1024;
    static constexpr int max_depth = 100;  // frames to search

    CallSiteFinder() {
        namespace nb = nanobind;
        unisono_directory_ =
            directory_of(nb::module_::import_("unisono").ptr());  // it is being imported already
        PyObject* os = PyImport_GetModule(nb::str("os").ptr());
        if (os != nullptr) {
            const nb::object module = nb::steal(os);
            const nb::object path = nb::steal(PyObject_CallMethod(module.ptr(), "getcwd", nullptr));
            if (path.is_valid()) working_directory_ = text_of(path.ptr()) + "/";
        }
        PyErr_Clear();  // the working directory may have been removed
    }

    CallSite find() {
        PyCodeObject* theirs = nullptr;  // the first frame that is torch's
        int instruction = 0;
        Frame frame;
        for (int depth = 0; frame && depth < max_depth; ++depth, frame.go_back()) {
            const Owner owner = owner_of(frame.code());
            if (owner == Owner::user) return call_site_of(frame.code(), frame.instruction());
            if (owner == Owner::torch && theirs == nullptr) {
                theirs = frame.code();  // a caller of ours, so it stays alive
                instruction = frame.instruction();
            }
        }
        return theirs == nullptr ? CallSite{} : call_site_of(theirs, instruction);
    }

    Owner owner_of(PyCodeObject* code) {
        CachedOwner& known = owners_[hash(code, 0)];
        if (known.code == code) return known.owner;
        const std::string file = text_of(code->co_filename);
        Owner owner = Owner::user;
        if (!unisono_directory_.empty() && file.starts_with(unisono_directory_)) {
            owner = Owner::unisono;
        } else if (file == "__init__") {
            owner = Owner::unisono;  // Python 3.12 and 3.13 call constructors from such a frame
        } else if (PyObject* torch = PyImport_GetModule(nanobind::str("torch").ptr())) {
            const std::string theirs = directory_of(torch);
            Py_DECREF(torch);
            if (!theirs.empty() && file.starts_with(theirs)) owner = Owner::torch;
            // torch's decorators are between its functions and the user.
            for (const char* glue : {"/typing_extensions.py", "/contextlib.py", "/warnings.py"})
                if (file.ends_with(glue)) owner = Owner::torch;
        }
        Py_INCREF(code);
        PyCodeObject* const before = std::exchange(known, {code, owner}).code;
        Py_XDECREF(before);  // last: it may run Python code, which may come back here
        return owner;
    }

    CallSite call_site_of(PyCodeObject* code, int instruction) {
        CachedCallSite& cached = call_sites_[hash(code, instruction)];
        if (cached.code == code && cached.instruction == instruction) return cached.call_site;
        std::string file = text_of(code->co_filename);
        if (!working_directory_.empty() && file.starts_with(working_directory_))
            file.erase(0, working_directory_.size());
        const int line = PyCode_Addr2Line(code, instruction);
        const CallSite call_site = keep(file + ":" + std::to_string(line));
        Py_INCREF(code);
        PyCodeObject* const before = std::exchange(cached, {code, instruction, call_site}).code;
        Py_XDECREF(before);  // last, as above
        return call_site;
    }

    /// The number of a text: a known one, or the next; none if all are used.
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
        return (address ^ address >> 10 ^ static_cast<std::uintptr_t>(instruction)) % cache_slots;
    }

    /// A Python string in UTF-8; characters that cannot be encoded become question marks.
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

    /// The directory of a package, with a slash; empty if it has no file.
    static std::string directory_of(PyObject* module) {
        std::string path;
        if (PyObject* file = PyObject_GetAttrString(module, "__file__")) {
            if (PyUnicode_Check(file)) path = text_of(file);
            Py_DECREF(file);
        }
        PyErr_Clear();
        return path.substr(0, path.rfind('/') + 1);
    }

    static inline CallSiteFinder* instance_ = nullptr;

    std::string unisono_directory_, working_directory_;
    std::array<CachedOwner, cache_slots> owners_{};
    std::array<CachedCallSite, cache_slots> call_sites_{};
    std::array<std::string, log_call_sites> texts_{};
    std::size_t count_ = 1;
};

}  // namespace unisono
