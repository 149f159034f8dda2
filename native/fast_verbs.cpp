// native/fast_verbs.cpp: collectives of one tensor, or of one in and one out.
#include "fast_call.hpp"

namespace nb = nanobind;

namespace unisono {

namespace {

/// Whether `whole` has the rows of such a part for each rank; a part without dimensions is a row.
bool is_joined(const FastGroup& group, const Tensor& whole, const Tensor& part) {
    if (part.dimensions == 0) return whole.dimensions == 1;
    return whole.dimensions == part.dimensions && whole.shape[0] == part.shape[0] * group.size &&
           std::equal(part.shape + 1, part.shape + part.dimensions, whole.shape + 1);
}

// ---- calls that write into tensors of the caller ----

/// (tensor, op, group, async_op)
PyObject* all_reduce(PyObject*, Arguments given, Py_ssize_t) {
    const auto blocking = blocking_of(given[3]);
    Tensor tensor;
    if (!blocking || !read_target(given[0], tensor)) return not_ordinary();
    FastGroup* group = group_of(given[2]);
    if (group == nullptr) return not_ordinary();
    const Operator* by = operator_of(given[1], *tensor.type);
    if (by == nullptr) return not_ordinary();
    CallArguments call = call_of(Verb::all_reduce, tensor);
    call.source = call.target = tensor.data;
    reduce_by(call, *by);
    return make(*group, call, *blocking, given[0]);
}

/// (tensor, dst, op, group, async_op, group_dst)
PyObject* reduce(PyObject*, Arguments given, Py_ssize_t) {
    const auto blocking = blocking_of(given[4]);
    Tensor tensor;
    if (!blocking || !read(given[0], tensor)) return not_ordinary();
    FastGroup* group = group_of(given[3]);
    if (group == nullptr) return not_ordinary();
    const auto root = rank_of(*group, given[1], given[5]);
    const Operator* by = operator_of(given[2], *tensor.type);
    if (!root || by == nullptr || (*root == group->rank && !tensor.writable)) return not_ordinary();
    CallArguments call = call_of(Verb::reduce, tensor);
    call.source = tensor.data;
    call.target = *root == group->rank ? tensor.data : nullptr;
    call.root = *root;
    reduce_by(call, *by);
    return make(*group, call, *blocking, given[0]);
}

/// (tensor, src, group, async_op, group_src)
PyObject* broadcast(PyObject*, Arguments given, Py_ssize_t) {
    const auto blocking = blocking_of(given[3]);
    Tensor tensor;
    if (!blocking || !read_target(given[0], tensor)) return not_ordinary();
    FastGroup* group = group_of(given[2]);
    if (group == nullptr) return not_ordinary();
    const auto root = rank_of(*group, given[1], given[4]);
    if (!root) return not_ordinary();
    CallArguments call = call_of(Verb::broadcast, tensor);
    call.source = *root == group->rank ? tensor.data : nullptr;
    call.target = tensor.data;
    call.root = *root;
    return make(*group, call, *blocking, given[0]);
}

/// (output, input, group, async_op, joined); `joined`: the output has the input's rows for each
/// rank
PyObject* all_gather_into(PyObject*, Arguments given, Py_ssize_t) {
    const auto blocking = blocking_of(given[3]);
    Tensor output, input;
    if (!blocking || !read_target(given[0], output) || !read(given[1], input))
        return not_ordinary();
    FastGroup* group = group_of(given[2]);
    if (group == nullptr || !fit_part(*group, output, input) ||
        (given[4] == Py_True && !is_joined(*group, output, input)))
        return not_ordinary();
    CallArguments call = call_of(Verb::all_gather, input);
    call.source = input.data;
    call.target = output.data;
    return make(*group, call, *blocking, given[0], given[1]);
}

/// (output, input, op, group, async_op, joined); `joined`: the input has the output's rows for each
/// rank
PyObject* reduce_scatter_into(PyObject*, Arguments given, Py_ssize_t) {
    const auto blocking = blocking_of(given[4]);
    Tensor output, input;
    if (!blocking || !read_target(given[0], output) || !read(given[1], input))
        return not_ordinary();
    FastGroup* group = group_of(given[3]);
    if (group == nullptr || !fit_part(*group, input, output) ||
        (given[5] == Py_True && !is_joined(*group, input, output)))
        return not_ordinary();
    const Operator* by = operator_of(given[2], *input.type);
    if (by == nullptr) return not_ordinary();
    CallArguments call = call_of(Verb::reduce_scatter, output);
    call.source = input.data;
    call.target = output.data;
    reduce_by(call, *by);
    return make(*group, call, *blocking, given[0], given[1]);
}

/// (output, input, group, async_op): equal shares.
PyObject* all_to_all_into(PyObject*, Arguments given, Py_ssize_t) {
    const auto blocking = blocking_of(given[3]);
    Tensor output, input;
    if (!blocking || !read_target(given[0], output) || !read(given[1], input) ||
        output.count != input.count || !fit(output, input))
        return not_ordinary();
    FastGroup* group = group_of(given[2]);
    if (group == nullptr || !has_equal_rows(*group, output) || !has_equal_rows(*group, input))
        return not_ordinary();
    CallArguments call = call_of(Verb::all_to_all, input);
    call.count = input.count / static_cast<std::uint64_t>(group->size);
    call.source = input.data;
    call.target = output.data;
    return make(*group, call, *blocking, given[0], given[1]);
}

/// (group, async_op)
PyObject* barrier(PyObject*, Arguments given, Py_ssize_t) {
    FastGroup* group = group_of(given[0]);
    const auto blocking = blocking_of(given[1]);
    if (group == nullptr || !blocking) return not_ordinary();
    CallArguments call;
    call.verb = Verb::barrier;
    return make(*group, call, *blocking, nullptr);
}

// ---- calls that return new tensors ----

/// Runs a call into a new tensor; `rows`: its first dimension, if that differs.
PyObject* run_into_new(FastGroup& group, CallArguments& call, PyObject* like, const Tensor& tensor,
                       std::int64_t rows = -1) {
    const auto kept = group.shared_from_this();
    nb::object made = nb::steal(TensorReader::instance().make_like(like, tensor, rows));
    Tensor result;
    if (!made.is_valid()) {  // Python says why
        if (PyErr_ExceptionMatches(PyExc_Exception) == 0) return nullptr;
        PyErr_Clear();
        return not_ordinary();
    }
    if (!read_target(made.ptr(), result)) return not_ordinary();
    call.target = result.data;
    return run(group, call) ? made.release().ptr() : nullptr;
}

/// The same as a result and no handle.
PyObject* with_no_handle(PyObject* result) {
    if (result == nullptr || result == Py_NotImplemented) return result;
    PyObject* pair = PyTuple_Pack(2, result, Py_None);
    Py_DECREF(result);
    return pair;
}

/// (tensor, op, group, async_op)
PyObject* all_reduce_new(PyObject*, Arguments given, Py_ssize_t) {
    Tensor tensor;
    if (given[3] != Py_False || !read(given[0], tensor)) return not_ordinary();
    FastGroup* group = group_of(given[2]);
    if (group == nullptr) return not_ordinary();
    const Operator* by = operator_of(given[1], *tensor.type);
    if (by == nullptr) return not_ordinary();
    CallArguments call = call_of(Verb::all_reduce, tensor);
    call.source = tensor.data;
    reduce_by(call, *by);
    return with_no_handle(run_into_new(*group, call, given[0], tensor));
}

/// (tensor, group, async_op)
PyObject* all_gather_new(PyObject*, Arguments given, Py_ssize_t) {
    Tensor tensor;
    if (given[2] != Py_False || !read(given[0], tensor)) return not_ordinary();
    FastGroup* group = group_of(given[1]);
    if (group == nullptr) return not_ordinary();
    CallArguments call = call_of(Verb::all_gather, tensor);
    call.source = tensor.data;
    const std::int64_t rows = tensor.dimensions == 0 ? 1 : tensor.shape[0];
    return with_no_handle(run_into_new(*group, call, given[0], tensor, rows * group->size));
}

/// (tensor, op, group, async_op)
PyObject* reduce_scatter_new(PyObject*, Arguments given, Py_ssize_t) {
    Tensor tensor;
    if (given[3] != Py_False || !read(given[0], tensor)) return not_ordinary();
    FastGroup* group = group_of(given[2]);
    if (group == nullptr || !has_equal_rows(*group, tensor)) return not_ordinary();
    const Operator* by = operator_of(given[1], *tensor.type);
    if (by == nullptr) return not_ordinary();
    CallArguments call = call_of(Verb::reduce_scatter, tensor);
    call.count = tensor.count / static_cast<std::uint64_t>(group->size);
    call.source = tensor.data;
    reduce_by(call, *by);
    const std::int64_t rows = tensor.shape[0] / group->size;
    return with_no_handle(run_into_new(*group, call, given[0], tensor, rows));
}

/// (tensor, src, group)
PyObject* broadcast_new(PyObject*, Arguments given, Py_ssize_t) {
    Tensor tensor;
    if (!read(given[0], tensor)) return not_ordinary();
    FastGroup* group = group_of(given[2]);
    if (group == nullptr) return not_ordinary();
    const auto root = rank_of(*group, given[1], Py_None);
    if (!root) return not_ordinary();
    CallArguments call = call_of(Verb::broadcast, tensor);
    call.source = *root == group->rank ? tensor.data : nullptr;
    call.root = *root;
    return run_into_new(*group, call, given[0], tensor);
}

PyMethodDef methods[] = {
    method<all_reduce, 4>("all_reduce"),
    method<reduce, 6>("reduce"),
    method<broadcast, 5>("broadcast"),
    method<all_gather_into, 5>("all_gather_into"),
    method<reduce_scatter_into, 6>("reduce_scatter_into"),
    method<all_to_all_into, 4>("all_to_all_into"),
    method<barrier, 2>("barrier"),
    method<all_reduce_new, 4>("all_reduce_new"),
    method<all_gather_new, 3>("all_gather_new"),
    method<reduce_scatter_new, 4>("reduce_scatter_new"),
    method<broadcast_new, 3>("broadcast_new"),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void add_fast_verbs(nb::module_& fast) { PyModule_AddFunctions(fast.ptr(), methods); }

}  // namespace unisono
