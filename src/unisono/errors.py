"""Every error that unisono raises, as one tree.

UnisonoError(RuntimeError)
├── ArgumentError(ValueError)      a value that cannot be right: shape, counts, root, overlap
├── ArgumentTypeError(TypeError)   the wrong kind of thing: not a tensor, a dtype that cannot move
├── Unsupported                    a right request that this engine or dtype cannot serve
├── NotReady(ValueError)           no world yet, already closed, or this rank is not in the group
├── LaunchError                    ranks could not find each other, or an engine cannot start
│   └── OutOfSharedMemory(MemoryError)
├── MismatchError                  ranks disagree about the call they are in
├── PeerLost                       a rank ended, closed the group, or gave up a call
├── CommTimeout(TimeoutError)      the deadline passed; names who was missing
└── RankFailed                     a rank started by spawn() or a test raised or died

The engine says what happened; `dispatch` adds where (collective, group, rank) as a note.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "CommTimeout",
    "LaunchError",
    "MismatchError",
    "NotReady",
    "OutOfSharedMemory",
    "PeerLost",
    "RankFailed",
    "UnisonoError",
    "Unsupported",
]


class UnisonoError(RuntimeError):
    """The root: catch this to catch everything that unisono raises on purpose.

    `ranks` names the ranks that the error is about, where it is about ranks.
    """

    def __init__(self, message: str, ranks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.ranks), dict(self.__dict__)


class ArgumentError(UnisonoError, ValueError):
    """A value that cannot be right: shape, counts, root, overlapping memory."""


class ArgumentTypeError(UnisonoError, TypeError):
    """The wrong kind of thing: not a tensor, or a dtype that cannot be moved."""


class Unsupported(UnisonoError):
    """A right request that this engine or dtype cannot serve."""


class NotReady(UnisonoError, ValueError):
    """There is no world yet, it is closed, or this rank is not in the group.

    It is a ValueError because torch raises that, and scripts catch it.
    """


class LaunchError(UnisonoError):
    """Ranks could not find each other, or an engine cannot start here."""


class OutOfSharedMemory(LaunchError, MemoryError):
    """The host has not enough shared memory; the text says how much is needed."""


class MismatchError(UnisonoError):
    """Ranks disagree on collective, order, dtype, count, operator or root."""


class PeerLost(UnisonoError):
    """A rank ended, closed the group or gave up the call that others are in."""


class CommTimeout(UnisonoError, TimeoutError):
    """The deadline passed; the text names the ranks that did not come."""


class RankFailed(UnisonoError):
    """A rank started by `unisono.spawn` or a test raised or died."""
