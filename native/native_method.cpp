// native/native_method.cpp: a method of a Python class that begins in native code.
#include "fast_call.hpp"

// After Python.h.
#include <structmember.h>

namespace nb = nanobind;

namespace unisono {

namespace {

/// A method made of two functions: the first one is native and makes ordinary calls; where it
/// returns NotImplemented, the second one makes the call. No builtin function, because torch's C++
/// takes those for its own methods.
struct NativeMethod {
    PyObject base;
    vectorcallfunc call;
    PyObject* ordinary;
    PyObject* general;
};

PyObject* call_method(PyObject* self, PyObject* const* given, std::size_t count, PyObject* names) {
    const auto* method = reinterpret_cast<const NativeMethod*>(self);
    PyObject* result = PyObject_Vectorcall(method->ordinary, given, count, names);
    if (result != Py_NotImplemented) return result;
    Py_DECREF(result);
    return PyObject_Vectorcall(method->general, given, count, names);
}

PyObject* bind_method(PyObject* self, PyObject* object, PyObject*) {
    return object == nullptr || object == Py_None ? Py_NewRef(self) : PyMethod_New(self, object);
}

void free_method(PyObject* self) {
    auto* method = reinterpret_cast<NativeMethod*>(self);
    PyTypeObject* type = Py_TYPE(self);
    Py_XDECREF(method->ordinary);
    Py_XDECREF(method->general);
    type->tp_free(self);
    Py_DECREF(type);
}

/// The name, signature and documentation of the general function are its own.
PyObject* attribute_of_method(PyObject* self, PyObject* name) {
    PyObject* found = PyObject_GenericGetAttr(self, name);
    if (found != nullptr && found != Py_None) return found;
    PyErr_Clear();
    Py_XDECREF(found);
    return PyObject_GetAttr(reinterpret_cast<NativeMethod*>(self)->general, name);
}

PyMemberDef method_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(NativeMethod, call), READONLY, nullptr},
    {"__wrapped__", T_OBJECT_EX, offsetof(NativeMethod, general), READONLY, nullptr},
    {"ordinary", T_OBJECT_EX, offsetof(NativeMethod, ordinary), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot method_slots[] = {
    {Py_tp_call, reinterpret_cast<void*>(&PyVectorcall_Call)},
    {Py_tp_descr_get, reinterpret_cast<void*>(&bind_method)},
    {Py_tp_dealloc, reinterpret_cast<void*>(&free_method)},
    {Py_tp_getattro, reinterpret_cast<void*>(&attribute_of_method)},
    {Py_tp_members, method_members},
    {0, nullptr},
};

PyType_Spec method_spec = {"unisono._native.fast.NativeMethod", sizeof(NativeMethod), 0,
                           // Found in a class, it is called with the object as its first argument,
                           // and none is made to hold the two.
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL |
                               Py_TPFLAGS_METHOD_DESCRIPTOR | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                           method_slots};

nb::object make_method(nb::object ordinary, nb::object general) {
    static auto* const type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&method_spec));
    if (type == nullptr) throw nb::python_error();
    auto* made = PyObject_New(NativeMethod, type);
    if (made == nullptr) throw nb::python_error();
    made->call = &call_method;
    made->ordinary = ordinary.release().ptr();
    made->general = general.release().ptr();
    return nb::steal(reinterpret_cast<PyObject*>(made));
}

}  // namespace

void add_native_method(nb::module_& module) { module.def("method", &make_method); }

}  // namespace unisono
