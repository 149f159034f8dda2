// native/collectives.hpp: the collective verbs on a group.
#pragma once

#include "group.hpp"

namespace unisono {

/// Runs one collective: `arguments.source` is read, `arguments.target` is written (either may be
/// null where this rank has none). They are the same memory, disjoint, or, for gathers and
/// scatters, the smaller one is this rank's own part of the larger. All ranks of the
/// group make these calls in the same order, those on a GPU (`told_bytes`) among the others.
void run_collective(Group& group, const CallArguments& arguments);

}  // namespace unisono
