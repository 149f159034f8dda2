// tests/helpers/cuda_on_cpu.hpp: as much of CUDA as reduce.cu needs, for a compiler of CPUs.
// A launch runs all threads of the grid one after the other: such a kernel must not wait in one
// thread for another one, except for the first thread, of the first block or of its own; and the
// last one of a block runs when the others have ended.
#pragma once

#define __global__
#define __shared__ static thread_local
inline void __syncthreads() {}
inline void __threadfence() {}
inline void __threadfence_system() { __sync_synchronize(); }
inline unsigned int atomicAdd(unsigned int* to, unsigned int value) {
    return __sync_fetch_and_add(to, value);
}

// Kernels read elements of any type as these.
struct alignas(16) [[gnu::may_alias]] uint4 {
    unsigned int x, y, z, w;
};

struct Index {
    unsigned int x, y;
};
// Ranks that are threads may launch at the same time.
inline thread_local Index gridDim, blockDim, blockIdx, threadIdx;

template <class... Parameters, class... Arguments>
void launch_on_cpu(void (*kernel)(Parameters...), Index grid, unsigned int threads,
                   Arguments... arguments) {
    gridDim = grid;
    blockDim = {threads, 1};
    for (blockIdx = {0, 0}; blockIdx.y < grid.y; ++blockIdx.y)
        for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x)
            for (threadIdx = {0, 0}; threadIdx.x < threads; ++threadIdx.x) kernel(arguments...);
}
