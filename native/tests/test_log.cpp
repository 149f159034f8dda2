// native/tests/test_log.cpp: a record that is read while it is written is complete or missing.
#include <atomic>
#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

#include "check.hpp"
#include "log.hpp"

using namespace unisono;

namespace {

CallArguments arguments_with(std::uint64_t count) {
    CallArguments arguments;
    arguments.verb = Verb::all_reduce;
    arguments.op = ReduceOp::sum;
    arguments.count = count;
    arguments.root = static_cast<std::int32_t>(count);
    arguments.factor = static_cast<double>(count);
    return arguments;
}

/// Calls are found by group and number, and the newest 1024 stay.
void test_order() {
    auto memory = std::make_unique<LogMemory>();
    Log log;
    log.attach(memory.get());
    CHECK(!log.last(0));
    CallArguments with_call_site = arguments_with(0);
    with_call_site.call_site = {7, "train.py:88"};
    for (std::uint32_t call = 1; call <= 3000; ++call)
        log.end(log.begin(with_call_site, 5, 9, call), CallState::done);
    CHECK(!log.find(5, 1976));
    CHECK(log.find(5, 1977)->sequence == 1977);
    CHECK(log.find(5, 3000)->state == CallState::done);
    CHECK(!log.find(6, 3000));
    CHECK(log.at(*log.find(5, 2500)) == " at train.py:88");
    const auto open = log.begin(arguments_with(1), 5, 9, 3001);
    log.begin(arguments_with(2), 6, 9, 1);
    CHECK(log.last(5)->sequence == open);  // it runs
    CHECK(log.last(4)->call.number == 1);  // no call in that group: the newest one
    log.end(open, failed(FailureKind::lost));
    CHECK(std::string(name(log.find(5, 3001)->state)) == "lost");
    log.end(1, CallState::done);  // overwritten long ago: no effect
    CHECK(log.find(5, 3000)->sequence == 3000);
}

/// Two threads of a rank write, two others read: every record belongs to one call.
void test_torn() {
    auto memory = std::make_unique<LogMemory>();
    Log log;
    log.attach(memory.get());
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (std::uint32_t writer = 1; writer <= 2; ++writer)
        threads.emplace_back([&, writer] {
            for (std::uint32_t call = 1; call <= 40000; ++call) {
                const std::uint64_t count = call % 1000 * 2 + writer - 1;
                log.end(log.begin(arguments_with(count), writer, writer, call), CallState::done);
            }
            stop = true;
        });
    for (int reader = 0; reader < 2; ++reader)
        threads.emplace_back([&] {
            while (!stop)
                for (const std::uint32_t group : {1u, 2u}) {
                    const auto record = log.last(group);
                    if (!record) continue;
                    CHECK(static_cast<std::uint64_t>(record->call.root) == record->call.count);
                    CHECK(record->call.factor == static_cast<double>(record->call.count));
                    CHECK(record->page == record->group);
                    CHECK(record->call.number % 1000 * 2 + record->group - 1 == record->call.count);
                    CHECK(record->ended == 0 || record->ended >= record->began);
                }
        });
    for (std::thread& thread : threads) thread.join();
}

}  // namespace

int main() {
    test_order();
    test_torn();
    std::puts("log: ok");
}
