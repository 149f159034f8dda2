// tests/helpers/cuda_on_cpu.hpp: as much of CUDA as reduce.cu needs, for a compiler of CPUs.
// A launch runs all threads of the grid one after the other: such a kernel must not wait in one
// thread for another one.
#pragma once

#define __global__

// Kernels read elements of any type as these.
struct alignas(16) [[gnu::may_alias]] uint4 {
    unsigned int x, y, z, w;
};

struct Index {
    unsigned int x;
};
// Ranks that are threads may launch at the same time.
inline thread_local Index gridDim, blockDim, blockIdx, threadIdx;

template <class T, class... Parameters, class... Arguments>
void launch_on_cpu(void (*kernel)(T*, Parameters...), unsigned int blocks, unsigned int threads,
                   void* to, Arguments... arguments) {
    gridDim = {blocks};
    blockDim = {threads};
    for (blockIdx = {0}; blockIdx.x < blocks; ++blockIdx.x)
        for (threadIdx = {0}; threadIdx.x < threads; ++threadIdx.x)
            kernel(static_cast<T*>(to), arguments...);
}
