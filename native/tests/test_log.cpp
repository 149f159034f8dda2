// native/tests/test_log.cpp: records that are read while they are written are whole or not there.
#include <atomic>
#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

#include "check.hpp"
#include "log.hpp"

using namespace unisono;

namespace {

Request request_of(std::uint64_t count) {
    Request request;
    request.verb = Verb::all_reduce;
    request.op = ReduceOp::sum;
    request.count = count;
    request.root = static_cast<std::int32_t>(count);
    request.factor = static_cast<double>(count);
    return request;
}

/// Calls are found by group and number, and the newest 1024 stay.
void test_order() {
    auto memory = std::make_unique<LogMemory>();
    Log log;
    log.attach(memory.get());
    CHECK(!log.last(0));
    Request placed = request_of(0);
    placed.place = {7, "train.py:88"};
    for (std::uint32_t call = 1; call <= 3000; ++call)
        log.end(log.begin(placed, 5, 9, call), State::done);
    CHECK(!log.find(5, 1976));
    CHECK(log.find(5, 1977)->sequence == 1977);
    CHECK(log.find(5, 3000)->state == State::done);
    CHECK(!log.find(6, 3000));
    CHECK(log.at(*log.find(5, 2500)) == " at train.py:88");
    const auto open = log.begin(request_of(1), 5, 9, 3001);
    log.begin(request_of(2), 6, 9, 1);
    CHECK(log.last(5)->sequence == open);  // it runs
    CHECK(log.last(4)->call.number == 1);  // nothing there: the newest
    log.end(open, failed(Fault::lost));
    CHECK(std::string(name(log.find(5, 3001)->state)) == "lost");
    log.end(1, State::done);  // long overwritten: nothing happens
    CHECK(log.find(5, 3000)->sequence == 3000);
}

/// Two threads of a rank write, two others read: every record is of one call.
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
                log.end(log.begin(request_of(count), writer, writer, call), State::done);
            }
            stop = true;
        });
    for (int reader = 0; reader < 2; ++reader)
        threads.emplace_back([&] {
            while (!stop)
                for (const std::uint32_t group : {1u, 2u}) {
                    const auto entry = log.last(group);
                    if (!entry) continue;
                    CHECK(static_cast<std::uint64_t>(entry->call.root) == entry->call.count);
                    CHECK(entry->call.factor == static_cast<double>(entry->call.count));
                    CHECK(entry->page == entry->group);
                    CHECK(entry->call.number % 1000 * 2 + entry->group - 1 == entry->call.count);
                    CHECK(entry->ended == 0 || entry->ended >= entry->began);
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
