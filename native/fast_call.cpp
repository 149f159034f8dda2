// native/fast_call.cpp: makes a call that was found to be ordinary, and says how it ended.
#include "fast_call.hpp"

namespace nb = nanobind;

namespace unisono {
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

void set_unexpected_error() {
    try {
        throw;
    } catch (nb::python_error& error) {
        error.restore();
    } catch (const std::bad_alloc&) {
        PyErr_NoMemory();
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    }
}

PyObject* work_of(std::shared_ptr<Completion> completion, std::shared_ptr<Transfer> transfer,
                  nb::object used, const char* verb, PyObject* group, std::int64_t tag,
                  nb::list tensors) {
    KeptUntilDone::sweep();
    KeptUntilDone kept(std::move(used), completion, transfer != nullptr);
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

PyObject* make(FastGroup& group, CallArguments& call, bool blocking, PyObject* result,
               PyObject* other) {
    if (blocking) return run(group, call) ? Py_NewRef(Py_None) : nullptr;
    const nb::object python_group = group.group, native = group.native;
    Communicator& communicator = *group.communicator;
    ++group.calls;  // first, as in run()
    call.call_site = CallSiteFinder::current();
    call.backward = backward_pass;
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

namespace {

/// What messages that nobody waits for still use. Never freed: it holds Python objects.
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
    add_fast_groups(fast);
    add_fast_verbs(fast);
    add_fast_lists(fast);
    add_fast_messages(fast);
    add_fast_backend(fast);
}

}  // namespace unisono
