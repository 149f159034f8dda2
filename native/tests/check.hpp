// native/tests/check.hpp: the check macro, and ranks that are threads.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "group.hpp"

/// Ends the test with file and line unless `condition` holds.
#define CHECK(condition)                                                                       \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            std::fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition); \
            std::abort();                                                                      \
        }                                                                                      \
    } while (false)

namespace unisono::test {

/// A job whose ranks are threads of this process, so that ThreadSanitizer sees all of them.
struct ThreadedJob {
    explicit ThreadedJob(int size)
        : size(size), arena(std::make_shared<Arena>(Arena::create(size))) {
        std::vector<int> ranks(static_cast<std::size_t>(size));
        std::iota(ranks.begin(), ranks.end(), 0);
        offset = Group::prepare(*arena, ranks, true);
        for (int rank = 0; rank < size; ++rank) arena->register_rank(rank);
        for (int rank = 0; rank < size; ++rank) arena->connect_peers(rank);
    }

    std::unique_ptr<Group> group(int rank) const {
        return std::make_unique<Group>(arena, offset, rank, size);
    }

    int size;
    std::shared_ptr<Arena> arena;
    std::size_t offset;
};

/// Runs `body(rank)` on a thread for each rank.
inline void on_ranks(int size, const std::function<void(int)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) threads.emplace_back([&body, rank] { body(rank); });
    for (std::thread& thread : threads) thread.join();
}

/// A reproducible stream of numbers.
struct Numbers {
    std::uint64_t state;
    std::uint64_t next() {
        state += 0x9e3779b97f4a7c15u;
        std::uint64_t x = state;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
        return x ^ (x >> 31);
    }
};

/// The arguments of a call on `count` elements of int32.
inline CallArguments make_call(Verb verb, const std::vector<std::int32_t>& source,
                               std::vector<std::int32_t>& target, std::size_t count,
                               ReduceOp op = ReduceOp::none, int root = -1) {
    CallArguments made;
    made.verb = verb;
    made.dtype = DType::int32;
    made.dtype_code = static_cast<std::uint8_t>(DType::int32);
    made.item_bytes = 4;
    made.op = op;
    made.root = root;
    made.source = reinterpret_cast<const std::byte*>(source.data());
    made.target = reinterpret_cast<std::byte*>(target.data());
    made.count = count;
    return made;
}

}  // namespace unisono::test
