// native/fast_backend.cpp: the ordinary calls of torch's process groups and of their works, whole.
//
// A function here takes the arguments of the method of torch that it stands for, and returns
// NotImplemented, with nothing done, unless all is ordinary; a NativeMethod then makes the call by
// the method's own code in Python.
#include <nanobind/stl/optional.h>

#include <array>

#include "fast_request.hpp"

namespace nb = nanobind;

namespace unisono {

namespace {

/// Reads an ordinary tensor of torch; an array of NumPy is none here.
bool read_tensor(PyObject* object, Tensor& tensor) {
    return TensorReader::instance().read_torch(object, tensor);
}

/// The only entry of a list, kept because the caller may change the list during the call; invalid
/// if it is not a list of one.
nb::object only(PyObject* list) {
    return PyList_CheckExact(list) && PyList_GET_SIZE(list) == 1
               ? nb::borrow(PyList_GET_ITEM(list, 0))
               : nb::object();
}

// ---- methods of a group; the last argument is the options ----

/// (self, tensors, opts)
PyObject* all_reduce(PyObject*, Arguments given, Py_ssize_t) {
    Request request;
    Tensor tensor;
    const nb::object own = only(given[1]);
    if (!own.is_valid() || !request.read(given[0], given[2]) || !read_tensor(own.ptr(), tensor))
        return not_ordinary();
    CallArguments call = call_of(Verb::all_reduce, tensor);
    call.source = call.target = tensor.data;
    call.op = request.op(*tensor.type);
    if (call.op == ReduceOp::none) return not_ordinary();
    return request.make(call, own.ptr());
}

/// (self, tensors, opts)
PyObject* broadcast(PyObject*, Arguments given, Py_ssize_t) {
    Request request;
    Tensor tensor;
    const nb::object own = only(given[1]);
    if (!own.is_valid() || !request.read(given[0], given[2]) || !read_tensor(own.ptr(), tensor))
        return not_ordinary();
    CallArguments call = call_of(Verb::broadcast, tensor);
    call.root = request.root();
    if (call.root < 0) return not_ordinary();
    call.source = call.root == request.group().rank ? tensor.data : nullptr;
    call.target = tensor.data;
    return request.make(call, own.ptr());
}

/// (self, tensors, opts)
PyObject* reduce(PyObject*, Arguments given, Py_ssize_t) {
    Request request;
    Tensor tensor;
    const nb::object own = only(given[1]);
    if (!own.is_valid() || !request.read(given[0], given[2]) || !read_tensor(own.ptr(), tensor))
        return not_ordinary();
    CallArguments call = call_of(Verb::reduce, tensor);
    call.root = request.root();
    call.op = request.op(*tensor.type);
    if (call.root < 0 || call.op == ReduceOp::none) return not_ordinary();
    call.source = tensor.data;
    call.target = call.root == request.group().rank ? tensor.data : nullptr;
    return request.make(call, own.ptr());
}

/// (self, output, input, opts)
PyObject* all_gather_single(PyObject*, Arguments given, Py_ssize_t) {
    Request request;
    Tensor output, input;
    if (!request.read(given[0], given[3]) || !read_tensor(given[1], output) ||
        !read_tensor(given[2], input) || !fit_part(request.group(), output, input))
        return not_ordinary();
    CallArguments call = call_of(Verb::all_gather, input);
    call.source = input.data;
    call.target = output.data;
    return request.make(call, given[1], given[2]);
}

/// (self, output, input, opts)
PyObject* reduce_scatter_single(PyObject*, Arguments given, Py_ssize_t) {
    Request request;
    Tensor output, input;
    if (!request.read(given[0], given[3]) || !read_tensor(given[1], output) ||
        !read_tensor(given[2], input) || !fit_part(request.group(), input, output))
        return not_ordinary();
    CallArguments call = call_of(Verb::reduce_scatter, output);
    call.op = request.op(*output.type);
    if (call.op == ReduceOp::none) return not_ordinary();
    call.source = input.data;
    call.target = output.data;
    return request.make(call, given[1], given[2]);
}

/// (self, output, input, output_splits, input_splits, opts); splits that are empty mean equal ones.
PyObject* all_to_all_single(PyObject*, Arguments given, Py_ssize_t) {
    const auto is_empty = [](PyObject* list) {
        return PyList_CheckExact(list) && PyList_GET_SIZE(list) == 0;
    };
    Request request;
    Tensor output, input;
    if (!is_empty(given[3]) || !is_empty(given[4]) || !request.read(given[0], given[5]) ||
        !read_tensor(given[1], output) || !read_tensor(given[2], input) ||
        output.count != input.count || output.data == input.data || !fit(output, input) ||
        !has_equal_rows(request.group(), output) || !has_equal_rows(request.group(), input))
        return not_ordinary();
    CallArguments call = call_of(Verb::all_to_all, input);
    call.count = input.count / static_cast<std::uint64_t>(request.group().size);
    call.source = input.data;
    call.target = output.data;
    return request.make(call, given[1], given[2]);
}

/// (self, opts)
PyObject* barrier(PyObject*, Arguments given, Py_ssize_t) {
    Request request;
    if (!request.read(given[0], given[1])) return not_ordinary();
    CallArguments call;
    call.verb = Verb::barrier;
    return request.make(call, nullptr);
}

// ---- the same with lists; only calls that block ----

/// (self, output_lists, inputs, opts)
PyObject* all_gather(PyObject*, Arguments given, Py_ssize_t) {
    Request request;
    const nb::object outputs = only(given[1]), input = only(given[2]);
    if (!outputs.is_valid() || !input.is_valid() || !request.read(given[0], given[3]) ||
        !request.blocking())
        return not_ordinary();
    return Request::ended(all_gather_list(request.group(), outputs.ptr(), input.ptr()));
}

/// (self, outputs, input_lists, opts)
PyObject* reduce_scatter(PyObject*, Arguments given, Py_ssize_t) {
    Request request;
    Tensor tensor;
    const nb::object output = only(given[1]), inputs = only(given[2]);
    if (!output.is_valid() || !inputs.is_valid() || !request.read(given[0], given[3]) ||
        !request.blocking() || !read_tensor(output.ptr(), tensor))
        return not_ordinary();
    const ReduceOp op = request.op(*tensor.type);
    if (op == ReduceOp::none) return not_ordinary();
    return Request::ended(reduce_scatter_list(request.group(), output.ptr(), inputs.ptr(), op));
}

/// (self, outputs, inputs, opts)
PyObject* all_to_all(PyObject*, Arguments given, Py_ssize_t) {
    Request request;
    if (!request.read(given[0], given[3]) || !request.blocking()) return not_ordinary();
    return Request::ended(all_to_all_list(request.group(), given[1], given[2]));
}

/// The list of a root, as torch passes it: in a list on the root, an empty list elsewhere.
nb::object list_of_root(PyObject* lists) {
    if (PyList_CheckExact(lists) && PyList_GET_SIZE(lists) == 0) return nb::none();
    return only(lists);
}

/// (self, output_lists, inputs, opts)
PyObject* gather(PyObject*, Arguments given, Py_ssize_t) {
    Request request;
    const nb::object outputs = list_of_root(given[1]), input = only(given[2]);
    if (!outputs.is_valid() || !input.is_valid() || !request.read(given[0], given[3]) ||
        !request.blocking())
        return not_ordinary();
    const int root = request.root();
    if (root < 0) return not_ordinary();
    return Request::ended(gather_list(request.group(), input.ptr(), outputs.ptr(), root));
}

/// (self, outputs, input_lists, opts)
PyObject* scatter(PyObject*, Arguments given, Py_ssize_t) {
    Request request;
    const nb::object output = only(given[1]), inputs = list_of_root(given[2]);
    if (!output.is_valid() || !inputs.is_valid() || !request.read(given[0], given[3]) ||
        !request.blocking())
        return not_ordinary();
    const int root = request.root();
    if (root < 0) return not_ordinary();
    return Request::ended(scatter_list(request.group(), output.ptr(), inputs.ptr(), root));
}

// ---- messages ----

/// (self, tensors, peer, tag)
PyObject* message(bool sending, Arguments given, Py_ssize_t number) {
    Request request;
    Tensor tensor;
    const nb::object own = only(given[1]);
    if (!own.is_valid() || !request.read(given[0]) || !read_tensor(own.ptr(), tensor))
        return not_ordinary();
    const auto peer = integer_of(given[2]);
    const auto tag = number < 4 ? 0 : integer_of(given[3]);
    const FastGroup& group = request.group();
    if (!peer || !tag || *peer < 0 || *peer >= group.size || *peer == group.rank)
        return not_ordinary();
    return request.post_message(sending, own.ptr(), tensor, static_cast<int>(*peer), *tag);
}

PyObject* send(PyObject*, Arguments given, Py_ssize_t number) {
    return message(true, given, number);
}
PyObject* recv(PyObject*, Arguments given, Py_ssize_t number) {
    return message(false, given, number);
}

// ---- methods of a work ----

/// (self, timeout): waits for a call; runs a collective here if no thread does. What went wrong is
/// left to Python, except Ctrl-C.
PyObject* wait(PyObject*, Arguments given, Py_ssize_t number) {
    if (number == 2 && !is_unset(given[1])) return not_ordinary();
    const nb::object native = attribute(given[0], backend().call);
    if (!native.is_valid() || Py_TYPE(native.ptr()) != backend().call_type ||
        !nb::inst_ready(native))
        return not_ordinary();
    auto& call = *nb::inst_ptr<BackendCall>(native);
    const auto& completion = call.handle.completion;
    if (!completion->done()) {
        const Limits forever{1e18, interrupted};  // the call itself has a deadline
        const auto failure = failure_of([&] {
            if (call.handle.transfer == nullptr) {
                call.group->communicator->finish(completion, forever);
            } else {
                call.handle.fork_guard.check();
                completion->wait(forever);
            }
        });
        if (failure) {
            set_error(*failure);
            return nullptr;
        }
    }
    call.handle.kept = {};
    return completion->failure() == nullptr ? Py_NewRef(Py_True) : not_ordinary();
}

/// Calls a Python function when the call has ended, for somebody who is about to wait in C++.
void on_done(const BackendCall& call, nb::object function) {
    const auto& completion = call.handle.completion;
    if (!completion->done()) {
        const Interpreter::Unlocked unlocked;
        call.group->communicator->begin(completion);
    }
    call.handle.on_done(std::move(function));
}

/// Shows Python's collector what a call has. Not what it keeps until it has ended: others have
/// that.
int traverse_call(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    if (!nb::inst_ready(self)) return 0;
    const auto& call = *nb::inst_ptr<BackendCall>(self);
    Py_VISIT(call.process_group.ptr());
    Py_VISIT(call.calls.ptr());
    Py_VISIT(call.tensors.ptr());
    return 0;
}

PyType_Slot call_slots[] = {
    {Py_tp_traverse, reinterpret_cast<void*>(&traverse_call)},
    {0, nullptr},
};

/// Lets the last argument be left out, which is None then, or be given by the keyword "opts", as
/// torch does, and keeps C++ exceptions from Python. Python says what is wrong with other
/// arguments.
template <PyObject* (*function)(PyObject*, Arguments, Py_ssize_t), Py_ssize_t count>
PyObject* with_options(PyObject* self, Arguments given, Py_ssize_t number, PyObject* names) {
    const Py_ssize_t named = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
    if (number + named > count || number + 1 < count || named > 1) return not_ordinary();
    if (named == 1 && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "opts") != 0)
        return not_ordinary();
    Interpreter::stop_if_ended();
    try {
        if (number + named == count) return function(self, given, count);
        std::array<PyObject*, count> all;
        std::copy_n(given, number, all.begin());
        all.back() = Py_None;
        return function(self, all.data(), number);
    } catch (const std::exception&) {
        set_unexpected_error();
        return nullptr;
    }
}

template <PyObject* (*function)(PyObject*, Arguments, Py_ssize_t), Py_ssize_t count>
PyMethodDef method_with_options(const char* name) {
    const auto pointer = &with_options<function, count>;
    return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(pointer)),
            METH_FASTCALL | METH_KEYWORDS, nullptr};
}

PyMethodDef methods[] = {
    method_with_options<all_reduce, 3>("all_reduce"),
    method_with_options<broadcast, 3>("broadcast"),
    method_with_options<reduce, 3>("reduce"),
    method_with_options<all_gather_single, 4>("all_gather_single"),
    method_with_options<reduce_scatter_single, 4>("reduce_scatter_single"),
    method_with_options<all_to_all_single, 6>("all_to_all_single"),
    method_with_options<barrier, 2>("barrier"),
    method_with_options<all_gather, 4>("all_gather"),
    method_with_options<reduce_scatter, 4>("reduce_scatter"),
    method_with_options<all_to_all, 4>("all_to_all"),
    method_with_options<gather, 4>("gather"),
    method_with_options<scatter, 4>("scatter"),
    method_with_options<send, 4>("send"),
    method_with_options<recv, 4>("recv"),
    method_with_options<wait, 2>("wait"),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void add_fast_backend(nb::module_& fast) {
    nb::module_ module = fast.def_submodule("backend");
    PyModule_AddFunctions(module.ptr(), methods);
    add_native_method(module);
    const nb::class_<BackendGroup> group(module, "BackendGroup");
    backend().group_type = reinterpret_cast<PyTypeObject*>(group.ptr());
    const nb::class_<BackendCall> call =
        nb::class_<BackendCall>(module, "BackendCall", nb::type_slots(call_slots))
            .def_prop_ro("handle", [](BackendCall& self) -> CallHandle& { return self.handle; })
            .def("on_done", &on_done)
            .def_prop_ro("process_group", [](BackendCall& self) { return self.process_group; })
            .def_prop_ro("calls", [](BackendCall& self) { return self.calls; })
            .def_prop_ro("verb", [](BackendCall& self) { return self.verb; })
            .def_prop_ro("number", [](BackendCall& self) { return self.number; })
            .def_prop_ro("tag", [](BackendCall& self) { return self.tag; })
            .def_prop_ro("peer",  // of a message; -1 for a collective
                         [](BackendCall& self) {
                             const auto& transfer = self.handle.transfer;
                             return transfer == nullptr ? -1 : transfer->peer;
                         })
            .def_prop_ro("tensors", [](BackendCall& self) { return self.tensors; });
    backend().call_type = reinterpret_cast<PyTypeObject*>(call.ptr());
    module.def("set_works", [](nb::object finished, nb::object work, nb::object message) {
        backend().finished = std::move(finished);
        backend().work = std::move(work);
        backend().message = std::move(message);
    });
    module.def("learn_operator", [](std::size_t number, int code) {
        backend().operators.at(number) = static_cast<ReduceOp>(code);
    });
    // Takes (object, blocking, milliseconds, operator, root) of one class of options.
    module.def("learn_options", [](nb::list given) {
        using Integer = std::optional<std::int64_t>;
        std::vector<OptionExample> examples;
        for (nb::handle each : given)
            examples.push_back({nb::object(each[0]).ptr(),
                                {nb::cast<bool>(each[1]), nb::cast<std::int64_t>(each[2]),
                                 nb::cast<Integer>(each[3]), nb::cast<Integer>(each[4])}});
        return backend().options.learn(examples);
    });
    module.def("set_callback_thread", [](bool is_one) { runs_callbacks = is_one; });
    // None for a group that we do not serve.
    module.def("group_of", [](nb::handle native, nb::object calls) -> nb::object {
        for (const auto& group : state().groups)
            if (group->native.ptr() == native.ptr())
                return nb::cast(BackendGroup{group, std::move(calls)});
        return nb::none();
    });
}

}  // namespace unisono
