"""What hosts tell each other when the network between their leaders fails: who is there, and why.

Over torch's store, which survives most of what ends a group. Engines without one tell nothing.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from unisono import errors
from unisono.core.engine import Engine
from unisono.engines.hybrid.topology import Layout
from unisono.errors import CommTimeout, PeerLost, UnisonoError

__all__ = ["RollCall", "answer_time", "renamed"]

_ANSWER = 4.0  # seconds at most that other hosts have to say that they are there
_PAUSE = 0.02  # seconds between two looks


def answer_time(timeout: float) -> float:
    """How much of a timeout is kept for finding out what went wrong on other hosts."""
    return min(_ANSWER, timeout / 4)


def renamed(error: UnisonoError, ranks: Sequence[int]) -> UnisonoError:
    """An error of an engine below, with its ranks counted as the group's own count them.

    >>> renamed(PeerLost("ranks 0, 1: gone; rank 1 (world rank 1, pid 7)", [1]), [4, 6])
    PeerLost('ranks 4, 6: gone; rank 6 (pid 7)')
    """

    def number(match: re.Match[str]) -> str:
        place = int(match[0])
        return str(ranks[place] if place < len(ranks) else place)

    def numbers(match: re.Match[str]) -> str:
        return match[1] + re.sub(r"\d+", number, match[2])

    text = re.sub(r"\(world rank \d+, ", "(", str(error))
    text = re.sub(r"\b(ranks? )(\d+(?:, \d+)*)", numbers, text)
    return type(error)(text, [ranks[rank] for rank in error.ranks if rank < len(ranks)])


class RollCall:
    """One rank's part in the talk of hosts about a failure, after which the group ends."""

    def __init__(self, layout: Layout, everyone: Engine) -> None:
        self._layout = layout
        self._store: Any = getattr(everyone, "store", None)

    def report(self, error: UnisonoError, seconds: float) -> None:
        """Let other hosts know of an error within this one."""
        words = json.dumps([type(error).__name__, str(error), error.ranks])
        self._briefly(lambda: self._store.set(f"fault/{self._layout.host}", words), seconds)

    def explained(self, error: UnisonoError, seconds: float) -> UnisonoError:
        """What lies behind an error between hosts, as far as they tell in so many seconds."""
        error = renamed(error, self._layout.leaders)
        if self._store is None or not isinstance(error, (PeerLost, CommTimeout)):
            return error
        missing = {host for host in range(len(self._layout.hosts)) if host != self._layout.host}
        faults: dict[int, UnisonoError] = {}
        self._briefly(lambda: self._ask(missing, faults, seconds), seconds)
        if faults:
            return faults[min(faults)]
        return self._without(sorted(missing), error) if missing else error

    def _without(self, hosts: Sequence[int], error: UnisonoError) -> UnisonoError:
        layout = self._layout
        ranks = [rank for host in hosts for rank in layout.hosts[host]]
        names = ", ".join(
            f"{layout.names[host]!r} (ranks {list(layout.hosts[host])})" for host in hosts
        )
        return type(error)(f"no answer from host {names}: {error}", ranks)

    def _ask(self, missing: set[int], faults: dict[int, UnisonoError], seconds: float) -> None:
        """Answer, and hear who answers; takes hosts out of `missing`, and puts their faults in."""
        self._store.set(f"here/{self._layout.host}", "")
        deadline = time.monotonic() + seconds
        while missing and not faults and time.monotonic() < deadline:
            for host in sorted(missing):
                if self._store.check([f"fault/{host}"]):
                    faults[host] = self._fault(host)
                    missing.discard(host)
                elif self._store.check([f"here/{host}"]):
                    missing.discard(host)
            time.sleep(_PAUSE)

    def _fault(self, host: int) -> UnisonoError:
        kind, text, ranks = json.loads(self._store.get(f"fault/{host}"))
        told = getattr(errors, kind, UnisonoError)
        error: UnisonoError = told(f"{text} (on host {self._layout.names[host]!r})", ranks)
        return error

    def _briefly(self, talk: Callable[[], None], seconds: float) -> None:
        """Talk in a thread: the store may be on a host that is gone, and then takes minutes."""

        def guarded() -> None:
            try:
                talk()
            except RuntimeError:
                return  # no store, no answers: whoever was heard so far is there

        if self._store is not None:
            speaker = threading.Thread(target=guarded, daemon=True)
            speaker.start()
            speaker.join(seconds)
