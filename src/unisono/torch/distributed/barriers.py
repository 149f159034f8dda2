"""Barriers: every rank waits for all others."""

from __future__ import annotations

from datetime import timedelta

from unisono.core import dispatch, environment, fast
from unisono.core.engine import Work
from unisono.core.groups import Group
from unisono.errors import CommTimeout
from unisono.torch.distributed import arguments

__all__ = [
    "barrier",
    "monitored_barrier",
]


def barrier(
    group: Group | None = None,
    async_op: bool = False,
    device_ids: list[int] | None = None,
    timeout: timedelta | None = None,
) -> Work | None:
    """Wait until every rank of the group has called this; `device_ids` has no meaning here.

    >>> unisono.spawn(lambda: dist.barrier(), 2)
    [None, None]
    """
    if timeout is None:
        done = fast.barrier(group, async_op)
        if done is not NotImplemented:
            return done  # type: ignore[no-any-return]
    members = arguments.members(group, "barrier")
    if members is None:
        return None
    seconds = arguments.seconds(timeout)
    work = dispatch.barrier(members, blocking=arguments.blocking(async_op), timeout=seconds)
    return arguments.handle(work, async_op, [])


def monitored_barrier(
    group: Group | None = None,
    timeout: timedelta | float | None = None,
    wait_all_ranks: bool = False,
) -> None:
    """Wait for every rank of the group, and name those that did not come in time.

    All missing ranks are named, whether or not `wait_all_ranks` asks for more than the first.

    >>> unisono.spawn(lambda: dist.monitored_barrier(), 2)
    [None, None]
    """
    members = arguments.members(group, "monitored_barrier")
    if members is None:
        return
    if isinstance(timeout, float):
        seconds: float | None = environment.timeout(timeout)
    else:
        seconds = arguments.seconds(timeout)
    try:
        dispatch.barrier(members, timeout=seconds)
    except CommTimeout as error:
        raise arguments.timeout_of_world(error, members, seconds) from None
