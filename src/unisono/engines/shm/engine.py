"""Ranks are processes of one host: a thin face of the native module.

Everything that matters happens in native/: this file turns buffers into addresses, counts into
rows, and outcomes into `Work`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from unisono.core.buffers import Buffer, view
from unisono.core.engine import DONE, Counts, Engine, ReduceOp, Work
from unisono.core.environment import Launch
from unisono.core.trace import Rank, Record, Tracer
from unisono.engines.shm.client import RendezvousClient
from unisono.engines.shm.server import RendezvousServer
from unisono.errors import CommTimeout, LaunchError, OutOfSharedMemory, UnisonoError

_missing = ""
if TYPE_CHECKING:
    from unisono import _native
else:
    try:
        from unisono import _native
    except ImportError as error:  # an answer with a reason, not an error at import
        _missing = str(error)

__all__ = ["ShmEngine", "ShmWork"]

# Codes of native/types.hpp; a test compares them with the module's own tables.
_BROADCAST, _REDUCE, _ALL_REDUCE, _REDUCE_SCATTER, _GATHER = 1, 2, 3, 4, 5
_ALL_GATHER, _SCATTER, _ALL_TO_ALL, _BARRIER = 6, 7, 8, 9
_NO_OPERATOR = 9
_FOREVER = 1e18
_DRAIN = 2.0  # seconds that close() lets queued calls go on


class _Records:
    """The records of a job in shared memory; a `trace.Source`."""

    def __init__(self, job: _native.SharedJob) -> None:
        self._job = job
        self.claim = job.claim_trace_write
        self.written = job.finish_trace_write
        self.fresh = job.trace_is_written

    def look(self) -> list[Rank]:
        return [
            Rank(rank, pid, state, [Record(*call) for call in calls], missing)
            for rank, (pid, state, calls, missing) in enumerate(self._job.snapshot())
        ]


class ShmWork(Work):
    """A call that the native thread runs; keeps the memory alive until it has ended."""

    def __init__(
        self, tracer: Tracer, pending: _native.CallHandle, *buffers: Buffer | None
    ) -> None:
        super().__init__()
        self._tracer = tracer
        self._pending = pending
        self._buffers = buffers

    def _poll(self) -> bool:
        return self._pending.done()

    def _block(self, timeout: float | None) -> None:
        if not self._pending.wait(_FOREVER if timeout is None else timeout):
            raise CommTimeout(f"the call has not ended after {timeout:g} s; it goes on")
        try:
            self._pending.check()
        except UnisonoError as error:
            self._tracer.explain(error)
            raise
        source = self._pending.source
        self.source = None if source < 0 else source
        self._buffers = ()


class ShmEngine(Engine):
    """One rank's handle on a group in shared memory."""

    name = "shm"

    def __init__(
        self,
        job: _native.SharedJob,
        communicator: _native.Communicator,
        rank: int,
        size: int,
        tracer: Tracer,
        *,
        ends_job: bool = False,
    ) -> None:
        self._job = job
        self._ends_job = ends_job  # only the world's engine does
        self._tracer = tracer
        self._native = communicator
        self._collective = communicator.collective
        self.rank = rank
        self.size = size
        self.timeout = 0.0
        self._running: set[ShmWork] = set()

    @classmethod
    def unavailable(cls) -> str | None:
        if _missing:
            return f"the native module is missing ({_missing}); reinstall unisono with a compiler"
        return None

    @classmethod
    def open(cls, launch: Launch, timeout: float) -> ShmEngine:
        if not launch.one_host:
            raise LaunchError(
                f"engine 'shm' joins ranks of one host, but {launch.source} started "
                f"{launch.size - launch.local_size} of {launch.size} ranks elsewhere"
            )
        try:
            job = _join(launch, timeout)
        except CommTimeout:
            raise
        except OSError as error:
            raise LaunchError(
                f"rank {launch.rank} could not meet the others: {error.strerror}; look at the "
                "limits of this process (`ulimit -n` for open files)",
                [launch.rank],
            ) from error
        communicator = _native.Communicator(job, job.world_offset(), launch.rank, launch.size)
        tracer = Tracer(launch.job, launch.rank, _Records(job))
        engine = cls(job, communicator, launch.rank, launch.size, tracer, ends_job=True)
        engine.timeout = timeout
        return engine

    def broadcast(self, src: Buffer | None, dst: Buffer, root: int, blocking: bool) -> Work:
        return self._start(_BROADCAST, src, dst, dst.count, None, root, blocking)

    def reduce(
        self, src: Buffer, dst: Buffer | None, op: ReduceOp, root: int, blocking: bool
    ) -> Work:
        target = dst if self.rank == root else None
        return self._start(_REDUCE, src, target, src.count, op, root, blocking)

    def all_reduce(self, src: Buffer, dst: Buffer, op: ReduceOp, blocking: bool) -> Work:
        # The shortest way: this call is the one that is timed at 8 bytes.
        dtype = src.dtype
        try:
            pending = self._collective(
                _ALL_REDUCE,
                src.address,
                dst.address,
                src.count,
                dtype.code,
                dtype.itemsize,
                op.code,
                op.factor,
                -1,
                self.timeout,
                blocking,
            )
        except UnisonoError as error:
            self._tracer.explain(error)
            raise
        return DONE if pending is None else self._track(ShmWork(self._tracer, pending, src, dst))

    def reduce_scatter(
        self, src: Buffer, dst: Buffer, op: ReduceOp, counts: Counts, blocking: bool
    ) -> Work:
        rows = None if counts is None else (counts, [dst.count] * self.size)
        return self._start(_REDUCE_SCATTER, src, dst, dst.count, op, -1, blocking, rows)

    def gather(
        self, src: Buffer, dst: Buffer | None, root: int, counts: Counts, blocking: bool
    ) -> Work:
        if self.rank != root:
            return self._start(_GATHER, src, None, src.count, None, root, blocking)
        own = [src.count if rank == root else 0 for rank in range(self.size)]
        rows = None if counts is None else (own, counts)
        return self._start(_GATHER, src, dst, src.count, None, root, blocking, rows)

    def all_gather(self, src: Buffer, dst: Buffer, counts: Counts, blocking: bool) -> Work:
        rows = None if counts is None else ([src.count] * self.size, counts)
        return self._start(_ALL_GATHER, src, dst, src.count, None, -1, blocking, rows)

    def scatter(
        self, src: Buffer | None, dst: Buffer, root: int, counts: Counts, blocking: bool
    ) -> Work:
        if self.rank != root:
            return self._start(_SCATTER, None, dst, dst.count, None, root, blocking)
        own = [dst.count if rank == root else 0 for rank in range(self.size)]
        rows = None if counts is None else (counts, own)
        return self._start(_SCATTER, src, dst, dst.count, None, root, blocking, rows)

    def all_to_all(
        self, src: Buffer, dst: Buffer, sends: Counts, receives: Counts, blocking: bool
    ) -> Work:
        if sends is None or receives is None:
            share = src.count // self.size
            return self._start(_ALL_TO_ALL, src, dst, share, None, -1, blocking)
        if src.address == dst.address:
            src = view(src.array.copy())  # unequal parts move within the buffer: keep the old ones
        return self._start(_ALL_TO_ALL, src, dst, 0, None, -1, blocking, (sends, receives))

    def barrier(self, blocking: bool) -> Work:
        arguments = (0, 0, 0, 0, 1, _NO_OPERATOR, 1.0, -1, self.timeout, blocking)
        try:
            pending = self._collective(_BARRIER, *arguments)
        except UnisonoError as error:
            self._tracer.explain(error)
            raise
        return DONE if pending is None else self._track(ShmWork(self._tracer, pending))

    def send(self, src: Buffer, peer: int, tag: int, blocking: bool) -> Work:
        return self._message(True, src, peer, tag, blocking)

    def recv(self, dst: Buffer, peer: int | None, tag: int, blocking: bool) -> Work:
        return self._message(False, dst, -1 if peer is None else peer, tag, blocking)

    def split(self, ranks: Sequence[int], key: str) -> ShmEngine:
        digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
        number = int.from_bytes(digest, "little") >> 1
        communicator = self._native.split(list(ranks), number, self.timeout)
        return self._sibling(communicator)

    def shrink(self, exclude: Sequence[int] = ()) -> tuple[ShmEngine, tuple[int, ...]]:
        before = self._native.world_ranks
        try:
            communicator = self._native.shrink(list(exclude), self.timeout)
        except UnisonoError as error:
            self._tracer.explain(error)
            raise
        self._running.clear()
        members = tuple(before.index(rank) for rank in communicator.world_ranks)
        return self._sibling(communicator), members

    def close(self) -> None:
        self._native.close(_DRAIN)
        if self._ends_job:
            self._job.close(_DRAIN)
        self._running.clear()

    def exit(self) -> None:
        self._job.announce_exit()

    def records(self) -> list[Rank]:
        return self._tracer.source.look()

    def _sibling(self, communicator: _native.Communicator) -> ShmEngine:
        """The engine of another group of this job, that we are in."""
        ranks = communicator.world_ranks
        place = ranks.index(self._tracer.rank)
        engine = ShmEngine(self._job, communicator, place, len(ranks), self._tracer)
        engine.timeout = self.timeout
        return engine

    def _start(
        self,
        verb: int,
        src: Buffer | None,
        dst: Buffer | None,
        count: int,
        op: ReduceOp | None,
        root: int,
        blocking: bool,
        rows: tuple[Sequence[int], Sequence[int]] | None = None,
    ) -> Work:
        dtype = (src or dst).dtype  # type: ignore[union-attr]  # every verb but barrier has one
        arguments = (
            verb,
            src.address if src is not None else 0,
            dst.address if dst is not None else 0,
            count,
            dtype.code,
            dtype.itemsize,
            op.code if op is not None else _NO_OPERATOR,
            op.factor if op is not None else 1.0,
            root,
            self.timeout,
            blocking,
        )
        try:
            if rows is None:
                pending = self._collective(*arguments)
            else:
                pending = self._native.collective_uneven(*arguments, list(rows[0]), list(rows[1]))
        except UnisonoError as error:
            self._tracer.explain(error)
            raise
        return DONE if pending is None else self._track(ShmWork(self._tracer, pending, src, dst))

    def _message(self, sending: bool, buffer: Buffer, peer: int, tag: int, blocking: bool) -> Work:
        dtype = buffer.dtype
        try:
            pending = self._native.point_to_point(
                sending,
                buffer.address,
                buffer.count,
                dtype.code,
                dtype.itemsize,
                peer,
                tag,
                self.timeout,
                blocking,
            )
        except UnisonoError as error:
            self._tracer.explain(error)
            raise
        return self._track(ShmWork(self._tracer, pending, buffer))

    def _track(self, work: ShmWork) -> ShmWork:
        """Hold unfinished work: the native thread uses its memory even if the caller drops it."""
        # Other threads may do the same at this moment, so nothing is read and then written back.
        self._running.difference_update([old for old in list(self._running) if old._poll()])
        if not work._poll():
            self._running.add(work)
        return work


def _join(launch: Launch, timeout: float) -> _native.SharedJob:
    """Make or join the job's memory; returns when every rank has mapped it."""
    if launch.rank == 0:
        return _serve(launch, timeout)
    client = RendezvousClient(launch, timeout)
    try:
        job = _native.SharedJob(client.join(), launch.rank)
        client.confirm()
    finally:
        client.close()
    job.connect_peers()
    return job


def _serve(launch: Launch, timeout: float) -> _native.SharedJob:
    server = RendezvousServer(launch, timeout) if launch.size > 1 else None
    try:
        fd = _native.create_job_memory(launch.size)
    except (OutOfSharedMemory, LaunchError) as error:
        if server is not None:
            server.reject_all(error)
        raise
    job = _native.SharedJob(fd, 0)
    if server is not None:
        server.distribute(fd)
    job.connect_peers()
    return job
