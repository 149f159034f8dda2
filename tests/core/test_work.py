"""Works that are combined, or that have ended before they were returned."""

from __future__ import annotations

import threading
import time

import pytest

from unisono.core.engine import DONE, AllOf, Work
from unisono.errors import CommTimeout


class Timed(Work):
    """Ends so many seconds after it was made."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._ended = threading.Event()
        timer = threading.Timer(seconds, self._ended.set)
        timer.daemon = True
        timer.start()

    def _poll(self) -> bool:
        return self._ended.is_set()

    def _block(self, timeout: float | None) -> None:
        if not self._ended.wait(timeout):
            raise CommTimeout("too late")


@pytest.mark.thorough
def test_several_works_share_one_timeout():
    """Each ends within the timeout after the one before it, but all together do not."""
    works = AllOf([Timed(0.7 * (number + 1)) for number in range(6)], "value")
    began = time.monotonic()
    with pytest.raises(CommTimeout):
        works.wait(1.0)
    assert time.monotonic() - began < 3.5
    assert not works.is_completed()
    assert works.result() == "value"
    assert works.is_completed()


def test_finished_work_cannot_be_changed():
    first, second = DONE.with_value([1]), DONE.with_value([2])
    assert (first.result(), second.result(), DONE.result()) == ([1], [2], None)
    for work in (DONE, first):
        with pytest.raises(AttributeError, match="with_value"):
            work.value = [3]
