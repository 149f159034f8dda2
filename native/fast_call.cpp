// native/fast_call.cpp: the ordinary case of each hot call, whole: from what the user passes to the
// result, in one call from Python.
//
// A function here takes the arguments of the face function that calls it. It returns
// NotImplemented, with nothing done, unless everything is ordinary: tensors (see tensor.hpp), an
// operator object or name that we know, a group in shared memory, arguments that are right. The
// face then goes the general way through Python, which also has all the errors. Both ways describe
// a call alike, so that ranks may take different ones.
//
// Everything here holds the GIL, except the calls themselves.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "call_site.hpp"
#include "python_call.hpp"
#include "tensor.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace unisono {

namespace {

/// A group of this process whose calls we make.
struct FastGroup {
    nb::object group;   ///< the Group of core/groups.py
    nb::object native;  ///< the Python object of the communicator
    Communicator* communicator = nullptr;
    int rank = 0;
    int size = 0;
    std::vector<int> world_ranks;
    nb::object rank_number, size_number;  ///< what get_rank and get_world_size return
    std::uint64_t calls = 0;              ///< collectives that were made here
};

struct Operator {
    nb::object key;  ///< an object of core's ReduceOp
    ReduceOp op = ReduceOp::none;
    double factor = 1;
};

/// What Python has told us. Never freed: it holds Python objects.
struct State {
    std::vector<std::unique_ptr<FastGroup>> groups;
    FastGroup* world = nullptr;  ///< null: there is none, or threads have worlds of their own
    nb::dict names;              ///< group names, and the address of each FastGroup; 0: the world
    std::vector<Operator> operators;
    nb::object failed;   ///< (error, verb, group, tag): adds to an error what it lacks
    nb::object started;  ///< (handle, verb, group, tag, tensors): the work of a call in progress
};

State& state() {
    static auto* instance = new State;
    return *instance;
}

/// Whether this thread makes the calls of a backward pass; see CallArguments::backward.
thread_local bool backward_pass = false;

using Arguments = PyObject* const*;

PyObject* not_ordinary() { return Py_NewRef(Py_NotImplemented); }

FastGroup* group_of(PyObject* given) {
    State& known = state();
    if (given == Py_None) return known.world;
    if (known.world == nullptr) return nullptr;
    if (PyUnicode_CheckExact(given)) {
        PyObject* address = PyDict_GetItemWithError(known.names.ptr(), given);
        if (address == nullptr) return nullptr;
        auto* found = static_cast<FastGroup*>(PyLong_AsVoidPtr(address));
        return found == nullptr ? known.world : found;
    }
    for (const auto& group : known.groups)
        if (group->group.ptr() == given) return group.get();
    return nullptr;
}

const Operator* operator_of(PyObject* given, const ElementType& type) {
    for (const Operator& known : state().operators)
        if (known.key.ptr() == given)
            return (type.operators >> static_cast<int>(known.op) & 1) != 0 ? &known : nullptr;
    return nullptr;
}

/// An int that is exactly one, not a bool.
std::optional<std::int64_t> integer_of(PyObject* given) {
    if (!PyLong_CheckExact(given)) return std::nullopt;
    int overflow = 0;
    const std::int64_t value = PyLong_AsLongLongAndOverflow(given, &overflow);
    if (overflow != 0) return std::nullopt;
    return value;
}

/// A rank of the group, given as a rank of the world or of the group, but not both.
std::optional<int> rank_of(const FastGroup& group, PyObject* world_rank, PyObject* group_rank) {
    if ((world_rank == Py_None) == (group_rank == Py_None)) return std::nullopt;
    const bool of_world = group_rank == Py_None;
    const auto given = integer_of(of_world ? world_rank : group_rank);
    if (!given) return std::nullopt;
    if (!of_world) {
        if (*given < 0 || *given >= group.size) return std::nullopt;
        return static_cast<int>(*given);
    }
    for (int rank = 0; rank < group.size; ++rank)
        if (group.world_ranks[static_cast<std::size_t>(rank)] == *given) return rank;
    return std::nullopt;
}

/// Reads an ordinary tensor that the call may write.
bool read(PyObject* object, Tensor& tensor) {
    return TensorReader::instance().read(object, tensor);
}
bool read_target(PyObject* object, Tensor& tensor) {
    return read(object, tensor) && tensor.writable;
}

/// Whether two tensors of one dtype have memory that is the same, or has nothing in common.
bool fit(const Tensor& first, const Tensor& second) {
    if (first.type->code != second.type->code) return false;
    if (first.data == second.data && first.count == second.count) return true;
    return first.data + first.bytes() <= second.data || second.data + second.bytes() <= first.data;
}

/// Whether `whole` has the rows of such a part for each rank; a part without dimensions is a row.
bool is_joined(const FastGroup& group, const Tensor& whole, const Tensor& part) {
    if (part.dimensions == 0) return whole.dimensions == 1;
    return whole.dimensions == part.dimensions && whole.shape[0] == part.shape[0] * group.size &&
           std::equal(part.shape + 1, part.shape + part.dimensions, whole.shape + 1);
}

/// Whether `part` is this rank's part of `whole`, or memory of its own.
bool fit_part(const FastGroup& group, const Tensor& whole, const Tensor& part) {
    const std::byte* own = whole.data + static_cast<std::uint64_t>(group.rank) * part.bytes();
    if (whole.count != part.count * static_cast<std::uint64_t>(group.size)) return false;
    return whole.type->code == part.type->code && (part.data == own || fit(whole, part));
}

bool same_shape(const Tensor& first, const Tensor& second) {
    return first.dimensions == second.dimensions &&
           std::equal(first.shape, first.shape + first.dimensions, second.shape);
}

/// The error indicator of a Failure, with what the general way would have added.
void set_explained_error(const Failure& failure, const char* verb, PyObject* group,
                         std::int64_t tag) {
    set_error(failure);
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    try {
        state().failed(nb::handle(value), verb, nb::handle(group), tag);
    } catch (nb::python_error& error) {
        error.restore();
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(traceback);
        return;
    }
    PyErr_Restore(type, value, traceback);
}

/// A call with what is the same for all of a verb.
CallArguments call_of(Verb verb, const Tensor& tensor) {
    CallArguments call;
    call.verb = verb;
    call.dtype = static_cast<DType>(tensor.type->code);
    call.dtype_code = tensor.type->code;
    call.item_bytes = tensor.type->item_bytes;
    call.count = tensor.count;
    return call;
}

void reduce_by(CallArguments& call, const Operator& by) {
    call.op = by.op;
    call.factor = by.factor;
}

/// Runs a collective; true: it has ended well. `after` runs then, without the GIL.
template <class After>
bool run(FastGroup& group, CallArguments& call, After after) {
    // The group may be closed by another thread meanwhile; these keep what we use.
    const nb::object python_group = group.group, native = group.native;
    Communicator& communicator = *group.communicator;
    call.call_site = CallSiteFinder::current();
    call.backward = backward_pass;
    ++group.calls;
    const auto failure = failure_of([&] {
        communicator.run(call, {communicator.seconds(), interrupted});
        after();
    });
    if (!failure) return true;
    set_explained_error(*failure, name(call.verb), python_group.ptr(), 0);
    return false;
}
bool run(FastGroup& group, CallArguments& call) {
    return run(group, call, [] {});
}

/// The work of a call in progress. What the call uses stays alive until it has ended.
PyObject* work_of(std::shared_ptr<Completion> completion, std::shared_ptr<Transfer> transfer,
                  nb::object used, const char* verb, PyObject* group, std::int64_t tag,
                  nb::list tensors) {
    KeptUntilDone::sweep();
    KeptUntilDone kept(std::move(used), completion);
    CallHandle handle{std::move(completion), std::move(transfer), std::move(kept)};
    try {
        return state()
            .started(std::move(handle), verb, nb::handle(group), tag, tensors)
            .release()
            .ptr();
    } catch (nb::python_error& error) {
        error.restore();
        return nullptr;
    }
}

/// Runs a collective, or starts it; `result` is the tensor that it writes, `other` one more that
/// has to stay alive.
PyObject* make(FastGroup& group, CallArguments& call, bool blocking, PyObject* result,
               PyObject* other = nullptr) {
    if (blocking) return run(group, call) ? Py_NewRef(Py_None) : nullptr;
    const nb::object python_group = group.group, native = group.native;
    Communicator& communicator = *group.communicator;
    call.call_site = CallSiteFinder::current();
    call.backward = backward_pass;
    ++group.calls;
    const char* verb = name(call.verb);
    std::shared_ptr<Completion> completion;
    const auto failure = failure_of(
        [&] { completion = communicator.start(std::move(call), communicator.seconds()); });
    if (failure) {
        set_explained_error(*failure, verb, python_group.ptr(), 0);
        return nullptr;
    }
    nb::list tensors;
    if (result != nullptr) tensors.append(nb::handle(result));
    const nb::tuple used = nb::make_tuple(tensors, nb::handle(other == nullptr ? Py_None : other));
    return work_of(std::move(completion), nullptr, used, verb, python_group.ptr(), 0, tensors);
}

/// Whether `async_op` is False (blocking) or True; nothing if it is neither.
std::optional<bool> blocking_of(PyObject* async_op) {
    if (async_op == Py_False) return true;
    if (async_op == Py_True) return false;
    return std::nullopt;
}

// ---- calls that write into tensors of the caller
// -------------------------------------------------

/// (tensor, op, group, async_op)
PyObject* all_reduce(PyObject*, Arguments given, Py_ssize_t) {
    FastGroup* group = group_of(given[2]);
    const auto blocking = blocking_of(given[3]);
    Tensor tensor;
    if (group == nullptr || !blocking || !read_target(given[0], tensor)) return not_ordinary();
    const Operator* by = operator_of(given[1], *tensor.type);
    if (by == nullptr) return not_ordinary();
    CallArguments call = call_of(Verb::all_reduce, tensor);
    call.source = call.target = tensor.data;
    reduce_by(call, *by);
    return make(*group, call, *blocking, given[0]);
}

/// (tensor, dst, op, group, async_op, group_dst)
PyObject* reduce(PyObject*, Arguments given, Py_ssize_t) {
    FastGroup* group = group_of(given[3]);
    const auto blocking = blocking_of(given[4]);
    Tensor tensor;
    if (group == nullptr || !blocking || !read(given[0], tensor)) return not_ordinary();
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
    FastGroup* group = group_of(given[2]);
    const auto blocking = blocking_of(given[3]);
    Tensor tensor;
    if (group == nullptr || !blocking || !read_target(given[0], tensor)) return not_ordinary();
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
    FastGroup* group = group_of(given[2]);
    const auto blocking = blocking_of(given[3]);
    Tensor output, input;
    if (group == nullptr || !blocking || !read_target(given[0], output) || !read(given[1], input) ||
        !fit_part(*group, output, input) ||
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
    FastGroup* group = group_of(given[3]);
    const auto blocking = blocking_of(given[4]);
    Tensor output, input;
    if (group == nullptr || !blocking || !read_target(given[0], output) || !read(given[1], input) ||
        !fit_part(*group, input, output) ||
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

/// Whether the rows of a tensor can be shared equally.
bool has_equal_rows(const FastGroup& group, const Tensor& tensor) {
    return tensor.dimensions > 0 && tensor.shape[0] % group.size == 0;
}

/// (output, input, group, async_op): equal shares.
PyObject* all_to_all_into(PyObject*, Arguments given, Py_ssize_t) {
    FastGroup* group = group_of(given[2]);
    const auto blocking = blocking_of(given[3]);
    Tensor output, input;
    if (group == nullptr || !blocking || !read_target(given[0], output) || !read(given[1], input) ||
        output.count != input.count || !fit(output, input) || !has_equal_rows(*group, output) ||
        !has_equal_rows(*group, input))
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

// ---- lists of tensors, one for each rank, all of one length
// --------------------------------------

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

// ---- calls that return new tensors
// ---------------------------------------------------------------

/// Runs a call into a new tensor; `rows`: its first dimension, if that differs.
PyObject* run_into_new(FastGroup& group, CallArguments& call, PyObject* like, const Tensor& tensor,
                       std::int64_t rows = -1) {
    nb::object made = nb::steal(TensorReader::instance().make_like(like, tensor, rows));
    Tensor result;
    if (!made.is_valid()) return nullptr;
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
    FastGroup* group = group_of(given[2]);
    Tensor tensor;
    if (group == nullptr || given[3] != Py_False || !read(given[0], tensor)) return not_ordinary();
    const Operator* by = operator_of(given[1], *tensor.type);
    if (by == nullptr) return not_ordinary();
    CallArguments call = call_of(Verb::all_reduce, tensor);
    call.source = tensor.data;
    reduce_by(call, *by);
    return with_no_handle(run_into_new(*group, call, given[0], tensor));
}

/// (tensor, group, async_op)
PyObject* all_gather_new(PyObject*, Arguments given, Py_ssize_t) {
    FastGroup* group = group_of(given[1]);
    Tensor tensor;
    if (group == nullptr || given[2] != Py_False || !read(given[0], tensor)) return not_ordinary();
    CallArguments call = call_of(Verb::all_gather, tensor);
    call.source = tensor.data;
    const std::int64_t rows = tensor.dimensions == 0 ? 1 : tensor.shape[0];
    return with_no_handle(run_into_new(*group, call, given[0], tensor, rows * group->size));
}

/// (tensor, op, group, async_op)
PyObject* reduce_scatter_new(PyObject*, Arguments given, Py_ssize_t) {
    FastGroup* group = group_of(given[2]);
    Tensor tensor;
    if (group == nullptr || given[3] != Py_False || !read(given[0], tensor) ||
        !has_equal_rows(*group, tensor))
        return not_ordinary();
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
    FastGroup* group = group_of(given[2]);
    Tensor tensor;
    if (group == nullptr || !read(given[0], tensor)) return not_ordinary();
    const auto root = rank_of(*group, given[1], Py_None);
    if (!root) return not_ordinary();
    CallArguments call = call_of(Verb::broadcast, tensor);
    call.source = *root == group->rank ? tensor.data : nullptr;
    call.root = *root;
    return run_into_new(*group, call, given[0], tensor);
}

// ---- messages
// ------------------------------------------------------------------------------------

/// A message, posted or complete; null with a Python error.
std::shared_ptr<Transfer> post(FastGroup& group, bool sending, const Tensor& tensor, int peer,
                               std::int64_t tag, bool blocking) {
    const nb::object python_group = group.group, native = group.native;
    Communicator& communicator = *group.communicator;
    auto transfer = communicator.transfer(sending, peer, tag);
    transfer->data = tensor.data;
    transfer->bytes = tensor.bytes();
    transfer->dtype_code = tensor.type->code;
    transfer->item_bytes = tensor.type->item_bytes;
    transfer->recorded = true;
    transfer->call_site = CallSiteFinder::current();
    const auto failure = failure_of([&] {
        if (blocking)
            communicator.run(transfer, {communicator.seconds(), interrupted});
        else
            communicator.start(transfer, communicator.seconds());
    });
    if (!failure) return transfer;
    set_explained_error(*failure, sending ? "send" : "recv", python_group.ptr(), tag);
    return nullptr;
}

/// What a message says: (tensor, peer, group, tag, group_peer).
struct Message {
    FastGroup* group = nullptr;
    Tensor tensor;
    int peer = -1;
    std::int64_t tag = 0;

    bool read(bool sending, Arguments given) {
        group = group_of(given[2]);
        const auto number = integer_of(given[3]);
        if (group == nullptr || !number || !unisono::read(given[0], tensor)) return false;
        tag = *number;
        const bool anyone = !sending && given[1] == Py_None && given[4] == Py_None;
        const auto rank = anyone ? std::optional<int>(-1) : rank_of(*group, given[1], given[4]);
        if (!rank || *rank == group->rank || (!sending && !tensor.writable)) return false;
        peer = *rank;
        return true;
    }
};

PyObject* send(PyObject*, Arguments given, Py_ssize_t) {
    Message message;
    if (!message.read(true, given)) return not_ordinary();
    const auto done = post(*message.group, true, message.tensor, message.peer, message.tag, true);
    return done == nullptr ? nullptr : Py_NewRef(Py_None);
}

/// Returns the sender's rank in the world.
PyObject* recv(PyObject*, Arguments given, Py_ssize_t) {
    Message message;
    if (!message.read(false, given)) return not_ordinary();
    const std::vector<int> world_ranks = message.group->world_ranks;
    const auto done = post(*message.group, false, message.tensor, message.peer, message.tag, true);
    if (done == nullptr) return nullptr;
    return PyLong_FromLong(world_ranks[static_cast<std::size_t>(done->source)]);
}

PyObject* start_message(bool sending, Arguments given) {
    Message message;
    if (!message.read(sending, given)) return not_ordinary();
    const nb::object python_group = message.group->group;
    auto transfer = post(*message.group, sending, message.tensor, message.peer, message.tag, false);
    if (transfer == nullptr) return nullptr;
    nb::list tensors;
    tensors.append(nb::handle(given[0]));
    return work_of(std::shared_ptr<Completion>(transfer, &transfer->completion), transfer, tensors,
                   sending ? "send" : "recv", python_group.ptr(), message.tag, tensors);
}

PyObject* isend(PyObject*, Arguments given, Py_ssize_t) { return start_message(true, given); }
PyObject* irecv(PyObject*, Arguments given, Py_ssize_t) { return start_message(false, given); }

// ---- ranks
// ---------------------------------------------------------------------------------------

/// (group)
PyObject* get_rank(PyObject*, PyObject* given) {
    const FastGroup* group = group_of(given);
    return group == nullptr ? not_ordinary() : Py_NewRef(group->rank_number.ptr());
}

/// (group)
PyObject* get_size(PyObject*, PyObject* given) {
    const FastGroup* group = group_of(given);
    return group == nullptr ? not_ordinary() : Py_NewRef(group->size_number.ptr());
}

/// Checks the number of arguments, and keeps C++ exceptions from Python.
template <PyObject* (*function)(PyObject*, Arguments, Py_ssize_t), Py_ssize_t count>
PyObject* checked(PyObject* self, Arguments given, Py_ssize_t number) {
    if (number != count) {
        PyErr_Format(PyExc_TypeError, "expected %zd arguments, got %zd", count, number);
        return nullptr;
    }
    try {
        return function(self, given, number);
    } catch (const std::bad_alloc&) {
        return PyErr_NoMemory();
    }
}

template <PyObject* (*function)(PyObject*, Arguments, Py_ssize_t), Py_ssize_t count>
PyMethodDef method(const char* name) {
    const auto pointer = &checked<function, count>;
    return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(pointer)),
            METH_FASTCALL, nullptr};
}

PyMethodDef methods[] = {
    method<all_reduce, 4>("all_reduce"),
    method<reduce, 6>("reduce"),
    method<broadcast, 5>("broadcast"),
    method<all_gather_into, 5>("all_gather_into"),
    method<reduce_scatter_into, 6>("reduce_scatter_into"),
    method<all_to_all_into, 4>("all_to_all_into"),
    method<barrier, 2>("barrier"),
    method<all_gather_list, 3>("all_gather_list"),
    method<all_to_all_list, 3>("all_to_all_list"),
    method<gather_list, 5>("gather_list"),
    method<scatter_list, 5>("scatter_list"),
    method<all_reduce_new, 4>("all_reduce_new"),
    method<all_gather_new, 3>("all_gather_new"),
    method<reduce_scatter_new, 4>("reduce_scatter_new"),
    method<broadcast_new, 3>("broadcast_new"),
    method<send, 5>("send"),
    method<recv, 5>("recv"),
    method<isend, 5>("isend"),
    method<irecv, 5>("irecv"),
    {"get_rank", &get_rank, METH_O, nullptr},
    {"get_size", &get_size, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

// ---- what Python tells us
// ------------------------------------------------------------------------

void add_group(nb::object group, nb::object native, int rank, std::vector<int> world_ranks,
               const std::vector<std::string>& names) {
    auto made = std::make_unique<FastGroup>();
    made->group = group;
    made->native = native;
    made->communicator = nb::cast<Communicator*>(native);
    made->rank = rank;
    made->size = static_cast<int>(world_ranks.size());
    made->rank_number = nb::int_(made->rank);
    made->size_number = nb::int_(made->size);
    made->world_ranks = std::move(world_ranks);
    for (const std::string& name : names)
        state().names[name.c_str()] = nb::steal(PyLong_FromVoidPtr(made.get()));
    state().groups.push_back(std::move(made));
}

/// Forgets the group of a communicator; others may still be in a call of it.
void remove_group(nb::handle native) {
    State& known = state();
    for (auto& group : known.groups) {
        if (group->native.ptr() != native.ptr()) continue;
        if (known.world == group.get()) known.world = nullptr;
        std::vector<nb::object> old;
        for (auto [name, address] : known.names)
            if (PyLong_AsVoidPtr(address.ptr()) == group.get()) old.push_back(nb::borrow(name));
        for (const nb::object& name : old) PyDict_DelItem(known.names.ptr(), name.ptr());
        const auto removed = std::move(group);  // it may be the last owner of Python objects
        std::erase(known.groups, nullptr);
        return;
    }
}

/// The group that None means; None: there is no such group for all threads.
void set_world(nb::handle world) {
    State& known = state();
    known.world = nullptr;
    for (const auto& group : known.groups)
        if (group->group.ptr() == world.ptr()) known.world = group.get();
}

std::uint64_t calls_of(nb::handle native) {
    for (const auto& group : state().groups)
        if (group->native.ptr() == native.ptr()) return group->calls;
    return 0;
}

/// What calls that nobody waits for still use. Never freed: it holds Python objects.
std::vector<KeptUntilDone>& left_behind() {
    static auto* instance = new std::vector<KeptUntilDone>;
    return *instance;
}

}  // namespace

void KeptUntilDone::leave(KeptUntilDone&& kept) { left_behind().push_back(std::move(kept)); }

void KeptUntilDone::sweep() {
    // Letting go may run Python code that comes back here, so it happens outside the list.
    std::vector<KeptUntilDone> ended;
    auto& all = left_behind();
    for (std::size_t i = 0; i < all.size();) {
        if (!all[i].completion_->done()) {
            ++i;
            continue;
        }
        ended.push_back(std::move(all[i]));
        all[i] = std::move(all.back());
        all.pop_back();
    }
}

void add_fast_calls(nb::module_& module) {
    nb::module_ fast = module.def_submodule("fast");
    PyModule_AddFunctions(fast.ptr(), methods);
    fast.def("add_group", &add_group);
    fast.def("remove_group", &remove_group);
    fast.def("set_world", &set_world, "world"_a.none());
    fast.def("name_world", [](const char* name) { state().names[name] = nb::int_(0); });
    fast.def("calls_of", &calls_of);
    fast.def("set_backward", [](bool backward) { backward_pass = backward; });
    fast.def("set_hooks", [](nb::object failed, nb::object started) {
        state().failed = std::move(failed);
        state().started = std::move(started);
    });
    fast.def("learn_operator", [](nb::object key, int code, double factor) {
        state().operators.push_back({std::move(key), static_cast<ReduceOp>(code), factor});
    });
    fast.def("learn_numpy", [](nb::handle array_type, nb::handle dtype, int code, int item_bytes,
                               std::uint32_t operators) {
        TensorReader::instance().learn_numpy(
            array_type.ptr(), dtype.ptr(),
            {static_cast<std::uint8_t>(code), static_cast<std::uint32_t>(item_bytes), operators});
    });
    fast.def("learn_dlpack", [](int dlpack_code, int bits, int code, int item_bytes,
                                std::uint32_t operators) {
        TensorReader::instance().learn_dlpack(
            dlpack_code, bits,
            {static_cast<std::uint8_t>(code), static_cast<std::uint32_t>(item_bytes), operators});
    });
    fast.def("learn_torch", [](nb::handle tensor_type) {
        return TensorReader::instance().learn_torch(tensor_type.ptr());
    });
}

}  // namespace unisono
