"""Making the groups that torch asks for: the first one out of a store, others by splitting it."""

from __future__ import annotations

import secrets
from typing import Any

import torch.distributed as dist

from unisono.core import registry, rendezvous
from unisono.core.groups import WORLD_NAMES, Group
from unisono.core.rendezvous import Launch
from unisono.torch.backend import beside
from unisono.torch.backend.process_group import UnisonoGroup

__all__ = ["create"]


def create(options: Any, backend_options: Any) -> UnisonoGroup:
    """The group that `options` describe; called by its members only."""
    world = dist.group.WORLD
    if isinstance(world, UnisonoGroup):
        ranks = options.global_ranks_in_group
        core = world.split_core(ranks, options.group_id, options.timeout)
    else:
        core = _open(options)
    kind = beside.GroupWithNccl if beside.is_there() else UnisonoGroup
    return kind(core, options.store, options.timeout, backend_options)


def _open(options: Any) -> Group:
    """A world of its own: torch's default group, or a group beside another backend's."""
    launch = _meet(options.store, options.group_rank, options.group_size)
    timeout = rendezvous.timeout(options.timeout.total_seconds())
    engine = registry.choose(None, launch).open(launch, timeout)
    ranks = options.global_ranks_in_group or range(engine.size)
    name = options.group_id if options.global_ranks_in_group else WORLD_NAMES[0]
    return Group(name, ranks, engine, engine.rank)


def _meet(store: Any, rank: int, size: int) -> Launch:
    """Tell each other in the store where we are, and learn the name and the secret of the job."""
    # A store may outlive a group (torchrun's does), and then holds what an earlier one of the same
    # name wrote. Nobody goes on before all have come, so that counting tells them apart.
    turn = (store.add("come", 1) - 1) // size
    store.set(f"{turn}/host/{rank}", rendezvous.host_identity())
    if rank == 0:
        hosts = [store.get(f"{turn}/host/{each}").decode() for each in range(size)]
        words = [secrets.token_hex(16), secrets.token_hex(32), *hosts]
        store.set(f"{turn}/job", " ".join(words))
    job, secret, *hosts = store.get(f"{turn}/job").decode().split()
    here = [each for each in range(size) if hosts[each] == hosts[rank]]
    place = here.index(rank), len(here)
    return Launch(rank, size, *place, f"torch-{job}", "torch's store", bytes.fromhex(secret))
