"""Object collectives, built from the verbs: objects as bytes, their sizes first.

Only ranks of one job exchange objects. Unless pickle is refused (`encoding.allow_pickle`) they
trust each other: unpickling runs code. An object that cannot be sent is an error on its rank and on
those that wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from unisono.core import dispatch
from unisono.core.buffers import view
from unisono.core.encoding import decode, encode
from unisono.core.groups import Group

__all__ = ["all_gather", "broadcast", "gather", "recv", "scatter", "send"]

_Bytes = np.ndarray[Any, Any]


def all_gather(group: Group, thing: Any, *, timeout: float | None = None) -> list[Any]:
    """Every rank's object, on every rank, in rank order."""
    data, failure = _packed(thing)
    sizes = _all_sizes(group, data.size, timeout)
    joined = np.empty(sum(sizes), np.uint8)
    dispatch.all_gather(group, view(data), view(joined), sizes, timeout=timeout)
    _check(failure)
    return _unpacked(group, joined, sizes)


def gather(group: Group, thing: Any, root: int) -> list[Any] | None:
    """Every rank's object, on the root only."""
    data, failure = _packed(thing)
    sizes = _all_sizes(group, data.size)
    if group.rank != root:
        dispatch.gather(group, view(data), None, root)
        _check(failure)
        return None
    joined = np.empty(sum(sizes), np.uint8)
    dispatch.gather(group, view(data), view(joined), root, sizes)
    _check(failure)
    return _unpacked(group, joined, sizes)


def broadcast(group: Group, thing: Any, root: int) -> Any:
    """The root's object, on every rank."""
    at_root = group.rank == root
    data, failure = _packed(thing) if at_root else (np.empty(0, np.uint8), None)
    size = np.array([data.size])
    dispatch.broadcast(group, view(size) if at_root else None, view(size), root)
    if not at_root:
        data = np.empty(int(size[0]), np.uint8)
    dispatch.broadcast(group, view(data) if at_root else None, view(data), root)
    _check(failure)
    return thing if at_root else decode(data.tobytes(), group.ranks[root])


def scatter(group: Group, things: Sequence[Any] | None, root: int) -> Any:
    """Object `rank` of the root's list."""
    size = np.empty(1, np.int64)
    if group.rank != root or things is None:
        dispatch.scatter(group, None, view(size), root)
        data = np.empty(int(size[0]), np.uint8)
        dispatch.scatter(group, None, view(data), root)
        return decode(data.tobytes(), group.ranks[root])
    parts = [_packed(thing) for thing in things]
    failed = next((part for part in parts if part[1] is not None), None)
    if failed is not None:
        parts = [failed] * len(parts)  # nobody gets anything
    sizes = np.array([data.size for data, _ in parts])
    dispatch.scatter(group, view(sizes), view(size), root)
    data = np.empty(int(size[0]), np.uint8)
    joined = np.concatenate([data for data, _ in parts])
    dispatch.scatter(group, view(joined), view(data), root, sizes.tolist())
    _check(parts[0][1])
    return things[root]


def send(group: Group, thing: Any, peer: int, tag: int = 0) -> None:
    """Send one object to a rank of the group."""
    data, failure = _packed(thing)
    dispatch.send(group, view(np.array([data.size])), peer, tag)
    dispatch.send(group, view(data), peer, tag)
    _check(failure)


def recv(group: Group, peer: int | None, tag: int = 0) -> tuple[Any, int]:
    """One object from a rank of the group, or from any; returns it and who sent it."""
    size = np.empty(1, np.int64)
    source = dispatch.recv(group, view(size), peer, tag).source
    assert source is not None
    data = np.empty(int(size[0]), np.uint8)
    dispatch.recv(group, view(data), source, tag)
    return decode(data.tobytes(), group.ranks[source]), source


def _packed(thing: Any) -> tuple[_Bytes, Exception | None]:
    data, failure = encode(thing)
    return np.frombuffer(bytearray(data), np.uint8), failure


def _check(failure: Exception | None) -> None:
    """Raise what kept us from sending our object, now that the others know of it."""
    if failure is not None:
        raise failure


def _unpacked(group: Group, joined: _Bytes, sizes: Sequence[int]) -> list[Any]:
    ends = np.cumsum(sizes)
    return [
        decode(joined[end - size : end].tobytes(), rank)
        for rank, end, size in zip(group.ranks, ends, sizes, strict=True)
    ]


def _all_sizes(group: Group, size: int, timeout: float | None = None) -> list[int]:
    sizes = np.empty(group.size, np.int64)
    dispatch.all_gather(group, view(np.array([size])), view(sizes), timeout=timeout)
    return [int(length) for length in sizes]
