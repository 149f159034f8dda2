"""The user's line of a collective: known when JAX traces the call, needed when it runs it.

Engines look for the line in the stack, where only JAX stands when a compiled program runs.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import jax

__all__ = ["run_at", "user_line"]

_SKIPPED = tuple(
    str(Path(str(module.__file__)).parent) + os.sep for module in (sys.modules["unisono"], jax)
)


def user_line() -> str:
    """The first line outside unisono and JAX that led to this call, such as "train.py:88"."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_SKIPPED):
        frame = frame.f_back
    if frame is None:
        return ""
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def run_at(site: str, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """Call the function so that the stack shows the user's line above it."""
    return _relay(site)(function, arguments)


@functools.cache
def _relay(site: str) -> Callable[..., Any]:
    relay = lambda function, arguments: function(*arguments)  # noqa: E731 - one line: its first
    file, _, line = site.rpartition(":")
    if not file:
        return relay
    code = relay.__code__.replace(co_filename=file, co_firstlineno=int(line))
    return FunctionType(code, {})
