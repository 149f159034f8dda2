"""Which rank 0 a rank belongs to, if two jobs were given the same address and port.

Ranks that somebody started by hand have only that in common, so they compare how they were started:
parent process, session, working directory, command line and environment variables. Each of these is
one trait. If the traits do not decide it, nobody guesses.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

__all__ = ["Traits", "best_match", "own_traits", "pack", "unpack"]

Traits = frozenset[bytes]

_TRAIT_BYTES = 8  # of each trait's hash
_MAX_TRAITS = 200  # of one kind; more become a single trait, because all must fit into a hello
#: What differs between ranks of one job, besides everything that has RANK in its name.
_SET_PER_RANK = {"_", "CUDA_VISIBLE_DEVICES", "DEVICE_ID", "MS_NODE_ID", "SHLVL"}


def own_traits() -> Traits:
    """Describe how this process was started."""
    arguments = sys.orig_argv
    if "--multiprocessing-fork" in arguments:
        arguments = sys.argv  # the parent's: those of the child name its pipes
    variables = [
        f"{name}={value}"
        for name, value in os.environ.items()
        if "RANK" not in name and name not in _SET_PER_RANK
    ]
    return frozenset(
        [
            _hash(f"parent {os.getppid()} {_start_time(os.getppid())}"),
            _hash(f"session {os.getsid(0)}"),
            _hash(f"directory {_working_directory()}"),
            *_traits("argument", [f"{index} {text}" for index, text in enumerate(arguments)]),
            *_traits("variable", sorted(variables)),
        ]
    )


def best_match(own: Traits, candidates: Sequence[Traits]) -> int | None:
    """Return the index of the candidate that `own` belongs to, or None if that is not certain.

    An equal candidate wins. Otherwise it is the one that shares everything with `own` that any
    other candidate shares with it, and more.

    >>> a, b, c = b"1", b"2", b"3"
    >>> best_match(frozenset([a, b]), [frozenset([a]), frozenset([a, b, c])])
    1
    >>> best_match(frozenset([a, b]), [frozenset([a, c]), frozenset([b, c])]) is None
    True
    """
    equal = [index for index, traits in enumerate(candidates) if traits == own]
    if len(equal) == 1:
        return equal[0]
    shared = [own & traits for traits in candidates]
    for index, mine in enumerate(shared):
        if all(mine > theirs for other, theirs in enumerate(shared) if other != index):
            return index
    return None


def pack(traits: Traits) -> bytes:
    """Write traits as bytes."""
    return b"".join(sorted(traits))


def unpack(message: bytes) -> Traits:
    """Read the traits in a message."""
    starts = range(0, len(message), _TRAIT_BYTES)
    return frozenset(message[start : start + _TRAIT_BYTES] for start in starts)


def _traits(kind: str, texts: list[str]) -> Iterable[bytes]:
    if len(texts) > _MAX_TRAITS:
        texts = ["\0".join(texts)]
    return (_hash(f"{kind} {text}") for text in texts)


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=_TRAIT_BYTES).digest()


def _start_time(pid: int) -> str:
    """When a process started, because its number may be used again."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]


def _working_directory() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        return ""  # it was removed
