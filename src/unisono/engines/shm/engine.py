"""Ranks are processes of one host: a thin face of the native module.

Everything that matters happens in native/: this file turns a `Call` into numbers and addresses, and
outcomes into `Work`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from unisono.core.buffers import Buffer, view
from unisono.core.call import Call
from unisono.core.engine import DONE, DRAIN_SECONDS, Engine, Work
from unisono.core.environment import Launch
from unisono.core.fast import registration
from unisono.core.groups import Group
from unisono.core.trace import RankReport, Record, Tracer
from unisono.engines.shm import tuning
from unisono.engines.shm.arrays import shared_arrays
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

__all__ = ["Described", "ShmEngine", "ShmWork", "described"]

# Codes of native/types.hpp; a test compares them with the module's own tables.
_BROADCAST, _REDUCE, _ALL_REDUCE, _REDUCE_SCATTER, _GATHER = 1, 2, 3, 4, 5
_ALL_GATHER, _SCATTER, _ALL_TO_ALL, _BARRIER = 6, 7, 8, 9
_NO_OPERATOR = 9
_CODES = {
    "broadcast": _BROADCAST,
    "reduce": _REDUCE,
    "all_reduce": _ALL_REDUCE,
    "reduce_scatter": _REDUCE_SCATTER,
    "gather": _GATHER,
    "all_gather": _ALL_GATHER,
    "scatter": _SCATTER,
    "all_to_all": _ALL_TO_ALL,
}
_SINGLE_COPY = "UNISONO_SINGLE_COPY"

#: Verb, share, dtype, operator and its factor, root, and whether it is one of a backward pass.
Described = tuple[int, int, int, int, float, int, bool]


class _Records:
    """The records of a job in shared memory; a `RecordSource` of `core.trace`."""

    def __init__(self, job: _native.SharedJob) -> None:
        self._job = job
        self.claim = job.claim_trace_write
        self.written = job.finish_trace_write
        self.fresh = job.trace_is_written

    def look(self) -> list[RankReport]:
        return [
            RankReport(rank, pid, state, [Record(*call) for call in calls], missing)
            for rank, (pid, state, calls, missing) in enumerate(self._job.snapshot())
        ]


class ShmWork(Work):
    """A call that the native thread runs; `buffers` keeps memory that its handle does not."""

    #: The unfinished work that the engine holds, with this one.
    held: set[ShmWork] | None = None

    def __init__(
        self,
        tracer: Tracer,
        communicator: _native.Communicator,
        pending: _native.CallHandle,
        *buffers: Buffer | None,
    ) -> None:
        super().__init__()
        self._tracer = tracer
        self._communicator = communicator
        self._pending = pending
        self._buffers = buffers

    def at_end(self, callback: Callable[[], None]) -> None:
        """Run `callback` from the native thread too, which knows the end of a collective."""
        super().at_end(callback)
        with contextlib.suppress(TypeError):  # a message
            self._pending.on_done(callback)

    def _poll(self) -> bool:
        return self._pending.done()

    def _block(self, timeout: float | None) -> None:
        if timeout is None:
            self._communicator.finish(self._pending)  # and runs it here, if it has not begun
        elif not self._pending.wait(timeout):
            raise CommTimeout(f"the call has not ended after {timeout:g} s; it goes on")
        if self.held is not None:
            self.held.discard(self)
        try:
            self._pending.check()
        except UnisonoError as error:
            self._tracer.explain(error)
            raise
        source = self._pending.source
        self.source = None if source < 0 else source
        self._buffers = ()


def described(call: Call) -> Described:
    """What a collective is, for `ShmEngine.teller`."""
    dtype, op, root = call.dtype, call.op, call.root
    return (
        _CODES[call.verb],
        call.share,
        0 if dtype is None else dtype.code,
        _NO_OPERATOR if op is None else op.code,
        1.0 if op is None else op.factor,
        -1 if root is None else root,
        call.backward,
    )


class ShmEngine(Engine):
    """One rank's handle on a group in shared memory."""

    name = "shm"
    finds_call_sites = True  # in native code, faster

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
        self._native = self.communicator = communicator
        self._collective = communicator.collective
        self.rank = rank
        self.size = size
        self._running: set[ShmWork] = set()

    @property
    def timeout(self) -> float:
        """Seconds that calls wait for other ranks unless they say otherwise."""
        return self._native.seconds

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._native.seconds = seconds

    def attach(self, group: Group) -> None:
        registration.serve(group, self._native)

    def fast_calls(self) -> int:
        return registration.calls_of(self._native)

    def work_of(self, pending: _native.CallHandle) -> Work:
        return ShmWork(self._tracer, self._native, pending)  # the handle keeps the memory alive

    def explain(self, error: UnisonoError) -> None:
        self._tracer.explain(error)

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

    def broadcast(self, call: Call) -> Work:
        return self._start(_BROADCAST, call)

    def reduce(self, call: Call) -> Work:
        return self._start(_REDUCE, call)

    def all_reduce(self, call: Call) -> Work:
        return self._start(_ALL_REDUCE, call)

    def reduce_scatter(self, call: Call) -> Work:
        return self._start(_REDUCE_SCATTER, call)

    def gather(self, call: Call) -> Work:
        return self._start(_GATHER, call)

    def all_gather(self, call: Call) -> Work:
        return self._start(_ALL_GATHER, call)

    def scatter(self, call: Call) -> Work:
        return self._start(_SCATTER, call)

    def all_to_all(self, call: Call) -> Work:
        if call.uneven and call.src.address == call.dst.address:
            # Unequal parts move within the buffer: keep the old ones.
            call = call._replace(source=view(call.src.array.copy()))
        return self._start(_ALL_TO_ALL, call)

    def barrier(self, call: Call) -> Work:
        return self._start(_BARRIER, call)

    def send(self, call: Call) -> Work:
        return self._message(True, call, call.src)

    def recv(self, call: Call) -> Work:
        return self._message(False, call, call.dst)

    def split(self, ranks: Sequence[int], key: str) -> ShmEngine:
        digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
        number = int.from_bytes(digest, "little") >> 1
        communicator = self._native.split(list(ranks), number, self.timeout)
        return self._sibling(communicator)

    def shrink(self, exclude: Sequence[int] = ()) -> tuple[ShmEngine, tuple[int, ...]]:
        registration.stop_serving(self._native)
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
        registration.stop_serving(self._native)
        self._native.close(DRAIN_SECONDS)
        if self._ends_job:
            self._job.close(DRAIN_SECONDS)
        self._running.clear()

    def shared_arrays(self, minimum: int) -> contextlib.AbstractContextManager[None]:
        return shared_arrays(self._job, minimum)

    def allocate_block(self, nbytes: int) -> int:
        """Reserve memory that all ranks of the job can map, of zeros; returns where it is."""
        return self._job.allocate_block(nbytes)

    def map_block(self, place: int, nbytes: int) -> _native.SharedBlock:
        """Memory that some rank has reserved, for reading and writing."""
        return self._job.map_block(place, nbytes)

    def teller(self, own: Buffer, every: Buffer) -> Callable[[Described, float, bool], Work]:
        """What compares a call on a GPU with the other ranks', in order with all calls.

        Each time the ranks tell each other the bytes in `own`, and `every` is what all have told.
        It takes what the call is (its counts are not compared), the timeout, and whether the caller
        waits.
        """
        memory = own.address, every.address, own.nbytes
        run = self._native.tell

        def tell(described: Described, timeout: float, blocking: bool) -> Work:
            try:
                pending = run(*described, *memory, timeout, blocking)
            except UnisonoError as error:
                self._tracer.explain(error)
                raise
            if pending is None:
                return DONE
            return self._track(ShmWork(self._tracer, self._native, pending, own, every))

        return tell

    def lost_ranks(self) -> dict[int, str]:
        """The ranks of the group whose processes have ended before they left, with how."""
        reasons = enumerate(map(self._job.exit_reason, self._native.world_ranks))
        return {rank: reason for rank, reason in reasons if reason is not None}

    def exit(self) -> None:
        self._job.announce_exit()

    def records(self) -> list[RankReport]:
        return self._tracer.source.look()

    def _sibling(self, communicator: _native.Communicator) -> ShmEngine:
        """The engine of another group of this job, that we are in."""
        ranks = communicator.world_ranks
        place = ranks.index(self._tracer.rank)
        engine = ShmEngine(self._job, communicator, place, len(ranks), self._tracer)
        engine.timeout = self.timeout
        return engine

    def _start(self, verb: int, call: Call) -> Work:
        # Unpacked, because an attribute after the other would cost more than the native call.
        _, source, destination, dtype, share, op, root, _, _, sends, receives, is_uneven = call[:12]
        timeout, blocking = call[13:15]
        is_uneven = is_uneven and _counts_differ(verb, share, sends, receives)
        arguments = (
            verb,
            0 if source is None else source.address,
            0 if destination is None else destination.address,
            # The native code takes uneven exchanges from the counts alone.
            0 if is_uneven and verb == _ALL_TO_ALL else share,
            0 if dtype is None else dtype.code,
            1 if dtype is None else dtype.itemsize,
            _NO_OPERATOR if op is None else op.code,
            1.0 if op is None else op.factor,
            -1 if root is None else root,
            timeout,
            call.backward,
        )
        counts = (sends, receives) if is_uneven else ((), ())
        try:
            if not blocking:
                used = source, destination
                return self.work_of(self._native.start(*arguments, used, *counts))
            if is_uneven:
                self._native.collective_uneven(*arguments, *counts)
            else:
                self._collective(*arguments)
        except UnisonoError as error:
            self._tracer.explain(error)
            raise
        return DONE

    def _message(self, sending: bool, call: Call, buffer: Buffer) -> Work:
        dtype = buffer.dtype
        try:
            pending = self._native.point_to_point(
                sending,
                buffer.address,
                buffer.count,
                dtype.code,
                dtype.itemsize,
                -1 if call.peer is None else call.peer,
                call.tag,
                call.timeout,
                call.blocking,
            )
        except UnisonoError as error:
            self._tracer.explain(error)
            raise
        return self._track(ShmWork(self._tracer, self._native, pending, buffer))

    def _track(self, work: ShmWork) -> ShmWork:
        """Hold unfinished work: native code uses its memory even if the caller drops it.

        That is for messages and what tells of calls on a GPU. The handles of other collectives keep
        their memory themselves, and their ends let go of it.
        """
        # Other threads may do the same at this moment, so nothing is read and then written back.
        self._running.difference_update([old for old in list(self._running) if old._poll()])
        if not work._poll():
            work.held = self._running
            self._running.add(work)
        return work


def _counts_differ(verb: int, share: int, sends: Sequence[int], receives: Sequence[int]) -> bool:
    """Whether the counts that a caller gave are not just equal shares.

    Equal ones are described as a call without counts is, also by `core.fast`: ranks that disagree
    read the same words whichever way their calls have gone.
    """
    ours = () if verb in (_ALL_GATHER, _GATHER) else sends
    theirs = () if verb in (_SCATTER, _REDUCE_SCATTER) else receives
    return any(count != share for count in (*ours, *theirs))


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


@contextlib.contextmanager
def _tuned(ranks: int) -> Iterator[None]:
    """Let native code know what was measured on this machine, unless the user has decided."""
    measured = "" if _SINGLE_COPY in os.environ else tuning.setting(tuning.read(), ranks)
    if not measured:
        yield
        return
    os.environ[_SINGLE_COPY] = measured
    try:
        yield
    finally:
        del os.environ[_SINGLE_COPY]


def _serve(launch: Launch, timeout: float) -> _native.SharedJob:
    server = RendezvousServer(launch, timeout) if launch.size > 1 else None
    try:
        with _tuned(launch.size):
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
