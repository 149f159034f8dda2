"""What hosts tell each other when the network between their leaders fails: who is there, and why.

Over torch's store, which survives most of what ends a group. Engines without one tell nothing.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from unisono import errors
from unisono.core.engine import Engine
from unisono.engines.hybrid.topology import Topology
from unisono.errors import CommTimeout, PeerLost, UnisonoError

__all__ = ["FailureReport", "report_seconds", "with_group_ranks"]

_REPORT_SECONDS = 4.0  # at most, for other hosts to say that they are there
_POLL_SECONDS = 0.02


def report_seconds(timeout: float) -> float:
    """How much of a timeout is kept for finding out what went wrong on other hosts."""
    return min(_REPORT_SECONDS, timeout / 4)


def with_group_ranks(error: UnisonoError, ranks: Sequence[int], whose: str) -> UnisonoError:
    """An error of an inner engine as an error of the group, whose ranks its field `ranks` names.

    The text is the inner engine's, and says how that numbers its ranks where it matters.

    >>> inner = PeerLost("rank 1 (pid 7) was killed", [1])
    >>> error = with_group_ranks(inner, [4, 6], "host 'b'")
    >>> print(error, error.ranks)
    rank 6: rank 1 (pid 7) was killed (ranks 0, 1 of host 'b' are ranks 4, 6 of the group) (6,)
    """
    if list(ranks) == list(range(len(ranks))):
        return error
    concerned = [ranks[rank] for rank in error.ranks if rank < len(ranks)]
    about = f"{_named(concerned)}: " if concerned else ""
    inner, outer = _named(range(len(ranks))), _named(ranks)
    numbering = f"{inner} of {whose} {'is' if len(ranks) == 1 else 'are'} {outer} of the group"
    return type(error)(f"{about}{error} ({numbering})", concerned)


def _named(ranks: Sequence[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}"


class FailureReport:
    """One rank's part in what hosts tell each other of a failure, after which the group ends."""

    def __init__(self, topology: Topology, everyone: Engine) -> None:
        self._topology = topology
        self._store: Any = getattr(everyone, "store", None)

    def publish(self, error: UnisonoError, seconds: float) -> None:
        """Let other hosts know of an error within this one."""
        data = json.dumps(error.to_data())
        key = f"fault/{self._topology.host}"
        self._with_deadline(lambda: self._store.set(key, data), seconds)

    def explain(self, error: UnisonoError, seconds: float) -> UnisonoError:
        """The cause of an error between hosts, as far as they tell it in so many seconds."""
        error = with_group_ranks(error, self._topology.leaders, "the leaders of hosts")
        if self._store is None or not isinstance(error, (PeerLost, CommTimeout)):
            return error
        missing = {host for host in range(len(self._topology.hosts)) if host != self._topology.host}
        faults: dict[int, UnisonoError] = {}
        self._with_deadline(lambda: self._ask(missing, faults, seconds), seconds)
        if faults:
            return faults[min(faults)]
        return self._without(sorted(missing), error) if missing else error

    def _without(self, hosts: Sequence[int], error: UnisonoError) -> UnisonoError:
        topology = self._topology
        ranks = [rank for host in hosts for rank in topology.hosts[host]]
        names = ", ".join(
            f"{topology.names[host]!r} (ranks {list(topology.hosts[host])})" for host in hosts
        )
        return type(error)(f"no answer from host {names}: {error}", ranks)

    def _ask(self, missing: set[int], faults: dict[int, UnisonoError], seconds: float) -> None:
        """Answer, and see who answers; takes hosts out of `missing`, and adds their faults."""
        self._store.set(f"here/{self._topology.host}", "")
        deadline = time.monotonic() + seconds
        while missing and not faults and time.monotonic() < deadline:
            for host in sorted(missing):
                if self._store.check([f"fault/{host}"]):
                    faults[host] = self._fault(host)
                    missing.discard(host)
                elif self._store.check([f"here/{host}"]):
                    missing.discard(host)
            time.sleep(_POLL_SECONDS)

    def _fault(self, host: int) -> UnisonoError:
        error = errors.from_data(json.loads(self._store.get(f"fault/{host}")))
        return type(error)(f"{error} (on host {self._topology.names[host]!r})", error.ranks)

    def _with_deadline(self, action: Callable[[], None], seconds: float) -> None:
        """Run in a thread: the store may be on a host that is gone, and then takes minutes."""

        def guarded() -> None:
            try:
                action()
            except RuntimeError:
                return  # no store, no answers: hosts that have answered are there

        if self._store is not None:
            thread = threading.Thread(target=guarded, daemon=True)
            thread.start()
            thread.join(seconds)
