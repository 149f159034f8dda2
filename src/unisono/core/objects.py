"""Object collectives, built from the verbs: pickled bytes, their sizes first.

Only ranks of one job exchange objects, and they trust each other: unpickling runs code.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

from unisono.core import dispatch
from unisono.core.buffers import view
from unisono.core.groups import Group

__all__ = ["all_gather", "broadcast", "gather", "recv", "scatter", "send"]


def all_gather(group: Group, thing: Any) -> list[Any]:
    """Every rank's object, on every rank, in rank order."""
    data = _packed(thing)
    sizes = _all_sizes(group, data.size)
    joined = np.empty(sum(sizes), np.uint8)
    dispatch.start("all_gather", group, True, view(data), view(joined), sizes)
    return _unpacked(joined, sizes)


def gather(group: Group, thing: Any, root: int) -> list[Any] | None:
    """Every rank's object, on the root only."""
    data = _packed(thing)
    sizes = _all_sizes(group, data.size)
    if group.rank != root:
        dispatch.start("gather", group, True, view(data), None, root, None)
        return None
    joined = np.empty(sum(sizes), np.uint8)
    dispatch.start("gather", group, True, view(data), view(joined), root, sizes)
    return _unpacked(joined, sizes)


def broadcast(group: Group, thing: Any, root: int) -> Any:
    """The root's object, on every rank."""
    at_root = group.rank == root
    data = _packed(thing) if at_root else np.empty(0, np.uint8)
    size = np.array([data.size])
    dispatch.start("broadcast", group, True, view(size) if at_root else None, view(size), root)
    if not at_root:
        data = np.empty(int(size[0]), np.uint8)
    dispatch.start("broadcast", group, True, view(data) if at_root else None, view(data), root)
    return thing if at_root else pickle.loads(data.tobytes())


def scatter(group: Group, things: Sequence[Any] | None, root: int) -> Any:
    """Object `rank` of the root's list."""
    size = np.empty(1, np.int64)
    if group.rank != root or things is None:
        dispatch.start("scatter", group, True, None, view(size), root, None)
        data = np.empty(int(size[0]), np.uint8)
        dispatch.start("scatter", group, True, None, view(data), root, None)
        return pickle.loads(data.tobytes())
    packed = [_packed(thing) for thing in things]
    sizes = np.array([part.size for part in packed])
    dispatch.start("scatter", group, True, view(sizes), view(size), root, None)
    data = np.empty(int(size[0]), np.uint8)
    joined = np.concatenate(packed)
    dispatch.start("scatter", group, True, view(joined), view(data), root, sizes.tolist())
    return things[root]


def send(group: Group, thing: Any, peer: int, tag: int = 0) -> None:
    """Send one object to a rank of the group."""
    data = _packed(thing)
    dispatch.start("send", group, True, view(np.array([data.size])), peer, tag)
    dispatch.start("send", group, True, view(data), peer, tag)


def recv(group: Group, peer: int | None, tag: int = 0) -> tuple[Any, int]:
    """One object from a rank of the group, or from any; returns it and who sent it."""
    size = np.empty(1, np.int64)
    source = dispatch.start("recv", group, True, view(size), peer, tag).source
    assert source is not None
    data = np.empty(int(size[0]), np.uint8)
    dispatch.start("recv", group, True, view(data), source, tag)
    return pickle.loads(data.tobytes()), source


def _packed(thing: Any) -> np.ndarray[Any, Any]:
    return np.frombuffer(bytearray(pickle.dumps(thing)), np.uint8)


def _unpacked(joined: np.ndarray[Any, Any], sizes: Sequence[int]) -> list[Any]:
    ends = np.cumsum(sizes)
    return [
        pickle.loads(joined[end - size : end].tobytes())
        for end, size in zip(ends, sizes, strict=True)
    ]


def _all_sizes(group: Group, size: int) -> list[int]:
    sizes = np.empty(group.size, np.int64)
    dispatch.start("all_gather", group, True, view(np.array([size])), view(sizes), None)
    return [int(length) for length in sizes]
