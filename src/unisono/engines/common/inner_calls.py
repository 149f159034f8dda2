"""Calls that one engine makes on another, and bytes of any length built from them.

For engines that stand on other engines: they have no group, so dispatch and the object collectives
of the core are not for them.
"""

from __future__ import annotations

import numpy as np

from unisono.core.buffers import view
from unisono.core.call import Call, Caller
from unisono.core.engine import Engine

__all__ = ["broadcast_bytes", "inner_caller"]


def inner_caller(
    engine: Engine, timeout: float | None = None, *, blocking: bool = True, site: str = ""
) -> Caller:
    """The caller of a call that one engine makes on another; it has been checked already."""
    seconds = engine.timeout if timeout is None else timeout
    return Caller(engine.rank, engine.size, 0, seconds, blocking, False, site)


def broadcast_bytes(engine: Engine, data: bytes, root: int, timeout: float | None = None) -> bytes:
    """The root's bytes, on every rank."""
    caller = inner_caller(engine, timeout)
    size = view(np.array([len(data)]))
    engine.broadcast(Call.broadcast(caller, size, size, root)).wait()
    at_root = engine.rank == root
    content = np.frombuffer(bytearray(data), np.uint8) if at_root else None
    if content is None:
        content = np.empty(int(size.array[0]), np.uint8)
    memory = view(content)
    engine.broadcast(Call.broadcast(caller, memory, memory, root)).wait()
    return content.tobytes()
