"""Messages of a rank to itself, on engines whose transport has none."""

from __future__ import annotations

import numpy as np
import pytest

from unisono.core.buffers import view
from unisono.core.call import Call, Caller
from unisono.core.engine import DONE
from unisono.engines.common.loopback import Loopback
from unisono.errors import CommTimeout, MismatchError


def caller(timeout: float = 30.0, blocking: bool = True) -> Caller:
    return Caller(1, 2, 0, timeout, blocking)


def test_messages_of_one_tag_keep_their_order() -> None:
    loopback = Loopback(1)
    for number in range(3):
        loopback.send(Call.send(caller(), view(np.full(2, number)), 1, tag=5))
    for number in range(3):
        came = np.zeros(2, int)
        work = loopback.recv(Call.recv(caller(), view(came), 1, tag=5))
        work.wait()
        assert came.tolist() == [number, number] and work.source == 1


def test_a_receive_may_come_first() -> None:
    loopback, came = Loopback(1), np.zeros(2)
    work = loopback.recv(Call.recv(caller(blocking=False), view(came), 1))
    assert not work.is_completed()
    loopback.send(Call.send(caller(), view(np.ones(2)), 1))
    work.wait()
    assert came.tolist() == [1, 1]


def test_the_value_of_one_send_is_not_that_of_others() -> None:
    """All of them have ended when they return, and one object stands for that."""
    loopback = Loopback(1)
    first = loopback.send(Call.send(caller(), view(np.ones(2)), 1)).with_value("first")
    second = loopback.send(Call.send(caller(), view(np.ones(2)), 1)).with_value("second")
    assert (first.result(), second.result(), DONE.result()) == ("first", "second", None)
    with pytest.raises(AttributeError):
        DONE.value = "mine"


def test_each_receive_has_its_own_deadline() -> None:
    loopback = Loopback(1)
    work = loopback.recv(Call.recv(caller(timeout=0.05), view(np.zeros(2)), 1))
    with pytest.raises(CommTimeout, match=r"in 0\.05 s"):
        work.wait()


def test_a_message_that_does_not_fit_stays_for_another_receive() -> None:
    loopback, came = Loopback(1), np.zeros(2)
    loopback.send(Call.send(caller(), view(np.ones(2)), 1))
    work = loopback.recv(Call.recv(caller(), view(np.zeros(3)), 1))
    with pytest.raises(MismatchError, match="float64 x 2, but receives float64 x 3"):
        work.wait()
    loopback.recv(Call.recv(caller(), view(came), 1)).wait()
    assert came.tolist() == [1, 1]
