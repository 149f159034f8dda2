"""Makes the groups that torch asks for: the first one from a store, others by splitting it."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from unisono.core import environment, registry, rendezvous
from unisono.core.groups import WORLD_NAME, Group, separate_world
from unisono.errors import ArgumentError, ArgumentTypeError, Unsupported
from unisono.torch.backend import nccl, shared_gpu
from unisono.torch.backend.process_group import UnisonoGroup

__all__ = ["check_devices", "create", "create_alone"]


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
        kind = type(world)
    else:
        ranks = options.global_ranks_in_group or None
        name = options.group_id if ranks else WORLD_NAME
        rank, size = options.group_rank, options.group_size
        core = _open(options.store, rank, size, options.timeout, name, ranks)
        kind = _kind(core)
    return kind(core, options.store, options.timeout, backend_options)


def create_alone(
    store: Any, rank: int, world_size: int, timeout: timedelta, device: Any, **named: Any
) -> UnisonoGroup:
    """A group for `torch.distributed._dist2.new_group("unisono", ...)`, which torch does not keep.

    Each is a world of its own, with a prefix of its own in the store that all of them share.
    """
    if named:
        raise ArgumentTypeError(f"backend unisono takes no further arguments, got {list(named)}")
    if device.type not in ("cpu", "cuda"):
        raise Unsupported(f"backend unisono serves CPU tensors, not tensors on {device}")
    number = next(_alone)
    store = dist.PrefixStore(f"unisono/{number}/", store)
    core = _open(store, rank, world_size, timeout, f"dist2 {number}", None)
    return _kind(core)(core, store, timeout, None)


_alone = itertools.count()


def _kind(core: Group) -> type[UnisonoGroup]:
    """The kind of a world, which its groups have too, by what serves CUDA tensors there."""
    if torch.version.cuda is None:
        return UnisonoGroup
    gpus, with_nccl = shared_gpu.count_gpus(core), nccl.is_usable()
    # Only where ranks are more than GPUs is it sure that some share one; nccl refuses that.
    if 0 < gpus < core.size or (gpus and not with_nccl):
        return shared_gpu.GroupOnSharedGpu
    return nccl.GroupWithNccl if with_nccl else UnisonoGroup


def _open(store: Any, rank: int, size: int, timeout: timedelta, name: str, ranks: Any) -> Group:
    """A world of its own: torch's default group, or a group next to another backend's."""
    launch = rendezvous.exchange_hosts(store, rank, size, "torch's store")
    engine = registry.choose(None, launch).open(
        launch, environment.timeout(timeout.total_seconds())
    )
    return separate_world(engine, name, ranks)
