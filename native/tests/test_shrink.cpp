// native/tests/test_shrink.cpp: members agree on a smaller group, with ranks that are threads.
#include <set>

#include "check.hpp"

using namespace unisono;
using namespace unisono::test;

namespace {

using Ints = std::vector<std::int32_t>;

void check_sum(Group& group, int rank, int expected) {
    const Ints mine{1 << rank};
    Ints out(1);
    group.run(make_call(Verb::all_reduce, mine, out, 1, ReduceOp::sum), {30, nullptr});
    CHECK(out[0] == expected);
}

/// One rank leaves, one is excluded; the others agree on one group, which works; many times.
void test_agreement() {
    for (int round = 0; round < 50; ++round) {
        const ThreadedJob job(5);
        on_ranks(5, [&](int rank) {
            auto group = job.group(rank);
            check_sum(*group, rank, 31);
            if (rank == 1) return group->close();  // it has left
            if (rank == 3) return;                 // it is excluded
            const std::size_t offset = group->shrink({3}, {30, nullptr});
            const auto ranks = Group::members_at(*job.arena, offset);
            CHECK((ranks == std::vector<int>{0, 2, 4}));
            Group smaller(job.arena, offset, rank / 2, 3);
            group->close();
            check_sum(smaller, rank, 1 + 4 + 16);
        });
    }
}

/// A member that does not come is named at the deadline; a later try succeeds.
void test_deadline() {
    const ThreadedJob job(3);
    std::atomic<int> late{0};
    on_ranks(3, [&](int rank) {
        auto group = job.group(rank);
        check_sum(*group, rank, 7);
        if (rank != 1) {
            try {
                group->shrink({}, {1, nullptr});
                CHECK(false);
            } catch (const Failure& failure) {
                CHECK(failure.kind == FailureKind::timeout);
                CHECK(failure.ranks == std::vector<int>{1});
            }
            ++late;
        }
        while (late != 2) std::this_thread::yield();
        const std::size_t offset = group->shrink({}, {30, nullptr});
        Group again(job.arena, offset, rank, 3);
        group->close();
        check_sum(again, rank, 7);
    });
}

}  // namespace

int main() {
    test_agreement();
    test_deadline();
    std::puts("shrink: ok");
}
