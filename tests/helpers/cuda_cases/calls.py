"""Calls as the cases make them."""

from __future__ import annotations

from typing import Any

from unisono.core import buffers, dispatch, groups
from unisono.core.dtypes import ReduceOp
from unisono.core.groups import Group
from unisono.torch import distributed as dist

LARGE = 1 << 18  # elements of float32: more than engine `cuda` copies aside


def summed(group: Group, array: Any, **how: Any) -> Any:
    buffer = buffers.view(array)
    return dispatch.all_reduce(group, buffer, buffer, ReduceOp.SUM, **how)


def outcome(function: Any, *arguments: Any, **named: Any) -> str:
    """The name of the error that a call raises, and its text."""
    try:
        function(*arguments, **named)
    except (Exception, KeyboardInterrupt) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def let_faces_call(group: Group) -> None:
    """Let the calls of faces be those of the ranks' world."""
    if not dist.is_initialized():
        groups.unclaim()
        dist.init_process_group("unisono")
