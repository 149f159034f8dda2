"""How functions, arguments and results travel between this process and ranks that are processes.

Ranks do not import the program. What is defined in `__main__`, in a notebook or a script, and what
has no name, as a lambda, travels by value; that needs cloudpickle.
"""

from __future__ import annotations

import io
import pickle
from types import FunctionType
from typing import Any

from unisono.core.registry import install_command
from unisono.errors import ArgumentTypeError

__all__ = ["dumps", "loads", "pack"]

loads = pickle.loads


def dumps(thing: Any) -> bytes:
    """Pickle something, by value what another process could not find."""
    try:
        import cloudpickle
    except ImportError:
        stream = io.BytesIO()
        _ByName(stream).dump(thing)
        return stream.getvalue()
    data: bytes = cloudpickle.dumps(thing)
    return data


def pack(thing: Any, what: str) -> bytes:
    """Pickle something, or say why that cannot be done and how to go on."""
    try:
        return dumps(thing)
    except _NotByName as error:
        raise ArgumentTypeError(
            f"{what} cannot be sent to another process: {error}; install cloudpickle, which sends "
            f"it by value ({install_command('cloudpickle')}), or use engine='threads'"
        ) from None
    except Exception as error:
        raise ArgumentTypeError(
            f"{what} cannot be sent to another process ({error}); use plain data, or "
            "engine='threads'"
        ) from error


class _NotByName(Exception):
    """Something that another process cannot find by its name."""


class _ByName(pickle.Pickler):
    """Pickles as usual, and refuses what the other process would not find."""

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, FunctionType | type):
            if thing.__module__ == "__main__":
                raise _NotByName(f"{thing.__qualname__} is defined in __main__")
            if "<" in thing.__qualname__:
                raise _NotByName(f"{thing.__qualname__} is defined inside a function")
        return NotImplemented
