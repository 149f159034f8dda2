"""One call of one rank, described once: what `dispatch` checks and every engine takes.

The counts of both sides are filled in here and nowhere else: `sends[j]` is how many elements this
rank sends to rank j, and `receives[i]` how many it receives from rank i. So engines, and the
consistency check, never work them out again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from unisono.core.dtypes import DType, ReduceOp

if TYPE_CHECKING:
    from unisono.core.buffers import Buffer

__all__ = ["Call", "Caller", "Counts"]

#: How many elements belong to each rank; None means equal shares.
Counts = Sequence[int] | None


class Caller(NamedTuple):
    """Who makes a call, and how: the part of a call that is the same for every verb."""

    rank: int
    size: int
    #: How many collectives this rank has called in the group, this one included; 0 for messages.
    number: int
    #: Seconds that the call may wait for other ranks.
    timeout: float
    #: Whether the caller waits within the call.
    blocking: bool
    #: Whether ranks compare their calls before anything moves. An engine that has compared a call
    #: skips that in the calls that it makes on other engines.
    checked: bool = True
    #: The line of the user's source, such as "train.py:88"; "" where the engine finds it itself.
    site: str = ""
    #: Whether a compiler placed the call, in the backward pass of a graph. Ranks compare this: in
    #: graphs that differ, a backward call could otherwise meet an equal one of a forward pass.
    backward: bool = False


class Call(NamedTuple):
    """A call, which never changes: what is called, with which memory, and how long it may take.

    The class methods make one for each verb. They check nothing: `dispatch` has done that.

    >>> import numpy as np
    >>> from unisono.core.buffers import view
    >>> caller = Caller(rank=1, size=3, number=7, timeout=5.0, blocking=True)
    >>> call = Call.gather(caller, view(np.zeros(4)), None, root=2)
    >>> call.sends, call.receives, str(call)
    ((0, 0, 4), (0, 0, 0), 'gather float64 x 4 root 2')
    """

    verb: str
    source: Buffer | None
    destination: Buffer | None
    #: None for a barrier, which moves nothing.
    dtype: DType | None
    #: What one rank gives or gets, in elements.
    share: int
    op: ReduceOp | None
    root: int | None
    #: The other rank of a message; None means any rank.
    peer: int | None
    tag: int
    #: Empty for verbs in which counts never differ by rank.
    sends: Sequence[int]
    receives: Sequence[int]
    #: Whether the caller gave counts, so that shares may differ.
    uneven: bool
    # As in `Caller`.
    number: int
    timeout: float
    blocking: bool
    checked: bool
    site: str
    backward: bool

    @property
    def src(self) -> Buffer:
        """The source, in a call that has one on this rank."""
        assert self.source is not None
        return self.source

    @property
    def dst(self) -> Buffer:
        """The destination, in a call that has one on this rank."""
        assert self.destination is not None
        return self.destination

    @property
    def operator(self) -> ReduceOp:
        """The operator of a reduction."""
        assert self.op is not None
        return self.op

    def __str__(self) -> str:
        words = [self.verb]
        if self.dtype is not None:
            words.append(self.dtype.name)
            if not self.uneven:
                words.append(f"x {self.share}")
        if self.op is not None:
            words.append(self.op.text)
        if self.root is not None:
            words.append(f"root {self.root}")
        if self.tag:
            words.append(f"tag {self.tag}")
        if self.backward:
            words.append("(backward)")
        return " ".join(words)

    @classmethod
    def broadcast(
        cls, caller: Caller, source: Buffer | None, destination: Buffer, root: int
    ) -> Call:
        """Copy `source` of the root to every `destination` (`source` is None elsewhere)."""
        given = source if caller.rank == root else None
        return _call(
            caller, "broadcast", given, destination, destination.dtype, destination.count, root=root
        )

    @classmethod
    def reduce(
        cls, caller: Caller, source: Buffer, destination: Buffer | None, op: ReduceOp, root: int
    ) -> Call:
        """Combine every `source` into `destination` of the root (None elsewhere)."""
        into = destination if caller.rank == root else None
        return _call(caller, "reduce", source, into, source.dtype, source.count, op, root)

    @classmethod
    def all_reduce(cls, caller: Caller, source: Buffer, destination: Buffer, op: ReduceOp) -> Call:
        """Combine every `source` into every `destination`."""
        # Not by `_call`: this is the call that is timed at 8 bytes.
        own = ("all_reduce", source, destination, source.dtype, source.count, op)
        return tuple.__new__(cls, own + _PLAIN + caller[2:])

    @classmethod
    def reduce_scatter(
        cls,
        caller: Caller,
        source: Buffer,
        destination: Buffer,
        op: ReduceOp,
        counts: Counts = None,
    ) -> Call:
        """Combine every `source` and leave part `rank` of the result in `destination`."""
        share = destination.count
        return _call(
            caller,
            "reduce_scatter",
            source,
            destination,
            source.dtype,
            share,
            op,
            sends=_shares(counts, share, caller.size),
            receives=(share,) * caller.size,
            uneven=counts is not None,
        )

    @classmethod
    def gather(
        cls,
        caller: Caller,
        source: Buffer,
        destination: Buffer | None,
        root: int,
        counts: Counts = None,
    ) -> Call:
        """Join every `source` in `destination` of the root, where alone `counts` matter."""
        share, at_root = source.count, caller.rank == root
        return _call(
            caller,
            "gather",
            source,
            destination if at_root else None,
            source.dtype,
            share,
            root=root,
            sends=_only(root, share, caller.size),
            receives=_shares(counts, share, caller.size) if at_root else (0,) * caller.size,
            uneven=at_root and counts is not None,
        )

    @classmethod
    def all_gather(
        cls, caller: Caller, source: Buffer, destination: Buffer, counts: Counts = None
    ) -> Call:
        """Join every `source` in every `destination`."""
        share = source.count
        return _call(
            caller,
            "all_gather",
            source,
            destination,
            source.dtype,
            share,
            sends=(share,) * caller.size,
            receives=_shares(counts, share, caller.size),
            uneven=counts is not None,
        )

    @classmethod
    def scatter(
        cls,
        caller: Caller,
        source: Buffer | None,
        destination: Buffer,
        root: int,
        counts: Counts = None,
    ) -> Call:
        """Distribute `source` of the root, where alone `counts` matter."""
        share, at_root = destination.count, caller.rank == root
        return _call(
            caller,
            "scatter",
            source if at_root else None,
            destination,
            destination.dtype,
            share,
            root=root,
            sends=_shares(counts, share, caller.size) if at_root else (0,) * caller.size,
            receives=_only(root, share, caller.size),
            uneven=at_root and counts is not None,
        )

    @classmethod
    def all_to_all(
        cls,
        caller: Caller,
        source: Buffer,
        destination: Buffer,
        sends: Counts = None,
        receives: Counts = None,
    ) -> Call:
        """Send part j of `source` to rank j, and receive part i of `destination` from rank i."""
        share = source.count // caller.size
        return _call(
            caller,
            "all_to_all",
            source,
            destination,
            source.dtype,
            share,
            sends=_shares(sends, share, caller.size),
            receives=_shares(receives, share, caller.size),
            uneven=sends is not None,
        )

    @classmethod
    def send(cls, caller: Caller, source: Buffer, peer: int, tag: int = 0) -> Call:
        """Send `source` to `peer`."""
        return _call(caller, "send", source, None, source.dtype, source.count, peer=peer, tag=tag)

    @classmethod
    def recv(cls, caller: Caller, destination: Buffer, peer: int | None, tag: int = 0) -> Call:
        """Receive into `destination` from `peer`, or from any rank."""
        dtype, count = destination.dtype, destination.count
        return _call(caller, "recv", None, destination, dtype, count, peer=peer, tag=tag)

    @classmethod
    def barrier(cls, caller: Caller) -> Call:
        """Wait for every rank."""
        return _call(caller, "barrier", None, None, None, 0)


def _call(
    caller: Caller,
    verb: str,
    source: Buffer | None,
    destination: Buffer | None,
    dtype: DType | None,
    share: int,
    op: ReduceOp | None = None,
    root: int | None = None,
    peer: int | None = None,
    tag: int = 0,
    sends: Sequence[int] = (),
    receives: Sequence[int] = (),
    uneven: bool = False,
) -> Call:
    # Past the constructor, which is a function of its own and costs as much as all the rest here.
    # What a caller is ends both tuples alike.
    own = (verb, source, destination, dtype, share, op, root, peer, tag, sends, receives, uneven)
    return tuple.__new__(Call, own + caller[2:])


#: Root, peer, tag, counts of both sides and unevenness of a call that has none of them.
_PLAIN = (None, None, 0, (), (), False)


def _shares(counts: Counts, share: int, size: int) -> Sequence[int]:
    return (share,) * size if counts is None else tuple(counts)


def _only(rank: int, count: int, size: int) -> Sequence[int]:
    """`count` for one rank, and nothing for the others."""
    return (*(0,) * rank, count, *(0,) * (size - rank - 1))
