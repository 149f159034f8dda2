"""What a name of a MindSpore face means: unisono's own, MindSpore's own, or an error.

People use one alias for communication and for everything else (`ops.AllReduce`, `ops.Argmax`). So a
name that is not communication is MindSpore's own, found when it is asked for. A name that is
communication is unisono's or an error: MindSpore's would reach another world.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, NoReturn

from unisono.core.arguments import missing_name

__all__ = ["is_communication", "or_mindspore"]

#: Where MindSpore defines its communication. What comes from there is never passed on.
_COMMUNICATION = (
    "mindspore.communication",
    "mindspore.mint.distributed",
    "mindspore.ops.communication",
    "mindspore.ops.function.comm_func",
    "mindspore.ops.operations.comm_ops",
)
#: Operators that communicate as well, and are defined elsewhere.
_FUSED = frozenset({"all_gather_matmul", "matmul_reduce_scatter", "reshard"})


def is_communication(name: str, thing: object) -> bool:
    """Tell whether this thing of MindSpore, under this name, would communicate."""
    origin = getattr(thing, "__name__" if isinstance(thing, ModuleType) else "__module__", None)
    return name in _FUSED or any(
        origin == place or str(origin).startswith(f"{place}.") for place in _COMMUNICATION
    )


def or_mindspore(
    upstream: str,
    names: Sequence[str],
    nearest: Mapping[str, str] | None = None,
    modules: Sequence[str] = (),
    borrowed: Mapping[str, str] | None = None,
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make `__getattr__` and `__dir__` of the module that stands for `upstream`.

    `names` are those that the module has; `modules` those of its modules that are imported when
    they are asked for; `borrowed` says which of our modules has a name. `nearest` says what to use
    instead of a communication name that we lack.
    """
    missing = missing_name(upstream, [*names, *(borrowed or ())], nearest)

    def lookup(name: str) -> Any:
        # Python asks for private names itself, as for our modules in `from package import _module`.
        if name.startswith("_") or (nearest and name in nearest):
            missing(name)
        if name in modules:
            return importlib.import_module(f"unisono.{upstream}.{name}")
        if borrowed and name in borrowed:
            return getattr(importlib.import_module(borrowed[name]), name)
        try:
            thing = _from_mindspore(upstream, name)
        except ModuleNotFoundError as error:
            _add_reason(missing, name, error)
        except AttributeError:
            missing(name)
        if is_communication(name, thing):
            missing(name)
        return thing

    def listing() -> list[str]:
        loaded = vars(sys.modules[upstream]) if upstream in sys.modules else {}
        theirs = {
            name
            for name, thing in loaded.items()
            if not name.startswith("_") and not is_communication(name, thing)
        }
        return sorted({*names, *modules, *(borrowed or ()), *theirs})

    return lookup, listing


def _from_mindspore(upstream: str, name: str) -> Any:
    """MindSpore's own thing or module, as `from upstream import name` finds it."""
    module = importlib.import_module(upstream)
    if hasattr(module, name):
        return getattr(module, name)
    path = f"{upstream}.{name}"
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name != path:
            raise
        raise AttributeError(path) from None


def _add_reason(missing: Callable[[str], NoReturn], name: str, reason: ImportError) -> NoReturn:
    """Raise the error for a name that only MindSpore could have, where it cannot be imported."""
    try:
        missing(name)
    except AttributeError as error:
        text = f"{error}; what is not communication is MindSpore's own, but: {reason}"
        raise AttributeError(text, name=name) from reason
