// native/fast_call.hpp: the ordinary case of each hot call, whole: from what the user passes to the
// result, in one call from Python.
//
// Each function takes the arguments of the face function that calls it. It returns NotImplemented,
// with nothing done, unless everything is ordinary: tensors (see tensor.hpp), an operator object or
// name that we know, a group in shared memory, arguments that are right. The face then goes the
// general way through Python, which also has all the errors. Both ways describe a call alike, so
// that ranks may take different ones.
//
// fast_groups.cpp has what Python tells us, fast_call.cpp makes a call, and the functions
// themselves are in fast_verbs.cpp, fast_lists.cpp and fast_messages.cpp; those of the backend of
// torch.distributed are in fast_backend.cpp. Everything holds the GIL, except the calls themselves.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "call_site.hpp"
#include "python_call.hpp"
#include "tensor.hpp"

namespace unisono {

/// A group of this process whose calls we make.
struct FastGroup : std::enable_shared_from_this<FastGroup> {
    nanobind::object group;   ///< the Group of core/groups.py
    nanobind::object native;  ///< the Python object of the communicator
    Communicator* communicator = nullptr;
    int rank = 0;
    int size = 0;
    std::vector<int> world_ranks;
    nanobind::object rank_number, size_number;  ///< what get_rank and get_world_size return
    std::uint64_t calls = 0;                    ///< collectives that were made here
};

struct Operator {
    nanobind::object key;  ///< an object of core's ReduceOp
    ReduceOp op = ReduceOp::none;
    double factor = 1;
};

/// What Python has told us. Never freed: it holds Python objects.
struct State {
    std::vector<std::shared_ptr<FastGroup>> groups;
    FastGroup* world = nullptr;  ///< null: there is none, or threads have worlds of their own
    nanobind::dict named;        ///< the groups of that world, by name
    nanobind::set world_names;   ///< names of the world itself
    std::vector<Operator> operators;
    /// (error, verb, group, tag): adds to an error what it lacks
    nanobind::object failed;
    /// (handle, verb, group, tag, tensors): the work of a call in progress
    nanobind::object started;
    /// Functions of torch, which tell whether a profiler or a mode of its dispatcher, such as
    /// CommDebugMode, watches this thread; null without torch.
    bool (*has_profiler)() = nullptr;
    bool (*has_modes)(bool without_infrastructure) = nullptr;
};

State& state();

using Arguments = PyObject* const*;

inline PyObject* not_ordinary() { return Py_NewRef(Py_NotImplemented); }

// ---- arguments ----

/// Whether torch's profiler watches this thread. Calls are left to Python then, which shows them.
inline bool is_profiled() {
    const auto probe = state().has_profiler;
    return probe != nullptr && probe();
}

/// A group by its object or name, or the world for None; null if it is not ours, or calls are
/// profiled. Another thread may destroy it whenever the GIL is released, and torch's functions
/// release it: so ask when tensors have been read, or keep the group.
FastGroup* group_of(PyObject* given);

/// An operator that the dtype has; null if it is not ours.
const Operator* operator_of(PyObject* given, const ElementType& type);

/// An int that is exactly one, not a bool.
std::optional<std::int64_t> integer_of(PyObject* given);

/// A rank of the group, given as a rank of the world or of the group, but not both.
std::optional<int> rank_of(const FastGroup& group, PyObject* world_rank, PyObject* group_rank);

/// Whether `async_op` is False (blocking) or True; nothing if it is neither.
inline std::optional<bool> blocking_of(PyObject* async_op) {
    if (async_op == Py_False) return true;
    if (async_op == Py_True) return false;
    return std::nullopt;
}

/// Reads an ordinary tensor.
inline bool read(PyObject* object, Tensor& tensor) {
    return TensorReader::instance().read(object, tensor);
}
/// The same for one that the call writes.
inline bool read_target(PyObject* object, Tensor& tensor) {
    return read(object, tensor) && tensor.writable;
}

/// Whether two tensors of one dtype have memory that is the same, or has nothing in common.
inline bool fit(const Tensor& first, const Tensor& second) {
    if (first.type->code != second.type->code) return false;
    if (first.data == second.data && first.count == second.count) return true;
    return first.data + first.bytes() <= second.data || second.data + second.bytes() <= first.data;
}

/// Whether `part` is this rank's part of `whole`, or memory of its own.
inline bool fit_part(const FastGroup& group, const Tensor& whole, const Tensor& part) {
    const std::byte* own = whole.data + static_cast<std::uint64_t>(group.rank) * part.bytes();
    if (whole.count != part.count * static_cast<std::uint64_t>(group.size)) return false;
    return whole.type->code == part.type->code && (part.data == own || fit(whole, part));
}

inline bool same_shape(const Tensor& first, const Tensor& second) {
    return first.dimensions == second.dimensions &&
           std::equal(first.shape, first.shape + first.dimensions, second.shape);
}

/// Whether the rows of a tensor can be shared equally.
inline bool has_equal_rows(const FastGroup& group, const Tensor& tensor) {
    return tensor.dimensions > 0 && tensor.shape[0] % group.size == 0;
}

// ---- calls ----

/// A call with what is the same for all of a verb.
inline CallArguments call_of(Verb verb, const Tensor& tensor) {
    CallArguments call;
    call.verb = verb;
    call.dtype = static_cast<DType>(tensor.type->code);
    call.dtype_code = tensor.type->code;
    call.item_bytes = tensor.type->item_bytes;
    call.count = tensor.count;
    return call;
}

inline void reduce_by(CallArguments& call, const Operator& by) {
    call.op = by.op;
    call.factor = by.factor;
}

/// Whether this thread makes the calls of a backward pass; see CallArguments::backward.
extern constinit thread_local bool backward_pass;

/// The error indicator of a Failure, with what the general way would have added.
void set_explained_error(const Failure& failure, const char* verb, PyObject* group,
                         std::int64_t tag);

/// Runs a collective; true: it has ended well. `after` runs then, without the GIL.
template <class After>
bool run(FastGroup& group, CallArguments& call, After after) {
    // The group may be closed by another thread meanwhile; these keep what we use.
    const nanobind::object python_group = group.group, native = group.native;
    Communicator& communicator = *group.communicator;
    ++group.calls;  // first: to find the call site may take imports, and so release the GIL
    call.call_site = CallSiteFinder::current();
    call.backward = backward_pass;
    const auto failure = failure_of([&] {
        communicator.run(call, {communicator.seconds(), interrupted});
        after();
    });
    if (!failure) return true;
    set_explained_error(*failure, name(call.verb), python_group.ptr(), 0);
    return false;
}
inline bool run(FastGroup& group, CallArguments& call) {
    return run(group, call, [] {});
}

/// The work of a call in progress. What the call uses stays alive until it has ended.
PyObject* work_of(std::shared_ptr<Completion> completion, std::shared_ptr<Transfer> transfer,
                  nanobind::object used, const char* verb, PyObject* group, std::int64_t tag,
                  nanobind::list tensors);

/// Runs a collective, or starts it; `result` is the tensor that it writes, `other` one more that
/// has to stay alive.
PyObject* make(FastGroup& group, CallArguments& call, bool blocking, PyObject* result,
               PyObject* other = nullptr);

// ---- calls with lists, which block (fast_lists.cpp) ----

PyObject* all_gather_list(FastGroup& group, PyObject* list, PyObject* tensor);
PyObject* all_to_all_list(FastGroup& group, PyObject* outputs, PyObject* inputs);
PyObject* reduce_scatter_list(FastGroup& group, PyObject* output, PyObject* list, ReduceOp op);
/// The list is None except on the root.
PyObject* gather_list(FastGroup& group, PyObject* tensor, PyObject* list, int root);
PyObject* scatter_list(FastGroup& group, PyObject* tensor, PyObject* list, int root);

// ---- messages (fast_messages.cpp) ----

/// A message, posted or complete; null with a Python error.
std::shared_ptr<Transfer> post(FastGroup& group, bool sending, const Tensor& tensor, int peer,
                               std::int64_t tag, bool blocking);

// ---- functions of the module ----

/// Sets the error of the C++ exception that is being handled, which must not reach Python.
void set_unexpected_error();

/// Checks the number of arguments, and keeps C++ exceptions from Python.
template <PyObject* (*function)(PyObject*, Arguments, Py_ssize_t), Py_ssize_t count>
PyObject* checked(PyObject* self, Arguments given, Py_ssize_t number) {
    if (number != count) {
        PyErr_Format(PyExc_TypeError, "expected %zd arguments, got %zd", count, number);
        return nullptr;
    }
    Interpreter::stop_if_ended();
    try {
        return function(self, given, number);
    } catch (const std::exception&) {
        set_unexpected_error();
        return nullptr;
    }
}

template <PyObject* (*function)(PyObject*, Arguments, Py_ssize_t), Py_ssize_t count>
PyMethodDef method(const char* name) {
    const auto pointer = &checked<function, count>;
    return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(pointer)),
            METH_FASTCALL, nullptr};
}

/// Each adds the functions of a file to the module.
void add_fast_groups(nanobind::module_& fast);
void add_fast_verbs(nanobind::module_& fast);
void add_fast_lists(nanobind::module_& fast);
void add_fast_messages(nanobind::module_& fast);
void add_fast_backend(nanobind::module_& fast);

/// Adds `method(ordinary, general)`, see native_method.cpp.
void add_native_method(nanobind::module_& module);

}  // namespace unisono
