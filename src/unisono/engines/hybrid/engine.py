"""Many hosts: `shm` inside each host, and `torch` or `mpi` between one leader of each.

Whatever crosses the network crosses it once for each host, however many ranks the host has. Long
vectors go in chunks, so that the network carries one chunk while memory works on the next.

After the network has done its part, the leader tells the others of its host how it went: an error
between hosts is the error of every rank, and names the hosts that did not answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from unisono.core.buffers import view
from unisono.core.call import Call
from unisono.core.engine import DRAIN_SECONDS, Engine, ReduceOp, Work
from unisono.core.environment import Launch
from unisono.engines.common import consistency
from unisono.engines.common.executor import SerialExecutor
from unisono.engines.common.reductions import Array, combine, divided
from unisono.engines.hybrid import internode
from unisono.engines.hybrid.failure_report import FailureReport, with_group_ranks
from unisono.engines.hybrid.hierarchical import LANES, Levels, Steps
from unisono.engines.hybrid.topology import Topology
from unisono.engines.shm.engine import ShmEngine
from unisono.errors import ArgumentError, MismatchError, NotReady, UnisonoError

__all__ = ["HybridEngine"]


class HybridEngine(Engine):
    """One rank's handle on a group that spans hosts."""

    name = "hybrid"
    between_hosts: ClassVar[str | None] = None  # the inter-node engine; None: the one that can

    def __init__(self, topology: Topology, local: Engine, everyone: Engine, key: str) -> None:
        self.topology = topology
        self.rank = topology.rank
        self.size = topology.size
        self.timeout = everyone.timeout
        lanes: tuple[Engine, ...] = ()
        if topology.is_leader:
            names = [f"{key} leaders {lane}" for lane in range(LANES)]
            lanes = tuple(everyone.split(topology.leaders, name) for name in names)
        self._levels = Levels(topology, local, lanes, everyone, FailureReport(topology, everyone))
        self._broken: UnisonoError | None = None
        self._executor = SerialExecutor(f"{self.name}, rank {self.rank} of {self.size}")

    @classmethod
    def unavailable(cls) -> str | None:
        return ShmEngine.unavailable() or internode.unavailable(cls.between_hosts)

    @classmethod
    def variant(cls, detail: str) -> type[Engine]:
        if detail.partition(":")[0] not in ("torch", "mpi"):
            raise ArgumentError(f"hybrid runs over torch or mpi, not over {detail!r}")
        fields = {"name": f"hybrid:{detail}", "between_hosts": detail}
        return type("HybridEngine", (cls,), fields)

    @classmethod
    def open(cls, launch: Launch, timeout: float) -> Engine:
        launch, everyone = internode.join(launch, timeout, cls.between_hosts)
        topology = Topology.of(launch.hosts, launch.rank)
        local_size = len(topology.here)
        local = ShmEngine.open(
            Launch(
                topology.local_rank,
                local_size,
                topology.local_rank,
                local_size,
                f"{launch.job}-{topology.host}",
                launch.source,
                launch.secret,
            ),
            timeout,
        )
        if len(topology.hosts) == 1:
            everyone.close()
            return local
        return cls(topology, local, everyone, "world")

    # ---- reductions ----

    def all_reduce(self, call: Call) -> Work:
        return self._start(call, self._all_reduce)

    def _all_reduce(self, call: Call, steps: Steps) -> None:
        if _needs_all_operands(call):
            call.dst.array[:] = self._combined(call, steps)
            return
        source, target = call.src.array, call.dst.array
        inside, between = _stages(call.operator)

        def start(chunk: slice, lane: Engine | None) -> Work | None:
            steps.reduce(source[chunk], target[chunk], inside)
            if lane is None:
                return None
            part = view(target[chunk])
            caller = steps.internode_caller(lane, blocking=False)
            return lane.all_reduce(Call.all_reduce(caller, part, part, between))

        steps.pipeline(source, start, lambda chunk: steps.broadcast(target[chunk]))
        self._average(call, target)

    def reduce(self, call: Call) -> Work:
        return self._start(call, self._reduce)

    def _reduce(self, call: Call, steps: Steps) -> None:
        if _needs_all_operands(call):
            whole = self._combined(call, steps)
            if call.destination is not None:
                call.dst.array[:] = whole
            return
        home, local_root, at_home = self._root(call)
        source = call.src.array
        target = call.dst.array if call.destination is not None else np.empty_like(source)
        inside, between = _stages(call.operator)

        def start(chunk: slice, lane: Engine | None) -> Work | None:
            steps.reduce(source[chunk], target[chunk], inside)
            if lane is None:
                return None
            part = view(target[chunk])
            caller = steps.internode_caller(lane, blocking=False)
            return lane.reduce(Call.reduce(caller, part, part, between, home))

        def finish(chunk: slice) -> None:
            if at_home:
                steps.copy(target[chunk], 0, local_root)

        steps.pipeline(source, start, finish)
        if call.destination is not None:
            self._average(call, target)

    def reduce_scatter(self, call: Call) -> Work:
        return self._start(call, self._reduce_scatter)

    def _reduce_scatter(self, call: Call, steps: Steps) -> None:
        shares, target = call.sends, call.dst.array
        if _needs_all_operands(call):
            start_of_mine = sum(shares[: self.rank])
            target[:] = self._combined(call, steps)[start_of_mine : start_of_mine + call.share]
            return
        blocks = self.topology.to_host_order(call.src.array, shares)
        own = np.empty_like(blocks[self.topology.host])
        inside, between = _stages(call.operator)
        longest = max(blocks, key=len)

        def start(chunk: slice, lane: Engine | None) -> Work | None:
            parts = [block[chunk] for block in blocks]
            joined = np.concatenate(parts)
            steps.reduce(joined, joined, inside)
            if lane is None:
                return None
            caller, counts = steps.internode_caller(lane, blocking=False), list(map(len, parts))
            into = view(own[chunk])
            return lane.reduce_scatter(
                Call.reduce_scatter(caller, view(joined), into, between, counts)
            )

        steps.pipeline(longest, start, lambda chunk: None)
        steps.scatter(own, target, [shares[rank] for rank in self.topology.here])
        self._average(call, target)

    def _combined(self, call: Call, steps: Steps) -> Array:
        """A reduction that has to see all operands at once: every rank gets them."""
        source = call.src
        counts = [source.count] * self.size
        operands = self._gathered(source.array, counts, steps)
        return combine(call.operator, list(operands.reshape(self.size, source.count)))

    def _average(self, call: Call, total: Array) -> None:
        """Make the mean of the sum, if that is what was asked for."""
        if call.operator.name == "avg":
            total[:] = divided(total, self.size)

    # ---- what only moves ----

    def broadcast(self, call: Call) -> Work:
        return self._start(call, self._broadcast)

    def _broadcast(self, call: Call, steps: Steps) -> None:
        home, local_root, at_home = self._root(call)
        target = call.dst.array
        source = call.src.array if call.source is not None else target

        def start(chunk: slice, lane: Engine | None) -> Work | None:
            if at_home:
                steps.broadcast(target[chunk], source[chunk], local_root)
            if lane is None:
                return None
            part = view(target[chunk])
            caller = steps.internode_caller(lane, blocking=False)
            return lane.broadcast(Call.broadcast(caller, part, part, home))

        def finish(chunk: slice) -> None:
            if not at_home:
                steps.broadcast(target[chunk])

        steps.pipeline(target, start, finish)

    def all_gather(self, call: Call) -> Work:
        return self._start(call, self._all_gather)

    def _all_gather(self, call: Call, steps: Steps) -> None:
        call.dst.array[:] = self._gathered(call.src.array, call.receives, steps)

    def _gathered(self, mine: Array, counts: Sequence[int], steps: Steps) -> Array:
        """Everybody's arrays in rank order, on every rank.

        One host after the other: while a block is on its way, the one before is broadcast locally.
        """
        topology = self.topology
        blocks = [np.empty(length, mine.dtype) for length in topology.by_host(counts)]
        steps.gather(mine, blocks[topology.host], [counts[rank] for rank in topology.here])
        works: list[Work | None] = [None] * len(blocks)
        if steps.leaders is not None:
            caller = steps.internode_caller(steps.leaders, blocking=False)
            for host, block in enumerate(blocks):
                part = view(block)
                works[host] = steps.leaders.broadcast(Call.broadcast(caller, part, part, host))
        for block, work in zip(blocks, works, strict=True):
            steps.await_internode(work)
            steps.broadcast(block)
        return topology.to_rank_order(blocks, counts)

    def gather(self, call: Call) -> Work:
        return self._start(call, self._gather)

    def _gather(self, call: Call, steps: Steps) -> None:
        topology = self.topology
        home, local_root, at_home = self._root(call)
        dtype = call.src.dtype.numpy
        here = np.zeros(len(topology.here), np.int64)
        steps.all_gather(np.array([call.share]), here)
        own = np.empty(int(here.sum()), dtype)
        steps.gather(call.src.array, own, here.tolist())
        lengths = np.zeros(len(topology.hosts), np.int64)
        steps.internode(
            lambda net, caller: net.all_gather(
                Call.all_gather(caller, view(np.array([own.size])), view(lengths))
            )
        )
        whole = np.empty(int(lengths.sum()) if at_home else 0, dtype)
        steps.internode(
            lambda net, caller: net.gather(
                Call.gather(caller, view(own), view(whole), home, lengths.tolist())
            )
        )
        if not at_home:
            return
        if self.rank == call.root and not topology.is_leader:
            whole = np.empty(sum(call.receives), dtype)
        steps.copy(whole, 0, local_root)
        if call.destination is not None:
            ends = np.cumsum(topology.by_host(call.receives))[:-1]
            call.dst.array[:] = topology.to_rank_order(np.split(whole, ends), call.receives)

    def scatter(self, call: Call) -> Work:
        return self._start(call, self._scatter)

    def _scatter(self, call: Call, steps: Steps) -> None:
        topology = self.topology
        home, local_root, at_home = self._root(call)
        dtype = call.dst.dtype.numpy
        shares = np.array(call.sends, np.int64)  # zeros but on the root
        if at_home:
            steps.broadcast(shares, root=local_root)
        part = view(shares)
        steps.internode(lambda net, caller: net.broadcast(Call.broadcast(caller, part, part, home)))
        if not at_home:
            steps.broadcast(shares)
        counts = shares.tolist()
        lengths = topology.by_host(counts)
        whole = np.empty(sum(counts) if at_home else 0, dtype)
        if call.source is not None:
            whole[:] = np.concatenate(topology.to_host_order(call.src.array, counts))
        if at_home:
            steps.copy(whole, local_root, 0)
        own = np.empty(lengths[topology.host], dtype)
        steps.internode(
            lambda net, caller: net.scatter(
                Call.scatter(caller, view(whole), view(own), home, lengths)
            )
        )
        steps.scatter(own, call.dst.array, [counts[rank] for rank in topology.here])

    def all_to_all(self, call: Call) -> Work:
        return self._start(call, self._all_to_all)

    def _all_to_all(self, call: Call, steps: Steps) -> None:
        """Through the leaders: each gets all that leaves its host, and distributes what comes."""
        topology, source = self.topology, call.src.array
        table = np.zeros((len(topology.here), 2, self.size), np.int64)
        steps.all_gather(np.array([call.sends, call.receives]), table)
        leaving, coming = table[:, 0], table[:, 1]
        outgoing = np.empty(int(leaving.sum()), source.dtype)
        steps.gather(source, outgoing, leaving.sum(axis=1).tolist())
        incoming = np.empty(int(coming.sum()), source.dtype)
        if topology.is_leader:
            outgoing = self._by_target_host(outgoing, leaving)
        steps.internode(
            lambda net, caller: net.all_to_all(
                Call.all_to_all(
                    caller,
                    view(outgoing),
                    view(incoming),
                    topology.by_host(leaving.sum(axis=0).tolist()),
                    topology.by_host(coming.sum(axis=0).tolist()),
                )
            )
        )
        if topology.is_leader:
            incoming = self._by_receiver(incoming, coming)
        steps.scatter(incoming, call.dst.array, coming.sum(axis=1).tolist())

    def _by_target_host(self, outgoing: Array, leaving: Array) -> Array:
        """What local ranks send, by the host that it goes to, then by sender and receiver."""
        senders = np.split(outgoing, np.cumsum(leaving.sum(axis=1))[:-1])
        parts = [
            np.split(one, np.cumsum(row)[:-1]) for one, row in zip(senders, leaving, strict=True)
        ]
        ordered = [part[rank] for ranks in self.topology.hosts for part in parts for rank in ranks]
        return np.concatenate(ordered)

    def _by_receiver(self, incoming: Array, coming: Array) -> Array:
        """What came in by host, sender and receiver, sorted by receiver and then by sender."""
        parts: dict[tuple[int, int], Array] = {}
        start, local_size = 0, len(self.topology.here)
        for ranks in self.topology.hosts:
            for sender in ranks:
                for receiver in range(local_size):
                    count = int(coming[receiver, sender])
                    parts[receiver, sender] = incoming[start : start + count]
                    start += count
        order = [(r, s) for r in range(local_size) for s in range(self.size)]
        return np.concatenate([parts[pair] for pair in order])

    def barrier(self, call: Call) -> Work:
        return self._start(call, lambda call, steps: None)  # they meet in the consistency check

    # ---- point-to-point: between any two ranks, over the engine that joins all of them ----

    def send(self, call: Call) -> Work:
        return self._levels.everyone.send(call)

    def recv(self, call: Call) -> Work:
        return self._levels.everyone.recv(call)

    # ---- groups ----

    def split(self, ranks: Sequence[int], key: str) -> Engine:
        topology = self.topology.among(ranks)
        here = self.topology.here
        local = self._levels.local.split([here.index(rank) for rank in ranks if rank in here], key)
        if len(topology.hosts) == 1:
            return local
        return type(self)(topology, local, self._levels.everyone.split(ranks, key), key)

    def local_ranks(self) -> Sequence[int]:
        return self.topology.here

    def exit(self) -> None:
        self._levels.local.exit()

    def close(self) -> None:
        self._executor.close(DRAIN_SECONDS)
        for engine in (*self._levels.lanes, self._levels.everyone, self._levels.local):
            engine.close()

    # ---- running a call ----

    def _start(self, call: Call, task: Callable[[Call, Steps], None]) -> Work:
        """Run a call, or queue it. After a mismatch the group still works; other errors end it."""

        def run() -> None:
            if self._broken is not None:
                raise NotReady(f"the group is broken since an earlier call: {self._broken}")
            steps = Steps(self._levels, call)
            try:
                self._check_consistency(call, steps)
                task(call, steps)
            except MismatchError:
                raise
            except UnisonoError as error:
                self._broken = self._reported(error, steps)
                for lane in self._levels.lanes:
                    lane.close()  # the other hosts' leaders notice it, and tell theirs
                raise self._broken from None

        return self._executor.submit(run, call.blocking)

    def _reported(self, error: UnisonoError, steps: Steps) -> UnisonoError:
        """The error with ranks of this group; other hosts learn of one that is not theirs."""
        if error is steps.verdict:
            return error
        error = with_group_ranks(error, self.topology.here, f"host {self.topology.name!r}")
        self._levels.report.publish(error, steps.report_seconds)
        return error

    def _check_consistency(self, call: Call, steps: Steps) -> None:
        def exchange(mine: Array, everybodys: Array) -> None:
            """Give all ranks a copy of everybody's array: through leaders, in one exchange."""
            own = mine.reshape(-1)
            counts = [own.size] * self.size
            lengths = self.topology.by_host(counts)
            block = np.empty(lengths[self.topology.host], own.dtype)
            steps.gather(own, block, counts[: len(self.topology.here)])
            whole = np.empty(sum(lengths), own.dtype)
            steps.internode(
                lambda net, caller: net.all_gather(
                    Call.all_gather(caller, view(block), view(whole), lengths)
                )
            )
            steps.broadcast(whole)
            blocks = np.split(whole, np.cumsum(lengths)[:-1])
            everybodys.reshape(-1)[:] = self.topology.to_rank_order(blocks, counts)

        if call.checked:
            consistency.check(call, self.size, exchange)

    def _root(self, call: Call) -> tuple[int, int, bool]:
        """The root's host, its local rank there, and whether this rank is on that host."""
        assert call.root is not None
        home = self.topology.host_of(call.root)
        return home, self.topology.hosts[home].index(call.root), home == self.topology.host


# ---- reductions in two stages, within hosts and then between them --------------------------------


def _needs_all_operands(call: Call) -> bool:
    """Whether partial results would lose something: a mean of integers is rounded only once."""
    return call.operator.name == "avg" and call.src.dtype.kind == "integer"


def _stages(op: ReduceOp) -> tuple[ReduceOp, ReduceOp]:
    """How operands are combined within a host, and how those results between hosts."""
    if op.name == "avg":
        return ReduceOp.SUM, ReduceOp.SUM
    return op, ReduceOp.SUM if op.name == "premul_sum" else op
