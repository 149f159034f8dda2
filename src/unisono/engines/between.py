"""What joins hosts: which engine can, how ranks meet over it, and which hosts do not answer."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from typing import Any

from unisono.core import hosts, objects, registry
from unisono.core.engine import Engine
from unisono.core.groups import Group
from unisono.core.rendezvous import Launch
from unisono.engines import stores
from unisono.engines.layout import Layout
from unisono.errors import CommTimeout, LaunchError, PeerLost, UnisonoError

__all__ = ["RollCall", "answer_time", "join", "unavailable"]

_ANSWER = 4.0  # seconds at most that other hosts have to say that they are there


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
        place = stores.met(launch, timeout)
        return place, chosen.open(place, timeout)
    everyone = chosen.open(launch, timeout)
    group = Group("everyone", range(everyone.size), everyone, everyone.rank)
    told = objects.all_gather(group, f"{hosts.identity()} {socket.gethostname()}")
    job, secret = objects.broadcast(group, (secrets.token_hex(16), secrets.token_bytes(32)), 0)
    here = [rank for rank, words in enumerate(told) if words == told[everyone.rank]]
    place = Launch(
        everyone.rank,
        everyone.size,
        here.index(everyone.rank),
        len(here),
        f"{chosen.name}-{job}",
        launch.source,
        secret,
        hosts=tuple(told),
    )
    return place, everyone


def _choose(launch: Launch) -> str:
    """torch where ranks can meet in a store, else mpi where it started them."""
    reason = registry.load("torch").unavailable() or stores.unreachable(launch)
    if reason is None:
        return "torch"
    other = registry.load("mpi").unavailable()
    if other is None and launch.source in ("PMI", "Open MPI"):
        return "mpi"
    raise LaunchError(
        f"the {launch.size} ranks are on several hosts. torch cannot join them: {reason}. "
        f"mpi cannot: {other or 'mpiexec did not start them'}"
    )


def answer_time(timeout: float) -> float:
    """How much of a timeout is kept for finding out which hosts are gone."""
    return min(_ANSWER, timeout / 4)


class RollCall:
    """Finds out which hosts are gone: those that are there say so in the store, if there is one."""

    def __init__(self, layout: Layout, everyone: Engine) -> None:
        self._layout = layout
        self._store: Any = getattr(everyone, "store", None)

    def named(self, error: UnisonoError, seconds: float) -> UnisonoError:
        """The same error, with the names of the hosts that do not answer in so many seconds."""
        missing = self._missing(seconds) if isinstance(error, (PeerLost, CommTimeout)) else []
        if not missing:
            return error
        layout = self._layout
        ranks = [rank for host in missing for rank in layout.hosts[host]]
        names = ", ".join(
            f"{layout.names[host]!r} (ranks {list(layout.hosts[host])})" for host in missing
        )
        return type(error)(f"no answer from host {names}: {error}", ranks)

    def _missing(self, seconds: float) -> list[int]:
        if self._store is None:
            return []
        others = [host for host in range(len(self._layout.hosts)) if host != self._layout.host]
        seen: set[int] = set()
        # In a thread: the store may be on the host that is gone, and then an answer takes minutes.
        caller = threading.Thread(target=self._call, args=(others, seen, seconds), daemon=True)
        caller.start()
        caller.join(seconds)
        return [host for host in others if host not in seen]

    def _call(self, others: list[int], seen: set[int], seconds: float) -> None:
        try:
            self._store.set(f"roll call/{self._layout.host}", "here")
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline and len(seen) < len(others):
                for host in others:
                    if host not in seen and self._store.check([f"roll call/{host}"]):
                        seen.add(host)
                time.sleep(0.05)
        except RuntimeError:
            return  # no store, no answers: whoever was heard so far is there
