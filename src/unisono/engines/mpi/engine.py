"""Over MPI, by mpi4py: any MPI, on one host or many, started by mpiexec.

MPI's own collectives do what they can do with any counts: they broadcast, gather equal shares,
and reduce. What is uneven travels in messages, which tell their length, so that ranks that
disagree are told and large counts need nothing special.

A reduction is MPI's wherever its order of operands cannot show: for integers, bools, and the least
or greatest. MPI sets the brackets of floating-point sums as it likes, so these are exchanges and
our own arithmetic in rank order, with the bits of every other engine. Engine `mpi:unordered` leaves
them to MPI.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from unisono.core import rendezvous
from unisono.core.buffers import Buffer, overlap
from unisono.core.engine import Counts, Engine, ReduceOp, Work
from unisono.core.environment import Launch
from unisono.engines.common.consistency import Call
from unisono.engines.common.reductions import Array, combine, shares_of
from unisono.engines.mpi import datatypes
from unisono.engines.mpi.datatypes import MOST, Reduction, as_bytes, elements
from unisono.engines.mpi.departures import Notices
from unisono.engines.mpi.primitives import FEW, MpiSteps
from unisono.engines.mpi.requests import CALLING, Message, Request, wait_for
from unisono.errors import ArgumentError, LaunchError

__all__ = ["MpiEngine"]

_notices: list[Notices] = []  # one for this process, once it has a world
_worlds = [0]  # how many there have been

#: Up to so many bytes each rank sends its operand to all, and all combine the whole of it.
_SMALL = 1 << 14
#: Bytes of a sum that are under way at a time: they need room for as many again.
_PIECE = 1 << 26


class MpiEngine(MpiSteps):
    """One rank's handle on a communicator of its own."""

    name = "mpi"
    #: Whether floating-point sums are in rank order, whatever that costs.
    ordered = True

    @classmethod
    def unavailable(cls) -> str | None:
        return datatypes.unavailable()

    @classmethod
    def variant(cls, detail: str) -> type[Engine]:
        if detail != "unordered":
            raise ArgumentError(f"engine 'mpi' has no kind {detail!r}; it has mpi:unordered")
        return type("MpiEngine", (cls,), {"name": "mpi:unordered", "ordered": False})

    @classmethod
    def open(cls, launch: Launch, timeout: float) -> MpiEngine:
        mpi = datatypes.library()
        world = mpi.COMM_WORLD
        found = (world.Get_rank(), world.Get_size())
        if found != (launch.rank, launch.size):
            raise LaunchError(
                f"MPI says that this is rank {found[0]} of {found[1]}, but {launch.source} says "
                f"rank {launch.rank} of {launch.size}; start the ranks with the mpiexec of this "
                f"MPI: mpiexec -n {launch.size} python script.py"
            )
        # Communicators of our own, so that messages of the user's do not mix with ours.
        if not _notices:
            _notices.append(Notices(_copied(world, timeout, cls.name)))
        own = _copied(world, timeout, cls.name)
        # All ranks open worlds in the same order, so their number tells them apart.
        _worlds[0] += 1
        engine = cls(own, timeout, _notices[0], -_worlds[0], range(found[1]))
        engine.hosts = _exchange_hosts(own, timeout, cls.name)
        return engine

    # ---- what only moves ----

    def broadcast(self, src: Buffer | None, dst: Buffer, root: int, blocking: bool) -> Work:
        def job() -> None:
            if src is not None and src.address != dst.address:
                dst.array[:] = src.array
            if dst.count:
                memory = as_bytes(dst.array)
                self._call("broadcast", lambda: self._communicator.Ibcast(memory, root))

        call = Call("broadcast", dst.count, dst.dtype, root=root)
        return self._start(call, job, blocking, src, dst)

    def gather(
        self, src: Buffer, dst: Buffer | None, root: int, counts: Counts, blocking: bool
    ) -> Work:
        sends: list[Array | None] = [None] * self.size
        sends[root] = src.array
        receives: Sequence[Array | None] = [None] * self.size
        leaving = [src.count if rank == root else 0 for rank in range(self.size)]
        coming = [0] * self.size
        if self.rank == root:
            coming = self._even(counts, src.count)
            receives = _cut(dst.array, coming) if dst is not None else receives
        call = Call("gather", src.count, src.dtype, None, root, (leaving, coming), bool(counts))
        return self._start(
            call, lambda: self._exchange("gather", sends, receives), blocking, src, dst
        )

    def all_gather(self, src: Buffer, dst: Buffer, counts: Counts, blocking: bool) -> Work:
        shares = self._even(counts, src.count)

        def job() -> None:
            if len(set(shares)) > 1:
                receives = _cut(dst.array, shares)
                self._exchange("all_gather", [src.array] * self.size, receives)
            elif src.count:
                source = src.array.copy() if overlap(src, dst) else src.array
                self._all_gather_equal("all_gather", source, dst.array)

        rows = [src.count] * self.size, shares
        call = Call("all_gather", src.count, src.dtype, rows=rows, uneven=bool(counts))
        return self._start(call, job, blocking, src, dst)

    def scatter(
        self, src: Buffer | None, dst: Buffer, root: int, counts: Counts, blocking: bool
    ) -> Work:
        sends: Sequence[Array | None] = [None] * self.size
        leaving = [0] * self.size
        if self.rank == root:
            leaving = self._even(counts, dst.count)
            sends = _cut(src.array, leaving) if src is not None else sends
        receives: list[Array | None] = [None] * self.size
        receives[root] = dst.array
        coming = [dst.count if rank == root else 0 for rank in range(self.size)]
        call = Call("scatter", dst.count, dst.dtype, None, root, (leaving, coming), bool(counts))
        return self._start(
            call, lambda: self._exchange("scatter", sends, receives), blocking, src, dst
        )

    def all_to_all(
        self, src: Buffer, dst: Buffer, sends: Counts, receives: Counts, blocking: bool
    ) -> Work:
        ours = self._even(sends, src.count // self.size)
        theirs = self._even(receives, dst.count // self.size)

        def job() -> None:
            source = src.array.copy() if overlap(src, dst) else src.array
            self._exchange("all_to_all", _cut(source, ours), _cut(dst.array, theirs))

        share = src.count // self.size
        call = Call("all_to_all", share, src.dtype, rows=(ours, theirs), uneven=bool(sends))
        return self._start(call, job, blocking, src, dst)

    def barrier(self, blocking: bool) -> Work:
        return self._start(Call("barrier"), lambda: None, blocking)  # they meet when they agree

    # ---- reductions ----

    def all_reduce(self, src: Buffer, dst: Buffer, op: ReduceOp, blocking: bool) -> Work:
        def job() -> None:
            if not src.count:
                return
            way = datatypes.reduction(op, src.dtype, self.size, self.ordered)
            if way is not None:
                self._all_reduce_there(way, src, dst)
            elif src.nbytes <= _SMALL and self.size <= FEW:
                dst.array[:] = self._fold("all_reduce", [src.array] * self.size, op)
            elif src.nbytes <= _SMALL:
                operands = np.empty((self.size, src.count), src.dtype.numpy)
                self._all_gather_equal("all_reduce", src.array, operands.reshape(-1))
                dst.array[:] = combine(op, list(operands))
            else:
                for source, target in zip(_pieces(src.array), _pieces(dst.array), strict=True):
                    shares = shares_of(source.size, self.size)
                    own = self._fold("all_reduce", _cut(source, shares), op)
                    self._exchange("all_reduce", [own] * self.size, _cut(target, shares))

        return self._start(Call("all_reduce", src.count, src.dtype, op), job, blocking, src, dst)

    def reduce(
        self, src: Buffer, dst: Buffer | None, op: ReduceOp, root: int, blocking: bool
    ) -> Work:
        target = dst.array if dst is not None and self.rank == root else None

        def job() -> None:
            if not src.count:
                return
            way = datatypes.reduction(op, src.dtype, self.size, self.ordered)
            if way is not None:
                self._reduce_there("reduce", way, src.array, target, root)
                return
            for start, source in _numbered_pieces(src.array):
                shares = shares_of(source.size, self.size)
                sends: list[Array | None] = [None] * self.size
                sends[root] = self._fold("reduce", _cut(source, shares), op)
                receives: Sequence[Array | None] = [None] * self.size
                if target is not None:
                    receives = _cut(target[start : start + source.size], shares)
                self._exchange("reduce", sends, receives)

        call = Call("reduce", src.count, src.dtype, op, root)
        return self._start(call, job, blocking, src, dst)

    def reduce_scatter(
        self, src: Buffer, dst: Buffer, op: ReduceOp, counts: Counts, blocking: bool
    ) -> Work:
        shares = self._even(counts, dst.count)

        def job() -> None:
            way = datatypes.reduction(op, src.dtype, self.size, self.ordered)
            parts = _cut(src.array, shares)
            if way is not None:
                dst.array[:] = self._reduce_scatter_there(way, src.array, parts)
                return
            step = max(1, _PIECE // (self.size * src.dtype.itemsize))
            for start in range(0, max(shares), step):
                pieces = [part[start : start + step] for part in parts]
                own = self._fold("reduce_scatter", pieces, op)
                dst.array[start : start + own.size] = own

        rows = shares, [dst.count] * self.size
        call = Call("reduce_scatter", dst.count, src.dtype, op, None, rows, bool(counts))
        return self._start(call, job, blocking, src, dst)

    # ---- messages ----

    def send(self, src: Buffer, peer: int, tag: int, blocking: bool) -> Work:
        message = Message(self._mailbox, True, src, peer, self._tag(tag))
        return self._mailbox.post(message, self.timeout, blocking)

    def recv(self, dst: Buffer, peer: int | None, tag: int, blocking: bool) -> Work:
        message = Message(self._mailbox, False, dst, peer, self._tag(tag))
        return self._mailbox.post(message, self.timeout, blocking)

    # ---- groups ----

    def split(self, ranks: Sequence[int], key: str) -> MpiEngine:
        made: list[Any] = []
        # A later world may use the same key, and must not hear of the groups of this one.
        digest = hashlib.blake2b(f"{_worlds[0]} {key}".encode(), digest_size=8).digest()
        number = int.from_bytes(digest, "little") >> 1
        self._notices.join(number)
        patience = self.timeout

        def job() -> None:
            self._patience = patience
            # MPI_Comm_create_group has no deadline: it is called when all members are there.
            self._meet(ranks, self._meeting_tags[number % len(self._meeting_tags)])
            whole = self._communicator.Get_group()
            group = whole.Incl(list(ranks))
            made.append(self._communicator.Create_group(group, number % (1 << 15)))
            group.Free()
            whole.Free()

        self._serial.start(job, True)
        world = [self._world[rank] for rank in ranks]
        child = type(self)(made[0], self.timeout, self._notices, number, world)
        child.hosts = [self.hosts[rank] for rank in ranks]
        return child

    # ---- MPI's own reductions ----

    def _all_reduce_there(self, way: Reduction, src: Buffer, dst: Buffer) -> None:
        if way.encode is not None:
            room = way.encode(src.array)
        else:
            room = dst.array
            if src.address != dst.address:
                room[:] = src.array
        for piece in _pieces(room, MOST * room.itemsize):
            memory = elements(piece, way.datatype)
            self._call(
                "all_reduce",
                lambda into=memory: self._communicator.Iallreduce(  # type: ignore[misc]
                    self._mpi.IN_PLACE, into, way.operator
                ),
                room,
            )
        if way.decode is not None:
            dst.array[:] = way.decode(room)

    def _reduce_there(
        self, name: str, way: Reduction, source: Array, target: Array | None, root: int
    ) -> None:
        """Let MPI reduce to the root, the only one with a target."""
        given = way.encode(source) if way.encode is not None else source
        if target is not None and way.encode is None:
            if source.ctypes.data != target.ctypes.data:
                target[:] = source
            given = target
        for piece in _pieces(given, MOST * given.itemsize):
            memory = elements(piece, way.datatype)
            out, into = (memory, None) if target is None else (self._mpi.IN_PLACE, memory)
            self._call(
                name,
                lambda out=out, into=into: self._communicator.Ireduce(  # type: ignore[misc]
                    out, into, way.operator, root
                ),
                given,
            )
        if target is not None and way.decode is not None:
            target[:] = way.decode(given)

    def _reduce_scatter_there(self, way: Reduction, source: Array, parts: Sequence[Array]) -> Array:
        own = np.empty_like(parts[self.rank])
        if source.size * way.width > MOST:
            for root, part in enumerate(parts):
                target = own if self.rank == root else None
                self._reduce_there("reduce_scatter", way, part, target, root)
            return own
        given = way.encode(source) if way.encode is not None else source
        room = np.empty(own.size * way.width, given.dtype)
        counts = [part.size * way.width for part in parts]
        out, into = elements(given, way.datatype), elements(room, way.datatype)
        self._call(
            "reduce_scatter",
            lambda: self._communicator.Ireduce_scatter(out, into, counts, way.operator),
            (given, room),
        )
        return way.decode(room) if way.decode is not None else room


def _copied(communicator: Any, timeout: float, engine: str) -> Any:
    with CALLING:
        own, request = communicator.Idup()
    wait_for([Request(request)], timeout, engine, "MPI_Comm_idup", lambda far: None)
    return own


def _exchange_hosts(communicator: Any, timeout: float, engine: str) -> list[str]:
    """Each rank's host: launchers of MPI tell how many ranks a host has, but not which."""
    own = np.array([rendezvous.own_host().encode()], "S256").view(np.uint8)
    found = np.zeros(communicator.Get_size(), "S256")
    with CALLING:
        request = communicator.Iallgather(own, found.view(np.uint8))
    wait_for([Request(request)], timeout, engine, "MPI_Iallgather", lambda far: None)
    return [host.decode() for host in found.tolist()]


def _cut(whole: Array, counts: Sequence[int]) -> list[Array]:
    """One part behind the other."""
    ends = np.cumsum(counts).tolist()
    return [whole[end - count : end] for end, count in zip(ends, counts, strict=True)]


def _numbered_pieces(whole: Array, most: int = _PIECE) -> list[tuple[int, Array]]:
    step = most // whole.itemsize
    return [(start, whole[start : start + step]) for start in range(0, whole.size, step)]


def _pieces(whole: Array, most: int = _PIECE) -> list[Array]:
    """Pieces of at most so many bytes."""
    return [piece for _, piece in _numbered_pieces(whole, most)]
