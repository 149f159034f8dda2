// native/tests/test_flips.cpp: bytes of the control memory are overwritten while ranks call.
//
//   test_flips [flips [seed]]
//
// Whatever a rank reads there, its call ends soon, with success or a Failure, and it uses no memory
// but its own: a wild access is a signal or a report of AddressSanitizer, a hang is SIGALRM. The
// results of the calls are not checked. Payload is not overwritten, because no rank follows it.
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <deque>

#include "check.hpp"
#include "communicator.hpp"

using namespace unisono;
using unisono::test::Numbers;
using unisono::test::on_ranks;

/// A length from damaged memory must not become an allocation; a sanitizer report ends the test.
extern "C" const char* __asan_default_options() { return "max_allocation_size_mb=64"; }
extern "C" const char* __ubsan_default_options() { return "halt_on_error=1:print_stacktrace=1"; }

namespace {

constexpr int size = 3;
constexpr int lanes = 8;  // worlds at the same time: each mostly sleeps until deadlines
constexpr int flips_per_world = 250;
constexpr std::size_t flips_at_a_time = 4;
constexpr auto pause_between_flips = std::chrono::milliseconds(2);
constexpr double deadline = 0.04;
constexpr double margin = 20;  // for a busy machine
const Limits limits{deadline, nullptr};

std::atomic<long> flips_left{0};
std::atomic<long> succeeded{0}, failed_calls{0}, worlds{0};

/// Control bytes of the file.
struct Region {
    std::size_t offset, bytes;
};

/// A byte that was overwritten.
struct Flip {
    off_t offset;
    char before;
};

/// One job, and where its control memory is: regions of each kind are hit equally often, however
/// many there are.
class World {
public:
    World() : fd(SharedJob::create(size)) {
        const ArenaLayout layout(size);
        kinds_.resize(6);
        kinds_[0] = {{0, 64}};
        for (std::size_t i = 0; i < size; ++i) {
            kinds_[1].push_back({layout.rank_infos + i * sizeof(RankInfo), sizeof(RankInfo)});
            const std::size_t log = layout.logs + i * layout.log;
            kinds_[2].push_back(
                {log, 128 + 64 * sizeof(PackedRecord)});  // as much as such a short job uses
            kinds_[2].push_back({log, sizeof(LogMemory)});
        }
        for (std::size_t i = 0; i < size * size; ++i) {
            const std::size_t channel = layout.channels + i * sizeof(Channel);
            kinds_[3].push_back({channel + offsetof(Channel, written), 8});
            kinds_[3].push_back({channel + offsetof(Channel, read), 8});
            for (std::size_t cell = 0; cell < Arena::ring_cells; ++cell)
                kinds_[4].push_back(
                    {layout.rings + (i * Arena::ring_cells + cell) * layout.cell, 40});
        }
        add_group(layout.world, size);
    }
    ~World() { close(fd); }

    void add_group(std::size_t offset, int members) {
        const GroupLayout layout(members);
        const std::lock_guard lock(mutex_);
        auto& groups = kinds_[5];
        groups.push_back({offset, 64});
        groups.push_back({offset + layout.world_ranks, static_cast<std::size_t>(members) * 4});
        groups.push_back({offset + layout.rows, layout.slots - layout.rows});
        for (std::size_t i = 0; i < static_cast<std::size_t>(members); ++i)
            for (const std::size_t bytes :
                 {std::size_t{40}, sizeof(Member)})  // turns and marks; everything
                groups.push_back({offset + layout.members + i * sizeof(Member), bytes});
        if (groups.size() > 40)
            groups.erase(groups.begin(), groups.begin() + 9);  // closed long ago
    }

    Flip flip(Numbers& numbers) {
        Region at{};
        {
            const std::lock_guard lock(mutex_);
            const auto& kind = kinds_[numbers.next() % kinds_.size()];
            at = kind[numbers.next() % kind.size()];
        }
        const auto value = static_cast<char>(numbers.next());
        Flip flip{static_cast<off_t>(at.offset + numbers.next() % at.bytes), 0};
        CHECK(pread(fd, &flip.before, 1, flip.offset) == 1);
        CHECK(pwrite(fd, &value, 1, flip.offset) == 1);
        return flip;
    }

    void put_back(const Flip& flip) { CHECK(pwrite(fd, &flip.before, 1, flip.offset) == 1); }

    const int fd;
    std::barrier<> gate{size};
    std::atomic<bool> over{false};

private:
    std::mutex mutex_;
    std::vector<std::vector<Region>> kinds_;
};

/// Runs one call: it ends in time, with success or a Failure.
template <class Body>
void attempt(Body body) {
    const auto began = Clock::now();
    try {
        body();
        ++succeeded;
    } catch (const Failure& failure) {
        CHECK(!failure.text.empty());
        ++failed_calls;
    }
    CHECK(Clock::now() - began < std::chrono::duration<double>(margin));
}

/// A random collective, the same on all ranks, because their `numbers` are the same; some have
/// their source in the heap.
void run_collective_call(Communicator& group, Heap& heap, int rank, Numbers& numbers) {
    const int members = static_cast<int>(group.world_ranks().size());
    constexpr std::size_t counts[] = {0, 1, 600, 5000, 90000};
    const std::size_t count = counts[numbers.next() % 5];
    const auto verb = static_cast<Verb>(1 + numbers.next() % 9);
    const auto root = static_cast<int>(numbers.next() % static_cast<unsigned>(members));
    const bool uneven = numbers.next() % 2 == 0;
    const bool later = numbers.next() % 4 == 0;
    const bool reduces =
        verb == Verb::all_reduce || verb == Verb::reduce || verb == Verb::reduce_scatter;
    const bool rooted = verb == Verb::broadcast || verb == Verb::reduce || verb == Verb::gather ||
                        verb == Verb::scatter;
    std::vector<std::int32_t> source(count * size, rank), target(count * size);
    auto arguments = unisono::test::make_call(
        verb, source, target, count, reduces ? ReduceOp::sum : ReduceOp::none, rooted ? root : -1);
    std::unique_ptr<void, bool (*)(void*) noexcept> shared(nullptr, &Heap::free);
    if (numbers.next() % 3 == 0 && count != 0) {
        shared.reset(heap.allocate(source.size() * sizeof source[0], true));
        arguments.source = static_cast<const std::byte*>(shared.get());
    }
    arguments.call_site = {static_cast<std::uint16_t>(1 + numbers.next() % 255), "flips.py:1"};
    if (verb == Verb::all_to_all && uneven)
        for (int peer = 0; peer < members; ++peer) {
            arguments.sends.push_back(count / static_cast<std::size_t>(1 + (rank + peer) % 3));
            arguments.receives.push_back(arguments.sends.back());
        }
    if (!later) return group.run(arguments, limits);
    const auto completion = group.start(arguments, deadline);
    CHECK(completion->wait({margin, nullptr}));
    if (const Failure* failure = completion->failure()) throw Failure(*failure);
}

/// A message to the next rank and one from the previous rank, or from any.
void exchange(Communicator& group, int rank, Numbers& numbers) {
    const int members = static_cast<int>(group.world_ranks().size());
    constexpr std::size_t counts[] = {0, 40, 70'000, 500'000};
    const std::size_t bytes = counts[numbers.next() % 4];
    const int previous = numbers.next() % 3 == 0 ? -1 : (rank + members - 1) % members;
    std::vector<std::byte> sent(bytes), got(bytes);
    const auto send = group.transfer(true, (rank + 1) % members, 0);
    const auto receive = group.transfer(false, previous, 0);
    send->data = sent.data();
    receive->data = got.data();
    send->bytes = receive->bytes = bytes;
    send->recorded = receive->recorded = true;
    attempt([&] { group.start(send, deadline); });
    attempt([&] {
        group.run(receive, limits);
        CHECK(receive->source >= 0 && receive->source < members);
    });
    // A transfer that was never posted never completes.
    if (send->deadline != Clock::time_point{}) CHECK(send->completion.wait({margin, nullptr}));
}

/// One round: splits a group from `base`, uses it, shrinks it, uses it again and leaves it.
void run_round(World& world, Communicator& base, Heap& heap, int rank, Numbers& numbers) {
    std::unique_ptr<Communicator> group;
    const auto join = [&](auto make) {
        attempt([&] {
            group = make();
            world.add_group(group->transfer(true, 0, 0)->page * page,
                            static_cast<int>(group->world_ranks().size()));
        });
    };
    attempt([&] { run_collective_call(base, heap, rank, numbers); });
    const auto key = static_cast<std::int64_t>(numbers.next() >> 1);
    join([&] { return base.split({0, 1, 2}, key, limits); });
    if (group == nullptr) return;
    const std::uint64_t calls = 2 + numbers.next() % 4;
    for (std::uint64_t call = 0; call < calls; ++call)
        attempt([&] { run_collective_call(*group, heap, rank, numbers); });
    exchange(*group, rank, numbers);
    attempt([&] {
        const JobInspector inspector(world.fd);
        for (int peer = 0; peer < inspector.size(); ++peer) inspector.snapshot(peer);
    });
    const auto old = std::move(group);
    join([&] { return old->shrink({}, limits); });
    if (group == nullptr) return;
    const auto ranks = group->world_ranks();
    const auto own = std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
    if (own == static_cast<long>(ranks.size())) return;
    attempt([&] { run_collective_call(*group, heap, static_cast<int>(own), numbers); });
    exchange(*group, static_cast<int>(own), numbers);
}

/// Everything that one rank does in one world.
void run_rank(World& world, int rank, Numbers numbers) {
    std::shared_ptr<SharedJob> job;
    std::unique_ptr<Communicator> base;
    while (job == nullptr && !world.over) {
        attempt([&] { job = std::make_shared<SharedJob>(dup(world.fd), rank); });
        std::this_thread::sleep_for(pause_between_flips);
    }
    world.gate.arrive_and_wait();
    if (job != nullptr)
        attempt([&] {
            job->connect_peers();
            base = std::make_unique<Communicator>(job, job->arena()->world_offset(), rank, size);
        });
    // All ranks start a round together, with the same numbers, or all calls would be mismatches.
    while (base != nullptr && !world.over) {
        world.gate.arrive_and_wait();
        Numbers own{numbers.next()};
        run_round(world, *base, *job->heap(), rank, own);
        attempt([&] { job->inspector()->snapshot(rank); });
    }
    world.gate.arrive_and_drop();
    if (base != nullptr) base->close(deadline);
    if (job != nullptr) job->close(deadline);
}

/// Damages a world until it ends. A byte gets its old value back after a while: else the first hit
/// at a word that is written only once would stop all later calls at the same point.
void damage(World& world, Numbers numbers) {
    std::deque<Flip> recent;
    for (int flip = 0; flip < flips_per_world; ++flip) {
        recent.push_back(world.flip(numbers));
        --flips_left;
        std::this_thread::sleep_for(pause_between_flips);
        if (recent.size() < flips_at_a_time) continue;
        world.put_back(recent.front());
        recent.pop_front();
    }
    world.over = true;
}

/// Runs worlds one after the other, until all flips are done.
void run_lane(std::uint64_t seed) {
    Numbers numbers{seed};
    while (flips_left > 0) {
        World world;
        const Numbers common{numbers.next()}, hits{numbers.next()};
        std::thread flipper([&] { damage(world, hits); });
        on_ranks(size, [&](int rank) { run_rank(world, rank, common); });
        flipper.join();
        ++worlds;
        alarm(120);  // if no world ends for so long, a call hangs
    }
}

}  // namespace

int main(int count, char** words) {
    const long flips = count > 1 ? std::atol(words[1]) : 3000;
    const auto clock = static_cast<std::uint64_t>(Clock::now().time_since_epoch().count());
    const std::uint64_t seed = count > 2 ? std::strtoull(words[2], nullptr, 10) : clock % 1000000;
    std::printf("flips: %ld, seed %llu\n", flips, static_cast<unsigned long long>(seed));
    std::fflush(stdout);
    flips_left = flips;
    alarm(120);
    on_ranks(lanes, [&](int lane) { run_lane(seed * lanes + static_cast<std::uint64_t>(lane)); });
    std::printf("flips: %ld worlds; %ld calls succeeded, %ld failed\n", worlds.load(),
                succeeded.load(), failed_calls.load());
    CHECK(succeeded > 0 && failed_calls > 0);
    std::puts("flips: ok");
}
