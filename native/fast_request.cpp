// native/fast_request.cpp: reads torch's options, and makes the works of calls in progress.
#include "fast_request.hpp"

// After Python.h.
#include <datetime.h>

namespace nb = nanobind;

namespace unisono {

constinit thread_local bool runs_callbacks = false;

Backend& backend() {
    static auto* instance = new Backend;
    return *instance;
}

nb::object attribute(PyObject* object, PyObject* name) {
    nb::object found = nb::steal(PyObject_GetAttr(object, name));
    if (!found.is_valid()) PyErr_Clear();
    return found;
}

bool is_unset(PyObject* time) {
    if (PyDateTimeAPI == nullptr) PyDateTime_IMPORT;
    if (PyDateTimeAPI == nullptr || !PyDelta_Check(time)) return false;
    const int days = PyDateTime_DELTA_GET_DAYS(time);
    return days < 0 || (days == 0 && PyDateTime_DELTA_GET_SECONDS(time) == 0 &&
                        PyDateTime_DELTA_GET_MICROSECONDS(time) == 0);
}

bool Request::read(PyObject* process_group, PyObject* options) {
    const Backend& known = backend();
    const auto has_modes = state().has_modes;
    if (runs_callbacks || is_profiled() || (has_modes != nullptr && has_modes(true))) return false;
    direct_ = attribute(process_group, known.direct);
    if (!direct_.is_valid() || Py_TYPE(direct_.ptr()) != known.group_type) return false;
    process_group_ = process_group;
    options_ = options;
    if (options == Py_None) return true;  // in the background
    values_ = known.options.read(options);
    if (values_) {
        blocking_ = values_->blocking;
        return values_->timeout_ms <= 0;
    }
    const nb::object async_op = attribute(options, known.async_op);
    if (!async_op.is_valid() || (async_op.ptr() != Py_True && async_op.ptr() != Py_False))
        return false;
    blocking_ = async_op.ptr() == Py_False;
    const nb::object timeout = attribute(options, known.timeout);
    return timeout.is_valid() && is_unset(timeout.ptr());
}

// The hash of torch's operators is their number, which torch/backend/direct has checked.
ReduceOp Request::op(const ElementType& type) const {
    Py_hash_t number = 0;  // the sum
    if (values_) {
        number = static_cast<Py_hash_t>(values_->op.value_or(-1));
    } else if (options_ != Py_None) {
        const nb::object given = attribute(options_, backend().reduce_op);
        number = given.is_valid() ? PyObject_Hash(given.ptr()) : -1;
        if (number == -1) PyErr_Clear();
    }
    const auto& operators = backend().operators;
    if (number < 0 || number >= static_cast<Py_hash_t>(operators.size())) return ReduceOp::none;
    const ReduceOp found = operators[static_cast<std::size_t>(number)];
    if (found == ReduceOp::none) return found;
    return (type.operators >> static_cast<int>(found) & 1) != 0 ? found : ReduceOp::none;
}

int Request::root() const {
    if (options_ == Py_None) return -1;
    std::optional<std::int64_t> root;
    if (values_) {
        root = values_->root;
    } else {
        const nb::object given = attribute(options_, backend().root_rank);
        if (given.is_valid()) root = integer_of(given.ptr());
    }
    return root && *root >= 0 && *root < group().size ? static_cast<int>(*root) : -1;
}

PyObject* Request::post_message(bool sending, PyObject* own, const Tensor& tensor, int peer,
                                std::int64_t tag) const {
    KeptUntilDone::sweep();
    auto transfer = post(group(), sending, tensor, peer, tag, false);
    if (transfer == nullptr) return nullptr;
    BackendCall made;
    made.verb = sending ? "send" : "recv";
    made.tag = tag;
    made.handle.completion = std::shared_ptr<Completion>(transfer, &transfer->completion);
    made.handle.transfer = std::move(transfer);
    return work_of(std::move(made), backend().message, own, nullptr);
}

PyObject* Request::ended(PyObject* result) {
    if (result != Py_None) return result;
    Py_DECREF(result);
    return Py_NewRef(backend().finished.ptr());
}

PyObject* Request::start(CallArguments& call, PyObject* result, PyObject* other) const {
    KeptUntilDone::sweep();
    BackendCall made;
    FastGroup& group = this->group();
    call.call_site = CallSiteFinder::current();
    call.backward = backward_pass;
    made.verb = name(call.verb);
    made.number = ++group.calls;
    const nb::object counted = attribute(group.group.ptr(), backend().calls);
    if (counted.is_valid())
        made.number += static_cast<std::uint64_t>(integer_of(counted.ptr()).value_or(0));
    try {
        // With the GIL: nobody who has the lock of the queue waits for it.
        made.handle.completion =
            group.communicator->start(std::move(call), group.communicator->seconds());
    } catch (const Failure& failure) {
        set_explained_error(failure, made.verb, group.group.ptr(), 0);
        return nullptr;
    }
    return work_of(std::move(made), backend().work, result, other);
}

/// The work of a call in progress, with all that it needs.
PyObject* Request::work_of(BackendCall made, const nb::object& type, PyObject* result,
                           PyObject* other) const {
    made.group = own().group;
    made.process_group = nb::borrow(process_group_);
    made.calls = own().calls;
    nb::list tensors;  // not the caller's list, which may change
    if (result != nullptr) tensors.append(nb::handle(result));
    made.tensors = std::move(tensors);
    nb::object used = other == nullptr
                          ? made.tensors
                          : nb::object(nb::make_tuple(made.tensors, nb::handle(other)));
    made.handle.kept = {std::move(used), made.handle.completion, made.handle.transfer != nullptr};
    const nb::object native = nb::cast(std::move(made));
    nb::object work = nb::steal(PyObject_CallNoArgs(type.ptr()));
    if (!work.is_valid() || PyObject_SetAttr(work.ptr(), backend().call, native.ptr()) != 0)
        return nullptr;
    return work.release().ptr();
}

}  // namespace unisono
