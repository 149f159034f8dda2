"""Over torch.distributed: any of its backends, for GPUs and for many hosts.

Engines see bytes. Whatever only moves is one uneven all_to_all of bytes, which backends have for
all counts. In the memory of the host a reduction is that as well, and then our own arithmetic in
rank order: so all dtypes and operators are there, with the bits of every other engine, and no more
bytes travel than must. On a GPU the backend reduces, and its own promises hold.

Groups are made without torch's book-keeping, so that users may do with torch.distributed whatever
they like besides; only if it is initialised already, its default group serves us.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, ClassVar

import numpy as np

from unisono.core.buffers import Buffer, overlap, view
from unisono.core.engine import Counts, Engine, ReduceOp, Work
from unisono.core.rendezvous import Launch
from unisono.engines import c10d, stores
from unisono.engines.arithmetic import Array, combine
from unisono.engines.letterbox import Letterbox
from unisono.engines.serial import Serial
from unisono.errors import ArgumentError

__all__ = ["TorchEngine"]

_DRAIN = 2.0  # seconds that close() lets queued calls go on
#: Up to so many bytes each rank sends its operand to all, and all combine the whole of it: one
#: exchange instead of two. Two ranks always do: for them it is no more.
_SMALL = 1 << 14


class TorchEngine(Engine):
    """One rank's handle on a group of one of torch's backends."""

    name = "torch"
    backend: ClassVar[str | None] = None  # None: that of the default group, or gloo
    devices = frozenset(["cpu", "cuda"])

    def __init__(
        self, group: Any, way_back: Any, store: Any, rank: int, size: int, timeout: float
    ) -> None:
        self._group = group
        # For messages to lower ranks. One connection of Gloo does not send and receive at full
        # speed at the same time, two do.
        self._way_back = way_back
        self.store = store
        self.rank = rank
        self.size = size
        self.timeout = timeout
        self._to_itself = Letterbox(rank)
        self._serial = Serial(f"{self.name}, rank {rank} of {size}", always_apart=True)

    @classmethod
    def unavailable(cls) -> str | None:
        return c10d.unavailable(cls.backend or "gloo")

    @classmethod
    def variant(cls, detail: str) -> type[Engine]:
        if not detail.isidentifier():
            raise ArgumentError(f"{detail!r} is no name of a backend; write torch:gloo, torch:nccl")
        kind: dict[str, Any] = {"name": f"torch:{detail}", "backend": detail}
        if detail != "gloo":
            kind["devices"] = frozenset(c10d.devices_of(detail))
        return type("TorchEngine", (cls,), kind)

    @classmethod
    def open(cls, launch: Launch, timeout: float) -> TorchEngine:
        place = stores.met(launch, timeout)
        store = c10d.prefixed(place.job, place.store)
        group = c10d.default_group(place.rank, place.size, cls.backend)
        if group is not None:
            return cls(group, None, store, place.rank, place.size, timeout)
        return cls._make(store, place.rank, place.size, timeout, cls.name)

    @classmethod
    def _make(cls, store: Any, rank: int, size: int, timeout: float, name: str) -> TorchEngine:
        backend = cls.backend or "gloo"
        group = c10d.make(backend, store, rank, size, timeout, name)
        back = None
        if backend == "gloo":
            back = c10d.make(backend, c10d.prefixed("back", store), rank, size, timeout, name)
        return cls(group, back, store, rank, size, timeout)

    # ---- what only moves ----

    def broadcast(self, src: Buffer | None, dst: Buffer, root: int, blocking: bool) -> Work:
        def job() -> None:
            if src is not None and src.address != dst.address:
                c10d.tensor_of(dst).copy_(c10d.tensor_of(src))
            if dst.count:
                self._wait(self._group.broadcast([c10d.bytes_of(dst)], c10d.rooted(root)))

        return self._serial.start(job, blocking)

    def gather(
        self, src: Buffer, dst: Buffer | None, root: int, counts: Counts, blocking: bool
    ) -> Work:
        sends = [src.count if rank == root else 0 for rank in range(self.size)]
        receives = self._even(counts, src.count) if self.rank == root else [0] * self.size
        return self._move(src, dst if self.rank == root else None, sends, receives, blocking)

    def all_gather(self, src: Buffer, dst: Buffer, counts: Counts, blocking: bool) -> Work:
        receives = self._even(counts, src.count)

        def job() -> None:
            # Its own part of dst may be src, but nobody else's is.
            self._swap([c10d.tensor_of(src)] * self.size, c10d.parts(c10d.tensor_of(dst), receives))

        return self._serial.start(job, blocking)

    def scatter(
        self, src: Buffer | None, dst: Buffer, root: int, counts: Counts, blocking: bool
    ) -> Work:
        sends = self._even(counts, dst.count) if self.rank == root else [0] * self.size
        receives = [dst.count if rank == root else 0 for rank in range(self.size)]
        return self._move(src if self.rank == root else None, dst, sends, receives, blocking)

    def all_to_all(
        self, src: Buffer, dst: Buffer, sends: Counts, receives: Counts, blocking: bool
    ) -> Work:
        ours = self._even(sends, src.count // self.size)
        theirs = self._even(receives, dst.count // self.size)
        return self._move(src, dst, ours, theirs, blocking)

    def barrier(self, blocking: bool) -> Work:
        def job() -> None:
            nothing = np.zeros(self.size, np.uint8)
            self._swap_arrays([nothing[:1]] * self.size, list(np.split(nothing, self.size)))

        def job_there() -> None:
            self._wait(self._group.barrier())

        return self._serial.start(job if "cpu" in self.devices else job_there, blocking)

    # ---- reductions ----

    def reduce(
        self, src: Buffer, dst: Buffer | None, op: ReduceOp, root: int, blocking: bool
    ) -> Work:
        target = dst if self.rank == root else None
        if c10d.is_elsewhere(src):
            return self._serial.start(
                lambda: c10d.reduce_there(self._group, src, target, op, root, self._wait), blocking
            )

        def job() -> None:
            shares = _shares(src.count, self.size)
            own = self._reduced_share(src.array, op, shares)
            empty = own[:0]
            sends = [own if rank == root else empty for rank in range(self.size)]
            if target is None:
                self._swap_arrays(sends, [empty] * self.size)
            else:
                self._swap_arrays(sends, _split(target.array, shares))

        return self._serial.start(job, blocking)

    def all_reduce(self, src: Buffer, dst: Buffer, op: ReduceOp, blocking: bool) -> Work:
        if c10d.is_elsewhere(src):
            return self._serial.start(
                lambda: c10d.all_reduce_there(self._group, src, dst, op, self._wait), blocking
            )

        def job() -> None:
            if src.nbytes <= _SMALL or self.size == 2:
                operand = src.array
                operands = np.empty((self.size, src.count), src.dtype.numpy)
                self._swap_arrays([operand] * self.size, list(operands))
                dst.array[:] = combine(op, list(operands))
                return
            shares = _shares(src.count, self.size)
            own = self._reduced_share(src.array, op, shares)
            self._swap_arrays([own] * self.size, _split(dst.array, shares))

        return self._serial.start(job, blocking)

    def reduce_scatter(
        self, src: Buffer, dst: Buffer, op: ReduceOp, counts: Counts, blocking: bool
    ) -> Work:
        shares = self._even(counts, dst.count)
        if c10d.is_elsewhere(src):
            return self._serial.start(
                lambda: c10d.reduce_scatter_there(self._group, src, dst, op, shares, self._wait),
                blocking,
            )

        def job() -> None:
            dst.array[:] = self._reduced_share(src.array, op, shares)

        return self._serial.start(job, blocking)

    # ---- messages ----

    def send(self, src: Buffer, peer: int, tag: int, blocking: bool) -> Work:
        if peer == self.rank:
            return self._to_itself.send(src, tag)

        def start() -> Any:
            return self._group.send([c10d.bytes_of(src)], peer, tag)

        return self._message(start, blocking, lambda _: None)

    def recv(self, dst: Buffer, peer: int | None, tag: int, blocking: bool) -> Work:
        if peer == self.rank:
            return self._to_itself.recv(dst, tag, self.timeout, blocking)

        def start() -> Any:
            room = [c10d.bytes_of(dst)]
            if peer is None:
                return self._group.recv_anysource(room, tag)
            return self._group.recv(room, peer, tag)

        def source(work: Any) -> int:
            return work._source_rank() if peer is None else peer

        return self._message(start, blocking, source)

    # ---- groups ----

    def split(self, ranks: Sequence[int], key: str) -> TorchEngine:
        store = c10d.prefixed(key, self.store)
        rank, size = list(ranks).index(self.rank), len(ranks)
        return self._make(store, rank, size, self.timeout, f"{self.name} {key}")

    def close(self) -> None:
        self._serial.close(_DRAIN)
        self._group = self._way_back = None  # torch's objects end their threads themselves

    # ---- steps ----

    def _even(self, counts: Counts, share: int) -> list[int]:
        return [share] * self.size if counts is None else list(counts)

    def _move(
        self,
        src: Buffer | None,
        dst: Buffer | None,
        sends: Sequence[int],
        receives: Sequence[int],
        blocking: bool,
    ) -> Work:
        def job() -> None:
            some = src if src is not None else dst
            assert some is not None
            nothing = c10d.tensor_of(some)[:0]
            source = c10d.tensor_of(src) if src is not None else nothing
            if src is not None and dst is not None and overlap(src, dst):
                source = source.clone()  # parts come in while others go out
            target = c10d.tensor_of(dst) if dst is not None else nothing
            self._swap(c10d.parts(source, sends), c10d.parts(target, receives))

        return self._serial.start(job, blocking)

    def _reduced_share(self, operand: Array, op: ReduceOp, shares: Sequence[int]) -> Array:
        """This rank's share of the sum: everybody sends each rank what it has of its share."""
        operands = np.empty((self.size, shares[self.rank]), operand.dtype)
        self._swap_arrays(_split(operand, shares), list(operands))
        return combine(op, list(operands))

    def _swap_arrays(self, outgoing: Sequence[Array], incoming: Sequence[Array]) -> None:
        tensors = [[c10d.tensor_of(view(part)) for part in parts] for parts in (outgoing, incoming)]
        self._swap(*tensors)

    def _swap(self, outgoing: Sequence[Any], incoming: Sequence[Any]) -> None:
        """Send each rank its part of the one, and receive from each its part of the other."""
        c10d.check_own_part(self.rank, outgoing, incoming)
        incoming[self.rank].copy_(outgoing[self.rank])
        out, into = ([c10d.as_bytes(part) for part in parts] for parts in (outgoing, incoming))
        if self._way_back is None:
            c10d.swap_in_one_call(self._group, self.rank, out, into, self._wait)
        else:
            ways = self._group, self._way_back
            c10d.swap_by_messages(ways, self.rank, out, into, self.timeout, self.name)

    def _wait(self, work: Any) -> None:
        c10d.wait(work, self.timeout, self.name)

    def _message(
        self, start: Callable[[], Any], blocking: bool, source: Callable[[Any], int | None]
    ) -> Work:
        """Messages are in no order with calls, and may wait for each other: each has a thread."""
        patience = timedelta(seconds=self.timeout)
        work = c10d.Message(start, patience, self.name, source)
        work.begin(in_a_thread=not blocking)
        return work


def _split(whole: Array, counts: Sequence[int]) -> list[Array]:
    return np.split(whole, np.cumsum(counts)[:-1])


def _shares(count: int, size: int) -> list[int]:
    """How a vector is shared out for a reduction: as equally as it goes."""
    share, more = divmod(count, size)
    return [share + (rank < more) for rank in range(size)]
