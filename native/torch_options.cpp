// native/torch_options.cpp: finds and reads the fields of torch's options.
#include "torch_options.hpp"

#include <malloc.h>

#include <algorithm>
#include <cstring>

namespace unisono {

namespace {

/// Nothing of interest is farther from the beginning.
constexpr std::size_t longest = 256;

/// The struct of an object: pybind11 keeps its address behind the head of the object. Null for an
/// object that was never initialised.
const unsigned char* struct_of(PyObject* object) noexcept {
    const unsigned char* found;
    std::memcpy(&found, reinterpret_cast<const char*>(object) + sizeof(PyObject), sizeof found);
    return found;
}

template <class T>
T load(const unsigned char* memory, int offset) noexcept {
    T value;
    std::memcpy(&value, memory + offset, sizeof value);
    return value;
}

/// The only offset at which each example has its own `value(example)`, of type T; -1 if there is
/// none, or another one.
template <class T, class Value>
int find(std::span<const OptionExample> examples, std::size_t bytes, Value value) {
    int found = -1;
    for (std::size_t offset = 0; offset + sizeof(T) <= bytes; offset += sizeof(T)) {
        const auto fits = [&](const OptionExample& example) {
            return load<T>(struct_of(example.object), static_cast<int>(offset)) ==
                   static_cast<T>(value(example.values));
        };
        if (!std::all_of(examples.begin(), examples.end(), fits)) continue;
        if (found != -1) return -1;
        found = static_cast<int>(offset);
    }
    return found;
}

}  // namespace

std::optional<OptionLayout> OptionLayout::learn(std::span<const OptionExample> examples) {
    if (examples.empty()) return std::nullopt;
    OptionLayout layout;
    layout.type = Py_TYPE(examples.front().object);
    // An object with room for no address behind its head is not pybind11's.
    if (layout.type->tp_basicsize < static_cast<Py_ssize_t>(sizeof(PyObject) + sizeof(void*)))
        return std::nullopt;
    std::size_t bytes = longest;
    for (const OptionExample& example : examples) {
        const unsigned char* memory = struct_of(example.object);
        if (Py_TYPE(example.object) != layout.type || memory == nullptr) return std::nullopt;
        bytes = std::min(bytes, malloc_usable_size(const_cast<unsigned char*>(memory)));
    }
    const OptionValues& first = examples.front().values;
    layout.async_op = find<std::uint8_t>(
        examples, bytes, [](const OptionValues& values) { return !values.blocking; });
    layout.timeout = find<std::int64_t>(
        examples, bytes, [](const OptionValues& values) { return values.timeout_ms; });
    if (first.op)
        layout.op = find<std::uint8_t>(examples, bytes,
                                       [](const OptionValues& values) { return *values.op; });
    if (first.root)
        layout.root = find<std::int64_t>(examples, bytes,
                                         [](const OptionValues& values) { return *values.root; });
    const bool all = layout.async_op >= 0 && layout.timeout >= 0 && (!first.op || layout.op >= 0) &&
                     (!first.root || layout.root >= 0);
    return all ? std::optional(layout) : std::nullopt;
}

bool OptionLayouts::learn(std::span<const OptionExample> examples) {
    const auto layout = OptionLayout::learn(examples);
    if (!layout || count_ == layouts_.size()) return false;
    for (std::size_t i = 0; i < count_; ++i)
        if (layouts_[i].type == layout->type) return true;
    Py_INCREF(layout->type);
    layouts_[count_++] = *layout;
    return true;
}

std::optional<OptionValues> OptionLayouts::read(PyObject* options) const noexcept {
    const PyTypeObject* type = Py_TYPE(options);
    for (std::size_t i = 0; i < count_; ++i) {
        const OptionLayout& layout = layouts_[i];
        if (layout.type != type) continue;
        const unsigned char* memory = struct_of(options);
        if (memory == nullptr) return std::nullopt;
        OptionValues values;
        values.blocking = load<std::uint8_t>(memory, layout.async_op) == 0;
        values.timeout_ms = load<std::int64_t>(memory, layout.timeout);
        if (layout.op >= 0) values.op = load<std::uint8_t>(memory, layout.op);
        if (layout.root >= 0) values.root = load<std::int64_t>(memory, layout.root);
        return values;
    }
    return std::nullopt;
}

}  // namespace unisono
