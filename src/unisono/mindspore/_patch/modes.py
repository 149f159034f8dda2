"""Which of MindSpore's parallel modes work over unisono: all but those that its compiler makes."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from unisono.errors import Unsupported

__all__ = ["refuse_other_modes"]

#: Here MindSpore's compiler inserts communication itself, and that needs MindSpore's own world.
_REFUSED = ("semi_auto_parallel", "auto_parallel", "hybrid_parallel")


def refuse_other_modes() -> None:
    """Make MindSpore refuse the modes that unisono cannot serve, and refuse one that is set."""
    context = importlib.import_module("mindspore.parallel._auto_parallel_context")
    setters = context._set_auto_parallel_context_func_map
    if not isinstance(setters["parallel_mode"], _Checked):
        setters["parallel_mode"] = _Checked(setters["parallel_mode"])
    _check(context.auto_parallel_context().get_parallel_mode())


class _Checked:
    """MindSpore's function that sets the mode, which looks at it first."""

    def __init__(self, setter: Callable[[str], None]) -> None:
        self._setter = setter

    def __call__(self, mode: str) -> None:
        _check(mode)
        self._setter(mode)


def _check(mode: str) -> None:
    if mode in _REFUSED:
        raise Unsupported(
            f"parallel_mode is {mode!r}, in which MindSpore's compiler communicates by itself, "
            "outside unisono; use 'data_parallel', or 'stand_alone' with collectives of your own"
        )
