// native/numpy_allocator.hpp: arrays of NumPy in the memory of a heap, by NumPy's own allocator.
#pragma once

#include <Python.h>

#include <cstddef>
#include <memory>
#include <string>

#include "heap.hpp"

namespace unisono {

/// A handler of NumPy's data memory (NEP 49) that puts arrays of at least `minimum` bytes into
/// `heap`, and smaller ones where NumPy would put them now. Each array keeps the handler that made
/// it. Null with a Python error if this NumPy has no handlers. The GIL is held, here and below.
PyObject* make_array_handler(std::shared_ptr<Heap> heap, std::size_t minimum);

/// Lets a handler make the arrays of the current context; returns the one that did so far, or null
/// with a Python error.
PyObject* set_array_handler(PyObject* handler);

/// Why the last array of this thread got no memory of a heap; empty once it was told.
std::string take_refusal();

}  // namespace unisono
