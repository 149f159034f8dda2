// native/inspector.hpp: looks at a job from outside, by its descriptor alone.
//
// Nothing is mapped and nothing is believed: every look is a read of the file, bounds are checked
// first, and a record counts only if two reads in a row give the same bytes. So a descriptor of
// something else, or memory that is given back at this moment, is at worst an error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arena.hpp"

namespace unisono {

/// What can be seen of one rank.
struct RankSnapshot {
    int pid = 0;        ///< 0: it has not come yet
    std::string state;  ///< "starting", "running", "left", or how its process ended
    std::vector<std::pair<Record, std::string>> calls;  ///< with their call_sites, in order
    /// The ranks of its group that have not come to the barrier at which its call waits.
    std::optional<std::vector<int>> missing;
};

class JobInspector {
public:
    /// Keeps a descriptor of its own; throws Failure(system) if there is no job behind it.
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
