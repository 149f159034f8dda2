// native/python_visit.hpp: part of bind.cpp: a thread of ours calls Python for a moment.
//
// Python ends threads that ask for the GIL while the interpreter is being finalized, which C++ does
// not survive. So visits end before: `end()` runs at exit, lets those on their way finish, and
// later ones do nothing.
#pragma once

#include <nanobind/nanobind.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace unisono {

class PythonVisit {
public:
    /// Called once, when the module is loaded.
    static void prepare() {
        // A forked child has none of the threads that were on their way.
        pthread_atfork(nullptr, nullptr, [] { visitors_.store(0, std::memory_order_relaxed); });
        nanobind::module_::import_("atexit").attr("register")(nanobind::cpp_function(&end));
    }

    /// Calls a Python function and releases the reference to it, which is a PyObject*. The caller
    /// does not hold the GIL.
    static void call(void* function) noexcept {
        visitors_.fetch_add(1, std::memory_order_seq_cst);  // pairs with end(): one sees the other
        if (!ended_.load(std::memory_order_seq_cst)) {
            const PyGILState_STATE state = PyGILState_Ensure();
            auto* callable = static_cast<PyObject*>(function);
            // A thread of Python that waits here may have been interrupted.
            PyObject *type, *value, *traceback;
            PyErr_Fetch(&type, &value, &traceback);
            PyObject* result = PyObject_CallNoArgs(callable);
            if (result == nullptr) PyErr_WriteUnraisable(callable);
            Py_XDECREF(result);
            Py_DECREF(callable);
            PyErr_Restore(type, value, traceback);
            PyGILState_Release(state);
        }
        visitors_.fetch_sub(1, std::memory_order_seq_cst);
    }

private:
    static void end() {
        ended_.store(true, std::memory_order_seq_cst);
        const nanobind::gil_scoped_release release;
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(2);
        while (visitors_.load(std::memory_order_seq_cst) != 0 &&
               std::chrono::steady_clock::now() < deadline)
            std::this_thread::sleep_for(std::chrono::microseconds(100));
    }

    static inline std::atomic<int> visitors_{0};
    static inline std::atomic<bool> ended_{false};
};

}  // namespace unisono
