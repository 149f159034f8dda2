"""Which rank 0 a rank belongs to, where two jobs were given one address and port.

Ranks that somebody started by hand have only that in common, so they compare how they were started:
by whom, in which folder and session, with which words and variables. Each of these is one point.
Where the points do not tell, nobody guesses.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

__all__ = ["Points", "chosen", "own_points", "packed", "unpacked"]

Points = frozenset[bytes]

_POINT = 8  # bytes of each point's hash
_MOST = 200  # words of one kind, beyond which they are one point: all must fit into a hello
#: What differs between ranks of one job, besides everything that has RANK in its name.
_OF_ONE_RANK = {"_", "CUDA_VISIBLE_DEVICES", "DEVICE_ID", "MS_NODE_ID", "SHLVL"}


def own_points() -> Points:
    """How this process was started."""
    words = sys.orig_argv
    if "--multiprocessing-fork" in words:
        words = sys.argv  # those of the parent: the child's own name its pipes
    variables = [
        f"{name}={value}"
        for name, value in os.environ.items()
        if "RANK" not in name and name not in _OF_ONE_RANK
    ]
    return frozenset(
        [
            _hashed(f"parent {os.getppid()} {_start_of(os.getppid())}"),
            _hashed(f"session {os.getsid(0)}"),
            _hashed(f"folder {_folder()}"),
            *_of_kind("word", [f"{place} {word}" for place, word in enumerate(words)]),
            *_of_kind("variable", sorted(variables)),
        ]
    )


def chosen(own: Points, others: Sequence[Points]) -> int | None:
    """Which of the others `own` belongs to, by its number, or None if that cannot be told.

    The one that is equal; else the one that it shares more with than with any other, with nothing
    that speaks for another.

    >>> a, b, c = b"1", b"2", b"3"
    >>> chosen(frozenset([a, b]), [frozenset([a]), frozenset([a, b, c])])
    1
    >>> chosen(frozenset([a, b]), [frozenset([a, c]), frozenset([b, c])]) is None
    True
    """
    equal = [number for number, points in enumerate(others) if points == own]
    if len(equal) == 1:
        return equal[0]
    shared = [own & points for points in others]
    for number, mine in enumerate(shared):
        if all(mine > theirs for other, theirs in enumerate(shared) if other != number):
            return number
    return None


def packed(points: Points) -> bytes:
    """The points as bytes."""
    return b"".join(sorted(points))


def unpacked(message: bytes) -> Points:
    """The points in a message."""
    return frozenset(message[start : start + _POINT] for start in range(0, len(message), _POINT))


def _of_kind(kind: str, words: list[str]) -> Iterable[bytes]:
    if len(words) > _MOST:
        words = ["\0".join(words)]
    return (_hashed(f"{kind} {word}") for word in words)


def _hashed(text: str) -> bytes:
    return hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=_POINT).digest()


def _start_of(pid: int) -> str:
    """When a process started, because its number may come again."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]


def _folder() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        return ""  # it was removed
