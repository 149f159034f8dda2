// native/python_call.hpp: how code that Python calls waits and fails: without the GIL, with Ctrl-C,
// and with the classes of unisono.errors. Part of bind.cpp and fast_call.hpp.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <optional>
#include <string>

#include "communicator.hpp"
#include "interpreter.hpp"

namespace unisono {

/// Whether a signal handler has raised: Ctrl-C during a wait. The caller does not hold the GIL.
inline bool interrupted() {
    if (Interpreter::is_closed()) return false;  // nobody handles signals any more
    const nanobind::gil_scoped_acquire gil;
    return PyErr_CheckSignals() != 0;
}

/// Any bytes as a string; empty ones as None.
nanobind::object text_or_none(const std::string& text);

/// Sets the Python error of a Failure. The caller holds the GIL.
void set_error(const Failure& failure);

/// Runs `body` without the GIL; returns the Failure that it throws.
template <class Body>
std::optional<Failure> failure_of(Body body) {
    const Interpreter::Unlocked unlocked;
    try {
        body();
        return std::nullopt;
    } catch (const Failure& failure) {
        return failure;
    }
}

/// Runs `body` without the GIL, and raises the Failure that it throws.
template <class Body>
auto guarded(Body body) {
    std::optional<Failure> caught;
    {
        const Interpreter::Unlocked unlocked;
        try {
            return body();
        } catch (const Failure& failure) {
            caught = failure;
        }
    }
    set_error(*caught);
    throw nanobind::python_error();
}

/// What has to stay alive until a call has ended, even if nobody waits for it: the end of a
/// collective lets go of it then, and that of a message, which calls nobody, the next call in the
/// background. Made and destroyed with the GIL held.
class KeptUntilDone {
public:
    KeptUntilDone() = default;
    KeptUntilDone(nanobind::object object, std::shared_ptr<Completion> completion, bool is_message)
        : object_(std::move(object)), completion_(std::move(completion)), is_message_(is_message) {}
    KeptUntilDone(KeptUntilDone&&) = default;
    KeptUntilDone& operator=(KeptUntilDone&&) = default;
    ~KeptUntilDone() {
        if (!object_.is_valid() || completion_->done()) return;
        if (!is_message_ && completion_->on_done(&Interpreter::release, object_.ptr()))
            object_.release();  // the visit has the reference
        else if (!completion_->done())
            leave(std::move(*this));
    }

    /// Lets go of what nobody lets go of at its end, and is no longer needed.
    static void sweep();

private:
    static void leave(KeptUntilDone&& kept);

    nanobind::object object_;
    std::shared_ptr<Completion> completion_;
    bool is_message_ = false;
};

/// A call in progress, for Python to wait for.
struct CallHandle {
    std::shared_ptr<Completion> completion;
    std::shared_ptr<Transfer> transfer;
    /// Let go of at the first wait: a tensor may have its handle as an attribute, and Python cannot
    /// collect a cycle that it does not see.
    KeptUntilDone kept = {};
    ForkGuard fork_guard = {};

    bool wait(double seconds) {
        const bool ended = guarded([&] {
            fork_guard.check();
            return completion->wait({seconds, interrupted});
        });
        if (ended) kept = {};
        return ended;
    }
    void check() const {
        if (const Failure* failure = completion->failure()) {
            set_error(*failure);
            throw nanobind::python_error();
        }
    }
    int source() const { return transfer == nullptr ? -1 : transfer->source; }

    /// Calls a Python function when the collective has ended, now or from the native thread; once.
    void on_done(nanobind::object function) const {
        if (transfer != nullptr) throw nanobind::type_error("messages have no callbacks");
        if (completion->on_done(&Interpreter::visit, function.ptr()))
            function.release();  // the visit has the reference
        else
            function();
    }
};

/// Adds the functions of fast_call.hpp to the module.
void add_fast_calls(nanobind::module_& module);

}  // namespace unisono
