"""Rendezvous of ranks on several hosts: through torch's store, at the launcher's address."""

from __future__ import annotations

import os
from datetime import timedelta

from unisono.core import rendezvous
from unisono.core.environment import Launch
from unisono.errors import LaunchError

__all__ = ["through_store", "unreachable"]


def unreachable(launch: Launch) -> str | None:
    """Say why ranks cannot use a store, and how to fix that; None if they can."""
    if launch.store is not None:
        return None
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing and launch.size > 1:
        return f"{' and '.join(missing)} must be set to an address that all ranks can reach"
    return None


def through_store(launch: Launch, timeout: float) -> Launch:
    """The launch of this rank in a job of its own, with a store and everybody's host."""
    if launch.hosts:
        return launch
    import torch.distributed as dist  # slow to load, and not needed on one host

    reason = unreachable(launch)
    if reason is not None:
        raise LaunchError(f"{launch.source} started {launch.size} ranks, but {reason}")
    try:
        if launch.store is not None:
            store = launch.store
        elif launch.size == 1:
            store = dist.HashStore()
        else:
            url = f"env://?rank={launch.rank}&world_size={launch.size}"
            store, _, _ = next(iter(dist.rendezvous(url, timeout=timedelta(seconds=timeout))))
        # Of our own, because others use this store as well.
        ours = dist.PrefixStore("unisono", store)
        return rendezvous.exchange_hosts(ours, launch.rank, launch.size, launch.source)
    except RuntimeError as error:
        place = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        text = str(error).splitlines()[0]
        raise LaunchError(
            f"rank {launch.rank} of {launch.size} did not meet the others at {place} "
            f"(MASTER_ADDR and MASTER_PORT): {text}; `unisono doctor --network` may tell why"
        ) from error
