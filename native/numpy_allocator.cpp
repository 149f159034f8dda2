// native/numpy_allocator.cpp: NEP 49 without NumPy's headers, so that one module serves all
// versions of NumPy.
#include "numpy_allocator.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

namespace unisono {

namespace {

/// NumPy's struct of an allocator, version 1.
struct NumpyHandler {
    char name[127];
    std::uint8_t version;
    void* context;
    void* (*allocate)(void* context, std::size_t bytes);
    void* (*allocate_zeroed)(void* context, std::size_t count, std::size_t bytes);
    void* (*resize)(void* context, void* data, std::size_t bytes);
    void (*release)(void* context, void* data, std::size_t bytes);
};

constexpr const char* capsule_name = "mem_handler";
constexpr const char* handler_name = "unisono";

// Places in NumPy's table of C functions; they are the same in all versions since 1.22.
constexpr std::size_t set_handler_slot = 304;
constexpr std::size_t get_handler_slot = 305;

using SetHandler = PyObject* (*)(PyObject*);
using GetHandler = PyObject* (*)();

thread_local std::string refusal;

/// What one of our handlers knows. `base` makes the arrays that are too small.
struct ArrayHandler {
    NumpyHandler numpy{};
    std::shared_ptr<Heap> heap;
    std::size_t minimum = 0;
    PyObject* base_capsule = nullptr;
    const NumpyHandler* base = nullptr;
};

ArrayHandler& handler_of(void* context) { return *static_cast<ArrayHandler*>(context); }

/// Memory of the heap; null, and the reason kept, if there is none. A closed heap has none either:
/// after the end of the world arrays are ordinary ones.
void* allocate_shared(ArrayHandler& handler, std::size_t bytes, bool zeroed) {
    try {
        return handler.heap->allocate(bytes, zeroed);
    } catch (const Failure& failure) {
        if (failure.kind == FailureKind::closed)
            return zeroed ? handler.base->allocate_zeroed(handler.base->context, 1, bytes)
                          : handler.base->allocate(handler.base->context, bytes);
        refusal = failure.text;
    } catch (const std::bad_alloc&) {
        refusal = "there is no memory for the list of arrays";
    }
    return nullptr;
}

void* allocate(void* context, std::size_t bytes) {
    ArrayHandler& handler = handler_of(context);
    if (bytes < handler.minimum) return handler.base->allocate(handler.base->context, bytes);
    return allocate_shared(handler, bytes, false);
}

void* allocate_zeroed(void* context, std::size_t count, std::size_t item) {
    ArrayHandler& handler = handler_of(context);
    std::size_t bytes;
    if (__builtin_mul_overflow(count, item, &bytes)) return nullptr;
    if (bytes < handler.minimum)
        return handler.base->allocate_zeroed(handler.base->context, count, item);
    return allocate_shared(handler, bytes, true);
}

void release(void* context, void* data, std::size_t bytes) {
    const ArrayHandler& handler = handler_of(context);
    if (!Heap::free(data)) handler.base->release(handler.base->context, data, bytes);
}

/// An array stays in the kind of memory that it has: only there its old length is known.
void* resize(void* context, void* data, std::size_t bytes) {
    ArrayHandler& handler = handler_of(context);
    if (data == nullptr) return allocate(context, bytes);
    const std::size_t before = Heap::block_bytes(data);
    if (before == 0) return handler.base->resize(handler.base->context, data, bytes);
    if (bytes <= before && bytes >= before / 2) return data;
    void* const made = allocate_shared(handler, bytes, false);
    if (made == nullptr) return nullptr;
    std::memcpy(made, data, std::min(before, bytes));
    Heap::free(data);
    return made;
}

void destroy(PyObject* capsule) {
    auto* handler = static_cast<ArrayHandler*>(PyCapsule_GetContext(capsule));
    Py_DECREF(handler->base_capsule);
    delete handler;
}

/// NumPy's table of C functions; null with a Python error.
void** numpy_functions() {
    static void** table = nullptr;
    if (table != nullptr) return table;
    PyObject* module = PyImport_ImportModule("numpy._core.multiarray");
    if (module == nullptr && PyErr_ExceptionMatches(PyExc_ImportError)) {
        PyErr_Clear();
        module = PyImport_ImportModule("numpy.core.multiarray");  // before NumPy 2
    }
    PyObject* capsule = module == nullptr ? nullptr : PyObject_GetAttrString(module, "_ARRAY_API");
    Py_XDECREF(module);
    if (capsule == nullptr) return nullptr;
    table = static_cast<void**>(PyCapsule_GetPointer(capsule, nullptr));
    Py_DECREF(capsule);  // the module has it
    return table;
}

}  // namespace

PyObject* make_array_handler(std::shared_ptr<Heap> heap, std::size_t minimum) {
    void** functions = numpy_functions();
    if (functions == nullptr) return nullptr;
    PyObject* base = reinterpret_cast<GetHandler>(functions[get_handler_slot])();
    if (base == nullptr) return nullptr;
    auto* found = static_cast<NumpyHandler*>(PyCapsule_GetPointer(base, capsule_name));
    if (found != nullptr && found->version != 1)
        PyErr_Format(PyExc_RuntimeError, "NumPy's memory handler has version %d; 1 is known",
                     found->version);
    if (PyErr_Occurred() != nullptr) {
        Py_DECREF(base);
        return nullptr;
    }
    if (found->allocate == &allocate) {  // ours: contexts are nested
        const ArrayHandler& outer = handler_of(found->context);
        found = const_cast<NumpyHandler*>(outer.base);
        Py_INCREF(outer.base_capsule);
        Py_DECREF(base);
        base = outer.base_capsule;
    }
    auto* made = new ArrayHandler;
    std::strncpy(made->numpy.name, handler_name, sizeof made->numpy.name - 1);
    made->numpy.version = 1;
    made->numpy.context = made;
    made->numpy.allocate = &allocate;
    made->numpy.allocate_zeroed = &allocate_zeroed;
    made->numpy.resize = &resize;
    made->numpy.release = &release;
    made->heap = std::move(heap);
    made->minimum = minimum;
    made->base_capsule = base;
    made->base = found;
    PyObject* capsule = PyCapsule_New(&made->numpy, capsule_name, nullptr);
    if (capsule == nullptr || PyCapsule_SetContext(capsule, made) != 0 ||
        PyCapsule_SetDestructor(capsule, &destroy) != 0) {
        Py_XDECREF(capsule);
        Py_DECREF(base);
        delete made;
        return nullptr;
    }
    return capsule;
}

PyObject* set_array_handler(PyObject* handler) {
    void** functions = numpy_functions();
    return functions == nullptr
               ? nullptr
               : reinterpret_cast<SetHandler>(functions[set_handler_slot])(handler);
}

std::string take_refusal() {
    std::string text;
    text.swap(refusal);
    return text;
}

}  // namespace unisono
