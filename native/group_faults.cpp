// native/group_faults.cpp: the errors of a group.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "group.hpp"
#include "process.hpp"

namespace unisono {

void Group::raise_departed(int peer, std::uint32_t word) {
    const int blamed = static_cast<int>(word >> 8) - 1;
    const std::string culprit = describe_rank(peer);
    const auto why = static_cast<LeaveReason>(word & 0xff);
    if (why != LeaveReason::none && (blamed < 0 || blamed >= size_))
        throw damaged(format("%s blames rank %d, which is not a member", culprit.c_str(), blamed));
    switch (why) {
        case LeaveReason::none:
            throw Failure(FailureKind::lost, describe_loss(peer, ""), {peer});
        case LeaveReason::closed:
        case LeaveReason::stopped:
            // relaxed: pairs with Arena::announce_exit(), which came before the closing that
            // we have seen.
            if (arena_->rank_info(world_rank(peer)).exiting.load(std::memory_order_relaxed) != 0)
                throw Failure(FailureKind::lost, describe_loss(peer, ""), {peer});
            throw Failure(
                FailureKind::lost,
                format("%s closed the group; %s", culprit.c_str(), last_call_clause(peer).c_str()),
                {peer});
        case LeaveReason::timeout:
            throw Failure(FailureKind::lost,
                          format("%s gave up at its deadline, waiting for %s; %s", culprit.c_str(),
                                 blamed == rank_ ? "this rank" : describe_rank(blamed).c_str(),
                                 last_call_clause(peer).c_str()),
                          {peer});
        case LeaveReason::interrupted:
            throw Failure(
                FailureKind::lost,
                format("%s was interrupted; %s", culprit.c_str(), last_call_clause(peer).c_str()),
                {peer});
        case LeaveReason::lost:
            throw Failure(FailureKind::lost, describe_loss(blamed, culprit), {blamed});
        case LeaveReason::shrinking:
            throw Failure(FailureKind::lost,
                          format("%s left the group to shrink it", culprit.c_str()), {peer});
        case LeaveReason::memory:
            throw Failure(FailureKind::memory,
                          format("%s found no shared memory for its call; the slots of a rank take "
                                 "up to %.1f MiB",
                                 describe_rank(blamed).c_str(),
                                 2 * static_cast<double>(slot_bytes_) / (1 << 20)),
                          {blamed});
    }
    throw damaged(
        format("%s has left for reason %u, which does not exist", culprit.c_str(), word & 0xff));
}

/// The kernel did not let us read a peer. A process that dies loses its memory a moment before it
/// counts as ended, and a rank publishes that it has left a call before it frees its memory.
void Group::raise_unreadable(int peer, int error) {
    const auto deadline = deadline_after(2);
    for (;;) {
        const std::uint32_t word =
            members_[peer].gave_up.load(std::memory_order_seq_cst);  // give_up()
        if (word != 0 || !arena_->alive(world_rank(peer))) raise_departed(peer, word);
        if (Clock::now() >= deadline) break;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (error == ESRCH) raise_departed(peer, 0);
    throw Failure(FailureKind::system,
                  format("the memory of %s could not be read: %s; it has been freed during the "
                         "call, or the process has lost the permission since it started: "
                         "UNISONO_SINGLE_COPY=0 does without it",
                         describe_rank(peer).c_str(), std::strerror(error)),
                  {peer});
}

std::string Group::timeout_text() const {
    return format("reached its timeout of %g s", limits_->seconds);
}

void Group::expire(const std::string& how) {
    constexpr std::size_t most = 8;  // ranks that are described; further ones are only counted
    std::vector<int> missing, present;
    std::string late, here;
    for (int peer = 0; peer < size_; ++peer) {
        const bool came = peer == rank_ || reached(peer);
        auto& list = came ? present : missing;
        list.push_back(peer);
        if (list.size() > most) continue;
        if (came) {
            here += format("%s%s%s", here.empty() ? "" : ", ", describe_rank(peer).c_str(),
                           at_call_site(peer, true).c_str());
            continue;
        }
        const bool stopped =
            read_process_state(
                arena_->rank_info(world_rank(peer)).pid.load(std::memory_order_relaxed))
                .stopped();
        late += format("; %s is alive but %s; %s", describe_rank(peer).c_str(),
                       stopped ? "stopped" : "has not come", last_call_clause(peer).c_str());
    }
    if (missing.size() > most) late += format("; and %zu more", missing.size() - most);
    if (present.size() > most) here += format(" and %zu more", present.size() - most);
    throw Failure(FailureKind::timeout,
                  format("%s%s %s waiting for %s%s; arrived: %s", last_call(rank_).c_str(),
                         at_call_site(rank_, false).c_str(), how.c_str(),
                         name_ranks(missing).c_str(), late.c_str(), here.c_str()),
                  missing);
}

void Group::raise_mismatch() {
    struct Side {
        std::string call;
        std::vector<int> ranks;
        std::vector<std::string> call_sites;
    };
    std::vector<Side> sides;
    for (int rank = 0; rank < size_; ++rank) {
        const CallDescriptor call(members_[rank].call[step_ & 1]);
        std::string text = call.text();
        if (call.uneven) {
            const std::uint64_t* published = rows(rank);
            for (const bool receiving : {false, true}) {
                text += receiving ? ", receiving [" : ", sending [";
                for (int peer = 0; peer < size_; ++peer)
                    text += format(
                        "%s%llu", peer == 0 ? "" : ", ",
                        static_cast<unsigned long long>(published[receiving * size_ + peer]));
                text += "]";
            }
        }
        auto side = std::find_if(sides.begin(), sides.end(),
                                 [&](const Side& other) { return other.call == text; });
        if (side == sides.end()) side = sides.insert(side, {text, {}, {}});
        side->ranks.push_back(rank);
        const std::string at = at_call_site(rank, false);
        if (!at.empty() && std::find(side->call_sites.begin(), side->call_sites.end(), at) ==
                               side->call_sites.end())
            side->call_sites.push_back(at);
    }
    std::string text = format("ranks disagree in call %u of the group", calls_);
    for (const Side& side : sides) {
        text +=
            format("; %s: %s, call %u", name_ranks(side.ranks).c_str(), side.call.c_str(), calls_);
        for (std::size_t i = 0; i < side.call_sites.size(); ++i)
            text += (i == 0 ? "" : " and") + side.call_sites[i];
    }
    throw Failure(FailureKind::mismatch, text);
}

std::string Group::last_call(int rank) const {
    const CallDescriptor even(members_[rank].call[0]);
    const CallDescriptor odd(members_[rank].call[1]);
    const CallDescriptor& last = even.number > odd.number ? even : odd;
    if (last.verb == Verb::nothing) return {};
    return format("%s (call %u)", last.text().c_str(), last.number);
}

/// "its last call was barrier (call 2) at train.py:88, which ended 0.2 s ago".
std::string Group::last_call_clause(int rank) const {
    std::string text = arena_->last_call_text(world_rank(rank), number_);
    if (text.empty()) text = last_call(rank);
    return text.empty() ? "it has made no call yet" : "its last call was " + text;
}

/// Where a rank makes the call that we are in: " at train.py:88"; with `waited`, for how long.
std::string Group::at_call_site(int rank, bool waited) const {
    const Log& log = arena_->log(world_rank(rank));
    const auto record = log.find(number_, calls_);
    if (!record) return {};
    const std::string text = log.at(*record);
    if (!waited) return text;
    return format("%s for %.1f s", text.c_str(), static_cast<double>(now() - record->began) * 1e-9);
}

/// How a rank was lost and its last call; `reporter` is the rank that reported it, or empty.
std::string Group::describe_loss(int rank, const std::string& reporter) const {
    const std::string how = arena_->exit_reason(world_rank(rank));
    return format("%s %s%s; %s", describe_rank(rank).c_str(), how.c_str(),
                  reporter.empty() ? "" : (", as reported by " + reporter).c_str(),
                  last_call_clause(rank).c_str());
}

std::string Group::describe_rank(int rank) const {
    const int world = world_rank(rank);
    const int pid = arena_->rank_info(world).pid.load(std::memory_order_relaxed);
    if (size_ == arena_->size() && world == rank) return format("rank %d (pid %d)", rank, pid);
    return format("rank %d (world rank %d, pid %d)", rank, world, pid);
}

}  // namespace unisono
