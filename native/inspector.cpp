// native/inspector.cpp: read a job's memory without trusting it.
#include "inspector.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "group.hpp"
#include "process.hpp"

namespace unisono {

namespace {

/// A field of a struct in shared memory, from a copy of its bytes.
template <class Value>
Value field(const std::byte* copy, std::size_t offset) noexcept {
    Value value;
    std::memcpy(&value, copy + offset, sizeof value);
    return value;
}

}  // namespace

JobInspector::JobInspector(int fd) : fd_(fcntl(fd, F_DUPFD_CLOEXEC, 3)) {
    struct stat file{};
    bool fits = fd_ >= 0 && fstat(fd_, &file) == 0 && S_ISREG(file.st_mode);
    std::byte header[sizeof(JobHeader)];
    fits =
        fits && read(0, header, sizeof header) &&
        field<std::uint64_t>(header, offsetof(JobHeader, magic)) == arena_magic &&
        field<std::uint32_t>(header, offsetof(JobHeader, layout_version)) == arena_layout_version;
    const auto size = fits ? field<std::uint32_t>(header, offsetof(JobHeader, size)) : 0;
    fits = fits && size >= 1 && size <= max_ranks;
    if (fits) size_ = static_cast<int>(size);
    fits = fits && static_cast<std::size_t>(file.st_size) >= ArenaLayout(size_).logs;
    if (fits) return;
    if (fd_ >= 0) close(fd_);
    throw Failure(
        FailureKind::system,
        format("file descriptor %d is not the memory of a job of this version of unisono", fd));
}

JobInspector::~JobInspector() { close(fd_); }

bool JobInspector::read(std::size_t offset, void* target, std::size_t bytes) const noexcept {
    auto* at = static_cast<char*>(target);
    while (bytes != 0) {
        const ssize_t got = pread(fd_, at, bytes, static_cast<off_t>(offset));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        at += got;
        offset += static_cast<std::size_t>(got);
        bytes -= static_cast<std::size_t>(got);
    }
    return true;
}

RankSnapshot JobInspector::snapshot(int rank) const {
    if (rank < 0 || rank >= size_)
        throw Failure(FailureKind::system,
                      format("there is no rank %d in a job of %d", rank, size_));
    RankSnapshot snapshot;
    std::byte rank_info[sizeof(RankInfo)];
    const ArenaLayout layout(size_);
    if (!read(layout.rank_infos + static_cast<std::size_t>(rank) * sizeof(RankInfo), rank_info,
              sizeof rank_info))
        throw Failure(FailureKind::system, "the job's memory could not be read");
    snapshot.pid = field<std::int32_t>(rank_info, offsetof(RankInfo, pid));
    if (snapshot.pid <= 0) {
        snapshot.pid = 0;
        snapshot.state = "starting";
        return snapshot;
    }
    const auto ended = field<std::uint64_t>(rank_info, offsetof(RankInfo, ended));
    const ProcessState process = read_process_state(snapshot.pid);
    const bool same =
        process.state != 0 &&
        process.started == field<std::uint64_t>(rank_info, offsetof(RankInfo, started));
    const bool left = field<std::uint32_t>(rank_info, offsetof(RankInfo, left)) != 0;
    const bool by_exit = field<std::uint64_t>(rank_info, offsetof(RankInfo, exiting)) != 0;
    if (ended != 0 && (!left || by_exit))
        snapshot.state = describe_exit_status(static_cast<int>(static_cast<std::uint32_t>(ended)));
    else if (same && process.state == 'Z' && (!left || by_exit))
        snapshot.state = describe_exit_status(process.status);
    else
        snapshot.state = left ? "left" : same ? "running" : "ended";
    snapshot.calls = calls(rank);
    for (const auto& [record, call_site] : snapshot.calls) {
        if (record.state != CallState::running || record.call.is_message()) continue;
        snapshot.missing = missing(rank, record);
        break;  // the oldest: later ones wait for it
    }
    return snapshot;
}

std::vector<std::pair<Record, std::string>> JobInspector::calls(int rank) const {
    const ArenaLayout layout(size_);
    const std::size_t offset = layout.logs + static_cast<std::size_t>(rank) * layout.log;
    std::vector<std::byte> first(sizeof(LogMemory)), second(sizeof(LogMemory));
    std::vector<std::pair<Record, std::string>> found;
    if (!read(offset, first.data(), first.size()) || !read(offset, second.data(), second.size()))
        return found;
    for (std::size_t slot = 0; slot < log_records; ++slot) {
        const std::size_t at = offsetof(LogMemory, records) + slot * sizeof(PackedRecord);
        std::byte* copy = second.data() + at;
        // A rank may be changing this record now: read it again.
        for (int attempt = 0; attempt < 10; ++attempt) {
            if (std::memcmp(first.data() + at, copy, sizeof(PackedRecord)) == 0) break;
            std::memcpy(first.data() + at, copy, sizeof(PackedRecord));
            if (!read(offset + at, copy, sizeof(PackedRecord))) break;
        }
        const auto words = field<std::array<std::uint64_t, Record::words>>(copy, 0);
        if (words[0] == 0 || (words[0] & 1) != 0) continue;
        if (std::memcmp(first.data() + at, copy, sizeof(PackedRecord)) != 0) continue;
        const Record record(words);
        std::string call_site;
        if (record.call_site != 0 && record.call_site < log_call_sites) {
            const auto text = field<std::array<std::uint64_t, call_site_bytes / 8>>(
                second.data(),
                offsetof(LogMemory, call_sites) + record.call_site * call_site_bytes);
            call_site = call_site_text(text.data());
        }
        found.emplace_back(record, std::move(call_site));
    }
    std::sort(found.begin(), found.end(), [](const auto& one, const auto& two) {
        return one.first.sequence < two.first.sequence;
    });
    return found;
}

std::optional<std::vector<int>> JobInspector::missing(int rank, const Record& record) const {
    const std::size_t offset = std::size_t{record.page} * page;
    std::byte header[sizeof(GroupHeader)];
    if (!read(offset, header, sizeof header)) return std::nullopt;
    const auto size = field<std::uint32_t>(header, offsetof(GroupHeader, size));
    if (size < 1 || size > max_ranks ||
        field<std::uint32_t>(header, offsetof(GroupHeader, number)) != record.group)
        return std::nullopt;
    const GroupLayout layout(static_cast<int>(size));
    std::vector<std::int32_t> ranks(size);
    std::vector<std::byte> members(size * sizeof(Member));
    if (!read(offset + layout.world_ranks, ranks.data(), size * sizeof(std::int32_t)) ||
        !read(offset + layout.members, members.data(), members.size()))
        return std::nullopt;
    const auto turn = [&](std::size_t member) {
        return field<std::uint32_t>(members.data(),
                                    member * sizeof(Member) + offsetof(Member, turn));
    };
    const auto own = std::find(ranks.begin(), ranks.end(), rank);
    if (own == ranks.end()) return std::nullopt;
    const std::uint32_t reached = turn(static_cast<std::size_t>(own - ranks.begin()));
    std::vector<int> late;
    for (std::size_t member = 0; member < size; ++member)
        if (static_cast<std::int32_t>(turn(member) - reached) < 0) late.push_back(ranks[member]);
    return late;
}

}  // namespace unisono
