// native/tests/test_told.cpp: calls on a GPU, which ranks compare among their calls on the CPU, and
// what they tell each other in them.
#include <optional>

#include "check.hpp"

using namespace unisono;
using namespace unisono::test;

namespace {

using Ints = std::vector<std::int32_t>;
const Limits long_limits{30, nullptr};

/// A call on `count` elements, in which this rank tells the numbers in `own`.
CallArguments make_told(Verb verb, const Ints& own, Ints& all, std::size_t count,
                        ReduceOp op = ReduceOp::none) {
    CallArguments made = make_call(verb, own, all, count, op);
    made.told_bytes = static_cast<std::uint32_t>(own.size() * sizeof own[0]);
    return made;
}

/// The text of the mismatch that a call is, if it is one.
std::optional<std::string> mismatch(Group& group, const CallArguments& arguments) {
    try {
        group.run(arguments, long_limits);
    } catch (const Failure& failure) {
        CHECK(failure.kind == FailureKind::mismatch);
        return failure.text;
    }
    return std::nullopt;
}

/// Everybody has what all have told, whatever the counts of the call; calls on the CPU before and
/// after it are at the same place of the slots on all ranks.
void test_telling(int size) {
    const ThreadedJob job(size);
    const auto n = static_cast<std::size_t>(size);
    on_ranks(size, [&](int rank) {
        const auto group = job.group(rank);
        for (int round = 0; round < 40; ++round) {
            if (size == 2) group->set_rotates(true);
            const Ints own(70, rank * 1000 + round);
            Ints all(n * own.size(), -1), sum(5000);
            // 16 KiB and more go through the slots, by as much as the largest part has.
            const auto count = static_cast<std::size_t>(5000 * (rank + 1));
            CHECK(!mismatch(*group, make_told(Verb::all_gather, own, all, count)));
            for (std::size_t i = 0; i < all.size(); ++i)
                CHECK(all[i] == static_cast<int>(i / own.size()) * 1000 + round);
            const Ints ones(5000, 1);
            group->run(make_call(Verb::all_reduce, ones, sum, 5000, ReduceOp::sum), long_limits);
            CHECK(sum == Ints(5000, size));
        }
    });
}

/// A call on the CPU is another one, and so is one whose count must be the same and is not.
void test_mismatch() {
    const int size = 3;
    const ThreadedJob job(size);
    on_ranks(size, [&](int rank) {
        const auto group = job.group(rank);
        const Ints own(70, rank);
        for (int round = 0; round < 12; ++round) {
            const bool odd = rank == round % size;
            Ints all(size * own.size(), -1);
            CallArguments made = make_told(Verb::all_gather, own, all, 10);
            if (round % 4 == 0 && odd) made.told_bytes = 0;
            if (round % 4 == 1 && odd) made = make_call(Verb::barrier, own, all, 0);
            if (round % 4 == 2 && odd) made.root = 1;
            if (round % 4 == 3)
                made = make_told(Verb::all_reduce, own, all, odd ? 11 : 10, ReduceOp::sum);
            const auto text = mismatch(*group, made);
            CHECK(text && text->find(" on a GPU, call ") != std::string::npos);
            if (made.on_gpu()) CHECK(all == Ints(size * own.size(), -1));
            CHECK(!mismatch(*group, make_told(Verb::all_gather, own, all, 10)));
            CHECK(all[0] == 0 && all.back() == size - 1);
        }
    });
}

}  // namespace

int main() {
    for (const int size : {1, 2, 3, 5}) test_telling(size);
    test_mismatch();
    std::puts("told: ok");
}
