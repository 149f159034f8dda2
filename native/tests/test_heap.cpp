// native/tests/test_heap.cpp: blocks of a heap, and collectives on them, with ranks that are
// threads.
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <map>

#include "check.hpp"
#include "heap.hpp"

using namespace unisono;
using namespace unisono::test;

namespace {

const Limits long_limits{30, nullptr};

std::size_t pages_of(const Arena& arena) {
    struct stat file{};
    CHECK(fstat(arena.fd(), &file) == 0);
    return static_cast<std::size_t>(file.st_blocks) * 512;
}

/// Blocks do not overlap, zeroed ones are clear, and what is freed goes back but for a rest.
void test_blocks() {
    const ThreadedJob job(1);
    const auto heap = std::make_shared<Heap>(job.arena);
    const std::size_t before = pages_of(*job.arena);
    Numbers numbers{7};
    std::map<std::byte*, std::pair<std::size_t, int>> blocks;
    for (int turn = 0; turn < 3000; ++turn) {
        if (blocks.size() > 20 || (!blocks.empty() && numbers.next() % 2 == 0)) {
            auto found = blocks.begin();
            std::advance(found, numbers.next() % blocks.size());
            const auto [bytes, fill] = found->second;
            for (std::size_t i = 0; i < bytes; i += 997)
                CHECK(found->first[i] == static_cast<std::byte>(fill));
            CHECK(Heap::block_bytes(found->first) >= bytes);
            CHECK(Heap::free(found->first));
            blocks.erase(found);
            continue;
        }
        const std::size_t bytes = 1 + numbers.next() % (std::size_t{1} << (numbers.next() % 24));
        const bool zeroed = numbers.next() % 2 == 0;
        auto* made = static_cast<std::byte*>(heap->allocate(bytes, zeroed));
        for (std::size_t i = 0; zeroed && i < bytes; i += 101) CHECK(made[i] == std::byte{0});
        std::memset(made, turn & 0xff, bytes);
        blocks[made] = {bytes, turn & 0xff};
        CHECK(Heap::find(*job.arena, made, bytes) != Heap::nowhere);
    }
    for (const auto& [data, block] : blocks) CHECK(Heap::free(data));
    CHECK(heap->used_bytes() == 0);
    CHECK(pages_of(*job.arena) - before == heap->kept_bytes());
    heap->close();
    CHECK(pages_of(*job.arena) == before);
    int outside = 0;
    CHECK(!Heap::free(&outside));
    CHECK(Heap::find(*job.arena, &outside, 4) == Heap::nowhere);
}

/// A heap that is closed refuses new blocks; the last old one ends it.
void test_close() {
    const ThreadedJob job(1);
    const ThreadedJob other(1);
    auto heap = std::make_shared<Heap>(job.arena);
    auto* data = static_cast<std::byte*>(heap->allocate(100000, true));
    CHECK(Heap::find(*other.arena, data, 8) == Heap::nowhere);
    const std::weak_ptr<Heap> alive = heap;
    heap->close();
    try {
        heap->allocate(1, false);
        CHECK(false);
    } catch (const Failure& failure) {
        CHECK(failure.kind == FailureKind::closed);
    }
    heap.reset();
    data[99999] = std::byte{1};
    CHECK(!alive.expired());
    CHECK(Heap::free(data));
    CHECK(alive.expired());
}

/// In a forked child the values are there, but what it does to them stays with it.
void test_fork() {
    const ThreadedJob job(1);
    const auto heap = std::make_shared<Heap>(job.arena);
    auto* data = static_cast<std::byte*>(heap->allocate(1 << 20, true));
    data[5] = std::byte{5};
    const pid_t child = fork();
    if (child == 0) {
        CHECK(data[5] == std::byte{5});
        data[5] = std::byte{6};
        CHECK(Heap::find(*job.arena, data, 8) == Heap::nowhere);
        CHECK(Heap::free(data));
        _exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(data[5] == std::byte{5});
    CHECK(Heap::free(data));
    heap->close();
}

/// Sources and results in heaps, in private memory, or either by rank: the same results.
void test_collectives(int size) {
    const ThreadedJob job(size);
    on_ranks(size, [&](int rank) {
        const auto group = job.group(rank);
        const auto heap = std::make_shared<Heap>(job.arena);
        const auto n = static_cast<std::size_t>(size);
        for (int turn = 0; turn < 8; ++turn)
            for (const std::size_t count : {100, 9001, 700001}) {
                const bool shared = turn < 3 || (turn + rank) % 3 == 0;
                std::vector<std::int32_t> own(2 * count * n);
                auto* memory = shared ? static_cast<std::int32_t*>(
                                            heap->allocate(own.size() * sizeof own[0], false))
                                      : own.data();
                std::int32_t* result = memory + count * n;
                for (std::size_t i = 0; i < count * n; ++i)
                    memory[i] = static_cast<std::int32_t>(rank * 1000 + i % 1000);
                CallArguments call = make_call(Verb::all_to_all, own, own, count);
                call.source = reinterpret_cast<const std::byte*>(memory);
                call.target = reinterpret_cast<std::byte*>(result);
                group->run(call, long_limits);
                for (std::size_t i = 0; i < count * n; ++i)
                    CHECK(result[i] ==
                          static_cast<std::int32_t>(
                              i / count * 1000 +
                              (static_cast<std::size_t>(rank) * count + i % count) % 1000));
                call = make_call(Verb::all_reduce, own, own, count, ReduceOp::sum);
                call.source = call.target = reinterpret_cast<std::byte*>(memory);
                group->run(call, long_limits);
                for (std::size_t i = 0; i < count; ++i)
                    CHECK(memory[i] ==
                          static_cast<std::int32_t>(size * (size - 1) / 2 * 1000 + n * (i % 1000)));
                call = make_call(Verb::reduce, own, own, count, ReduceOp::max, size - 1);
                call.source = reinterpret_cast<std::byte*>(memory + count);
                call.target = reinterpret_cast<std::byte*>(result);
                group->run(call, long_limits);
                for (std::size_t i = 0; rank == size - 1 && i < count; ++i)
                    CHECK(result[i] ==
                          static_cast<std::int32_t>((size - 1) * 1000 + (count + i) % 1000));
                if (shared) CHECK(Heap::free(memory));
            }
        heap->close();
    });
}

}  // namespace

int main() {
    test_blocks();
    test_close();
    test_fork();
    for (const int size : {2, 3, 5}) test_collectives(size);
    std::puts("heap: ok");
}
