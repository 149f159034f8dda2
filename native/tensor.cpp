// native/tensor.cpp: NumPy's struct, and DLPack's.
#include "tensor.hpp"

namespace unisono {

namespace {

/// The beginning of a NumPy array, which is the same in all versions of its ABI.
struct NumpyArray {
    PyObject base;
    char* data;
    int dimensions;
    Py_ssize_t* shape;
    Py_ssize_t* strides;
    PyObject* owner;
    PyObject* dtype;
    int flags;
};
static_assert(sizeof(Py_ssize_t) == sizeof(std::int64_t));

// Bits of `flags`.
constexpr int c_contiguous = 0x1;
constexpr int aligned = 0x100;
constexpr int writeable = 0x400;

/// A tensor as DLPack describes it.
struct DlTensor {
    void* data;
    std::int32_t device_type;
    std::int32_t device_id;
    std::int32_t dimensions;
    std::uint8_t type_code;
    std::uint8_t type_bits;
    std::uint16_t type_lanes;
    std::int64_t* shape;
    std::int64_t* strides;
    std::uint64_t byte_offset;
};

constexpr std::int32_t device_cpu = 1;
constexpr std::uint32_t dlpack_major = 1;

/// The table of functions that a framework offers; we use one of them.
struct DlExchange {
    std::uint32_t major, minor;
    DlExchange* previous;
    void* allocate;
    void* managed_from_object;
    void* managed_to_object;
    int (*tensor_from_object)(void* object, void* tensor);
    void* current_stream;
};

bool is_contiguous(const DlTensor& tensor) {
    if (tensor.strides == nullptr) return true;
    std::int64_t expected = 1;
    for (int i = tensor.dimensions - 1; i >= 0; --i) {
        if (tensor.shape[i] != 1 && tensor.strides[i] != expected) return false;
        expected *= tensor.shape[i];
    }
    return true;
}

/// Whether what a method or an attribute gave is this object; an error is not.
bool is_same(PyObject* value, const PyObject* expected) {
    const bool result = value != nullptr && value == expected;
    Py_XDECREF(value);
    if (value == nullptr) PyErr_Clear();
    return result;
}

bool is_false(PyObject* value) { return is_same(value, Py_False); }

}  // namespace

TensorReader& TensorReader::instance() {
    static auto* reader = new TensorReader;
    return *reader;
}

void TensorReader::learn_numpy(PyObject* array_type, PyObject* dtype, const ElementType& type) {
    numpy_array_ = reinterpret_cast<PyTypeObject*>(array_type);
    Py_INCREF(array_type);
    if (numpy_empty_ == nullptr) {
        PyObject* numpy = PyImport_ImportModule("numpy");
        numpy_empty_ = numpy == nullptr ? nullptr : PyObject_GetAttrString(numpy, "empty");
        Py_XDECREF(numpy);
        PyErr_Clear();
    }
    if (numpy_count_ == numpy_types_.size()) return;
    Py_INCREF(dtype);
    numpy_types_[numpy_count_++] = {dtype, type};
}

bool TensorReader::learn_torch(PyObject* tensor_type) {
    if (from_torch_ == nullptr) {
        PyObject* capsule = PyObject_GetAttrString(tensor_type, "__dlpack_c_exchange_api__");
        auto* table =
            capsule == nullptr
                ? nullptr
                : static_cast<DlExchange*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
        Py_XDECREF(capsule);
        PyErr_Clear();
        while (table != nullptr && table->major > dlpack_major) table = table->previous;
        if (table == nullptr || table->major != dlpack_major) return false;
        from_torch_ = table->tensor_from_object;
        if (from_torch_ == nullptr || !learn_forward_mode()) return false;
        requires_grad_ = PyUnicode_InternFromString("requires_grad");
        is_neg_ = PyUnicode_InternFromString("is_neg");
        is_conj_ = PyUnicode_InternFromString("is_conj");
        storage_offset_ = PyUnicode_InternFromString("storage_offset");
        dtype_ = PyUnicode_InternFromString("dtype");
        PyObject* torch = PyImport_ImportModule("torch");
        torch_bytes_[0] = torch == nullptr ? nullptr : PyObject_GetAttrString(torch, "int8");
        torch_bytes_[1] = torch == nullptr ? nullptr : PyObject_GetAttrString(torch, "uint8");
        Py_XDECREF(torch);
        PyErr_Clear();
        new_empty_ = PyUnicode_InternFromString("new_empty");
    }
    if (torch_count_ == torch_types_.size()) return false;
    Py_INCREF(tensor_type);
    torch_types_[torch_count_++] = reinterpret_cast<PyTypeObject*>(tensor_type);
    return true;
}

bool TensorReader::learn_forward_mode() {
    PyObject* module = PyImport_ImportModule("torch.autograd.forward_ad");
    forward_mode_ = module == nullptr ? nullptr : Py_NewRef(PyModule_GetDict(module));
    Py_XDECREF(module);
    current_level_ = PyUnicode_InternFromString("_current_level");
    no_level_ = PyLong_FromLong(-1);
    PyErr_Clear();
    return forward_mode_ != nullptr && PyDict_Contains(forward_mode_, current_level_) == 1;
}

/// Whether any thread is in a level of forward mode, so that tensors may have tangents. Asking a
/// tensor takes several times as long as the rest of reading it.
bool TensorReader::in_forward_mode() const {
    // Python has one object for each small number.
    return PyDict_GetItemWithError(forward_mode_, current_level_) != no_level_;
}

void TensorReader::learn_dlpack(int code, int bits, const ElementType& type) {
    dlpack_types_.at(static_cast<std::size_t>(code)).at(static_cast<std::size_t>(bits)) = type;
}

bool TensorReader::read(PyObject* tensor, Tensor& found) {
    return Py_TYPE(tensor) == numpy_array_ ? read_numpy(tensor, found) : read_torch(tensor, found);
}

bool TensorReader::read_torch(PyObject* tensor, Tensor& found) {
    const PyTypeObject* type = Py_TYPE(tensor);
    for (std::size_t i = 0; i < torch_count_; ++i)
        if (type == torch_types_[i]) return read_dlpack(tensor, found);
    return false;
}

bool TensorReader::read_numpy(PyObject* object, Tensor& found) {
    const auto* array = reinterpret_cast<const NumpyArray*>(object);
    if ((array->flags & (c_contiguous | aligned)) != (c_contiguous | aligned)) return false;
    found.type = nullptr;
    for (std::size_t i = 0; i < numpy_count_; ++i)
        if (numpy_types_[i].dtype == array->dtype) {
            found.type = &numpy_types_[i].type;
            break;
        }
    if (found.type == nullptr) return false;
    found.data = reinterpret_cast<std::byte*>(array->data);
    found.writable = (array->flags & writeable) != 0;
    found.dimensions = array->dimensions;
    found.shape = reinterpret_cast<const std::int64_t*>(array->shape);
    found.count = 1;
    for (int i = 0; i < found.dimensions; ++i)
        found.count *= static_cast<std::uint64_t>(found.shape[i]);
    return found.count != 0;
}

bool TensorReader::read_dlpack(PyObject* tensor, Tensor& found) {
    DlTensor seen{};
    if (from_torch_(tensor, &seen) != 0) {
        PyErr_Clear();
        return false;
    }
    if (seen.device_type != device_cpu || seen.type_lanes != 1 || seen.type_bits > 128 ||
        seen.type_code >= dlpack_types_.size() || !is_contiguous(seen))
        return false;
    found.type = &dlpack_types_[seen.type_code][seen.type_bits];
    if (found.type->item_bytes == 0) return false;
    found.data = static_cast<std::byte*>(seen.data) + seen.byte_offset;
    found.writable = true;
    found.dimensions = seen.dimensions;
    found.shape = seen.shape;
    found.count = 1;
    for (int i = 0; i < found.dimensions; ++i)
        found.count *= static_cast<std::uint64_t>(found.shape[i]);
    if (found.count == 0 || !has_memory(tensor, found)) return false;
    // torch's types of less than a byte look like bytes here.
    if (seen.type_code < torch_bytes_.size() && seen.type_bits == 8 &&
        !is_same(PyObject_GetAttr(tensor, dtype_), torch_bytes_[seen.type_code]))
        return false;
    // Autograd may have to be told, and memory may hold other values than the tensor has.
    constexpr std::uint8_t complex_code = 5;
    return !in_forward_mode() && is_false(PyObject_GetAttr(tensor, requires_grad_)) &&
           is_false(PyObject_CallMethodNoArgs(tensor, is_neg_)) &&
           (seen.type_code != complex_code ||
            is_false(PyObject_CallMethodNoArgs(tensor, is_conj_)));
}

/// Whether the storage of a tensor of torch has memory. One that was freed, as FSDP does with those
/// of parameters, is at address 0, and its tensors are at their offsets.
bool TensorReader::has_memory(PyObject* tensor, const Tensor& found) const {
    constexpr std::uintptr_t longest_storage = std::uintptr_t{1} << 40;
    const auto address = reinterpret_cast<std::uintptr_t>(found.data);
    if (address >= longest_storage) return true;
    PyObject* offset = PyObject_CallMethodNoArgs(tensor, storage_offset_);
    const std::size_t elements = offset == nullptr ? 0 : PyLong_AsSize_t(offset);
    Py_XDECREF(offset);
    if (PyErr_Occurred() == nullptr) return address != elements * found.type->item_bytes;
    PyErr_Clear();
    return false;
}

PyObject* TensorReader::make_like(PyObject* like, const Tensor& seen, std::int64_t rows) {
    PyObject* shape = PyTuple_New(seen.dimensions == 0 && rows >= 0 ? 1 : seen.dimensions);
    if (shape == nullptr) return nullptr;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(shape); ++i)
        PyTuple_SET_ITEM(shape, i, PyLong_FromLongLong(i == 0 && rows >= 0 ? rows : seen.shape[i]));
    PyObject* made;
    if (Py_TYPE(like) == numpy_array_) {
        PyObject* arguments[] = {shape, reinterpret_cast<const NumpyArray*>(like)->dtype};
        made = PyObject_Vectorcall(numpy_empty_, arguments, 2, nullptr);
    } else {
        made = PyObject_CallMethodOneArg(like, new_empty_, shape);
    }
    Py_DECREF(shape);
    return made;
}

}  // namespace unisono
