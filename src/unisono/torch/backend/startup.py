"""Makes the groups that torch asks for: the first one from a store, others by splitting it."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from unisono.core import environment, registry, rendezvous
from unisono.core.groups import WORLD_NAME, Group, separate_world
from unisono.errors import ArgumentError
from unisono.torch.backend import nccl
from unisono.torch.backend.process_group import UnisonoGroup

__all__ = ["check_devices", "create"]


def check_devices(config: Any) -> None:
    """Refuse a group of which we shall serve one device and a backend other than nccl another.

    torch would put ours in the place of the whole group, so that we get the other's tensors too.
    """
    devices: dict[str, str] = {} if config is None else config.get_device_backend_map()
    others = {(device, name) for device, name in devices.items() if name != "unisono"}
    if others - {("cuda", "nccl")}:
        raise ArgumentError(
            f'torch cannot combine backend "unisono" with others in one group, as in "{config}"; '
            'use "unisono", which serves CUDA tensors by nccl, and make a second group for another '
            'backend: new_group(backend="gloo")'
        )


def create(options: Any, backend_options: Any) -> UnisonoGroup:
    """The group that `options` describe; called by its members only."""
    world = dist.group.WORLD
    if isinstance(world, UnisonoGroup):
        ranks = options.global_ranks_in_group
        core = world.split_core(ranks, options.group_id, options.timeout)
    else:
        core = _open(options)
    kind = nccl.GroupWithNccl if nccl.is_usable() else UnisonoGroup
    return kind(core, options.store, options.timeout, backend_options)


def _open(options: Any) -> Group:
    """A world of its own: torch's default group, or a group next to another backend's."""
    launch = rendezvous.exchange_hosts(
        options.store, options.group_rank, options.group_size, "torch's store"
    )
    timeout = environment.timeout(options.timeout.total_seconds())
    engine = registry.choose(None, launch).open(launch, timeout)
    ranks = options.global_ranks_in_group or None
    return separate_world(engine, options.group_id if ranks else WORLD_NAME, ranks)
