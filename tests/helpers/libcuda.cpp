// A CUDA driver without a GPU: what cuda-bindings finds under the name libcuda.so.1 in a test.
//
// Device memory is memory of this process, and a stream does at once what it is told. So it shows
// whether a caller passes the right arguments and reads the right results, and nothing of order.
// The declarations are those of cuda.h: `g++ -include cuda.h -fsyntax-only` compares them.
#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <utility>

#ifndef CUDA_VERSION
enum CUresult {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
};
enum CUdevice_attribute {
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
};
enum CUstreamCaptureStatus {
    CU_STREAM_CAPTURE_STATUS_NONE = 0,
    CU_STREAM_CAPTURE_STATUS_ACTIVE = 1,
};
enum CUstreamCaptureMode {
    CU_STREAM_CAPTURE_MODE_GLOBAL = 0,
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1,
    CU_STREAM_CAPTURE_MODE_RELAXED = 2,
};
enum CUpointer_attribute { CU_POINTER_ATTRIBUTE_BUFFER_ID = 7 };
enum CUdriverProcAddressQueryResult { CU_GET_PROC_ADDRESS_SUCCESS = 0 };
struct CUuuid {
    char bytes[16];
};
struct CUipcMemHandle {
    char reserved[64];
};
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUcontext = struct CUctx_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using cuuint32_t = std::uint32_t;
using cuuint64_t = std::uint64_t;
enum CUstreamBatchMemOpType {
    CU_STREAM_MEM_OP_WAIT_VALUE_32 = 1,
    CU_STREAM_MEM_OP_WRITE_VALUE_32 = 2,
};
union CUstreamBatchMemOpParams {
    CUstreamBatchMemOpType operation;
    struct {
        CUstreamBatchMemOpType operation;
        CUdeviceptr address;
        cuuint32_t value;
        unsigned int flags;
        CUdeviceptr alias;
    } waitValue, writeValue;
    cuuint64_t pad[6];
};
#endif

namespace {

constexpr int kDevices = 2;
constexpr int kCapturing = 3;          // what a stream was told so often captures
constexpr std::uintptr_t kMapped = 1;  // what handles of other processes are opened at, and beyond
constexpr std::uintptr_t kRegistered = std::uintptr_t{1} << 60;

struct Block {
    std::size_t bytes;
    unsigned long long number;
};

std::map<CUdeviceptr, Block> blocks;
unsigned long long blocks_ever = 0;
int context = 0;
thread_local CUcontext current = nullptr;
thread_local bool entered = false;
thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
CUdeviceptr opened = 0;
std::pair<void*, std::size_t> cleared;
std::set<CUfunction> moving;  // the kernels that copy
void* registered = nullptr;

auto find(CUdeviceptr address) {
    auto next = blocks.upper_bound(address);
    if (next == blocks.begin()) return blocks.end();
    --next;
    return address < next->first + next->second.bytes ? next : blocks.end();
}

CUresult in_context(bool right) {
    if (!entered) return CUDA_ERROR_INVALID_CONTEXT;
    return right ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// A stream and an event are counters: of what the stream was told, of questions to come that get
// the answer "not yet".
struct Counter {
    int count;
};
Counter* counter(void* handle) { return static_cast<Counter*>(handle); }

cuuint32_t* word(CUdeviceptr address) {
    return reinterpret_cast<cuuint32_t*>(address - kRegistered);
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned int flags) { return flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }

CUresult cuDriverGetVersion(int* version) {
    *version = 13000;
    return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
    *text = error == CUDA_ERROR_INVALID_VALUE ? "invalid argument" : "another error";
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
    *count = kDevices;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    *device = 100 + ordinal;  // a device is not its ordinal
    return 0 <= ordinal && ordinal < kDevices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
    std::strncpy(name, device == 100 ? "First GPU" : "Second GPU", length);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
    for (int at = 0; at < 16; ++at) uuid->bytes[at] = static_cast<char>(device + 16 * at);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
    switch (attribute) {
        case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
            *value = 132;
            return CUDA_SUCCESS;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
            *value = 9;
            return CUDA_SUCCESS;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
            *value = 0;
            return CUDA_SUCCESS;
        default:
            return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* made, CUdevice device) {
    *made = reinterpret_cast<CUcontext>(&context);
    return device >= 100 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuCtxSetCurrent(CUcontext given) {
    current = given;
    entered = given == reinterpret_cast<CUcontext>(&context);
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* given) {
    *given = current;
    return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    std::swap(capture_mode, *mode);
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr* address, std::size_t bytes) {
    *address = reinterpret_cast<CUdeviceptr>(std::calloc(1, bytes));
    blocks[*address] = {bytes, ++blocks_ever};
    return in_context(true);
}

CUresult cuMemFree_v2(CUdeviceptr address) {
    const bool there = blocks.erase(address) == 1;
    if (there) std::free(reinterpret_cast<void*>(address));
    return in_context(there);
}

// What it sets can be seen when somebody has waited for the stream.
CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, std::size_t bytes,
                         CUstream stream) {
    ++counter(stream)->count;
    cleared = {reinterpret_cast<void*>(address), bytes};
    return in_context(value == 0);
}

CUresult cuStreamSynchronize(CUstream stream) {
    counter(stream)->count = 0;
    std::memset(cleared.first, 0, cleared.second);
    return in_context(true);
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, std::size_t* bytes, CUdeviceptr address) {
    const auto found = find(address);
    if (found == blocks.end()) return in_context(false);
    *base = found->first;
    *bytes = found->second.bytes;
    return in_context(true);
}

CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr address) {
    const auto found = find(address);
    if (found == blocks.end() || attribute != CU_POINTER_ATTRIBUTE_BUFFER_ID) {
        return in_context(false);
    }
    *static_cast<unsigned long long*>(value) = found->second.number;
    return in_context(true);
}

// A handle holds the address, and a mark at its end: all 64 bytes have to travel.
CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
    std::memset(handle->reserved, 0, sizeof handle->reserved);
    std::memcpy(handle->reserved, &address, sizeof address);
    handle->reserved[63] = 'e';
    return in_context(blocks.count(address) == 1);
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle handle, unsigned int flags) {
    std::memcpy(&opened, handle.reserved, sizeof opened);
    *address = opened + kMapped;
    return in_context(handle.reserved[63] == 'e' && flags == 1);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
    const bool there = opened != 0 && address == opened + kMapped;
    opened = 0;
    return in_context(there);
}

CUresult cuStreamCreate(CUstream* stream, unsigned int flags) {
    *stream = reinterpret_cast<CUstream>(new Counter{0});
    return in_context(flags == 1);
}

CUresult cuStreamDestroy_v2(CUstream stream) {
    delete counter(stream);
    return in_context(true);
}

// The default stream while another one is capturing, a stream that is, and any other one.
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
    if (stream == nullptr) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    *status = counter(stream)->count == kCapturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                                   : CU_STREAM_CAPTURE_STATUS_NONE;
    return in_context(true);
}

CUresult cuEventCreate(CUevent* event, unsigned int flags) {
    *event = reinterpret_cast<CUevent>(new Counter{0});
    return in_context(flags == 2);
}

CUresult cuEventDestroy_v2(CUevent event) {
    delete counter(event);
    return in_context(true);
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
    counter(event)->count = ++counter(stream)->count;
    return in_context(true);
}

CUresult cuEventQuery(CUevent event) {
    return counter(event)->count-- > 0 ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
    counter(stream)->count += counter(event)->count;
    return in_context(flags == 0);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, std::size_t bytes,
                              CUstream stream) {
    ++counter(stream)->count;
    std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes);
    return in_context(true);
}

CUresult cuMemHostRegister_v2(void* address, std::size_t bytes, unsigned int flags) {
    registered = address;
    return in_context(bytes % 4096 == 0 && flags == 2);
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* address, void* host, unsigned int flags) {
    *address = reinterpret_cast<CUdeviceptr>(host) + kRegistered;
    return in_context(host == registered && flags == 0);
}

CUresult cuMemHostUnregister(void* address) {
    const bool there = address == registered;
    registered = nullptr;
    return in_context(there);
}

CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                 unsigned int flags) {
    ++counter(stream)->count;
    *word(address) = value;
    return in_context(flags == 0);
}

// It cannot wait: it refuses where a GPU would.
CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                unsigned int flags) {
    ++counter(stream)->count;
    return in_context(flags == 0 && static_cast<std::int32_t>(*word(address) - value) >= 0);
}

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
    *module = reinterpret_cast<CUmodule>(const_cast<void*>(image));
    return in_context(std::memcmp(image,
                                  "\x7f"
                                  "ELF",
                                  4) == 0);
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
    *function = reinterpret_cast<CUfunction>(module);
    if (std::strstr(name, "move") != nullptr) moving.insert(*function);
    return std::strncmp(name, "_Z", 2) == 0 ? in_context(true) : CUDA_ERROR_NOT_FOUND;
}

CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned int count,
                               CUstreamBatchMemOpParams* operations, unsigned int flags) {
    CUresult result = in_context(flags == 0);
    for (unsigned int at = 0; at < count && result == CUDA_SUCCESS; ++at) {
        const CUstreamBatchMemOpParams& one = operations[at];
        if (one.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32) {
            result = cuStreamWaitValue32_v2(stream, one.waitValue.address, one.waitValue.value,
                                            one.waitValue.flags);
        } else if (one.operation == CU_STREAM_MEM_OP_WRITE_VALUE_32) {
            result = cuStreamWriteValue32_v2(stream, one.writeValue.address, one.writeValue.value,
                                             one.writeValue.flags);
        } else {
            result = CUDA_ERROR_INVALID_VALUE;
        }
    }
    return result;
}

// The structures of reduce.cu. Kernels whose name has "move" copy words, and all others add floats.
struct Permit {
    std::uintptr_t cancelled, skipped, begun, verdict, arrived, done[64];
    int dones;
    cuuint32_t step;
};
struct Operands {
    float* source[64];
    float* target[64];
    int sources, targets;
};
struct Moves {
    char* to[64];
    char* from[64];
    unsigned long long count[64];
};

static bool is_right(const void* given) {
    const auto* permit = static_cast<const Permit*>(given);
    return permit->cancelled == 0x1000 && permit->skipped == 0x2000 && permit->begun == 0x3000 &&
           permit->verdict == 0x4000 && permit->arrived == 0x4008 && permit->done[0] == 0x5000 &&
           permit->done[1] == 0x6000 && permit->dones == 2 && permit->step == 5;
}

CUresult cuLaunchKernel(CUfunction function, unsigned int blocks_x, unsigned int blocks_y,
                        unsigned int blocks_z, unsigned int threads_x, unsigned int threads_y,
                        unsigned int threads_z, unsigned int shared_bytes, CUstream stream,
                        void** parameters, void** extra) {
    ++counter(stream)->count;
    bool right = function != nullptr && blocks_x > 0 && threads_x > 0 && blocks_z == 1 &&
                 threads_y == 1 && threads_z == 1 && shared_bytes == 0 && extra == nullptr;
    if (moving.count(function) == 1) {
        const auto* all = static_cast<Moves*>(parameters[0]);
        right &= is_right(parameters[1]);
        for (unsigned int part = 0; right && part < blocks_y; ++part)
            std::memcpy(all->to[part], all->from[part], 4 * all->count[part]);
    } else {
        const auto* all = static_cast<Operands*>(parameters[0]);
        const auto count = *static_cast<unsigned long long*>(parameters[1]);
        const double factor = *static_cast<double*>(parameters[2]);
        right &= blocks_y == 1 && is_right(parameters[3]);
        for (unsigned long long at = 0; right && at < count; ++at) {
            float sum = 0;
            for (int one = 0; one < all->sources; ++one) sum += all->source[one][at];
            for (int one = 0; one < all->targets; ++one)
                all->target[one][at] = sum * static_cast<float>(factor);
        }
    }
    return in_context(right);
}

// The bindings ask by this for every function that they know, and get its newest form. They refuse
// to call those that are not here.
CUresult cuGetProcAddress_v2(const char* name, void** function, int, cuuint64_t,
                             CUdriverProcAddressQueryResult*) {
    Dl_info self;
    dladdr(reinterpret_cast<void*>(&cuInit), &self);
    void* library = dlopen(self.dli_fname, RTLD_LAZY);
    *function = dlsym(library, (std::string(name) + "_v2").c_str());
    if (*function == nullptr) *function = dlsym(library, name);
    dlclose(library);
    return CUDA_SUCCESS;
}

}  // extern "C"
