"""Over torch.distributed: any of its backends, for GPUs and for many hosts.

Engines see bytes. Whatever only moves is one uneven all_to_all of bytes, which backends have for
all counts. In the memory of the host a reduction is that as well, and then our own arithmetic in
rank order: so all dtypes and operators are there, with the bits of every other engine, and no more
bytes travel than must. On a GPU the backend reduces, and its own promises hold.

Groups are made without torch's book-keeping, so that users may do with torch.distributed whatever
they like besides; only if it is initialised already, its default group serves us.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from unisono.core.buffers import Buffer, overlap, view
from unisono.core.engine import Counts, Engine, ReduceOp, Work
from unisono.core.environment import Launch
from unisono.engines.common.consistency import Agreement, Call
from unisono.engines.common.executor import Deferred, Serial
from unisono.engines.common.loopback import Letterbox
from unisono.engines.common.reductions import Array, combine, shares_of
from unisono.engines.torch import c10d, rendezvous
from unisono.engines.torch.point_to_point import Letters
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
        self._agreement = Agreement(size, self._show)
        self._letters = Letters(self.name)
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
        place = rendezvous.met(launch, timeout)
        store = c10d.prefixed(place.job, place.store)
        group = c10d.default_group(place.rank, place.size, cls.backend)
        if group is not None:
            engine = cls(group, None, store, place.rank, place.size, timeout)
        else:
            engine = cls._make(store, place.rank, place.size, timeout, cls.name)
        engine.hosts = place.hosts
        return engine

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

        return self._start(Call("broadcast", dst.count, dst.dtype, root=root), job, blocking)

    def gather(
        self, src: Buffer, dst: Buffer | None, root: int, counts: Counts, blocking: bool
    ) -> Work:
        sends = [src.count if rank == root else 0 for rank in range(self.size)]
        receives = self._even(counts, src.count) if self.rank == root else [0] * self.size
        target = dst if self.rank == root else None
        call = Call(
            "gather",
            src.count,
            src.dtype,
            root=root,
            rows=(sends, receives),
            uneven=counts is not None,
        )
        return self._move(call, src, target, blocking)

    def all_gather(self, src: Buffer, dst: Buffer, counts: Counts, blocking: bool) -> Work:
        receives = self._even(counts, src.count)

        def job() -> None:
            # Its own part of dst may be src, but nobody else's is.
            self._swap([c10d.tensor_of(src)] * self.size, c10d.parts(c10d.tensor_of(dst), receives))

        rows = [src.count] * self.size, receives
        uneven = counts is not None
        call = Call("all_gather", src.count, src.dtype, rows=rows, uneven=uneven)
        return self._start(call, job, blocking)

    def scatter(
        self, src: Buffer | None, dst: Buffer, root: int, counts: Counts, blocking: bool
    ) -> Work:
        sends = self._even(counts, dst.count) if self.rank == root else [0] * self.size
        receives = [dst.count if rank == root else 0 for rank in range(self.size)]
        source = src if self.rank == root else None
        call = Call(
            "scatter",
            dst.count,
            dst.dtype,
            root=root,
            rows=(sends, receives),
            uneven=counts is not None,
        )
        return self._move(call, source, dst, blocking)

    def all_to_all(
        self, src: Buffer, dst: Buffer, sends: Counts, receives: Counts, blocking: bool
    ) -> Work:
        ours = self._even(sends, src.count // self.size)
        theirs = self._even(receives, dst.count // self.size)
        share = src.count // self.size
        uneven = sends is not None
        call = Call("all_to_all", share, src.dtype, rows=(ours, theirs), uneven=uneven)
        return self._move(call, src, dst, blocking)

    def barrier(self, blocking: bool) -> Work:
        call = Call("barrier")

        def job() -> None:
            if "cpu" not in self.devices:
                self._wait(self._group.barrier())
            elif self.trusting:  # else all have met when they agreed
                self._agreement.reach(call)

        return self._start(call, job, blocking)

    # ---- reductions ----

    def reduce(
        self, src: Buffer, dst: Buffer | None, op: ReduceOp, root: int, blocking: bool
    ) -> Work:
        target = dst if self.rank == root else None

        def job() -> None:
            if c10d.is_elsewhere(src):
                c10d.reduce_there(self._group, src, target, op, root, self._wait)
                return
            shares = shares_of(src.count, self.size)
            own = self._reduced_share(src.array, op, shares)
            empty = own[:0]
            sends = [own if rank == root else empty for rank in range(self.size)]
            if target is None:
                self._swap_arrays(sends, [empty] * self.size)
            else:
                self._swap_arrays(sends, _split(target.array, shares))

        return self._start(Call("reduce", src.count, src.dtype, op, root), job, blocking)

    def all_reduce(self, src: Buffer, dst: Buffer, op: ReduceOp, blocking: bool) -> Work:
        def job() -> None:
            if c10d.is_elsewhere(src):
                c10d.all_reduce_there(self._group, src, dst, op, self._wait)
                return
            if src.nbytes <= _SMALL or self.size == 2:
                operand = src.array
                operands = np.empty((self.size, src.count), src.dtype.numpy)
                self._swap_arrays([operand] * self.size, list(operands))
                dst.array[:] = combine(op, list(operands))
                return
            shares = shares_of(src.count, self.size)
            own = self._reduced_share(src.array, op, shares)
            self._swap_arrays([own] * self.size, _split(dst.array, shares))

        return self._start(Call("all_reduce", src.count, src.dtype, op), job, blocking)

    def reduce_scatter(
        self, src: Buffer, dst: Buffer, op: ReduceOp, counts: Counts, blocking: bool
    ) -> Work:
        shares = self._even(counts, dst.count)

        def job() -> None:
            if c10d.is_elsewhere(src):
                c10d.reduce_scatter_there(self._group, src, dst, op, shares, self._wait)
            else:
                dst.array[:] = self._reduced_share(src.array, op, shares)

        rows = shares, [dst.count] * self.size
        uneven = counts is not None
        call = Call("reduce_scatter", dst.count, src.dtype, op, rows=rows, uneven=uneven)
        return self._start(call, job, blocking)

    # ---- messages ----

    def send(self, src: Buffer, peer: int, tag: int, blocking: bool) -> Work:
        if peer == self.rank:
            return self._to_itself.send(src, tag)
        end = self._letters.send(self._group, src, peer, tag, self.timeout)
        return self._message(Deferred(end), blocking)

    def recv(self, dst: Buffer, peer: int | None, tag: int, blocking: bool) -> Work:
        if peer == self.rank:
            return self._to_itself.recv(dst, tag, self.timeout, blocking)
        end = self._letters.recv(self._group, dst, peer, tag, self.timeout)

        def job() -> None:
            work.source = end()

        work = Deferred(job)
        return self._message(work, blocking)

    # ---- groups ----

    def split(self, ranks: Sequence[int], key: str) -> TorchEngine:
        store = c10d.prefixed(key, self.store)
        rank, size = list(ranks).index(self.rank), len(ranks)
        child = self._make(store, rank, size, self.timeout, f"{self.name} {key}")
        child.hosts = [self.hosts[rank] for rank in ranks]
        return child

    def close(self) -> None:
        self._serial.close(_DRAIN)
        self._group = self._way_back = None  # torch's objects end their threads themselves

    # ---- steps ----

    def _even(self, counts: Counts, share: int) -> list[int]:
        return [share] * self.size if counts is None else list(counts)

    def _start(self, call: Call, job: Callable[[], None], blocking: bool) -> Work:
        """Run a call, or queue it; ranks compare it first, if they can show each other something.

        With a backend for GPUs alone they cannot.
        """
        if self.trusting or "cpu" not in self.devices:
            return self._serial.start(job, blocking)

        def agreed() -> None:
            self._agreement.reach(call)
            job()

        return self._serial.start(agreed, blocking)

    def _show(self, verb: str, mine: Array, everybodys: Array) -> None:
        self._swap_arrays([mine] * self.size, list(everybodys))

    def _move(self, call: Call, src: Buffer | None, dst: Buffer | None, blocking: bool) -> Work:
        assert call.rows is not None
        sends, receives = call.rows

        def job() -> None:
            some = src if src is not None else dst
            assert some is not None
            nothing = c10d.tensor_of(some)[:0]
            source = c10d.tensor_of(src) if src is not None else nothing
            if src is not None and dst is not None and overlap(src, dst):
                source = source.clone()  # parts come in while others go out
            target = c10d.tensor_of(dst) if dst is not None else nothing
            self._swap(c10d.parts(source, sends), c10d.parts(target, receives))

        return self._start(call, job, blocking)

    def _reduced_share(self, operand: Array, op: ReduceOp, shares: Sequence[int]) -> Array:
        """This rank's share of the sum: everybody sends each rank what it has of its share."""
        operands = np.empty((self.size, shares[self.rank]), operand.dtype)
        self._swap_arrays(_split(operand, shares), list(operands))
        return combine(op, list(operands))

    def _swap_arrays(self, outgoing: Sequence[Array], incoming: Sequence[Array]) -> None:
        tensors = [
            [c10d.tensor_of(view(part.reshape(-1))) for part in parts]
            for parts in (outgoing, incoming)
        ]
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

    def _message(self, work: Deferred, blocking: bool) -> Work:
        """Messages are in no order with calls, and may wait for each other: each has a thread."""
        threading.Thread(target=work.run, daemon=True).start()
        if blocking:
            work.wait()
        return work


def _split(whole: Array, counts: Sequence[int]) -> list[Array]:
    return np.split(whole, np.cumsum(counts)[:-1])
