// native/tests/test_mailbox.cpp: messages between ranks that are threads.
#include <atomic>
#include <cstring>

#include "check.hpp"
#include "mailbox.hpp"

using namespace unisono;
using namespace unisono::test;

namespace {

const Limits long_limits{30, nullptr};

std::shared_ptr<Transfer> transfer(const ThreadedJob& job, bool sending, int peer, std::int64_t tag,
                                   std::vector<std::uint8_t>& data) {
    auto made = std::make_shared<Transfer>();
    auto group_members = std::make_shared<GroupMembers>();
    for (int rank = 0; rank < job.size; ++rank) group_members->world_ranks.push_back(rank);
    made->sending = sending;
    made->peer = peer;
    made->group_members = group_members;
    made->context = 7;
    made->tag = tag;
    made->dtype_code = 5;
    made->data = reinterpret_cast<std::byte*>(data.data());
    made->bytes = data.size();
    return made;
}

std::vector<std::uint8_t> content(int from, int to, std::size_t bytes) {
    std::vector<std::uint8_t> data(bytes);
    for (std::size_t i = 0; i < bytes; ++i)
        data[i] = static_cast<std::uint8_t>(from * 31 + to * 17 + i * 3 + i / 256);
    return data;
}

/// All ranks send to all ranks, large and small, and receives in another order, by tag.
void test_exchange(int size) {
    const ThreadedJob job(size);
    on_ranks(size, [&](int rank) {
        Mailbox box(job.arena, rank);
        for (int round = 0; round < 3; ++round) {
            std::vector<std::vector<std::uint8_t>> sent, got;
            std::vector<std::shared_ptr<Transfer>> transfers;
            const std::size_t sizes[] = {0, 5, 700000};
            sent.reserve(100), got.reserve(100);
            for (int peer = 0; peer < size; ++peer)
                for (int tag = 0; tag < 3; ++tag) {
                    sent.push_back(content(rank, peer, sizes[tag]));
                    transfers.push_back(transfer(job, true, peer, tag, sent.back()));
                    box.post(transfers.back(), 30);
                }
            box.serve_in_background();
            for (int peer = size - 1; peer >= 0; --peer)
                for (int tag = 2; tag >= 0; --tag) {  // the last tag first: others are unexpected
                    got.emplace_back(sizes[tag]);
                    const auto receive = transfer(job, false, peer, tag, got.back());
                    box.post(receive, 30);
                    box.wait(receive, long_limits);
                    CHECK(receive->source == peer);
                    CHECK(got.back() == content(peer, rank, sizes[tag]));
                }
            for (const auto& each : transfers)
                CHECK(each->completion.wait(long_limits) && each->completion.failure() == nullptr);
        }
        box.close(5);
    });
}

/// A receive from any rank gets each message once, with its source.
void test_any_source() {
    const int size = 4;
    const ThreadedJob job(size);
    on_ranks(size, [&](int rank) {
        Mailbox box(job.arena, rank);
        if (rank != 0) {
            auto data = content(rank, 0, 100);
            const auto send = transfer(job, true, 0, 1, data);
            box.post(send, 30);
            box.wait(send, long_limits);
        } else {
            std::vector<bool> seen(4, false);
            for (int i = 1; i < size; ++i) {
                std::vector<std::uint8_t> data(100);
                const auto receive = transfer(job, false, -1, 1, data);
                box.post(receive, 30);
                box.wait(receive, long_limits);
                const auto source = static_cast<std::size_t>(receive->source);
                CHECK(!seen[source] && data == content(receive->source, 0, 100));
                seen[source] = true;
            }
        }
        box.close(5);
    });
}

/// Wrong length: an error at the receiver, and the next message arrives. No message: a timeout.
void test_failures() {
    const ThreadedJob job(2);
    std::atomic<bool> is_over{false};
    on_ranks(2, [&](int rank) {
        Mailbox box(job.arena, rank);
        std::vector<std::uint8_t> ten(10, 1), eleven(11, 2);
        if (rank == 0) {
            for (auto* data : {&ten, &eleven}) {
                const auto send = transfer(job, true, 1, 0, *data);
                box.post(send, 30);
                box.wait(send, long_limits);
            }
            while (!is_over) std::this_thread::yield();  // a rank that has left is another error
        } else {
            std::vector<std::uint8_t> data(11);
            for (int round = 0; round < 3; ++round) {
                const auto receive = transfer(job, false, 0, 0, data);
                FailureKind kind = FailureKind::system;
                const double seconds = round == 2 ? 0.2 : 30;  // the third message never comes
                box.post(receive, seconds);
                try {
                    box.wait(receive, {seconds, nullptr});
                    CHECK(round == 1 && data == eleven);
                    continue;
                } catch (const Failure& failure) {
                    kind = failure.kind;
                }
                CHECK(kind == (round == 0 ? FailureKind::mismatch : FailureKind::timeout));
            }
            is_over = true;
        }
        box.close(5);
    });
}

/// A rank that has left is noticed, but what it sent before still arrives.
void test_left() {
    const ThreadedJob job(2);
    on_ranks(2, [&](int rank) {
        auto box = std::make_unique<Mailbox>(job.arena, rank);
        std::vector<std::uint8_t> data(10, 1);
        if (rank == 0) {
            const auto send = transfer(job, true, 1, 0, data);
            box->post(send, 30);
            box->wait(send, long_limits);
            box->close(1);
            return;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        const auto first = transfer(job, false, 0, 0, data);
        box->post(first, 30);
        box->wait(first, long_limits);
        const auto second = transfer(job, false, 0, 0, data);
        box->post(second, 30);
        bool lost = false;
        try {
            box->wait(second, long_limits);
        } catch (const Failure& failure) {
            lost = failure.kind == FailureKind::lost;
        }
        CHECK(lost);
    });
}

}  // namespace

int main() {
    for (const int size : {1, 2, 3}) test_exchange(size);
    test_any_source();
    test_failures();
    test_left();
    std::puts("mailbox: ok");
}
