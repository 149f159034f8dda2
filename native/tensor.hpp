// native/tensor.hpp: the memory of an ordinary tensor, found without a Python call.
//
// Ordinary is a NumPy array or a torch tensor, of a dtype that we move, contiguous, in the memory
// of the host, that needs nothing done before or after the call. A NumPy array is read from its own
// C struct; a torch tensor by torch's DLPack exchange functions (DLPack 1.3). Everything else is
// left to core/buffers.
#pragma once

#include <Python.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace unisono {

/// What we know of an element type.
struct ElementType {
    std::uint8_t code = 0;
    std::uint32_t item_bytes = 0;
    std::uint32_t operators = 0;  ///< one bit for the code of each operator that reduces it
};

/// An ordinary tensor. The shape belongs to the tensor.
struct Tensor {
    std::byte* data = nullptr;
    std::uint64_t count = 0;
    const ElementType* type = nullptr;
    bool writable = false;
    int dimensions = 0;
    const std::int64_t* shape = nullptr;

    std::uint64_t bytes() const { return count * type->item_bytes; }
};

/// Reads tensors. Everything runs with the GIL held. Never freed: it holds Python objects.
class TensorReader {
public:
    static TensorReader& instance();

    /// Tells which NumPy dtype object stands for which element type.
    void learn_numpy(PyObject* array_type, PyObject* dtype, const ElementType& type);

    /// Tells torch's class of tensors, or a subclass that has the same memory; false if this torch
    /// has no exchange functions, or does not show whether it differentiates in forward mode.
    bool learn_torch(PyObject* tensor_type);

    /// Tells which DLPack type (code, bits) stands for which element type.
    void learn_dlpack(int code, int bits, const ElementType& type);

    /// Finds the memory; false if the tensor is not ordinary. Sets no Python error.
    bool read(PyObject* tensor, Tensor& found);

    /// The same for a tensor of torch.
    bool read_torch(PyObject* tensor, Tensor& found);

    /// A new tensor like `like`, which was read before, with another first dimension if it is not
    /// negative; null with a Python error.
    PyObject* make_like(PyObject* like, const Tensor& seen, std::int64_t rows);

private:
    struct NumpyType {
        PyObject* dtype = nullptr;
        ElementType type;
    };

    bool read_numpy(PyObject* array, Tensor& found);
    bool read_dlpack(PyObject* tensor, Tensor& found);
    bool learn_forward_mode();
    bool in_forward_mode() const;
    bool has_memory(PyObject* tensor, const Tensor& found) const;

    PyTypeObject* numpy_array_ = nullptr;
    PyObject* numpy_empty_ = nullptr;
    std::array<NumpyType, 32> numpy_types_{};
    std::size_t numpy_count_ = 0;
    std::array<PyTypeObject*, 4> torch_types_{};
    std::size_t torch_count_ = 0;
    int (*from_torch_)(void*, void*) = nullptr;
    std::array<std::array<ElementType, 129>, 20> dlpack_types_{};  ///< by code and bits
    PyObject* requires_grad_ = nullptr;                            ///< interned names
    PyObject* is_neg_ = nullptr;
    PyObject* is_conj_ = nullptr;
    PyObject* storage_offset_ = nullptr;
    PyObject* dtype_ = nullptr;
    PyObject* new_empty_ = nullptr;
    PyObject* forward_mode_ = nullptr;   ///< the names of torch.autograd.forward_ad
    PyObject* current_level_ = nullptr;  ///< the name of its level, which is -1 outside of all
    PyObject* no_level_ = nullptr;
    std::array<PyObject*, 2> torch_bytes_{};  ///< torch.int8 and torch.uint8
};

}  // namespace unisono
