// native/fast_lists.cpp: collectives with a list of tensors, one for each rank, all of one length.
#include <cstring>

#include "fast_call.hpp"

namespace nb = nanobind;

namespace unisono {

namespace {

/// The tensors of a list, if they are ordinary and alike, one for each rank.
struct TensorList {
    std::vector<Tensor> tensors;
    nb::object entries;  ///< as they were: other threads may change the list during the call

    bool read(const FastGroup& group, PyObject* list, bool as_target) {
        if (!PyList_CheckExact(list) || PyList_GET_SIZE(list) != group.size) return false;
        entries = nb::steal(PyList_AsTuple(list));
        if (!entries.is_valid()) throw std::bad_alloc();
        tensors.resize(static_cast<std::size_t>(group.size));
        for (int rank = 0; rank < group.size; ++rank) {
            Tensor& tensor = tensors[static_cast<std::size_t>(rank)];
            if (!unisono::read(PyTuple_GET_ITEM(entries.ptr(), rank), tensor)) return false;
            if (as_target && !tensor.writable) return false;
            if (tensor.type->code != tensors[0].type->code || !same_shape(tensor, tensors[0]))
                return false;
        }
        return true;
    }

    const Tensor& of(const FastGroup& group) const {
        return tensors[static_cast<std::size_t>(group.rank)];
    }
    std::uint64_t bytes() const { return tensors[0].bytes(); }

    /// Whether it is like this tensor, which is one rank's, in dtype and length.
    bool is_like(const Tensor& tensor) const {
        return tensors[0].type->code == tensor.type->code && tensors[0].count == tensor.count;
    }

    std::unique_ptr<std::byte[]> scratch() const {
        return std::make_unique_for_overwrite<std::byte[]>(bytes() * tensors.size());
    }
    void pack(std::byte* whole) const {
        for (const Tensor& tensor : tensors) {
            std::memcpy(whole, tensor.data, bytes());
            whole += bytes();
        }
    }
    void unpack(const std::byte* whole) const {
        for (const Tensor& tensor : tensors) {
            std::memcpy(tensor.data, whole, bytes());
            whole += bytes();
        }
    }
};

}  // namespace

PyObject* all_gather_list(FastGroup& group, PyObject* outputs, PyObject* input) {
    TensorList list;
    Tensor tensor;
    if (!list.read(group, outputs, true) || !read(input, tensor) || !list.is_like(tensor) ||
        !same_shape(list.of(group), tensor))
        return not_ordinary();
    const auto whole = list.scratch();
    CallArguments call = call_of(Verb::all_gather, tensor);
    call.source = tensor.data;
    call.target = whole.get();
    return run(group, call, [&] { list.unpack(whole.get()); }) ? Py_NewRef(Py_None) : nullptr;
}

PyObject* all_to_all_list(FastGroup& group, PyObject* output_list, PyObject* input_list) {
    TensorList outputs, inputs;
    if (!outputs.read(group, output_list, true) || !inputs.read(group, input_list, false) ||
        !outputs.is_like(inputs.tensors[0]))
        return not_ordinary();
    const auto sent = inputs.scratch(), received = outputs.scratch();
    inputs.pack(sent.get());
    CallArguments call = call_of(Verb::all_to_all, inputs.tensors[0]);
    call.source = sent.get();
    call.target = received.get();
    return run(group, call, [&] { outputs.unpack(received.get()); }) ? Py_NewRef(Py_None) : nullptr;
}

PyObject* reduce_scatter_list(FastGroup& group, PyObject* output, PyObject* inputs, ReduceOp op) {
    TensorList list;
    Tensor tensor;
    if (!list.read(group, inputs, false) || !read_target(output, tensor) || !list.is_like(tensor) ||
        !same_shape(list.of(group), tensor))
        return not_ordinary();
    const auto whole = list.scratch();
    list.pack(whole.get());
    CallArguments call = call_of(Verb::reduce_scatter, tensor);
    call.source = whole.get();
    call.target = tensor.data;
    call.op = op;
    return run(group, call) ? Py_NewRef(Py_None) : nullptr;
}

PyObject* gather_list(FastGroup& group, PyObject* input, PyObject* outputs, int root) {
    Tensor tensor;
    if (!read(input, tensor)) return not_ordinary();
    CallArguments call = call_of(Verb::gather, tensor);
    call.source = tensor.data;
    call.root = root;
    if (root != group.rank) {
        if (outputs != Py_None) return not_ordinary();
        return run(group, call) ? Py_NewRef(Py_None) : nullptr;
    }
    TensorList list;
    if (!list.read(group, outputs, true) || !list.is_like(tensor) ||
        !same_shape(list.of(group), tensor))
        return not_ordinary();
    const auto whole = list.scratch();
    call.target = whole.get();
    return run(group, call, [&] { list.unpack(whole.get()); }) ? Py_NewRef(Py_None) : nullptr;
}

PyObject* scatter_list(FastGroup& group, PyObject* output, PyObject* inputs, int root) {
    Tensor tensor;
    if (!read_target(output, tensor)) return not_ordinary();
    CallArguments call = call_of(Verb::scatter, tensor);
    call.target = tensor.data;
    call.root = root;
    if (root != group.rank) {
        if (inputs != Py_None) return not_ordinary();
        return run(group, call) ? Py_NewRef(Py_None) : nullptr;
    }
    TensorList list;
    if (!list.read(group, inputs, false) || !list.is_like(tensor) ||
        !same_shape(list.of(group), tensor))
        return not_ordinary();
    const auto whole = list.scratch();
    list.pack(whole.get());
    call.source = whole.get();
    return run(group, call) ? Py_NewRef(Py_None) : nullptr;
}

namespace {

std::shared_ptr<FastGroup> kept_group_of(PyObject* given) {
    FastGroup* found = group_of(given);
    return found == nullptr ? nullptr : found->shared_from_this();
}

/// (tensor_list, tensor, group)
PyObject* all_gather(PyObject*, Arguments given, Py_ssize_t) {
    const auto group = kept_group_of(given[2]);
    return group == nullptr ? not_ordinary() : all_gather_list(*group, given[0], given[1]);
}

/// (output_list, input_list, group)
PyObject* all_to_all(PyObject*, Arguments given, Py_ssize_t) {
    const auto group = kept_group_of(given[2]);
    return group == nullptr ? not_ordinary() : all_to_all_list(*group, given[0], given[1]);
}

using Rooted = PyObject* (*)(FastGroup&, PyObject*, PyObject*, int);

/// (tensor, list, root, group, group_root); the list is None except on the root.
template <Rooted function>
PyObject* rooted(PyObject*, Arguments given, Py_ssize_t) {
    const auto group = kept_group_of(given[3]);
    if (group == nullptr) return not_ordinary();
    const auto root = rank_of(*group, given[2], given[4]);
    return root ? function(*group, given[0], given[1], *root) : not_ordinary();
}

PyMethodDef methods[] = {
    method<all_gather, 3>("all_gather_list"),
    method<all_to_all, 3>("all_to_all_list"),
    method<rooted<gather_list>, 5>("gather_list"),
    method<rooted<scatter_list>, 5>("scatter_list"),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void add_fast_lists(nb::module_& fast) { PyModule_AddFunctions(fast.ptr(), methods); }

}  // namespace unisono
