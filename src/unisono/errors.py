"""Every error that unisono raises, as one tree.

UnisonoError(RuntimeError)
├── ArgumentError(ValueError)      a wrong value: shape, counts, root, overlapping memory
├── ArgumentTypeError(TypeError)   a wrong type: not a tensor, a dtype that cannot be sent
├── Unsupported                    a valid request that this engine or dtype cannot do
├── NotReady(ValueError)           no world yet, already closed, or this rank is not in the group
├── LaunchError                    ranks could not find each other, or an engine cannot start
│   └── OutOfSharedMemory(MemoryError)
├── MismatchError                  ranks disagree about the call they are in
├── PeerLost                       a rank ended, closed the group, or gave up a call
├── CommTimeout(TimeoutError)      the deadline passed; names the ranks that were missing
└── RankFailed                     a rank started by spawn() or a test raised or died

The engine says what happened; `dispatch` adds where (collective, group, rank) as a note. An error
that has to reach another process travels as plain data: `error.to_data()` and `from_data(data)`.
Where C++ has made another error of one of these, as in DDP's backward pass, see `cause(error)`.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

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
    "cause",
    "from_data",
    "remember",
]


class UnisonoError(RuntimeError):
    """The root: catch this to catch everything that unisono raises on purpose.

    `ranks` names the ranks that the error is about, where it is about ranks. Further public
    attributes that are set on an error belong to it too: they survive pickle and `to_data`.

    >>> try:
    ...     unisono.spawn(lambda: dist.send(np.ones(1), dst=5), 2)
    ... except unisono.UnisonoError as error:
    ...     print(type(error).__name__)
    ArgumentError
    """

    def __init__(self, message: str, ranks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.ranks), dict(self.__dict__)

    def to_data(self) -> dict[str, Any]:
        """Describe this error as plain data that JSON can carry; `from_data` reads it.

        >>> PeerLost("rank 2 was killed", [2]).to_data()
        {'type': 'PeerLost', 'message': 'rank 2 was killed', 'ranks': [2]}
        """
        data: dict[str, Any] = {
            "type": type(self).__name__,
            "message": str(self),
            "ranks": list(self.ranks),
        }
        fields = {name: value for name, value in vars(self).items() if _is_field(name)}
        if notes := getattr(self, "__notes__", None):
            data["notes"] = list(notes)
        if fields:
            data["fields"] = fields
        return data


class ArgumentError(UnisonoError, ValueError):
    """A value is wrong: shape, counts, root, overlapping memory.

    >>> try:
    ...     unisono.spawn(lambda: dist.all_to_all_single(np.empty(3), np.ones(3)), 2)
    ... except unisono.ArgumentError as error:
    ...     print(error)
    3 rows cannot be shared equally by 2 ranks; give input_split_sizes
    """


class ArgumentTypeError(UnisonoError, TypeError):
    """A type is wrong: not a tensor, or a dtype that cannot be sent.

    >>> try:
    ...     unisono.spawn(lambda: comm_func.all_reduce(np.array([None])), 2)
    ... except unisono.ArgumentTypeError as error:
    ...     print(type(error).__name__)
    ArgumentTypeError
    """


class Unsupported(UnisonoError):
    """The request is valid, but this engine or dtype cannot do it.

    >>> try:
    ...     unisono.spawn(lambda: dist.all_reduce(np.ones(1), dist.ReduceOp.BXOR), 2)
    ... except unisono.Unsupported as error:
    ...     print(str(error).partition(";")[0])
    tensor is float64, which cannot be reduced with bxor
    """


class NotReady(UnisonoError, ValueError):
    """There is no world yet, it is closed, or this rank is not in the group.

    It is a ValueError because torch raises one here, and scripts catch it.

    >>> try:
    ...     dist.all_reduce(np.ones(1))
    ... except unisono.NotReady as error:
    ...     print(str(error).partition(";")[0])
    there is no world yet
    """


class LaunchError(UnisonoError):
    """Ranks could not find each other, or an engine cannot start here.

    >>> try:
    ...     dist.get_node_local_rank()
    ... except unisono.LaunchError as error:
    ...     print(str(error).partition(";")[0])
    LOCAL_RANK is not set
    """


class OutOfSharedMemory(LaunchError, MemoryError):
    """The host does not have enough shared memory; the text says how much is needed.

    >>> issubclass(unisono.OutOfSharedMemory, MemoryError)
    True
    """


class MismatchError(UnisonoError):
    """Ranks disagree on collective, order, dtype, count, operator or root.

    >>> try:
    ...     unisono.spawn(lambda: dist.all_reduce(np.ones(1 + dist.get_rank())), 2)
    ... except unisono.MismatchError as error:
    ...     print(str(error).partition(";")[0])
    ranks disagree in call 1 of the group
    """


class PeerLost(UnisonoError):
    """A rank ended, closed the group or gave up the call that others are in.

    >>> try:
    ...     unisono.spawn(lambda: dist.get_rank() or dist.barrier(), 2)
    ... except unisono.PeerLost as error:
    ...     print(error.ranks)
    (1,)
    """


class CommTimeout(UnisonoError, TimeoutError):
    """The deadline passed; the text names the ranks that were missing.

    >>> try:
    ...     unisono.spawn(lambda: dist.recv(np.empty(1), 1 - dist.get_rank()), 2, timeout=0.2)
    ... except unisono.CommTimeout as error:
    ...     print(len(error.ranks))
    1
    """


class RankFailed(UnisonoError):
    """A rank started by `unisono.spawn` or a test raised or died.

    >>> import os
    >>> try:
    ...     unisono.spawn(os._exit, 1, 3, engine="shm")
    ... except unisono.RankFailed as error:
    ...     print(error)
    rank 0 ended without a result: exit code 3
    """


def _is_field(name: str) -> bool:
    """Tell a further attribute from `ranks`, which has its own key, and from Python's own."""
    return name != "ranks" and not name.startswith("_")


_TYPES: dict[str, type[UnisonoError]] = {
    kind.__name__: kind
    for kind in (
        UnisonoError,
        ArgumentError,
        ArgumentTypeError,
        Unsupported,
        NotReady,
        LaunchError,
        OutOfSharedMemory,
        MismatchError,
        PeerLost,
        CommTimeout,
        RankFailed,
    )
}


def from_data(data: Mapping[str, Any]) -> UnisonoError:
    """Make the error that `to_data` described; one of an unknown type becomes a UnisonoError.

    >>> from_data({"type": "PeerLost", "message": "rank 2 was killed", "ranks": [2]})
    PeerLost('rank 2 was killed')
    """
    kind = _TYPES.get(str(data.get("type")), UnisonoError)
    error = kind(str(data.get("message", "")), [int(rank) for rank in data.get("ranks", ())])
    for note in data.get("notes", ()):
        error.add_note(str(note))
    for name, value in data.get("fields", {}).items():
        if _is_field(name):
            setattr(error, name, value)
    return error


#: The last errors that were handed to C++, which keeps their texts only. Copies, because an error
#: keeps all variables alive of the functions that it came through.
_remembered: deque[UnisonoError] = deque(maxlen=16)


def remember(error: UnisonoError) -> None:
    """Let `cause` find an error of which C++ will keep only the text.

    >>> remember(PeerLost("rank 1 has ended", [1]))
    >>> cause(RuntimeError("in C++: rank 1 has ended"))
    PeerLost('rank 1 has ended')
    """
    _remembered.append(copy.copy(error))


def cause(error: BaseException | None) -> UnisonoError | None:
    """The error of unisono behind another one; None if there is none.

    DDP waits in C++, where every error becomes a RuntimeError:

        except RuntimeError as error:
            if isinstance(unisono.errors.cause(error), unisono.PeerLost): ...

    >>> cause(KeyError("a"))
    """
    if error is None or isinstance(error, UnisonoError):
        return error
    text = str(error)
    told = next((each for each in reversed(_remembered) if str(each) in text), None)
    return told or cause(error.__cause__ or error.__context__)
