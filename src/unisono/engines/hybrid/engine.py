"""Many hosts: `shm` inside each host, and `torch` or `mpi` between one leader of each.

Whatever crosses the network crosses it once for each host, however many ranks the host has. Long
vectors go in pieces, so that the network carries one piece while memory works on the next.

After the network has done its part, the leader tells the others of its host how it went: an error
between hosts is the error of every rank, and names the hosts that did not answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from unisono.core.buffers import Buffer, view
from unisono.core.engine import Counts, Engine, ReduceOp, Work
from unisono.core.environment import Launch
from unisono.engines.common.consistency import Call
from unisono.engines.common.reductions import Array, combine
from unisono.engines.hybrid import internode, stages
from unisono.engines.hybrid.hierarchical import TwoLevels
from unisono.engines.hybrid.topology import Layout
from unisono.engines.shm.engine import ShmEngine
from unisono.errors import ArgumentError

__all__ = ["HybridEngine"]


class HybridEngine(TwoLevels):
    """One rank's handle on a group that spans hosts."""

    name = "hybrid"
    net: ClassVar[str | None] = None  # the engine between hosts; None: the one that can

    @classmethod
    def unavailable(cls) -> str | None:
        return ShmEngine.unavailable() or internode.unavailable(cls.net)

    @classmethod
    def variant(cls, detail: str) -> type[Engine]:
        if detail.partition(":")[0] not in ("torch", "mpi"):
            raise ArgumentError(f"hybrid runs over torch or mpi, not over {detail!r}")
        return type("HybridEngine", (cls,), {"name": f"hybrid:{detail}", "net": detail})

    @classmethod
    def open(cls, launch: Launch, timeout: float) -> Engine:
        place, everyone = internode.join(launch, timeout, cls.net)
        layout = Layout.of(place.hosts, place.rank)
        here = layout.hosts[layout.host]
        local = ShmEngine.open(
            Launch(
                layout.local_rank,
                len(here),
                layout.local_rank,
                len(here),
                f"{place.job}-{layout.host}",
                place.source,
                place.secret,
            ),
            timeout,
        )
        if len(layout.hosts) == 1:
            everyone.close()
            return local
        return cls(layout, local, everyone, "world")

    # ---- reductions ----

    def all_reduce(self, src: Buffer, dst: Buffer, op: ReduceOp, blocking: bool) -> Work:
        def job() -> None:
            if stages.needs_all(src, op):
                dst.array[:] = self._combined(src, op)
                return
            source, target = src.array, dst.array
            inside, across = stages.of(op)

            def out(piece: slice, lane: Engine | None) -> Work | None:
                self.reduce_here(source[piece], target[piece], inside)
                if lane is None:
                    return None
                part = view(target[piece])
                return lane.all_reduce(part, part, across, False)

            self.in_pieces(source, out, lambda piece: self.spread(target[piece]))
            stages.average(op, target, self.size)

        return self.start(Call("all_reduce", src.count, src.dtype, op), job, blocking)

    def reduce(
        self, src: Buffer, dst: Buffer | None, op: ReduceOp, root: int, blocking: bool
    ) -> Work:
        home = self.layout.host_of(root)

        def job() -> None:
            if stages.needs_all(src, op):
                whole = self._combined(src, op)
                if dst is not None and self.rank == root:
                    dst.array[:] = whole
                return
            source = src.array
            target = dst.array if dst is not None and self.rank == root else np.empty_like(source)
            inside, across = stages.of(op)

            def out(piece: slice, lane: Engine | None) -> Work | None:
                self.reduce_here(source[piece], target[piece], inside)
                if lane is None:
                    return None
                part = view(target[piece])
                into = part if home == self.layout.host else None
                return lane.reduce(part, into, across, home, False)

            def back(piece: slice) -> None:
                if home == self.layout.host:
                    self.hand(target[piece], 0, self.layout.hosts[home].index(root))

            self.in_pieces(source, out, back)
            if self.rank == root:
                stages.average(op, target, self.size)

        return self.start(Call("reduce", src.count, src.dtype, op, root), job, blocking)

    def reduce_scatter(
        self, src: Buffer, dst: Buffer, op: ReduceOp, counts: Counts, blocking: bool
    ) -> Work:
        shares = self.even(counts, dst.count)

        def job() -> None:
            if stages.needs_all(src, op):
                start = sum(shares[: self.rank])
                dst.array[:] = self._combined(src, op)[start : start + dst.count]
                return
            blocks = self.layout.to_host_order(src.array, shares)
            own = np.empty_like(blocks[self.layout.host])
            inside, across = stages.of(op)
            longest = max(blocks, key=len)

            def out(piece: slice, lane: Engine | None) -> Work | None:
                parts = [block[piece] for block in blocks]
                joined = np.concatenate(parts)
                self.reduce_here(joined, joined, inside)
                if lane is None:
                    return None
                return lane.reduce_scatter(
                    view(joined), view(own[piece]), across, [len(part) for part in parts], False
                )

            self.in_pieces(longest, out, lambda piece: None)
            self.deal(own, dst.array, [shares[rank] for rank in self.here])
            stages.average(op, dst.array, self.size)

        rows = shares, [dst.count] * self.size
        call = Call("reduce_scatter", dst.count, src.dtype, op, None, rows, bool(counts))
        return self.start(call, job, blocking)

    # ---- what only moves ----

    def broadcast(self, src: Buffer | None, dst: Buffer, root: int, blocking: bool) -> Work:
        home = self.layout.host_of(root)

        def job() -> None:
            source = src.array if src is not None and self.rank == root else None
            target = dst.array
            at_home = home == self.layout.host

            def out(piece: slice, lane: Engine | None) -> Work | None:
                if at_home:
                    given = source[piece] if source is not None else None
                    self.spread(target[piece], given, self.layout.hosts[home].index(root))
                if lane is None:
                    return None
                part = view(target[piece])
                return lane.broadcast(part if at_home else None, part, home, False)

            def back(piece: slice) -> None:
                if not at_home:
                    self.spread(target[piece])

            self.in_pieces(target, out, back)

        return self.start(Call("broadcast", dst.count, dst.dtype, root=root), job, blocking)

    def all_gather(self, src: Buffer, dst: Buffer, counts: Counts, blocking: bool) -> Work:
        shares = self.even(counts, src.count)

        def job() -> None:
            lengths = self.layout.by_host(shares)
            blocks = [np.empty(length, src.dtype.numpy) for length in lengths]
            own = blocks[self.layout.host]
            self.collect(src.array, own, [shares[rank] for rank in self.here])
            # One host after the other: while a block is on its way, the one before is spread.
            works: list[Work | None] = [None] * len(blocks)
            if self.leaders is not None:
                for host, block in enumerate(blocks):
                    part = view(block)
                    source = part if host == self.layout.host else None
                    works[host] = self.leaders.broadcast(source, part, host, False)
            for block, work in zip(blocks, works, strict=True):
                self.across(work)
                self.spread(block)
            dst.array[:] = self.layout.to_rank_order(blocks, shares)

        rows = [src.count] * self.size, shares
        call = Call("all_gather", src.count, src.dtype, None, None, rows, bool(counts))
        return self.start(call, job, blocking)

    def gather(
        self, src: Buffer, dst: Buffer | None, root: int, counts: Counts, blocking: bool
    ) -> Work:
        home = self.layout.host_of(root)
        shares = self.even(counts, src.count) if self.rank == root else [0] * self.size

        def job() -> None:
            here = self.counts_here(src.count)
            own = np.empty(sum(here), src.dtype.numpy)
            self.collect(src.array, own, here)
            lengths = np.zeros(len(self.layout.hosts), np.int64)
            self.between(
                lambda net: net.all_gather(view(np.array([own.size])), view(lengths), None, True)
            )
            at_home = home == self.layout.host
            whole = np.empty(int(lengths.sum()) if at_home else 0, src.dtype.numpy)
            self.between(
                lambda net: net.gather(
                    view(own),
                    view(whole) if at_home else None,
                    home,
                    [int(length) for length in lengths] if at_home else None,
                    True,
                )
            )
            if not at_home:
                return
            if self.rank == root and not self.layout.is_leader:
                whole = np.empty(sum(shares), src.dtype.numpy)
            self.hand(whole, 0, self.layout.hosts[home].index(root))
            if dst is not None and self.rank == root:
                ends = np.cumsum(self.layout.by_host(shares))[:-1]
                dst.array[:] = self.layout.to_rank_order(np.split(whole, ends), shares)

        sends = [src.count if rank == root else 0 for rank in range(self.size)]
        call = Call("gather", src.count, src.dtype, None, root, (sends, shares), bool(counts))
        return self.start(call, job, blocking)

    def scatter(
        self, src: Buffer | None, dst: Buffer, root: int, counts: Counts, blocking: bool
    ) -> Work:
        home = self.layout.host_of(root)

        def job() -> None:
            shares = np.zeros(self.size, np.int64)
            if self.rank == root:
                shares[:] = self.even(counts, dst.count)
            at_home = home == self.layout.host
            place = self.layout.hosts[home].index(root)
            if at_home:
                self.spread(shares, shares if self.rank == root else None, place)
            part = view(shares)
            self.between(lambda net: net.broadcast(part if at_home else None, part, home, True))
            if not at_home:
                self.spread(shares)
            told = [int(share) for share in shares]
            lengths = self.layout.by_host(told)
            whole = np.empty(sum(told) if at_home else 0, dst.dtype.numpy)
            if self.rank == root and src is not None:
                whole[:] = np.concatenate(self.layout.to_host_order(src.array, told))
            if at_home:
                self.hand(whole, place, 0)
            own = np.empty(lengths[self.layout.host], dst.dtype.numpy)
            self.between(
                lambda net: net.scatter(
                    view(whole) if at_home else None,
                    view(own),
                    home,
                    lengths if at_home else None,
                    True,
                )
            )
            self.deal(own, dst.array, [told[rank] for rank in self.here])

        sends = self.even(counts, dst.count) if self.rank == root else [0] * self.size
        receives = [dst.count if rank == root else 0 for rank in range(self.size)]
        call = Call("scatter", dst.count, dst.dtype, None, root, (sends, receives), bool(counts))
        return self.start(call, job, blocking)

    def all_to_all(
        self, src: Buffer, dst: Buffer, sends: Counts, receives: Counts, blocking: bool
    ) -> Work:
        ours = self.even(sends, src.count // self.size)
        theirs = self.even(receives, dst.count // self.size)

        def job() -> None:
            self._all_to_all(src.array, dst.array, ours, theirs)

        call = Call(
            "all_to_all", src.count // self.size, src.dtype, None, None, (ours, theirs), bool(sends)
        )
        return self.start(call, job, blocking)

    def _all_to_all(
        self, source: Array, target: Array, sends: Sequence[int], receives: Sequence[int]
    ) -> None:
        """Through the leaders: each gets all that leaves its host, and deals out what comes in."""
        table = np.zeros((len(self.here), 2, self.size), np.int64)
        rows = np.array([sends, receives])
        self.local.all_gather(view(rows), view(table), None, True)
        leaving, coming = table[:, 0], table[:, 1]
        whole = np.empty(int(leaving.sum()), source.dtype)
        self.collect(source, whole, [int(row.sum()) for row in leaving])
        inbox = np.empty(int(coming.sum()), source.dtype)
        if self.layout.is_leader:
            outbox, lengths = self._outbox(whole, leaving)
            expected = self.layout_sums(coming)
        else:
            outbox, lengths, expected = whole, [], []
        self.between(lambda net: net.all_to_all(view(outbox), view(inbox), lengths, expected, True))
        if self.layout.is_leader:
            inbox = self._sorted_inbox(inbox, coming)
        self.deal(inbox, target, [int(row.sum()) for row in coming])

    def layout_sums(self, table: Array) -> list[int]:
        """What all ranks of this host have to do with each host, in elements."""
        return self.layout.by_host([int(count) for count in table.sum(axis=0)])

    def _outbox(self, whole: Array, leaving: Array) -> tuple[Array, list[int]]:
        """What local ranks send, by the host that it goes to, then by sender and receiver."""
        senders = np.split(whole, np.cumsum(leaving.sum(axis=1))[:-1])
        parts = [
            np.split(one, np.cumsum(row)[:-1]) for one, row in zip(senders, leaving, strict=True)
        ]
        ordered = [part[rank] for ranks in self.layout.hosts for part in parts for rank in ranks]
        return np.concatenate(ordered), self.layout_sums(leaving)

    def _sorted_inbox(self, inbox: Array, coming: Array) -> Array:
        """What came in by host, sender and receiver, sorted by receiver and then by sender."""
        parts: dict[tuple[int, int], Array] = {}
        start = 0
        for ranks in self.layout.hosts:
            for sender in ranks:
                for receiver in range(len(self.here)):
                    count = int(coming[receiver, sender])
                    parts[receiver, sender] = inbox[start : start + count]
                    start += count
        order = [(r, s) for r in range(len(self.here)) for s in range(self.size)]
        return np.concatenate([parts[pair] for pair in order])

    def barrier(self, blocking: bool) -> Work:
        return self.start(Call("barrier"), lambda: None, blocking)  # they meet when they agree

    # ---- messages: between any two ranks, so the engine that joins all of them carries them ----

    def send(self, src: Buffer, peer: int, tag: int, blocking: bool) -> Work:
        return self.everyone.send(src, peer, tag, blocking)

    def recv(self, dst: Buffer, peer: int | None, tag: int, blocking: bool) -> Work:
        return self.everyone.recv(dst, peer, tag, blocking)

    # ---- groups ----

    def split(self, ranks: Sequence[int], key: str) -> Engine:
        layout = self.layout.among(ranks)
        here = self.layout.hosts[self.layout.host]
        local = self.local.split([here.index(rank) for rank in ranks if rank in here], key)
        if len(layout.hosts) == 1:
            return local
        return type(self)(layout, local, self.everyone.split(ranks, key), key)

    def _combined(self, src: Buffer, op: ReduceOp) -> Array:
        """A reduction that has to see all operands at once: every rank gets them."""
        operands = np.empty((self.size, src.count), src.dtype.numpy)
        counts = [src.count] * self.size
        lengths = self.layout.by_host(counts)
        blocks = [np.empty(length, src.dtype.numpy) for length in lengths]
        self.collect(src.array, blocks[self.layout.host], counts[: len(self.here)])
        for host, block in enumerate(blocks):
            self.between(
                lambda net, host=host, block=block: net.broadcast(  # type: ignore[misc]
                    view(block) if host == self.layout.host else None, view(block), host, True
                )
            )
            self.spread(block)
        operands.reshape(-1)[:] = self.layout.to_rank_order(blocks, counts)
        return combine(op, list(operands))
