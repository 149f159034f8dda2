"""Over torch.distributed: any of its backends, for GPUs and for many hosts.

Backends see bytes. Whatever only moves is one uneven all_to_all of bytes, which backends have for
all counts. In the memory of the host a reduction is that as well, and then our own arithmetic in
rank order: so all dtypes and operators are there, with the bits of every other engine, and no more
bytes travel than must. On a GPU the backend reduces, and its own promises hold.

Groups are made without torch's book-keeping, so that users may do with torch.distributed whatever
they like besides; only if it is initialised already, its default group is used.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from unisono.core.buffers import overlap, view
from unisono.core.call import Call
from unisono.core.engine import DRAIN_SECONDS, Engine, ReduceOp, Work
from unisono.core.environment import Launch
from unisono.engines.common import consistency
from unisono.engines.common.executor import DeferredWork, SerialExecutor
from unisono.engines.common.loopback import Loopback
from unisono.engines.common.reductions import Array, combine, shares_of
from unisono.engines.torch import c10d, device_reductions, rendezvous
from unisono.engines.torch.point_to_point import PointToPoint
from unisono.errors import ArgumentError

__all__ = ["TorchEngine"]

#: Up to so many bytes each rank sends its operand to all, and all combine the whole of it: one
#: exchange instead of two. Two ranks always do: for them it is no more.
_SMALL = 1 << 14


class TorchEngine(Engine):
    """One rank's handle on a group of one of torch's backends."""

    name = "torch"
    backend: ClassVar[str | None] = None  # None: that of the default group, or gloo
    devices = frozenset(["cpu", "cuda"])

    def __init__(
        self, group: Any, reverse_group: Any, store: Any, rank: int, size: int, timeout: float
    ) -> None:
        self._group = group
        # For messages to lower ranks. One connection of Gloo does not send and receive at full
        # speed at the same time, two do.
        self._reverse_group = reverse_group
        self.store = store
        self.rank = rank
        self.size = size
        self.timeout = timeout
        self._point_to_point = PointToPoint(self.name)
        self._loopback = Loopback(rank)
        self._executor = SerialExecutor(f"{self.name}, rank {rank} of {size}", always_apart=True)

    @classmethod
    def unavailable(cls) -> str | None:
        return c10d.unavailable(cls.backend or "gloo")

    @classmethod
    def variant(cls, detail: str) -> type[Engine]:
        if not detail.isidentifier():
            raise ArgumentError(
                f"{detail!r} is not the name of a backend; write torch:gloo or torch:nccl"
            )
        fields: dict[str, Any] = {"name": f"torch:{detail}", "backend": detail}
        if detail != "gloo":
            fields["devices"] = frozenset(c10d.devices_of(detail))
        return type("TorchEngine", (cls,), fields)

    @classmethod
    def open(cls, launch: Launch, timeout: float) -> TorchEngine:
        launch = rendezvous.through_store(launch, timeout)
        store = c10d.prefixed(launch.job, launch.store)
        group = c10d.default_group(launch.rank, launch.size, cls.backend)
        if group is not None:
            engine = cls(group, None, store, launch.rank, launch.size, timeout)
        else:
            engine = cls._make(store, launch.rank, launch.size, timeout, cls.name)
        engine.hosts = launch.hosts
        return engine

    @classmethod
    def _make(cls, store: Any, rank: int, size: int, timeout: float, name: str) -> TorchEngine:
        backend = cls.backend or "gloo"
        group = c10d.make(backend, store, rank, size, timeout, name)
        reverse = None
        if backend == "gloo":
            reverse = c10d.make(backend, c10d.prefixed("back", store), rank, size, timeout, name)
        return cls(group, reverse, store, rank, size, timeout)

    # ---- what only moves ----

    def broadcast(self, call: Call) -> Work:
        return self._start(call, self._broadcast)

    def _broadcast(self, call: Call) -> None:
        source, destination = call.source, call.dst
        if source is not None and source.address != destination.address:
            c10d.tensor_of(destination).copy_(c10d.tensor_of(source))
        if destination.count:
            options = c10d.broadcast_options(call.root)
            self._wait(call, self._group.broadcast([c10d.bytes_of(destination)], options))

    def all_gather(self, call: Call) -> Work:
        return self._start(call, self._all_gather)

    def _all_gather(self, call: Call) -> None:
        # Its own part of the destination may be the source, but nobody else's is.
        outgoing = [c10d.tensor_of(call.src)] * self.size
        self._exchange(call, outgoing, c10d.parts(c10d.tensor_of(call.dst), call.receives))

    def gather(self, call: Call) -> Work:
        return self._start(call, self._move)

    def scatter(self, call: Call) -> Work:
        return self._start(call, self._move)

    def all_to_all(self, call: Call) -> Work:
        return self._start(call, self._move)

    def _move(self, call: Call) -> None:
        """Send parts of the source and receive parts of the destination, where there is one."""
        source, destination = call.source, call.destination
        nothing = c10d.tensor_of(call.dst if source is None else source)[:0]
        outgoing = c10d.tensor_of(source) if source is not None else nothing
        if source is not None and destination is not None and overlap(source, destination):
            outgoing = outgoing.clone()  # parts come in while others go out
        incoming = c10d.tensor_of(destination) if destination is not None else nothing
        self._exchange(call, c10d.parts(outgoing, call.sends), c10d.parts(incoming, call.receives))

    def barrier(self, call: Call) -> Work:
        return self._start(call, self._barrier)

    def _barrier(self, call: Call) -> None:
        if "cpu" not in self.devices:
            self._wait(call, self._group.barrier())
        elif not call.checked:  # else all have met in the consistency check
            self._check_consistency(call)

    # ---- reductions ----

    def reduce(self, call: Call) -> Work:
        return self._start(call, self._reduce)

    def _reduce(self, call: Call) -> None:
        source, destination, op = call.src, call.destination, call.operator
        if c10d.is_on_device(source):
            device_reductions.reduce(self._group, call, self._wait)
            return
        shares = shares_of(source.count, self.size)
        own = self._reduced_share(call, source.array, op, shares)
        empty = own[:0]
        sends = [own if rank == call.root else empty for rank in range(self.size)]
        if destination is None:
            self._exchange_arrays(call, sends, [empty] * self.size)
        else:
            self._exchange_arrays(call, sends, _split(destination.array, shares))

    def all_reduce(self, call: Call) -> Work:
        return self._start(call, self._all_reduce)

    def _all_reduce(self, call: Call) -> None:
        source, destination, op = call.src, call.dst, call.operator
        if c10d.is_on_device(source):
            device_reductions.all_reduce(self._group, call, self._wait)
        elif source.nbytes <= _SMALL or self.size == 2:
            operands = np.empty((self.size, source.count), source.dtype.numpy)
            self._exchange_arrays(call, [source.array] * self.size, list(operands))
            destination.array[:] = combine(op, list(operands))
        else:
            shares = shares_of(source.count, self.size)
            own = self._reduced_share(call, source.array, op, shares)
            self._exchange_arrays(call, [own] * self.size, _split(destination.array, shares))

    def reduce_scatter(self, call: Call) -> Work:
        return self._start(call, self._reduce_scatter)

    def _reduce_scatter(self, call: Call) -> None:
        source, destination, op = call.src, call.dst, call.operator
        if c10d.is_on_device(source):
            device_reductions.reduce_scatter(self._group, call, self._wait)
        else:
            destination.array[:] = self._reduced_share(call, source.array, op, call.sends)

    # ---- point-to-point ----

    def send(self, call: Call) -> Work:
        if call.peer == self.rank:
            return self._loopback.send(call)
        end = self._point_to_point.send(self._group, call)
        return self._message(DeferredWork(self._in_order(call, end)), call)

    def recv(self, call: Call) -> Work:
        if call.peer == self.rank:
            return self._loopback.recv(call)
        end = self._point_to_point.recv(self._group, call)

        def task() -> None:
            work.source = end()

        work = DeferredWork(self._in_order(call, task))
        return self._message(work, call)

    def _message(self, work: DeferredWork, call: Call) -> Work:
        """Messages are in no order with calls, and may wait for each other: each has a thread."""
        threading.Thread(target=work.run, daemon=True).start()
        if call.blocking:
            work.wait()
        return work

    # ---- groups ----

    def split(self, ranks: Sequence[int], key: str) -> TorchEngine:
        store = c10d.prefixed(key, self.store)
        rank, size = list(ranks).index(self.rank), len(ranks)
        child = self._make(store, rank, size, self.timeout, f"{self.name} {key}")
        child.hosts = [self.hosts[rank] for rank in ranks]
        return child

    def close(self) -> None:
        self._executor.close(DRAIN_SECONDS)
        self._group = self._reverse_group = None  # torch's objects end their threads themselves

    # ---- steps ----

    def _start(self, call: Call, task: Callable[[Call], None]) -> Work:
        """Run a call, or queue it; ranks compare it first, if they can exchange descriptors.

        With a backend for GPUs alone they cannot.
        """

        def run() -> None:
            if call.checked and "cpu" in self.devices:
                self._check_consistency(call)
            task(call)

        return self._executor.submit(self._in_order(call, run), call.blocking)

    def _in_order(self, call: Call, task: Callable[[], None]) -> Callable[[], None]:
        """`task`, in order with what the caller's stream on a GPU does, in whichever thread."""
        return c10d.in_stream_of_caller(call, task, self.name)

    def _check_consistency(self, call: Call) -> None:
        def exchange(mine: Array, everybodys: Array) -> None:
            self._exchange_arrays(call, [mine] * self.size, list(everybodys))

        consistency.check(call, self.size, exchange)

    def _reduced_share(
        self, call: Call, operand: Array, op: ReduceOp, shares: Sequence[int]
    ) -> Array:
        """This rank's share of the sum: everybody sends each rank what it has of its share."""
        operands = np.empty((self.size, shares[self.rank]), operand.dtype)
        self._exchange_arrays(call, _split(operand, shares), list(operands))
        return combine(op, list(operands))

    def _exchange_arrays(
        self, call: Call, outgoing: Sequence[Array], incoming: Sequence[Array]
    ) -> None:
        tensors = [
            [c10d.tensor_of(view(part.reshape(-1))) for part in parts]
            for parts in (outgoing, incoming)
        ]
        self._exchange(call, *tensors)

    def _exchange(self, call: Call, outgoing: Sequence[Any], incoming: Sequence[Any]) -> None:
        """Send each rank its part of the one, and receive from each its part of the other."""
        c10d.check_own_part(self.rank, outgoing, incoming)
        incoming[self.rank].copy_(outgoing[self.rank])
        out, into = ([c10d.as_bytes(part) for part in parts] for parts in (outgoing, incoming))
        if self._reverse_group is None:
            c10d.exchange_in_one_call(
                self._group, self.rank, out, into, lambda work: self._wait(call, work)
            )
        else:
            groups = self._group, self._reverse_group
            c10d.exchange_by_messages(groups, self.rank, out, into, call.timeout, self.name)

    def _wait(self, call: Call, work: Any) -> None:
        c10d.wait(work, call.timeout, self.name)


def _split(whole: Array, counts: Sequence[int]) -> list[Array]:
    return np.split(whole, np.cumsum(counts)[:-1])
