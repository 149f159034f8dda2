// native/interpreter.hpp: how threads let go of Python's lock, the GIL, and take it again, also
// while the interpreter ends.
//
// Python up to 3.13 ends a thread that asks for the GIL while the interpreter is being finalized:
// it unwinds the thread's stack, which C++ does not survive. So end() runs at exit. From then on no
// thread asks for the GIL but the one that ends the interpreter: the others sleep until the process
// has gone, as Python itself lets them from 3.14 on. end() waits for those that have asked before.
#pragma once

#include <nanobind/nanobind.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace unisono {

class Interpreter {
public:
    /// Called once, when the module is loaded.
    static void prepare() {
        // A forked child has one thread, and none that was on its way.
        pthread_atfork(nullptr, nullptr, [] {
            outside_ = 0;
            visitors_.store(0, std::memory_order_relaxed);
            aware_.store(0, std::memory_order_relaxed);
        });
        nanobind::module_::import_("atexit").attr("register")(nanobind::cpp_function(&end));
    }

    /// Whether this thread, which does not hold the GIL, must not ask for it any more.
    static bool is_closed() noexcept {
        // acquire: pairs with end(): `ender_` is set.
        if (!ended_.load(std::memory_order_acquire) || pthread_equal(ender_, pthread_self()))
            return false;
        if (!is_aware_) aware_.fetch_add(1, std::memory_order_relaxed);
        is_aware_ = true;
        return true;
    }

    /// For the beginning of a call that may run code of others, such as torch's, which lets go of
    /// the GIL as well: does not return once the interpreter ends. The caller holds the GIL.
    static void stop_if_ended() noexcept {
        if (ended_.load(std::memory_order_relaxed)) const Unlocked stopped;
    }

    /// Lets go of the GIL for its lifetime.
    class Unlocked {
    public:
        Unlocked() noexcept {
            ++outside_;
            state_ = PyEval_SaveThread();
        }
        ~Unlocked() {
            while (is_closed()) ::pause();
            PyEval_RestoreThread(state_);
            --outside_;
        }
        Unlocked(const Unlocked&) = delete;
        Unlocked& operator=(const Unlocked&) = delete;

    private:
        PyThreadState* state_;
    };

    /// Calls a Python function and releases the reference to it, which is a PyObject*; nothing
    /// after end(). The caller does not hold the GIL, and may be a thread that Python does not
    /// know.
    static void visit(void* function) noexcept {
        with_gil([&] {
            auto* callable = static_cast<PyObject*>(function);
            PyObject* result = PyObject_CallNoArgs(callable);
            if (result == nullptr) PyErr_WriteUnraisable(callable);
            Py_XDECREF(result);
            Py_DECREF(callable);
        });
    }

    /// Releases a reference to any PyObject*, in the same way.
    static void release(void* object) noexcept {
        with_gil([&] { Py_DECREF(static_cast<PyObject*>(object)); });
    }

private:
    template <class Body>
    static void with_gil(Body body) noexcept {
        visitors_.fetch_add(1, std::memory_order_seq_cst);  // pairs with end(): one sees the other
        if (!ended_.load(std::memory_order_seq_cst)) {
            const PyGILState_STATE state = PyGILState_Ensure();
            // A thread of Python that waits here may have been interrupted.
            PyObject *type, *value, *traceback;
            PyErr_Fetch(&type, &value, &traceback);
            body();
            PyErr_Restore(type, value, traceback);
            PyGILState_Release(state);
        }
        visitors_.fetch_sub(1, std::memory_order_seq_cst);
    }

    /// Returns when no thread is on its way to the GIL: all that are outside know that it is
    /// closed. One that is in the middle of a long copy may take too long; it will find out.
    static void end() {
        using Clock = std::chrono::steady_clock;
        if (PyInterpreterState_Get() != PyInterpreterState_Main()) return;  // the process goes on
        ender_ = pthread_self();
        ended_.store(true, std::memory_order_seq_cst);  // pairs with with_gil(), is_closed()
        const auto now = Clock::now();
        // Threads whose calls are in the code of others, which do not count, are soon here again.
        const auto earliest = now + std::chrono::milliseconds(has_other_threads() ? 20 : 0);
        const auto latest = now + std::chrono::seconds(2);
        while (Clock::now() < earliest || (is_somebody_on_the_way() && Clock::now() < latest)) {
            PyThreadState* const state = PyEval_SaveThread();
            std::this_thread::sleep_for(std::chrono::microseconds(100));
            PyEval_RestoreThread(state);
        }
    }

    static bool has_other_threads() {
        return PyThreadState_Next(PyInterpreterState_ThreadHead(PyInterpreterState_Get())) !=
               nullptr;
    }

    static bool is_somebody_on_the_way() noexcept {
        return outside_ > aware_.load(std::memory_order_relaxed) ||
               visitors_.load(std::memory_order_seq_cst) != 0;
    }

    static inline int outside_ = 0;  ///< objects of Unlocked; guarded by the GIL
    static inline std::atomic<int> visitors_{0};
    static inline std::atomic<int> aware_{0};  ///< threads outside that know of the end
    static inline std::atomic<bool> ended_{false};
    static inline pthread_t ender_{};
    static inline constinit thread_local bool is_aware_ = false;
};

}  // namespace unisono
