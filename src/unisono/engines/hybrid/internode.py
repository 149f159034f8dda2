"""The inter-node engine: which one can join hosts, and how ranks find each other over it."""

from __future__ import annotations

import json
import secrets

from unisono.core import environment, registry
from unisono.core.engine import Engine
from unisono.core.environment import Launch
from unisono.engines.common.inner_calls import broadcast_bytes
from unisono.engines.torch import rendezvous as store_rendezvous
from unisono.errors import LaunchError

__all__ = ["join", "unavailable"]


def unavailable(internode: str | None) -> str | None:
    """Say why no engine joins hosts here, and how to fix that; None if one does."""
    reasons = []
    for name in [internode] if internode else ["torch", "mpi"]:
        reason = registry.load(name).unavailable()
        if reason is None:
            return None
        reasons.append(f"{name}: {reason}")
    return "; ".join(reasons)


def join(launch: Launch, timeout: float, internode: str | None) -> tuple[Launch, Engine]:
    """An engine that joins all ranks, and the launch with everybody's host."""
    chosen = registry.load(internode or _choose(launch))
    reason = chosen.unavailable()
    if reason is not None:
        raise LaunchError(f"engine {chosen.name!r} cannot run here: {reason}")
    if chosen.name.partition(":")[0] == "torch":
        launch = store_rendezvous.through_store(launch, timeout)
        return launch, chosen.open(launch, timeout)
    everyone = chosen.open(launch, timeout)
    return _described(launch, everyone), everyone


def _described(launch: Launch, everyone: Engine) -> Launch:
    """The launch with everybody's host, which MPI has told, and a name and a secret from rank 0."""
    hosts = everyone.hosts
    given = environment.given_secret()
    own = [secrets.token_hex(16), "" if given else secrets.token_hex(32)]
    job, secret = json.loads(broadcast_bytes(everyone, json.dumps(own).encode(), 0))
    here = [rank for rank, text in enumerate(hosts) if text == hosts[everyone.rank]]
    return Launch(
        everyone.rank,
        everyone.size,
        here.index(everyone.rank),
        len(here),
        f"{everyone.name}-{job}",
        launch.source,
        given or bytes.fromhex(secret),
        hosts=tuple(hosts),
    )


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
