"""Which streams may wait for other ranks, and which calls have to leave that to the host."""

from __future__ import annotations

import threading

import pytest

from tests.helpers import cuda_emulator, cuda_on_cpu
from unisono.engines.cuda.gpu.device import Device, Moment
from unisono.engines.cuda.gpu.driver import PER_THREAD

if cuda_on_cpu.COMPILER is None:
    pytest.skip("no g++ to compile the kernels for the CPU", allow_module_level=True)


class Ending:
    """The end of a call, which comes when the test says so."""

    failure = None

    def __init__(self) -> None:
        self.come = False

    def has_come(self) -> bool:
        return self.come

    def delay(self, stream: int) -> None:
        raise AssertionError("nobody waits for it")


@pytest.fixture
def gpu() -> Device:
    return Device(cuda_emulator.EmulatedDriver())


def test_one_group_may_always_wait(gpu):
    for stream in (7, 7, None, 8, None):
        assert gpu.may_wait("one", stream) is not None


def test_two_groups_may_wait_in_one_stream_alone(gpu):
    gpu.may_wait("one", 7)
    assert gpu.may_wait("other", 7) is not None
    assert gpu.may_wait("third", 8) is None
    assert gpu.may_wait("third", None) is None


@pytest.mark.parametrize("stream", [7, None])
def test_a_group_may_wait_when_the_other_one_does_not_any_more(gpu, stream):
    waiting = gpu.may_wait("one", stream)
    assert gpu.may_wait("other", 8) is None
    waiting.end = Ending()
    assert gpu.may_wait("other", 8) is None
    waiting.end.come = True
    assert gpu.may_wait("other", 8) is not None
    assert gpu.may_wait("one", stream) is None


def test_no_stream_may_wait_in_front_of_a_copy_that_another_rank_waits_for(gpu):
    gpu.count_receives(1)
    assert gpu.is_receiving() and gpu.may_wait("one", 7) is None
    gpu.count_receives(-1)
    assert not gpu.is_receiving() and gpu.may_wait("one", 7) is not None


def test_a_call_that_failed_and_a_group_that_is_over_hold_up_nobody(gpu):
    gpu.may_wait("one", 7).is_void = True
    assert gpu.may_wait("other", 8) is not None
    gpu.forget("other")
    again = gpu.may_wait("one", 7)
    assert again is not None and not again.is_void


def test_a_number_may_be_another_stream_in_another_thread(gpu):
    with gpu.entered():
        gate = threading.Event()
        gpu.driver.hold(PER_THREAD, gate)
        moment = Moment(gpu, PER_THREAD)
    over = threading.Event()

    def wait() -> None:
        with gpu.entered():
            moment.delay(PER_THREAD)
            gpu.driver.put(PER_THREAD, over.set)

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    assert not over.wait(0.1)
    gate.set()
    assert over.wait(10)
