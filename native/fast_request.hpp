// native/fast_request.hpp: who makes a call of the torch backend, and how: a group of torch's, and
// torch's options. Part of fast_backend.cpp.
#pragma once

#include <array>

#include "fast_call.hpp"
#include "torch_options.hpp"

namespace unisono {

/// A process group's way to us: the attribute `direct` of torch's group.
struct BackendGroup {
    std::shared_ptr<FastGroup> group;
    nanobind::object calls;  ///< a DirectCalls of torch/backend/direct, for all that we leave to it
};

/// A call in progress: the attribute `_call` of torch's work.
struct BackendCall {
    CallHandle handle;
    std::shared_ptr<FastGroup> group;
    nanobind::object process_group, calls;  ///< torch's group, and as in BackendGroup
    const char* verb = "";
    std::uint64_t number = 0;  ///< of a collective
    std::int64_t tag = 0;      ///< of a message
    nanobind::object tensors;  ///< a list: the result
};

/// What Python tells us of torch. Never freed: it holds Python objects.
struct Backend {
    nanobind::object finished;           ///< the work of every call that has ended
    nanobind::object work;               ///< the class of works of collectives in progress
    nanobind::object message;            ///< and of messages
    std::array<ReduceOp, 16> operators;  ///< by torch's numbers; none: not ordinary
    OptionLayouts options;
    PyTypeObject* group_type = nullptr;
    PyTypeObject* call_type = nullptr;
    PyObject* direct = PyUnicode_InternFromString("direct");
    PyObject* call = PyUnicode_InternFromString("_call");
    PyObject* calls = PyUnicode_InternFromString("_calls");
    PyObject* async_op = PyUnicode_InternFromString("asyncOp");
    PyObject* timeout = PyUnicode_InternFromString("timeout");
    PyObject* reduce_op = PyUnicode_InternFromString("reduceOp");
    PyObject* root_rank = PyUnicode_InternFromString("rootRank");

    Backend() { operators.fill(ReduceOp::none); }
};

Backend& backend();

/// Whether this thread runs callbacks of futures: its calls have a group of their own.
extern constinit thread_local bool runs_callbacks;

/// An attribute; invalid, without a Python error, if there is none.
nanobind::object attribute(PyObject* object, PyObject* name);

/// Whether this is a timedelta that torch takes for no time at all: zero or less.
bool is_unset(PyObject* time);

/// Who calls, and how: a torch group with its options.
class Request {
public:
    /// False: not ordinary.
    bool read(PyObject* process_group, PyObject* options = Py_None);

    FastGroup& group() const { return *own().group; }
    bool blocking() const { return blocking_; }

    /// The operator, if it needs no factor and the dtype has it; none otherwise.
    ReduceOp op(const ElementType& type) const;

    /// The root; -1: not ordinary.
    int root() const;

    /// Runs the call, or starts it. `result` is the tensor that it writes, or null; `other` one
    /// more that has to stay alive.
    PyObject* make(CallArguments& call, PyObject* result, PyObject* other = nullptr) const {
        if (!blocking_) return start(call, result, other);
        return run(group(), call) ? Py_NewRef(backend().finished.ptr()) : nullptr;
    }

    /// Posts a message to or from a rank of the group.
    PyObject* post_message(bool sending, PyObject* own, const Tensor& tensor, int peer,
                           std::int64_t tag) const;

    /// What torch gets for a call that has blocked and returned this.
    static PyObject* ended(PyObject* result);

private:
    BackendGroup& own() const { return *nanobind::inst_ptr<BackendGroup>(direct_); }
    PyObject* start(CallArguments& call, PyObject* result, PyObject* other) const;
    PyObject* work_of(BackendCall made, const nanobind::object& type, PyObject* result,
                      PyObject* other) const;

    nanobind::object direct_;
    PyObject* process_group_ = nullptr;
    PyObject* options_ = Py_None;
    std::optional<OptionValues> values_;  ///< of the options; empty: read them by their attributes
    bool blocking_ = false;
};

}  // namespace unisono
