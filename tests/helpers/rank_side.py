"""What a rank of a fault test uses: its script imports all names of this module."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from unisono.core import buffers, dispatch, groups
from unisono.core.dtypes import ReduceOp
from unisono.core.engine import Work
from unisono.core.groups import Group
from unisono.errors import UnisonoError

__all__ = [
    "fault",
    "groups",
    "hear",
    "limit_memory",
    "np",
    "os",
    "rank",
    "recv",
    "reduce",
    "resource",
    "say",
    "signal",
    "start_reduce",
    "sys",
    "threading",
    "time",
]

rank = int(os.environ["UNISONO_RANK"])


def say(**fields: Any) -> None:
    """Tell the test something, as one line."""
    print(json.dumps(fields), flush=True)


def hear() -> None:
    """Wait until the test calls `tell()`."""
    sys.stdin.readline()


def start_reduce(
    group: Group, array: np.ndarray, blocking: bool = False, timeout: float | None = None
) -> Work:
    memory = buffers.view(array)
    return dispatch.all_reduce(
        group, memory, memory, ReduceOp.SUM, blocking=blocking, timeout=timeout
    )


def reduce(
    group: Group, count: int = 1, blocking: bool = True, timeout: float | None = None
) -> float:
    """The sum of 1, 2, ... over the group's ranks, `count` times; all of them must agree."""
    array = np.full(count, group.rank + 1.0)
    start_reduce(group, array, blocking, timeout).wait()
    assert (array == array[0]).all()
    return float(array[0])


def recv(group: Group, peer: int, timeout: float | None = None) -> None:
    dispatch.recv(group, buffers.view(np.zeros(4)), peer, 0, timeout=timeout)


def fault(action: Callable[[], object]) -> dict[str, Any]:
    """What the action raised, and after how many seconds; kind None if nothing."""
    began = time.monotonic()
    kind, text, ranks = None, "", ()
    try:
        action()
    except (UnisonoError, KeyboardInterrupt) as error:
        kind, text, ranks = type(error).__name__, str(error), getattr(error, "ranks", ())
    return {"kind": kind, "text": text, "ranks": ranks, "seconds": time.monotonic() - began}


def limit_memory(mebibytes: float) -> None:
    """Let no file, shared memory included, grow beyond this size."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(mebibytes * 2**20), hard))
