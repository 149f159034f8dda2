"""What joins hosts: which engine can, and how ranks meet over it."""

from __future__ import annotations

import secrets

from unisono.core import environment, objects, registry, rendezvous
from unisono.core.engine import Engine
from unisono.core.environment import Launch
from unisono.core.groups import Group
from unisono.engines.torch import rendezvous as store_rendezvous
from unisono.errors import LaunchError

__all__ = ["join", "unavailable"]


def unavailable(net: str | None) -> str | None:
    """Say why no engine joins hosts here, and what would mend that; None if one does."""
    reasons = []
    for name in [net] if net else ["torch", "mpi"]:
        reason = registry.load(name).unavailable()
        if reason is None:
            return None
        reasons.append(f"{name}: {reason}")
    return "; ".join(reasons)


def join(launch: Launch, timeout: float, net: str | None) -> tuple[Launch, Engine]:
    """An engine that joins all ranks, and this rank's place with everybody's host."""
    chosen = registry.load(net or _choose(launch))
    reason = chosen.unavailable()
    if reason is not None:
        raise LaunchError(f"engine {chosen.name!r} cannot run here: {reason}")
    if chosen.name.partition(":")[0] == "torch":
        place = store_rendezvous.met(launch, timeout)
        return place, chosen.open(place, timeout)
    everyone = chosen.open(launch, timeout)
    group = Group("everyone", range(everyone.size), everyone, everyone.rank)
    told = objects.all_gather(group, rendezvous.own_host())
    given = environment.given_secret()
    own = secrets.token_hex(16), b"" if given else secrets.token_bytes(32)
    job, secret = objects.broadcast(group, own, 0)
    here = [rank for rank, words in enumerate(told) if words == told[everyone.rank]]
    place = Launch(
        everyone.rank,
        everyone.size,
        here.index(everyone.rank),
        len(here),
        f"{chosen.name}-{job}",
        launch.source,
        given or secret,
        hosts=tuple(told),
    )
    return place, everyone


def _choose(launch: Launch) -> str:
    """torch where ranks can meet in a store, else mpi where it started them."""
    reason = registry.load("torch").unavailable() or store_rendezvous.unreachable(launch)
    if reason is None:
        return "torch"
    other = registry.load("mpi").unavailable()
    if other is None and launch.source in ("PMI", "Open MPI"):
        return "mpi"
    raise LaunchError(
        f"the {launch.size} ranks are on several hosts. torch cannot join them: {reason}. "
        f"mpi cannot: {other or 'mpiexec did not start them'}"
    )
