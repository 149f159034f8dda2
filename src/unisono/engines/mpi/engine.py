"""Over MPI, by mpi4py: any MPI, on one host or many, started by mpiexec.

MPI's own collectives do what they can do with any counts: they broadcast, gather equal shares,
and reduce. What is uneven travels in messages, which tell their length, so that ranks that
disagree get an error and large counts need nothing special.

A reduction is MPI's wherever its order of operands cannot show: for integers, bools, and the least
or greatest. MPI associates floating-point sums as it likes, so these are exchanges and our own
arithmetic in rank order, with the bits of every other engine. Engine `mpi:unordered` leaves them
to MPI.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from unisono.core import rendezvous
from unisono.core.buffers import Buffer, overlap
from unisono.core.call import Call
from unisono.core.engine import Engine, Work
from unisono.core.environment import Launch
from unisono.engines.common.reductions import Array, combine, shares_of
from unisono.engines.mpi import library
from unisono.engines.mpi.datatypes import MAX_COUNT, as_bytes, elements
from unisono.engines.mpi.departures import DepartureNotices
from unisono.engines.mpi.primitives import FEW, MpiPrimitives
from unisono.engines.mpi.reductions import MpiReduction, reduction
from unisono.engines.mpi.requests import MPI_LOCK, Request, wait_for
from unisono.errors import ArgumentError, LaunchError

__all__ = ["MpiEngine"]

_notices: list[DepartureNotices] = []  # one for this process, once it has a world
_worlds = [0]  # how many there have been

#: Up to so many bytes each rank sends its operand to all, and all combine the whole of it.
_SMALL = 1 << 14
#: Bytes of a sum that are under way at a time: they need as much memory again.
_CHUNK_BYTES = 1 << 26


class MpiEngine(MpiPrimitives):
    """One rank's handle on a communicator of its own."""

    name = "mpi"
    #: Whether floating-point sums are in rank order, whatever that costs.
    ordered = True

    @classmethod
    def unavailable(cls) -> str | None:
        return library.unavailable()

    @classmethod
    def variant(cls, detail: str) -> type[Engine]:
        if detail != "unordered":
            raise ArgumentError(f"engine 'mpi' has no variant {detail!r}; it has mpi:unordered")
        return type("MpiEngine", (cls,), {"name": "mpi:unordered", "ordered": False})

    @classmethod
    def open(cls, launch: Launch, timeout: float) -> MpiEngine:
        mpi = library.library()
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
            _notices.append(DepartureNotices(_duplicate(world, timeout, cls.name)))
        own = _duplicate(world, timeout, cls.name)
        # All ranks open worlds in the same order, so their number tells them apart.
        _worlds[0] += 1
        engine = cls(own, timeout, _notices[0], -_worlds[0], range(found[1]))
        engine.hosts = _exchange_hosts(own, timeout, cls.name)
        return engine

    # ---- what only moves ----

    def broadcast(self, call: Call) -> Work:
        return self._start(call, self._broadcast)

    def _broadcast(self, call: Call) -> None:
        source, destination = call.source, call.dst
        if source is not None and source.address != destination.address:
            destination.array[:] = source.array
        if destination.count:
            memory = as_bytes(destination.array)
            self._run(call, lambda: self._communicator.Ibcast(memory, call.root))

    def gather(self, call: Call) -> Work:
        return self._start(call, self._gather)

    def _gather(self, call: Call) -> None:
        sends = [call.src.array if rank == call.root else None for rank in range(self.size)]
        receives = self._parts_or_nothing(call.destination, call.receives)
        self._exchange(call, sends, receives)

    def all_gather(self, call: Call) -> Work:
        return self._start(call, self._all_gather)

    def _all_gather(self, call: Call) -> None:
        source, destination = call.src, call.dst
        if len(set(call.receives)) > 1:
            receives = _parts(destination.array, call.receives)
            self._exchange(call, [source.array] * self.size, receives)
        elif source.count:
            given = source.array.copy() if overlap(source, destination) else source.array
            self._all_gather_equal(call, given, destination.array)

    def scatter(self, call: Call) -> Work:
        return self._start(call, self._scatter)

    def _scatter(self, call: Call) -> None:
        sends = self._parts_or_nothing(call.source, call.sends)
        receives = [call.dst.array if rank == call.root else None for rank in range(self.size)]
        self._exchange(call, sends, receives)

    def all_to_all(self, call: Call) -> Work:
        return self._start(call, self._all_to_all)

    def _all_to_all(self, call: Call) -> None:
        source, destination = call.src, call.dst
        given = source.array.copy() if overlap(source, destination) else source.array
        receives = _parts(destination.array, call.receives)
        self._exchange(call, _parts(given, call.sends), receives)

    def barrier(self, call: Call) -> Work:
        return self._start(call, lambda _: None)

    def _parts_or_nothing(
        self, whole: Buffer | None, counts: Sequence[int]
    ) -> Sequence[Array | None]:
        return [None] * self.size if whole is None else _parts(whole.array, counts)

    # ---- reductions ----

    def all_reduce(self, call: Call) -> Work:
        return self._start(call, self._all_reduce)

    def _all_reduce(self, call: Call) -> None:
        source, destination, op = call.src, call.dst, call.operator
        if not source.count:
            return
        native = reduction(op, source.dtype, self.size, self.ordered)
        if native is not None:
            self._all_reduce_by_mpi(call, native)
        elif source.nbytes <= _SMALL and self.size <= FEW:
            destination.array[:] = self._reduced_part(call, [source.array] * self.size, op)
        elif source.nbytes <= _SMALL:
            operands = np.empty((self.size, source.count), source.dtype.numpy)
            self._all_gather_equal(call, source.array, operands.reshape(-1))
            destination.array[:] = combine(op, list(operands))
        else:
            pairs = zip(_chunks(source.array), _chunks(destination.array), strict=True)
            for given, target in pairs:
                shares = shares_of(given.size, self.size)
                own = self._reduced_part(call, _parts(given, shares), op)
                self._exchange(call, [own] * self.size, _parts(target, shares))

    def reduce(self, call: Call) -> Work:
        return self._start(call, self._reduce)

    def _reduce(self, call: Call) -> None:
        source, op = call.src, call.operator
        target = call.dst.array if call.destination is not None else None
        if not source.count:
            return
        native = reduction(op, source.dtype, self.size, self.ordered)
        if native is not None:
            self._reduce_by_mpi(call, native, source.array, target, call.root)
            return
        start = 0
        for given in _chunks(source.array):
            shares = shares_of(given.size, self.size)
            own = self._reduced_part(call, _parts(given, shares), op)
            sends = [own if rank == call.root else None for rank in range(self.size)]
            receives: Sequence[Array | None] = [None] * self.size
            if target is not None:
                receives = _parts(target[start : start + given.size], shares)
            self._exchange(call, sends, receives)
            start += given.size

    def reduce_scatter(self, call: Call) -> Work:
        return self._start(call, self._reduce_scatter)

    def _reduce_scatter(self, call: Call) -> None:
        source, target, op = call.src, call.dst.array, call.operator
        native = reduction(op, source.dtype, self.size, self.ordered)
        parts = _parts(source.array, call.sends)
        if native is not None:
            target[:] = self._reduce_scatter_by_mpi(call, native, source.array, parts)
            return
        step = max(1, _CHUNK_BYTES // (self.size * source.dtype.itemsize))
        for start in range(0, max(call.sends), step):
            own = self._reduced_part(call, [part[start : start + step] for part in parts], op)
            target[start : start + own.size] = own

    # ---- point-to-point ----

    def send(self, call: Call) -> Work:
        self._check_tag(call.tag)
        return self._messages.post(call)

    def recv(self, call: Call) -> Work:
        self._check_tag(call.tag)
        return self._messages.post(call)

    # ---- groups ----

    def split(self, ranks: Sequence[int], key: str) -> MpiEngine:
        made: list[Any] = []
        # A later world may use the same key, and must not get notices of this one's groups.
        digest = hashlib.blake2b(f"{_worlds[0]} {key}".encode(), digest_size=8).digest()
        number = int.from_bytes(digest, "little") >> 1
        notices = self._departures.notices
        notices.join(number)

        def task() -> None:
            # MPI_Comm_create_group has no deadline: it is called when all members are there.
            self._await_members(ranks, self._split_tags[number % len(self._split_tags)])
            whole = self._communicator.Get_group()
            group = whole.Incl(list(ranks))
            made.append(self._communicator.Create_group(group, number % (1 << 15)))
            group.Free()
            whole.Free()

        self._executor.submit(task, True)
        world = [self._departures.world[rank] for rank in ranks]
        child = type(self)(made[0], self.timeout, notices, number, world)
        child.hosts = [self.hosts[rank] for rank in ranks]
        return child

    # ---- MPI's own reductions ----

    def _all_reduce_by_mpi(self, call: Call, native: MpiReduction) -> None:
        src, dst = call.src, call.dst
        if native.encode is not None:
            room = native.encode(src.array)
        else:
            room = dst.array
            if src.address != dst.address:
                room[:] = src.array
        for chunk in _chunks(room, MAX_COUNT * room.itemsize):
            memory = elements(chunk, native.datatype)
            self._run(
                call,
                lambda into=memory: self._communicator.Iallreduce(  # type: ignore[misc]
                    self._mpi.IN_PLACE, into, native.operator
                ),
                room,
            )
        if native.decode is not None:
            dst.array[:] = native.decode(room)

    def _reduce_by_mpi(
        self,
        call: Call,
        native: MpiReduction,
        source: Array,
        target: Array | None,
        root: int | None,
    ) -> None:
        """Let MPI reduce to the root, the only one with a target."""
        given = native.encode(source) if native.encode is not None else source
        if target is not None and native.encode is None:
            if source.ctypes.data != target.ctypes.data:
                target[:] = source
            given = target
        for chunk in _chunks(given, MAX_COUNT * given.itemsize):
            memory = elements(chunk, native.datatype)
            out, into = (memory, None) if target is None else (self._mpi.IN_PLACE, memory)
            self._run(
                call,
                lambda out=out, into=into: self._communicator.Ireduce(  # type: ignore[misc]
                    out, into, native.operator, root
                ),
                given,
            )
        if target is not None and native.decode is not None:
            target[:] = native.decode(given)

    def _reduce_scatter_by_mpi(
        self, call: Call, native: MpiReduction, source: Array, parts: Sequence[Array]
    ) -> Array:
        own = np.empty_like(parts[self.rank])
        if source.size * native.width > MAX_COUNT:
            for root, part in enumerate(parts):
                target = own if self.rank == root else None
                self._reduce_by_mpi(call, native, part, target, root)
            return own
        given = native.encode(source) if native.encode is not None else source
        room = np.empty(own.size * native.width, given.dtype)
        counts = [part.size * native.width for part in parts]
        out, into = elements(given, native.datatype), elements(room, native.datatype)
        self._run(
            call,
            lambda: self._communicator.Ireduce_scatter(out, into, counts, native.operator),
            (given, room),
        )
        return native.decode(room) if native.decode is not None else room


def _duplicate(communicator: Any, timeout: float, engine: str) -> Any:
    with MPI_LOCK:
        own, request = communicator.Idup()
    wait_for([Request(request)], timeout, engine, "MPI_Comm_idup", lambda thorough: None)
    return own


def _exchange_hosts(communicator: Any, timeout: float, engine: str) -> list[str]:
    """Each rank's host: launchers of MPI say how many ranks a host has, but not which."""
    own = np.array([rendezvous.own_host().encode()], "S256").view(np.uint8)
    found = np.zeros(communicator.Get_size(), "S256")
    with MPI_LOCK:
        request = communicator.Iallgather(own, found.view(np.uint8))
    wait_for([Request(request)], timeout, engine, "MPI_Iallgather", lambda thorough: None)
    return [host.decode() for host in found.tolist()]


def _parts(whole: Array, counts: Sequence[int]) -> list[Array]:
    """One part after the other."""
    ends = np.cumsum(counts).tolist()
    return [whole[end - count : end] for end, count in zip(ends, counts, strict=True)]


def _chunks(whole: Array, most: int | None = None) -> list[Array]:
    """Chunks of at most so many bytes."""
    step = (most or _CHUNK_BYTES) // whole.itemsize
    return [whole[start : start + step] for start in range(0, whole.size, step)]
