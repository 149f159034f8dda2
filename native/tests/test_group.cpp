// native/tests/test_group.cpp: collectives, disagreement, deadlines and background calls, with
// ranks that are threads.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string>

#include "check.hpp"
#include "worker.hpp"

using namespace unisono;
using namespace unisono::test;

namespace {

using Ints = std::vector<std::int32_t>;
const Limits long_limits{30, nullptr};

std::int32_t value(int rank, std::size_t i) {
    return static_cast<std::int32_t>(rank * 1000003 + i * 7);
}

Ints filled(int rank, std::size_t count) {
    Ints data(count);
    for (std::size_t i = 0; i < count; ++i) data[i] = value(rank, i);
    return data;
}

std::int32_t total(int size, std::size_t i) {
    std::uint32_t sum = 0;
    for (int rank = 0; rank < size; ++rank) sum += static_cast<std::uint32_t>(value(rank, i));
    return static_cast<std::int32_t>(sum);
}

/// Every collective at sizes around the chunk borders, one after the other on the same group.
void test_verbs(int size) {
    const ThreadedJob job(size);
    const auto n = static_cast<std::size_t>(size);
    on_ranks(size, [&](int rank) {
        const auto group = job.group(rank);
        const auto me = static_cast<std::size_t>(rank);
        for (const std::size_t count : {0, 1, 1009, 2500, 65537, 300001}) {
            const Ints mine = filled(rank, count);
            const Ints wide = filled(rank, count * n);
            Ints out(count), big(count * n);
            group->run(make_call(Verb::all_reduce, mine, out, count, ReduceOp::sum), long_limits);
            for (std::size_t i = 0; i < count; ++i) CHECK(out[i] == total(size, i));
            Ints both = mine;
            group->run(make_call(Verb::all_reduce, both, both, count, ReduceOp::max), long_limits);
            for (std::size_t i = 0; i < count; ++i) CHECK(both[i] == value(size - 1, i));
            const int root = static_cast<int>(count % n);
            Ints untouched = mine;
            group->run(make_call(Verb::reduce, mine, rank == root ? out : untouched, count,
                                 ReduceOp::sum, root),
                       long_limits);
            if (rank == root)
                for (std::size_t i = 0; i < count; ++i) CHECK(out[i] == total(size, i));
            else
                CHECK(untouched == mine);
            group->run(make_call(Verb::broadcast, mine, out, count, ReduceOp::none, root),
                       long_limits);
            for (std::size_t i = 0; i < count; ++i) CHECK(out[i] == value(root, i));
            group->run(make_call(Verb::all_gather, mine, big, count), long_limits);
            for (std::size_t r = 0; r < n; ++r)
                for (std::size_t i = 0; i < count; ++i)
                    CHECK(big[r * count + i] == value(static_cast<int>(r), i));
            std::fill(big.begin(), big.end(), -1);
            group->run(make_call(Verb::gather, mine, big, count, ReduceOp::none, root),
                       long_limits);
            for (std::size_t r = 0; r < n; ++r)
                for (std::size_t i = 0; i < count; ++i)
                    CHECK(big[r * count + i] ==
                          (rank == root ? value(static_cast<int>(r), i) : -1));
            group->run(make_call(Verb::scatter, wide, out, count, ReduceOp::none, root),
                       long_limits);
            for (std::size_t i = 0; i < count; ++i) CHECK(out[i] == value(root, me * count + i));
            group->run(make_call(Verb::reduce_scatter, wide, out, count, ReduceOp::sum),
                       long_limits);
            for (std::size_t i = 0; i < count; ++i) CHECK(out[i] == total(size, me * count + i));
            group->run(make_call(Verb::all_to_all, wide, big, count), long_limits);
            for (std::size_t r = 0; r < n; ++r)
                for (std::size_t i = 0; i < count; ++i)
                    CHECK(big[r * count + i] == value(static_cast<int>(r), me * count + i));
            Ints nothing;
            group->run(make_call(Verb::barrier, nothing, nothing, 0), long_limits);
        }
        group->run(make_call(Verb::barrier, {}, *std::make_unique<Ints>(), 0), long_limits);
    });
}

/// Calls with a root that follow each other at once: ranks that only send are soon ahead, and must
/// not touch what the root still reads.
void test_in_a_row(int size) {
    constexpr int rounds = 40;
    const ThreadedJob job(size);
    on_ranks(size, [&](int rank) {
        const auto group = job.group(rank);
        for (const std::size_t count : {3001, 20000, 65537, 300001}) {
            std::vector<Ints> sources, sums;
            for (int round = 0; round < rounds; ++round) {
                sources.emplace_back(count, rank + round);
                sums.emplace_back(rank == 0 ? count : 0);
            }
            for (std::size_t i = 0; i < rounds; ++i)
                group->run(make_call(Verb::reduce, sources[i], sums[i], count, ReduceOp::sum, 0),
                           long_limits);
            for (int round = 0; rank == 0 && round < rounds; ++round) {
                const Ints& sum = sums[static_cast<std::size_t>(round)];
                const std::int32_t expected = size * (size - 1) / 2 + size * round;
                CHECK(std::all_of(sum.begin(), sum.end(),
                                  [&](std::int32_t each) { return each == expected; }));
            }
        }
    });
}

/// Source and target are the same memory, or one is a part of the other; some ranks alone do so.
void test_in_place(int size) {
    const ThreadedJob job(size);
    const auto n = static_cast<std::size_t>(size);
    on_ranks(size, [&](int rank) {
        const auto group = job.group(rank);
        const auto me = static_cast<std::size_t>(rank);
        for (const std::size_t count : {1, 5000, 65537, 300001})
            for (int round = 0; round < 3; ++round) {
                const int root = (round + 1) % size;
                Ints data = filled(rank, count);
                group->run(make_call(Verb::broadcast, data, data, count, ReduceOp::none, root),
                           long_limits);
                for (std::size_t i = 0; i < count; ++i) CHECK(data[i] == value(root, i));
                Ints wide = filled(rank, count * n);
                const auto part = [&](CallArguments made, bool of_source) {
                    auto* own = reinterpret_cast<std::byte*>(wide.data() + me * count);
                    if (of_source)
                        made.source = own;
                    else
                        made.target = own;
                    return made;
                };
                group->run(part(make_call(Verb::all_gather, wide, wide, count), true), long_limits);
                for (std::size_t r = 0; r < n; ++r)
                    for (std::size_t i = 0; i < count; ++i)
                        CHECK(wide[r * count + i] == value(static_cast<int>(r), r * count + i));
                wide = filled(rank, count * n);
                group->run(
                    part(make_call(Verb::gather, wide, wide, count, ReduceOp::none, root), true),
                    long_limits);
                for (std::size_t r = 0; r < n; ++r)
                    for (std::size_t i = 0; i < count; ++i)
                        CHECK(wide[r * count + i] ==
                              value(rank == root ? static_cast<int>(r) : rank, r * count + i));
                wide = filled(rank, count * n);
                group->run(
                    part(make_call(Verb::scatter, wide, wide, count, ReduceOp::none, root), false),
                    long_limits);
                for (std::size_t i = 0; i < count; ++i)
                    CHECK(wide[me * count + i] == value(root, me * count + i));
                wide = filled(rank, count * n);
                Ints elsewhere(count * n);
                Ints& target = round == 0 || rank % 2 == round % 2 ? wide : elsewhere;
                group->run(make_call(Verb::all_to_all, wide, target, count), long_limits);
                for (std::size_t r = 0; r < n; ++r)
                    for (std::size_t i = 0; i < count; ++i)
                        CHECK(target[r * count + i] == value(static_cast<int>(r), me * count + i));
                wide = filled(rank, count * n);
                group->run(
                    part(make_call(Verb::reduce_scatter, wide, wide, count, ReduceOp::sum), false),
                    long_limits);
                for (std::size_t i = 0; i < count; ++i)
                    CHECK(wide[me * count + i] == total(size, me * count + i));
                data = filled(rank, count);
                group->run(make_call(Verb::all_reduce, data, data, count, ReduceOp::sum),
                           long_limits);
                for (std::size_t i = 0; i < count; ++i) CHECK(data[i] == total(size, i));
                data = filled(rank, count);
                group->run(make_call(Verb::reduce, data, data, count, ReduceOp::sum, root),
                           long_limits);
                for (std::size_t i = 0; i < count; ++i)
                    CHECK(data[i] == (rank == root ? total(size, i) : value(rank, i)));
            }
    });
}

/// Rank i sends i * j elements to rank j: nobody's counts are equal, and some are 0.
void test_uneven(int size) {
    const ThreadedJob job(size);
    const auto n = static_cast<std::size_t>(size);
    on_ranks(size, [&](int rank) {
        const auto group = job.group(rank);
        const auto me = static_cast<std::size_t>(rank);
        for (const std::size_t unit : {1, 40000}) {
            std::size_t sum = 0;
            for (std::size_t j = 0; j < n; ++j) sum += me * j * unit;
            const Ints source = filled(rank, sum);
            Ints target(sum, -1);
            CallArguments made = make_call(Verb::all_to_all, source, target, 0);
            for (std::size_t j = 0; j < n; ++j) made.sends.push_back(me * j * unit);
            made.receives = made.sends;
            group->run(made, long_limits);
            std::size_t at = 0;
            for (std::size_t from = 0; from < n; ++from) {
                std::size_t begin = 0;
                for (std::size_t j = 0; j < me; ++j) begin += from * j * unit;
                for (std::size_t i = 0; i < from * me * unit; ++i)
                    CHECK(target[at++] == value(static_cast<int>(from), begin + i));
            }
        }
    });
}

/// An exchange in which rank 0 alone has one count for all, and does not know that others have not.
void test_partly_uneven() {
    const ThreadedJob job(3);
    on_ranks(3, [&](int rank) {
        const auto group = job.group(rank);
        for (const std::size_t equal : {0, 3, 300, 20000, 70000})
            for (const std::size_t other : {0, 5, 9000, 90000}) {
                // Symmetric, so everybody receives as much as it sends.
                const std::size_t counts[3][3] = {
                    {equal, equal, equal}, {equal, other, 2 * other}, {equal, 2 * other, 1}};
                const auto begin = [&](int of, int part) {
                    return std::accumulate(counts[of], counts[of] + part, std::size_t{0});
                };
                const Ints source = filled(rank, begin(rank, 3));
                Ints target(source.size(), -1);
                CallArguments made = make_call(Verb::all_to_all, source, target, 0);
                made.count = rank == 0 ? equal : 0;
                if (rank != 0) made.sends = made.receives = {counts[rank], counts[rank] + 3};
                group->run(made, long_limits);
                for (int from = 0; from < 3; ++from)
                    for (std::size_t i = 0; i < counts[rank][from]; ++i)
                        CHECK(target[begin(rank, from) + i] == value(from, begin(from, rank) + i));
            }
    });
}

/// Ranks that disagree all get the error, which names both sides, and can continue.
void test_mismatch() {
    const int size = 3;
    const ThreadedJob job(size);
    on_ranks(size, [&](int rank) {
        const auto group = job.group(rank);
        Ints data(600000), out(600000);
        for (int round = 0; round < 20; ++round) {
            const bool odd = rank == round % size;
            CallArguments made = make_call(Verb::all_reduce, data, out, 10, ReduceOp::sum);
            switch (odd ? round % 5 : 5) {
                case 0:
                    made.count = 600000;
                    break;
                case 1:
                    made.dtype_code = 11;
                    break;
                case 2:
                    made.op = ReduceOp::max;
                    break;
                case 3:
                    made = make_call(Verb::all_gather, data, out, 10);
                    break;
                case 4:
                    made = make_call(Verb::broadcast, data, out, 10, ReduceOp::none, 1);
                    break;
                default:
                    break;
            }
            bool failed = false;
            try {
                group->run(made, long_limits);
            } catch (const Failure& failure) {
                failed = failure.kind == FailureKind::mismatch;
                CHECK(failure.text.find("all_reduce int32 x 10 sum") != std::string::npos);
            }
            CHECK(failed);
            const Ints mine = filled(rank, 10);
            group->run(make_call(Verb::all_reduce, mine, out, 10, ReduceOp::sum), long_limits);
            for (std::size_t i = 0; i < 10; ++i) CHECK(out[i] == total(size, i));
        }
        group->run(make_call(Verb::barrier, data, out, 0), long_limits);
    });
}

/// Two ranks that go through their slots: calls of all sizes, some of which fail, and some with
/// counts that differ by rank. Both must be at the same place in each of them.
void test_rotating() {
    const ThreadedJob job(2);
    on_ranks(2, [&](int rank) {
        const auto group = job.group(rank);
        const std::size_t counts[] = {3, 2500, 5000, 9000, 33000, 300001, 1, 70000};
        for (std::size_t round = 0; round < 200; ++round) {
            group->set_rotates(true);  // the probe may have found that it does not pay here
            const std::size_t count = counts[round * 5 % 8 ^ round / 8 % 8];
            const int root = static_cast<int>(round / 5 % 2);
            const Ints mine = filled(rank, 2 * count);
            Ints out(2 * count, -1);
            CallArguments made = make_call(Verb::all_reduce, mine, out, count, ReduceOp::sum);
            bool failed = false;
            switch (round % 6) {
                case 0:
                    made.count <<= rank;
                    break;
                case 1:
                    made = make_call(Verb::broadcast, mine, out, count, ReduceOp::none, root);
                    break;
                case 2:
                    made = make_call(Verb::all_gather, mine, out, count);
                    break;
                case 3:  // rank 1 keeps one element, which rank 0 does not know
                    made = make_call(Verb::all_to_all, mine, out, rank == 0 ? count : 0);
                    if (rank == 1) made.sends = made.receives = {count, 1};
                    break;
                case 4:
                    made = make_call(Verb::reduce, mine, out, count, ReduceOp::sum, root);
                    break;
                default:
                    break;
            }
            try {
                group->run(made, long_limits);
            } catch (const Failure& failure) {
                failed = failure.kind == FailureKind::mismatch;
            }
            CHECK(failed == (round % 6 == 0));
            for (std::size_t i = 0; i < count && !failed; ++i) switch (round % 6) {
                    case 1:
                        CHECK(out[i] == value(root, i));
                        break;
                    case 2:
                        CHECK(out[i] == value(0, i) && out[count + i] == value(1, i));
                        break;
                    case 3:
                        CHECK(rank == 0 ? out[count + i] == value(1, i)
                                        : out[i] == value(0, count + i));
                        break;
                    case 4:
                        CHECK(rank != root || out[i] == total(2, i));
                        break;
                    default:
                        CHECK(out[i] == total(2, i));
                }
        }
    });
}

/// A rank that does not come is named at the deadline; the group is broken, and calls say so.
void test_deadline() {
    const ThreadedJob job(3);
    std::atomic<int> failures{0}, timeouts{0};
    on_ranks(3, [&](int rank) {
        const auto group = job.group(rank);
        Ints data(4), out(4);
        if (rank == 2)
            while (failures != 2) std::this_thread::yield();  // until the others have given up
        bool failed = false;
        try {
            group->run(make_call(Verb::all_reduce, data, out, 4, ReduceOp::sum),
                       {rank == 2 ? 30 : 0.2, nullptr});
        } catch (const Failure& failure) {
            failed = true;
            if (failure.kind == FailureKind::timeout) {
                CHECK(rank != 2 && failure.ranks.back() == 2);
                ++timeouts;
            } else {  // the deadline of another rank had passed before this one arrived
                CHECK(failure.kind == FailureKind::lost);
            }
        }
        CHECK(failed);
        ++failures;
        bool broken = false;
        try {
            group->run(make_call(Verb::barrier, data, out, 0), {5, nullptr});
        } catch (const Failure&) {
            broken = true;
        }
        CHECK(broken);
    });
    CHECK(timeouts > 0);
}

/// Queued calls run in order in the background, and blocking calls wait for them.
void test_background() {
    const int size = 3;
    const ThreadedJob job(size);
    on_ranks(size, [&](int rank) {
        Worker worker(job.group(rank));
        std::vector<Ints> outs(40, Ints(1000));
        const Ints mine = filled(rank, 1000);
        std::vector<std::shared_ptr<Completion>> waits;
        for (std::size_t i = 0; i + 1 < outs.size(); ++i)
            waits.push_back(
                worker.start(make_call(Verb::all_reduce, mine, outs[i], 1000, ReduceOp::sum), 30));
        worker.run(make_call(Verb::all_reduce, mine, outs.back(), 1000, ReduceOp::sum),
                   long_limits);
        for (const auto& wait : waits) CHECK(wait->done() && wait->failure() == nullptr);
        for (const Ints& out : outs)
            for (std::size_t i = 0; i < out.size(); ++i) CHECK(out[i] == total(size, i));
    });
}

/// A call that begins for somebody who waits elsewhere does not wait for a peer that is late, and
/// it ends in any case: here, if the peers come at once, or in the thread.
void test_begin() {
    const int size = 3;
    const ThreadedJob job(size);
    std::atomic<bool> returned{false};
    on_ranks(size, [&](int rank) {
        Worker worker(job.group(rank));
        const Ints mine = filled(rank, 1000);
        for (int turn = 0; turn < 50; ++turn) {
            Ints out(1000);
            if (turn == 7 && rank == 1)
                while (!returned) std::this_thread::yield();
            const auto wait =
                worker.start(make_call(Verb::all_reduce, mine, out, 1000, ReduceOp::sum), 30);
            worker.begin(wait);
            if (turn == 7 && rank == 0) returned = true;
            CHECK(wait->wait(long_limits) && wait->failure() == nullptr);
            for (std::size_t i = 0; i < out.size(); ++i) CHECK(out[i] == total(size, i));
        }
    });
}

/// Closing ends a call that waits, on this rank and on its peers.
void test_close() {
    const ThreadedJob job(2);
    on_ranks(2, [&](int rank) {
        Worker worker(job.group(rank));
        Ints data(4), out(4);
        if (rank == 0) {
            const auto wait =
                worker.start(make_call(Verb::all_reduce, data, out, 4, ReduceOp::sum), 30);
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
            worker.close(0);
            CHECK(wait->done() && wait->failure() != nullptr);
            return;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        bool failed = false;
        try {
            worker.run(make_call(Verb::all_gather, data, *std::make_unique<Ints>(8), 4),
                       long_limits);
            worker.run(make_call(Verb::barrier, data, out, 0), long_limits);
        } catch (const Failure&) {
            failed = true;
        }
        CHECK(failed);
    });
}

}  // namespace

int main() {
    // Staged only; the direct way wherever it can be; what a job does by itself.
    for (const char* single_copy : {"0", "1", ""}) {
        setenv("UNISONO_SINGLE_COPY", single_copy, 1);
        for (const int size : {1, 2, 3, 5, 8}) test_verbs(size);
        for (const int size : {1, 2, 4}) test_uneven(size);
        for (const int size : {2, 3}) test_in_place(size);
        for (const int size : {2, 3, 5, 8}) test_in_a_row(size);
        test_partly_uneven();
        test_mismatch();
        test_rotating();
    }
    test_deadline();
    test_background();
    test_begin();
    test_close();
    std::puts("group: ok");
}
