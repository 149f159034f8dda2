"""torch's own tables of groups: a group that was shrunk gives its place to the new one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

__all__ = ["replace_group"]


def replace_group(old: Any, new: Any, ranks: Sequence[int]) -> None:
    """Let torch's functions find `new`, with these ranks of the world, and no longer `old`."""
    world = c10d._world
    is_default = dist.group.WORLD is old
    if is_default:
        for group in list(world.pg_map):
            if group is not old:
                dist.destroy_process_group(group)  # its ranks have new numbers
    name = f"{world.pg_names[old]}:{','.join(map(str, ranks))} of {old.size()}"
    tag = world.pg_to_tag.get(old, "")
    new.setGroupName(name)
    new.setGroupDesc(old.getGroupDesc())
    world.pg_map[new] = world.pg_map.pop(old)
    world.pg_backend_config[new] = world.pg_backend_config.pop(old)
    world.pg_group_ranks[new] = {rank: place for place, rank in enumerate(ranks)}
    world.pg_group_ranks.pop(old)
    world.pg_names[new] = name
    c10d._unregister_process_group(world.pg_names.pop(old))
    c10d._register_process_group(name, new)
    world.pg_to_tag.pop(old, None)
    world.pg_to_tag[new] = tag
    for groups in world.tags_to_pg.values():
        groups[:] = [new if group is old else group for group in groups]
    if is_default:
        c10d._update_default_pg(new)
