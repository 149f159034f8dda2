// native/torch_options.hpp: the options of torch's calls, read where torch keeps them.
//
// An options object is a C++ struct behind a Python object, and each of its attributes costs a
// call of torch that takes as long as a small collective. We do not know the struct, so Python
// shows us examples (torch/backend/direct/option_examples.py): objects whose attributes it has set
// in many different ways. Where a field has the right bytes in all of them, and only there, it is
// found. If one field is not found, all attributes of that class are read by Python's way.
#pragma once

#include <Python.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>

namespace unisono {

/// Values of options; what a class does not have is empty.
struct OptionValues {
    bool blocking = false;
    std::int64_t timeout_ms = 0;  ///< negative: unset
    std::optional<std::int64_t> op;
    std::optional<std::int64_t> root;
};

/// An object with known values.
struct OptionExample {
    PyObject* object;
    OptionValues values;
};

/// Where one class keeps its fields: offsets in its struct; -1 for what it does not have.
struct OptionLayout {
    PyTypeObject* type = nullptr;
    int async_op = -1, timeout = -1, op = -1, root = -1;

    /// Finds out from examples of one class; empty if a field cannot be told.
    static std::optional<OptionLayout> learn(std::span<const OptionExample> examples);
};

/// All classes that are known.
class OptionLayouts {
public:
    /// Adds a class, or nothing if its layout cannot be told; whether it can.
    bool learn(std::span<const OptionExample> examples);

    /// The values of an object; empty if its class is not known.
    std::optional<OptionValues> read(PyObject* options) const noexcept;

private:
    std::array<OptionLayout, 16> layouts_;
    std::size_t count_ = 0;
};

}  // namespace unisono
