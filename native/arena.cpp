// native/arena.cpp: create, map and commit the job's memory; find out who is alive.
#include "arena.hpp"

#include <fcntl.h>
#include <linux/falloc.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <string>

#include "process.hpp"

namespace unisono {

namespace {

// glibc 2.28, for which wheels are built, has no name for it; the number is that of all processors.
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

constexpr std::size_t unlimited = ~std::size_t{0} >> 2;  // if the kernel names no limit

/// The number after `pattern` in a file of the kernel, or `otherwise`.
std::size_t read_number(const std::string& path, const char* pattern, std::size_t otherwise) {
    std::size_t number = otherwise;
    if (std::FILE* file = std::fopen(path.c_str(), "r")) {
        char line[256];
        while (std::fgets(line, sizeof line, file) != nullptr)
            if (std::sscanf(line, pattern, &number) == 1) break;
        std::fclose(file);
    }
    return number;
}

/// What the memory limit of our control group leaves, for both versions of control groups; the page
/// cache does not count, because the kernel can drop it. At that limit the kernel does not return
/// an error, it kills the process: so we check first.
std::size_t available_in_control_group() {
    std::size_t left = unlimited;
    std::FILE* file = std::fopen("/proc/self/cgroup", "r");
    if (file == nullptr) return left;
    char line[512], path[400];
    while (std::fgets(line, sizeof line, file) != nullptr) {
        std::string folder = "/sys/fs/cgroup";
        const bool second = std::sscanf(line, "0::%399s", path) == 1;
        if (!second && std::sscanf(line, "%*d:memory:%399s", path) != 1) continue;
        folder += second ? path : std::string("/memory") + path;
        const std::size_t limit = read_number(
            folder + (second ? "/memory.max" : "/memory.limit_in_bytes"), "%zu", unlimited);
        const std::size_t used =
            read_number(folder + (second ? "/memory.current" : "/memory.usage_in_bytes"), "%zu", 0);
        const std::size_t cache = read_number(
            folder + "/memory.stat", second ? "inactive_file %zu" : "total_inactive_file %zu", 0);
        left = std::min(left, limit + cache > used ? limit + cache - used : 0);
    }
    std::fclose(file);
    return left;
}

/// Memory that is still available, in bytes.
std::size_t available_memory() {
    const std::size_t host = read_number("/proc/meminfo", "MemAvailable: %zu kB", unlimited >> 10)
                             << 10;
    return std::min(host, available_in_control_group());
}

[[noreturn]] void throw_no_memory(std::size_t bytes, const char* reason) {
    const double needed = static_cast<double>(bytes) / (1 << 20);
    throw Failure(FailureKind::memory,
                  format("%.*f MiB of shared memory are needed, but %s (%.1f MiB are available); "
                         "free memory, raise the memory limit of the container or of the user "
                         "(ulimit -f, cgroup memory.max), or start fewer ranks",
                         needed < 1 ? 3 : 1, needed, reason,
                         static_cast<double>(available_memory()) / (1 << 20)));
}

[[noreturn]] void throw_system_error(const char* what) {
    throw Failure(FailureKind::system, format("%s failed: %s", what, std::strerror(errno)));
}

void commit_pages(int fd, std::size_t offset, std::size_t bytes) {
    Arena::check_available(bytes);
    for (;;) {
        if (fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0) return;
        if (errno != EINTR) throw_no_memory(bytes, std::strerror(errno));
    }
}

/// Makes the file at least so long, without pages: a rank that reads a slot or a cell that was
/// never filled gets zeros, while it would get SIGBUS past the end of the file.
void lengthen(int fd, std::size_t bytes) {
    // EPERM: the file is longer already, and sealed against shrinking.
    if (ftruncate(fd, static_cast<off_t>(bytes)) != 0 && errno != EPERM)
        throw_no_memory(bytes, std::strerror(errno));
}

std::size_t length_of(int fd) {
    struct stat file{};
    if (fstat(fd, &file) != 0) throw_system_error("fstat");
    return static_cast<std::size_t>(file.st_size);
}

}  // namespace

ArenaLayout::ArenaLayout(int size) {
    const auto n = static_cast<std::size_t>(size);
    rank_infos = sizeof(JobHeader);
    channels = rank_infos + n * sizeof(RankInfo);
    logs = round_up(channels + n * n * sizeof(Channel), page);
    log = round_up(sizeof(LogMemory), page);
    rings = logs + n * log;
    // 64 KiB cells up to 8 ranks, then smaller, so that all rings together stay below 16 MiB.
    cell = std::size_t{64} << 10;
    while (cell > 2 * page && n * n * Arena::ring_cells * cell > (std::size_t{16} << 20)) cell /= 2;
    world = round_up(rings + n * n * Arena::ring_cells * cell, std::size_t{2} << 20);
}

Mapping::Mapping(int fd, std::size_t offset, std::size_t bytes, bool writable) : bytes_(bytes) {
    void* address = mmap(nullptr, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED,
                         fd, static_cast<off_t>(offset));
    if (address == MAP_FAILED) throw_system_error("mapping shared memory");
    data_ = static_cast<std::byte*>(address);
}

Mapping::~Mapping() { munmap(data_, bytes_); }

int Arena::create(int size) {
    if (size < 1 || size > max_ranks)
        throw Failure(FailureKind::system,
                      format("%d ranks on one host; 1 to %d are possible", size, max_ranks));
    const int fd = memfd_create("unisono", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) throw_system_error("memfd_create");
    try {
        const ArenaLayout layout(size);
        commit_pages(fd, 0, layout.logs);
        lengthen(fd, layout.world);
        // Nobody can shrink the file, which would be SIGBUS for the others.
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK);
        Mapping mapping(fd, 0, layout.logs);
        auto* header = new (mapping.data()) JobHeader{};
        for (int rank = 0; rank < size; ++rank)
            new (mapping.data() + layout.rank_infos +
                 static_cast<std::size_t>(rank) * sizeof(RankInfo)) RankInfo;
        for (int pair = 0; pair < size * size; ++pair)
            new (mapping.data() + layout.channels +
                 static_cast<std::size_t>(pair) * sizeof(Channel)) Channel;
        header->layout_version = arena_layout_version;
        header->size = static_cast<std::uint32_t>(size);
        header->single_copy = make_single_copy_table();
        header->next_offset.store(layout.world, std::memory_order_relaxed);
        header->magic = arena_magic;
    } catch (...) {
        close(fd);
        throw;
    }
    return fd;
}

Arena::Arena(int fd) : Arena(fd, AdoptFd{}) {
    {
        const Mapping first(fd, 0, page);
        const auto* header = reinterpret_cast<const JobHeader*>(first.data());
        if (header->magic != arena_magic || header->layout_version != arena_layout_version)
            throw Failure(FailureKind::system,
                          "the ranks run different versions of unisono; "
                          "install the same version for all of them");
        const std::uint32_t size = header->size;
        if (size < 1 || size > max_ranks ||
            ArenaLayout(static_cast<int>(size)).world > length_of(fd))
            throw damaged(format("its header says that it has %u ranks", size));
        size_ = static_cast<int>(size);
    }
    const ArenaLayout layout(size_);
    cell_bytes_ = layout.cell;
    rings_offset_ = layout.rings;
    world_offset_ = layout.world;
    base_ = std::make_shared<Mapping>(fd, 0, layout.world);
    header_ = reinterpret_cast<JobHeader*>(base_->data());
    rank_infos_ = reinterpret_cast<RankInfo*>(base_->data() + layout.rank_infos);
    channels_ = reinterpret_cast<Channel*>(base_->data() + layout.channels);
    logs_ = std::make_unique<Log[]>(static_cast<std::size_t>(size_));
    probe_words_.resize(static_cast<std::size_t>(size_));
}

Arena::~Arena() {
    for (const int handle : handles_)
        if (handle >= 0) close(handle);
    close(fd_);
}

void Arena::register_rank(int rank) {
    if (rank < 0 || rank >= size_)
        throw damaged(
            format("this is rank %d, but its header says that it has %d ranks", rank, size_));
    RankInfo& self = rank_info(rank);
    const ArenaLayout layout(size_);
    const std::size_t offset = layout.logs + static_cast<std::size_t>(rank) * layout.log;
    commit(offset, layout.log);
    log(rank).attach(new (base_->data() + offset) LogMemory{});
    self.session = getsid(0);
    self.started = read_process_state(getpid()).started;
    cpu_set_t mask;
    CPU_ZERO(&mask);
    if (sched_getaffinity(0, sizeof mask, &mask) == 0)
        for (int core = 0; core < max_cores && core < CPU_SETSIZE; ++core)
            if (CPU_ISSET(core, &mask)) self.cores[core / 64] |= std::uint64_t{1} << (core % 64);
    // Something that is not there in any other process.
    std::uint64_t& word = probe_words_[static_cast<std::size_t>(rank)];
    word = now() ^ reinterpret_cast<std::uintptr_t>(&word) << 16 ^ static_cast<unsigned>(rank);
    self.probe_address = wants_single_copy() ? reinterpret_cast<std::uintptr_t>(&word) : 0;
    self.probe_value = word;
    if (self.probe_address != 0) let_siblings_read();
    self.pid.store(getpid(),
                   std::memory_order_release);  // pairs with the acquire in connect_peers()
}

void Arena::leave(int rank) noexcept {
    rank_info(rank).left.store(1,
                               std::memory_order_release);  // pairs with Mailbox::trouble()
    for (int peer = 0; peer < size_; ++peer) ::unisono::ring(rank_info(peer).doorbell);
}

void Arena::connect_peers(int rank) {
    const std::lock_guard lock(mutex_);
    if (handles_.empty()) open_handles(rank);  // ranks that are threads share this object
    probe_peers(rank);
}

/// Reads a word of every other rank. One refusal is enough, here or on any other member, for a
/// group to stage everything: all members know the same.
void Arena::probe_peers(int rank) {
    bool all = rank_info(rank).probe_address != 0;
    for (int peer = 0; all && peer < size_; ++peer) {
        const RankInfo& other = rank_info(peer);
        std::uint64_t word = 0;
        all = other.probe_address != 0 &&
              read_memory(pid(peer), other.probe_address, &word, sizeof word) == 0 &&
              word == other.probe_value;
    }
    const ReadsPeers answer = !all                     ? ReadsPeers::no
                              : reads_memory_quickly() ? ReadsPeers::quickly
                                                       : ReadsPeers::slowly;
    rank_info(rank).reads_peers.store(static_cast<std::uint32_t>(answer),
                                      std::memory_order_release);  // pairs with reads_peers()
}

void Arena::open_handles(int rank) {
    pids_.assign(static_cast<std::size_t>(size_), 0);
    const ArenaLayout layout(size_);
    bool one_session = true;
    for (int peer = 0; peer < size_; ++peer) {
        const RankInfo& other = rank_info(peer);
        const pid_t pid = other.pid.load(std::memory_order_acquire);  // pairs with register_rank()
        pids_[static_cast<std::size_t>(peer)] = pid;
        one_session = one_session && other.session == rank_info(rank).session;
        log(peer).attach(reinterpret_cast<LogMemory*>(base_->data() + layout.logs +
                                                      static_cast<std::size_t>(peer) * layout.log));
        const bool ourselves = peer == rank || pid == getpid();
        const long handle = ourselves ? -1 : syscall(SYS_pidfd_open, pid, 0);
        if (!ourselves && handle < 0 && errno != ESRCH) throw_system_error("pidfd_open");
        handles_.push_back(ourselves ? -1 : handle < 0 ? -2 : static_cast<int>(handle));
    }
    // All ranks see the same masks, so all get the same answer.
    for (int one = 0; one < size_; ++one) {
        int sharing = 0;
        int cores = 0;
        for (const std::uint64_t word : rank_info(one).cores) cores += std::popcount(word);
        for (int two = 0; two < size_; ++two) {
            bool meets = false;
            for (int word = 0; word < max_cores / 64; ++word)
                meets = meets || (rank_info(one).cores[word] & rank_info(two).cores[word]) != 0;
            sharing += meets ? 1 : 0;
        }
        oversubscribed_ = oversubscribed_ || sharing > cores;
        spare_cores_ = spare_cores_ && 2 * sharing <= cores;
    }
    spin_policy_ = choose_spin_policy(oversubscribed_, one_session);
}

void Arena::commit_ring(int from, int to) {
    commit(ring_offset(from, to), ring_cells * cell_bytes_);
}

void Arena::release_ring(int from, int to) noexcept {
    release(ring_offset(from, to), ring_cells * cell_bytes_);
}

std::size_t Arena::allocate(std::size_t bytes) {
    const std::size_t length = round_up(bytes, page);
    std::uint64_t offset = header_->next_offset.fetch_add(length, std::memory_order_relaxed);
    try {
        if (offset <= max_offset) lengthen(fd_, offset + bytes);
    } catch (const Failure&) {
        // Unless another rank has taken what follows, the next one gets the same offset.
        std::uint64_t next = offset + length;
        header_->next_offset.compare_exchange_strong(next, offset, std::memory_order_relaxed);
        throw;
    }
    check_group_offset(offset, bytes);
    return offset;
}

void Arena::check_available(std::size_t bytes) {
    if (bytes > available_memory()) throw_no_memory(bytes, "too little is available");
}

void Arena::commit(std::size_t offset, std::size_t bytes) {
    // The file has its full length from the start, so the kernel does not see it grow, and does not
    // enforce the user's limit (ulimit -f). We do.
    rlimit limit{};
    if (offset >= world_offset_ && getrlimit(RLIMIT_FSIZE, &limit) == 0 &&
        offset + bytes > limit.rlim_cur)
        throw_no_memory(bytes, std::strerror(EFBIG));
    commit_pages(fd_, offset, bytes);
}

void Arena::release(std::size_t offset, std::size_t bytes) noexcept {
    fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
              static_cast<off_t>(bytes));
}

void Arena::check_group_offset(std::size_t offset, std::size_t bytes) const {
    if (offset < world_offset_ || offset > max_offset || offset % page != 0 ||
        offset + bytes > length_of(fd_))
        throw damaged(format("there can be no group at offset %zu", offset));
}

std::shared_ptr<Mapping> Arena::map(std::size_t offset, std::size_t bytes) {
    check_group_offset(offset, bytes);
    const std::lock_guard lock(mutex_);
    auto& known = mappings_[offset];
    // A shorter mapping belongs to another group: one of the offsets that we got is wrong.
    if (auto mapping = known.lock(); mapping != nullptr && mapping->bytes() >= bytes)
        return mapping;
    auto mapping = std::make_shared<Mapping>(fd_, offset, bytes);
    known = mapping;
    return mapping;
}

void Arena::forget(std::size_t offset) {
    const std::lock_guard lock(mutex_);
    const auto found = mappings_.find(offset);
    if (found != mappings_.end() && found->second.expired()) mappings_.erase(found);
}

void Arena::extend_view(std::uint64_t offset, std::size_t bytes) {
    const std::size_t length = length_of(fd_);
    if (offset < world_offset_ || offset > length || bytes > length - offset)
        throw damaged(format("a rank has published memory at offset %llu",
                             static_cast<unsigned long long>(offset)));
    const std::lock_guard lock(mutex_);
    // Beyond the end of the file nobody reads, until the file has grown.
    if (views_.empty() || views_.back()->bytes() < length) {
        views_.push_back(std::make_unique<Mapping>(fd_, 0, 2 * std::bit_ceil(length), false));
        madvise(views_.back()->data(), views_.back()->bytes(), MADV_DONTDUMP);
        view_.store(views_.back()->data(), std::memory_order_relaxed);
    }
    // release: pairs with look_at(). The file never gets shorter.
    viewed_.store(std::max(length, viewed_.load(std::memory_order_relaxed)),
                  std::memory_order_release);
}

bool Arena::alive(int rank) noexcept {
    const int handle = rank < static_cast<int>(handles_.size()) ? handles_[rank] : -1;
    if (handle == -1) return true;
    if (handle == -2) return false;
    pollfd poller{handle, POLLIN, 0};  // readable once the process has ended, reaped or not
    return poll(&poller, 1, 0) == 0;
}

void Arena::announce_exit(int rank) noexcept {
    // Relaxed: the rank leaves its groups later, and a reader that sees that sees this too.
    rank_info(rank).exiting.store(now(), std::memory_order_relaxed);
}

bool Arena::about_to_end(int rank) noexcept {
    constexpr std::uint64_t soon = 800'000'000;  // nanoseconds; a Python process exits faster
    const std::uint64_t began = rank_info(rank).exiting.load(std::memory_order_relaxed);
    return began != 0 && now() < began + soon && alive(rank);
}

std::string Arena::exit_reason(int rank) {
    RankInfo& other = rank_info(rank);
    if (alive(rank))
        return other.exiting.load(std::memory_order_relaxed) != 0
                   ? "is exiting; its exit status is not known yet"
                   : "is lost";
    const pid_t pid = other.pid.load(std::memory_order_relaxed);
    // The status is gone when the parent has reaped the process (before Linux 6.15). So the first
    // rank that learns it publishes it. Relaxed: nothing else depends on this word.
    if (other.ended.load(std::memory_order_relaxed) == 0) {
        const int handle = rank < static_cast<int>(handles_.size()) ? handles_[rank] : -1;
        const ProcessState process = read_process_state(pid);
        std::optional<int> status;
        if (process.state == 'Z' && process.started == other.started) status = process.status;
        if (!status && handle >= 0) status = exit_status_of(handle);
        std::uint64_t unknown = 0;
        if (status)
            other.ended.compare_exchange_strong(
                unknown, std::uint64_t{1} << 32 | static_cast<std::uint32_t>(*status),
                std::memory_order_relaxed);
    }
    const std::uint64_t word = other.ended.load(std::memory_order_relaxed);
    if (word == 0) return "ended without leaving the job; its exit status is not known";
    const std::string text =
        describe_exit_status(static_cast<int>(static_cast<std::uint32_t>(word)));
    return text.starts_with("killed") ? "was " + text : text;
}

std::string Arena::last_call_text(int rank, std::uint32_t group) {
    const auto record = log(rank).last(group);
    if (!record) return {};
    std::string text = record->call.text();
    if (!record->call.is_message()) text += format(" (call %u)", record->call.number);
    text += log(rank).at(*record);
    if (record->group != group) text += format(" in group %u", record->group);
    const bool running = record->state == CallState::running;
    const std::uint64_t since = running ? record->began : record->ended;
    const std::uint64_t time = now();
    const double seconds = time > since ? static_cast<double>(time - since) * 1e-9 : 0;
    return text + (running ? format(", which has been running for %.1f s", seconds)
                           : format(", which ended %.1f s ago", seconds));
}

bool Arena::claim_trace_write() noexcept {
    constexpr std::uint64_t second = 1'000'000'000;
    const std::uint64_t time = now();
    // Relaxed: the word only decides who may write; the file system orders the writes.
    std::uint64_t claimed = header_->trace_claimed.load(std::memory_order_relaxed);
    if (claimed != 0 && time < claimed + second) return false;
    return header_->trace_claimed.compare_exchange_strong(claimed, time, std::memory_order_relaxed);
}

}  // namespace unisono
