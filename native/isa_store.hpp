// native/isa_store.hpp: plain and streaming stores, and copies with them.
// Included by kernels_isa.cpp alone, which is compiled once for each instruction set.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels.hpp"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace unisono::UNISONO_ISA {
namespace {

constexpr std::size_t stream_alignment =
    16;  // what malloc guarantees, so stores to user memory can stream

bool streamable(const void* to, StoreMode store) noexcept {
#if defined(__SSE2__)
    return store == StoreMode::streaming &&
           reinterpret_cast<std::uintptr_t>(to) % stream_alignment == 0;
#else
    (void)to, (void)store;
    return false;
#endif
}

/// The bytes before the first cache line that begins in `to`, of at most `bytes`. A line that is
/// streamed in two parts can leave the processor in between, and then memory reads it first.
inline std::size_t before_line(const void* to, std::size_t bytes) noexcept {
    const std::size_t into = reinterpret_cast<std::uintptr_t>(to) % 64;
    return into == 0 ? 0 : std::min(bytes, 64 - into);
}

/// Stores a block of N bytes, a multiple of 16; `stream` only if `streamable`.
template <std::size_t N>
inline void put(void* to, const void* block, bool stream) noexcept {
#if defined(__SSE2__)
    if (stream) {
        auto* out = static_cast<char*>(to);
        const auto* in = static_cast<const char*>(block);
        for (std::size_t i = 0; i < N; i += 16)
            _mm_stream_si128(reinterpret_cast<__m128i*>(out + i),
                             _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i)));
        return;
    }
#endif
    (void)stream;
    std::memcpy(to, block, N);
}

constexpr std::size_t copy_block = 256;

/// Whether a load of a loop upwards seems to follow a store to the same place: the processor first
/// compares the last 12 bits of addresses, and if they are equal the load waits for the store.
/// Large blocks of malloc begin 16 bytes behind a page, and slots at a page, so this is common. In
/// a loop downwards no load follows such a store, if each block is loaded before it is stored.
inline bool seems_to_follow(const void* to, const void* from) noexcept {
    const auto distance =
        (reinterpret_cast<std::uintptr_t>(to) - reinterpret_cast<std::uintptr_t>(from)) % 4096;
    return distance != 0 && distance < copy_block;
}

/// Copies one block: all loads, then all stores.
[[gnu::always_inline]] inline void copy_one(char* to, const char* from) noexcept {
    using Vector = char __attribute__((vector_size(64)));
    Vector parts[copy_block / sizeof(Vector)];
    for (std::size_t i = 0; i < copy_block; i += sizeof(Vector))
        std::memcpy(&parts[i / sizeof(Vector)], from + i, sizeof(Vector));
    for (std::size_t i = 0; i < copy_block; i += sizeof(Vector))
        std::memcpy(to + i, &parts[i / sizeof(Vector)], sizeof(Vector));
}

/// The same past the cache, in two halves of whole lines, which fit the registers of every
/// processor.
[[gnu::always_inline]] inline void stream_one(char* to, const char* from) noexcept {
#if defined(__SSE2__)
    for (std::size_t half = copy_block; half != 0;) {
        half -= copy_block / 2;
        __m128i parts[copy_block / 32];
        for (std::size_t i = 0; i < copy_block / 2; i += 16)
            parts[i / 16] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + half + i));
        for (std::size_t i = 0; i < copy_block / 2; i += 16)
            _mm_stream_si128(reinterpret_cast<__m128i*>(to + half + i), parts[i / 16]);
    }
#else
    copy_one(to, from);
#endif
}

void copy(void* to, const void* from, std::size_t bytes, StoreMode store) {
    if (to == from || bytes == 0) return;  // an empty buffer may have no address
    auto* out = static_cast<char*>(to);
    const auto* in = static_cast<const char*>(from);
    if (store == StoreMode::whole) {
        std::memcpy(out, in, bytes);
        return;
    }
    const bool stream = streamable(to, store);
    if (stream) {
        const std::size_t head = before_line(to, bytes);
        std::memcpy(out, in, head);
        out += head;
        in += head;
        bytes -= head;
    }
    const std::size_t blocks = bytes / copy_block * copy_block;
    const bool down = seems_to_follow(to, from);
    if (stream)
        for (std::size_t i = 0; i != blocks; i += copy_block) {
            const std::size_t at = down ? blocks - copy_block - i : i;
            stream_one(out + at, in + at);
        }
    else if (down)
        for (std::size_t i = blocks; i != 0; i -= copy_block)
            copy_one(out + i - copy_block, in + i - copy_block);
    else
        for (std::size_t i = 0; i != blocks; i += copy_block) copy_one(out + i, in + i);
    std::memcpy(out + blocks, in + blocks, bytes - blocks);
}

void copy_twice(void* to, StoreMode store, void* also, StoreMode also_store, const void* from,
                std::size_t bytes) {
    if (to == from || bytes == 0) return copy(also, from, bytes, also_store);
    if (also == from) return copy(to, from, bytes, store);
    if (also_store == StoreMode::whole) {  // the second read is from the cache
        copy(to, from, bytes, store);
        return copy(also, from, bytes, also_store);
    }
    auto* out = static_cast<char*>(to);
    auto* out_too = static_cast<char*>(also);
    const auto* in = static_cast<const char*>(from);
    const bool stream = streamable(to, store);
    const bool stream_too = streamable(also, also_store);
    std::size_t i = 0;
    for (; i + copy_block <= bytes; i += copy_block) {
        alignas(64) char block[copy_block];
        std::memcpy(block, in + i, copy_block);
        put<copy_block>(out + i, block, stream);
        put<copy_block>(out_too + i, block, stream_too);
    }
    std::memcpy(out + i, in + i, bytes - i);
    std::memcpy(out_too + i, in + i, bytes - i);
}

}  // namespace
}  // namespace unisono::UNISONO_ISA
