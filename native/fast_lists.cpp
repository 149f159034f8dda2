// native/fast_lists.cpp: collectives with a list of tensors, one for each rank, all of one length.
#include <cstring>

#include "fast_call.hpp"

namespace nb = nanobind;

namespace unisono {

namespace {

/// The tensors of a list, if they are ordinary and alike, one for each rank.
struct TensorList {
    std::vector<Tensor> tensors;

    bool read(const FastGroup& group, PyObject* list, bool as_target) {
        if (!PyList_CheckExact(list) || PyList_GET_SIZE(list) != group.size) return false;
        tensors.resize(static_cast<std::size_t>(group.size));
        for (int rank = 0; rank < group.size; ++rank) {
            Tensor& tensor = tensors[static_cast<std::size_t>(rank)];
            if (!unisono::read(PyList_GET_ITEM(list, rank), tensor)) return false;
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

/// (tensor_list, tensor, group)
PyObject* all_gather_list(PyObject*, Arguments given, Py_ssize_t) {
    FastGroup* group = group_of(given[2]);
    TensorList list;
    Tensor tensor;
    if (group == nullptr || !list.read(*group, given[0], true) || !read(given[1], tensor) ||
        !list.is_like(tensor) || !same_shape(list.of(*group), tensor))
        return not_ordinary();
    const auto whole = list.scratch();
    CallArguments call = call_of(Verb::all_gather, tensor);
    call.source = tensor.data;
    call.target = whole.get();
    return run(*group, call, [&] { list.unpack(whole.get()); }) ? Py_NewRef(Py_None) : nullptr;
}

/// (output_list, input_list, group)
PyObject* all_to_all_list(PyObject*, Arguments given, Py_ssize_t) {
    FastGroup* group = group_of(given[2]);
    TensorList outputs, inputs;
    if (group == nullptr || !outputs.read(*group, given[0], true) ||
        !inputs.read(*group, given[1], false) || !outputs.is_like(inputs.tensors[0]))
        return not_ordinary();
    const auto sent = inputs.scratch(), received = outputs.scratch();
    inputs.pack(sent.get());
    CallArguments call = call_of(Verb::all_to_all, inputs.tensors[0]);
    call.source = sent.get();
    call.target = received.get();
    return run(*group, call, [&] { outputs.unpack(received.get()); }) ? Py_NewRef(Py_None)
                                                                      : nullptr;
}

/// (tensor, gather_list, dst, group, group_dst); the list is None or empty except on the root.
PyObject* gather_list(PyObject*, Arguments given, Py_ssize_t) {
    FastGroup* group = group_of(given[3]);
    Tensor tensor;
    if (group == nullptr || !read(given[0], tensor)) return not_ordinary();
    const auto root = rank_of(*group, given[2], given[4]);
    if (!root) return not_ordinary();
    CallArguments call = call_of(Verb::gather, tensor);
    call.source = tensor.data;
    call.root = *root;
    if (*root != group->rank) {
        if (given[1] != Py_None) return not_ordinary();
        return make(*group, call, true, nullptr);
    }
    TensorList list;
    if (!list.read(*group, given[1], true) || !list.is_like(tensor) ||
        !same_shape(list.of(*group), tensor))
        return not_ordinary();
    const auto whole = list.scratch();
    call.target = whole.get();
    return run(*group, call, [&] { list.unpack(whole.get()); }) ? Py_NewRef(Py_None) : nullptr;
}

/// (tensor, scatter_list, src, group, group_src); the list is None or empty except on the root.
PyObject* scatter_list(PyObject*, Arguments given, Py_ssize_t) {
    FastGroup* group = group_of(given[3]);
    Tensor tensor;
    if (group == nullptr || !read_target(given[0], tensor)) return not_ordinary();
    const auto root = rank_of(*group, given[2], given[4]);
    if (!root) return not_ordinary();
    CallArguments call = call_of(Verb::scatter, tensor);
    call.target = tensor.data;
    call.root = *root;
    if (*root != group->rank) {
        if (given[1] != Py_None) return not_ordinary();
        return make(*group, call, true, nullptr);
    }
    TensorList list;
    if (!list.read(*group, given[1], false) || !list.is_like(tensor) ||
        !same_shape(list.of(*group), tensor))
        return not_ordinary();
    const auto whole = list.scratch();
    list.pack(whole.get());
    call.source = whole.get();
    return make(*group, call, true, nullptr);
}

PyMethodDef methods[] = {
    method<all_gather_list, 3>("all_gather_list"),
    method<all_to_all_list, 3>("all_to_all_list"),
    method<gather_list, 5>("gather_list"),
    method<scatter_list, 5>("scatter_list"),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void add_fast_lists(nb::module_& fast) { PyModule_AddFunctions(fast.ptr(), methods); }

}  // namespace unisono
