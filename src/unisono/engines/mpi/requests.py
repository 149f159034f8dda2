"""Requests of MPI under way: waited for with a deadline, and so that Ctrl-C interrupts.

MPI moves nothing unless somebody calls it, so a rank that waits keeps polling.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from unisono.engines.mpi.library import translate_error
from unisono.errors import CommTimeout, MismatchError

__all__ = ["MPI_LOCK", "Request", "polls", "wait_for"]

#: Held during each call of MPI, all of which are short. An operator of ours runs within one and
#: then wants Python's own lock, which another thread must not hold while it waits for MPI.
MPI_LOCK = threading.RLock()

_SPIN_SECONDS = 5e-4  # of polling without a pause
_POLLS_PER_PAUSE = 16  # each may move a large message a little further
_FIRST_PAUSE = 2e-5  # seconds, the first pause
_LONGEST_PAUSE = 5e-4


class Request:
    """One request of MPI, with the rank that it waits for, if it is one, and its memory."""

    def __init__(self, request: Any, peer: int | None = None, memory: object = None) -> None:
        from mpi4py import MPI

        self.request = request
        self.peer = peer
        self.status = MPI.Status()
        self.memory = memory  # MPI uses it until the end, even if nobody waits any more

    def ended(self) -> bool:
        """Ask MPI."""
        return bool(self.request.Test(self.status))


def polls(timeout: float | None) -> Iterator[bool]:
    """Yield for each poll: without a pause at first; ends when the time is over.

    True means that the caller should also look for ranks that have left.
    """
    began = time.monotonic()
    pause = _FIRST_PAUSE
    while True:
        yield True
        for _ in range(_POLLS_PER_PAUSE - 1):
            yield False
        waited = time.monotonic() - began
        if timeout is not None and waited > timeout:
            return
        if waited < _SPIN_SECONDS:
            os.sched_yield()  # there may be more ranks than cores
        else:
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


def wait_for(
    requests: list[Request],
    timeout: float,
    engine: str,
    call: str,
    check: Callable[[bool], None],
) -> None:
    """Wait for all; those that have not ended at an error stay in the list.

    `check` raises if waiting makes no sense any more; True lets it take its time.
    """
    mismatches: list[MismatchError] = []
    for thorough in polls(timeout):
        with MPI_LOCK:
            check(thorough)
            for request in list(requests):
                try:
                    if not request.ended():
                        continue
                except Exception as error:
                    failure = translate_error(error, engine, call, request.peer)
                    if not isinstance(failure, MismatchError):
                        raise failure from error
                    mismatches.append(failure)  # the others still complete
                requests.remove(request)
        if not requests:
            if mismatches:
                raise mismatches[0]
            return
    missing = sorted({request.peer for request in requests if request.peer is not None})
    raise CommTimeout(_late(engine, call, timeout, missing), missing)


def _late(engine: str, call: str, timeout: float, missing: list[int]) -> str:
    if not missing:
        return (
            f"{call} of engine {engine!r} reached its timeout of {timeout:g} s; MPI does not say "
            "which rank is missing"
        )
    names = " and ".join(f"rank {rank}" for rank in missing)
    return f"{call} of engine {engine!r} reached its timeout of {timeout:g} s waiting for {names}"
