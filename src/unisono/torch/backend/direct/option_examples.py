"""Shows native code where torch keeps the options of a call.

Each attribute of an options object is a call of torch that takes as long as a small collective, so
native code reads the memory behind the object (native/torch_options.hpp). Nobody tells us how that
is laid out. So it gets examples of each class, in which every attribute has several values in all
combinations, and finds the only places that fit them all; a class that it is not sure of stays with
the attributes.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from itertools import product
from typing import Any

import torch.distributed as dist

__all__ = ["CLASSES", "examples"]

#: The classes of options of the calls that native code makes.
CLASSES = (
    "AllreduceOptions",
    "BroadcastOptions",
    "ReduceOptions",
    "AllgatherOptions",
    "ReduceScatterOptions",
    "AllToAllOptions",
    "GatherOptions",
    "ScatterOptions",
    "BarrierOptions",
)
_UNSET = timedelta(milliseconds=-1)
_TIMEOUTS = (_UNSET, timedelta(milliseconds=7001), timedelta(days=3, milliseconds=5))
_ROOTS = (0, 5, 70_000)


def examples(name: str) -> Iterator[tuple[Any, bool, int, int | None, int | None]]:
    """Yield objects of a class with what was set: blocking, milliseconds, operator and root.

    What the class does not have is None.
    """
    kind = getattr(dist.distributed_c10d, name)
    blank = kind()
    if not (hasattr(blank, "asyncOp") and hasattr(blank, "timeout")):
        return  # an older torch
    operators: list[Any] = [None]
    if hasattr(blank, "reduceOp"):
        operators = [op for op in dist.ReduceOp.RedOpType.__members__.values() if _is_plain(op)]
    roots = _ROOTS if hasattr(blank, "rootRank") else (None,)
    for op, root, timeout, blocking in product(operators, roots, _TIMEOUTS, (False, True)):
        made = kind()
        made.asyncOp = not blocking
        made.timeout = timeout
        if op is not None:
            made.reduceOp = dist.ReduceOp(op)
        if root is not None:
            made.rootRank = root
        milliseconds = round(timeout / timedelta(milliseconds=1))
        yield made, blocking, milliseconds, None if op is None else op.value, root


def _is_plain(op: Any) -> bool:
    """Whether this is an operator without a factor of its own."""
    return bool(op.name != "PREMUL_SUM")
