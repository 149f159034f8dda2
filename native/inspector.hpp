// native/inspector.hpp: inspects a job from outside; all it needs is the file descriptor.
//
// It maps nothing and trusts nothing: it reads the file, checks bounds first, and uses a record
// only if two reads in a row give the same bytes. So a descriptor of something else, or memory that
// is released at this moment, leads to an error at worst.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arena.hpp"

namespace unisono {

/// The state of one rank.
struct RankSnapshot {
    int pid = 0;        ///< 0: it has not registered yet
    std::string state;  ///< "starting", "running", "left", or how its process ended
    std::vector<std::pair<Record, std::string>> calls;  ///< with their call sites, in order
    /// The world ranks that have not arrived at the barrier at which its call waits.
    std::optional<std::vector<int>> missing;
};

/// Reads the state of all ranks of a job.
class JobInspector {
public:
    /// Duplicates the descriptor; throws Failure(system) if it is not the memory of a job.
    explicit JobInspector(int fd);
    ~JobInspector();
    JobInspector(const JobInspector&) = delete;
    JobInspector& operator=(const JobInspector&) = delete;

    int size() const noexcept { return size_; }
    RankSnapshot snapshot(int rank) const;

private:
    bool read(std::size_t offset, void* target, std::size_t bytes) const noexcept;
    std::vector<std::pair<Record, std::string>> calls(int rank) const;
    std::optional<std::vector<int>> missing(int rank, const Record& record) const;

    int fd_;
    int size_ = 0;
};

}  // namespace unisono
