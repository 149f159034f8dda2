// native/fast_messages.cpp: messages from one rank to another.
#include "fast_call.hpp"

namespace nb = nanobind;

namespace unisono {

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

namespace {

/// What a message says: (tensor, peer, group, tag, group_peer).
struct Message {
    FastGroup* group = nullptr;
    Tensor tensor;
    int peer = -1;
    std::int64_t tag = 0;

    bool read(bool sending, Arguments given) {
        const auto number = integer_of(given[3]);
        if (!number || !unisono::read(given[0], tensor)) return false;
        group = group_of(given[2]);
        if (group == nullptr) return false;
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

PyMethodDef methods[] = {
    method<send, 5>("send"),   method<recv, 5>("recv"),        method<isend, 5>("isend"),
    method<irecv, 5>("irecv"), {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void add_fast_messages(nb::module_& fast) { PyModule_AddFunctions(fast.ptr(), methods); }

}  // namespace unisono
