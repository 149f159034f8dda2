"""The conformance suite, part 4: calls that are under way while the rank goes on."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import numpy as np
import pytest

from tests.helpers import cases, oracle
from tests.helpers.cases import Case
from tests.helpers.device_memory import memory_of
from tests.helpers.thorough import essential
from unisono.core import dispatch
from unisono.core.dtypes import ReduceOp
from unisono.core.groups import Group
from unisono.errors import ArgumentError, CommTimeout

VERBS = (*cases.MOVES, *cases.REDUCTIONS, "barrier")


def overlapping(group: Group, order: str) -> None:
    """Many calls under way, waited for in an order of our own."""
    counts = (0, 1, 1009, 70001)
    running = [
        cases.start(group, Case(verb, "float32", count, in_place=bool(turn % 2), salt=turn), False)
        for turn, count in enumerate(counts)
        for verb in VERBS
    ]
    if order == "backwards":
        running.reverse()
    if order == "last only":
        running[-1].work.wait()
    for each in running:
        each.work.wait()
        each.work.wait()  # twice is allowed
        each.check()
        if not each.work.is_completed() or each.work.exception() is not None:
            raise AssertionError(f"{each.label} has been waited for and says it is not done")


@pytest.mark.parametrize("order", essential(1, ["backwards", "forwards", "last only"]))
def test_overlapping_calls(world, ranks, order):
    world(ranks, overlapping, order)


def mixed_with_blocking(group: Group) -> None:
    """A blocking call after asynchronous ones does not overtake them."""
    running = []
    for turn in range(10):
        case = Case("all_reduce", "int32", 5003, salt=turn)
        each = cases.start(group, case, blocking=turn % 3 == 2)
        running.append(each)
    for each in running:
        each.work.wait()
        each.check()


def test_blocking_among_asynchronous_calls(world, ranks):
    world(ranks, mixed_with_blocking)


def from_other_thread(group: Group) -> None:
    running = [
        cases.start(group, Case(verb, "int64", 4001, salt=3), blocking=False) for verb in VERBS
    ]
    failures: list[BaseException] = []

    def body() -> None:
        try:
            for each in reversed(running):
                each.work.wait()
                each.check()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=body, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
        if thread.is_alive():
            raise TimeoutError("a thread still waits for calls that all ranks have joined")
    if failures:
        raise failures[0]


def test_waited_for_by_two_other_threads(world):
    world(3, from_other_thread)


def polled(group: Group) -> None:
    """`is_completed` alone brings a call to its end, and its result with it."""
    target = np.zeros(2002, np.float32)[::2]
    source = oracle.values("float32", group.rank, 1001)
    memory = memory_of(group)
    work = dispatch.all_reduce(
        group, memory.view(source), memory.view(target), ReduceOp.MAX, blocking=False
    )
    end = time.monotonic() + 30
    while not work.is_completed():
        if time.monotonic() > end:
            raise TimeoutError("polling for half a minute did not end the call")
        time.sleep(0.001)
    expected = oracle.reduced(ReduceOp.MAX, "float32", group.size, 1001)
    oracle.check_same(target, expected, "polled", any_nan=True)


def test_polling_ends_a_call(world, ranks):
    world(ranks, polled)


def not_yet(group: Group) -> None:
    """A call that lacks a rank is not done; a short wait says so and leaves it under way."""
    if group.rank == 0:
        case = Case("all_gather", "int32", 10)
        running = cases.start(group, case, blocking=False)
        if running.work.is_completed():
            raise AssertionError("done although rank 1 has not come")
        try:
            running.work.wait(timeout=0.05)
        except CommTimeout:
            pass
        else:
            raise AssertionError("waited for a rank that has not come, and found it")
        for wrong in (-1, float("nan"), "1", timedelta(seconds=-1)):
            with pytest.raises(ArgumentError, match="give seconds, 0 or more"):
                running.work.wait(wrong)
        dispatch.send(group, memory_of(group).view(np.ones(1)), 1, 1)
        running.work.wait()
        running.check()
    else:
        dispatch.recv(group, memory_of(group).view(np.zeros(1)), 0, 1)
        cases.run(group, Case("all_gather", "int32", 10))


def test_a_short_wait_leaves_the_call_under_way(world):
    world(2, not_yet)


def callbacks(group: Group) -> list[str]:
    seen: list[str] = []
    running = cases.start(group, Case("all_reduce", "float64", 33), blocking=False)
    running.work.then(lambda: seen.append("before"))
    running.work.wait()
    running.work.then(lambda: seen.append("after"))
    running.work.wait()
    return seen


def test_callbacks_run_once(world):
    assert world(2, callbacks) == [["before", "after"]] * 2


def failing_callback(group: Group) -> list[str]:
    """The result could not be delivered: every use of the work raises the reason."""
    running = cases.start(group, Case("all_reduce", "float64", 33), blocking=False)
    running.work.then(lambda: {}["no room"])
    seen = []
    for look in (running.work.wait, running.work.result, running.work.wait):
        try:
            look()
        except KeyError as error:
            seen.append(str(error))
    seen.append(str(running.work.is_completed()))
    seen.append(type(running.work.exception()).__name__)
    return seen


def test_a_failing_callback_is_the_error_of_its_call(world):
    assert world(2, failing_callback) == [["'no room'"] * 3 + ["True", "KeyError"]] * 2


def dropped(group: Group) -> None:
    """Works that nobody waits for, or keeps, still do their part; memory outlives them."""
    for salt in range(20):
        cases.start(group, Case("all_reduce", "float32", 10007, salt=salt), blocking=False)
    cases.run(group, Case("all_reduce", "float32", 10007, salt=77))


def test_works_that_nobody_keeps(world):
    world(3, dropped)


def stepwise_sharding(group: Group) -> None:
    """As FSDP does: gather the parameters in place, then scatter the gradients in place."""
    for turn in range(5):
        gathered = Case("all_gather", "bfloat16", 3001, in_place=True, salt=turn)
        scattered = Case("reduce_scatter", "bfloat16", 3001, ReduceOp.AVG, in_place=True, salt=turn)
        running = [cases.start(group, case, blocking=False) for case in (gathered, scattered)]
        for each in running:
            each.work.wait()
            each.check()


def test_sharded_parameters_in_place(world, ranks):
    world(ranks, stepwise_sharding)
