"""Calls that streams have not come to the end of are followed, whatever happens to others."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np

from unisono.core.buffers import view
from unisono.core.call import Call, Caller
from unisono.engines.cuda.watchdog import Followed, Watchdog
from unisono.errors import PeerLost, UnisonoError


class End:
    """The end of a call: it has not come while the test runs, or the GPU does not tell."""

    failure = None

    def __init__(self, over: threading.Event, *, tells: bool) -> None:
        self._over = over
        self._tells = tells

    def has_come(self) -> bool:
        if not self._tells and not self._over.is_set():
            raise UnisonoError("the CUDA driver failed")
        return self._over.is_set()


def followed(end, find_fault, release) -> Followed:
    caller = Caller(rank=0, size=2, number=1, timeout=60.0, blocking=True)
    call = Call.send(caller, view(np.zeros(1)), 1)
    return Followed(end, call, find_fault, release)


def test_a_gpu_that_does_not_answer_does_not_hide_a_lost_rank(capsys):
    device = SimpleNamespace(driver=SimpleNamespace(enter_apart=lambda: None))
    watchdog, released, over = Watchdog(device), threading.Event(), threading.Event()
    watchdog.follow(followed(End(over, tells=False), lambda: None, lambda error: None))
    lost = PeerLost("rank 1 was killed", [1])
    watchdog.follow(followed(End(over, tells=True), lambda: lost, lambda error: released.set()))
    assert released.wait(10)
    over.set()
    assert "rank 1 was killed" in capsys.readouterr().err
