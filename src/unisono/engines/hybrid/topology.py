"""Topology: which ranks of a group share a host, and which one leads each host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np

from unisono.engines.common.reductions import Array

__all__ = ["Topology"]


@dataclass(frozen=True)
class Topology:
    """Hosts in the order of their first ranks, each with its ranks in order; the first one leads.

    >>> topology = Topology(((0, 2), (1, 3)), ("a", "b"), 3)
    >>> topology.host, topology.local_rank, topology.leaders, topology.is_leader
    (1, 1, (0, 1), False)
    """

    hosts: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]
    rank: int

    @classmethod
    def of(cls, described: Sequence[str], rank: int) -> Topology:
        """From what each rank says of its host: an identity and a name."""
        found: dict[str, list[int]] = {}
        names: dict[str, str] = {}
        for each, text in enumerate(described):
            identity, _, name = text.partition(" ")
            found.setdefault(identity, []).append(each)
            names[identity] = name or identity
        return cls(tuple(tuple(ranks) for ranks in found.values()), tuple(names.values()), rank)

    @cached_property
    def size(self) -> int:
        """How many ranks the group has."""
        return sum(len(ranks) for ranks in self.hosts)

    @cached_property
    def host(self) -> int:
        """This rank's host."""
        return self.host_of(self.rank)

    @cached_property
    def name(self) -> str:
        """The name of this rank's host."""
        return self.names[self.host]

    @cached_property
    def here(self) -> tuple[int, ...]:
        """The ranks of this rank's host."""
        return self.hosts[self.host]

    @cached_property
    def local_rank(self) -> int:
        """This rank's position on its host; the leader's is 0."""
        return self.here.index(self.rank)

    @cached_property
    def is_leader(self) -> bool:
        """Whether this rank leads its host."""
        return self.local_rank == 0

    @cached_property
    def leaders(self) -> tuple[int, ...]:
        """The leader of each host."""
        return tuple(ranks[0] for ranks in self.hosts)

    @cached_property
    def _host_of(self) -> dict[int, int]:
        return {rank: host for host, ranks in enumerate(self.hosts) for rank in ranks}

    def host_of(self, rank: int) -> int:
        """The host of any rank."""
        return self._host_of[rank]

    def among(self, ranks: Sequence[int]) -> Topology:
        """The topology of a subgroup, which this rank is in."""
        position = {rank: index for index, rank in enumerate(ranks)}
        kept = [
            (tuple(sorted(position[rank] for rank in here if rank in position)), name)
            for here, name in zip(self.hosts, self.names, strict=True)
        ]
        kept = sorted((here, name) for here, name in kept if here)
        hosts, names = zip(*kept, strict=True)
        return Topology(hosts, names, position[self.rank])

    # ---- vectors that hold a part for each rank ----

    def by_host(self, counts: Sequence[int]) -> list[int]:
        """How much the ranks of each host have together."""
        return [sum(counts[rank] for rank in ranks) for ranks in self.hosts]

    def to_host_order(self, whole: Array, counts: Sequence[int]) -> list[Array]:
        """The parts in the order of hosts and of ranks within each, one array for each host."""
        parts = np.split(whole, list(accumulate(counts))[:-1])
        return [np.concatenate([parts[rank] for rank in ranks]) for ranks in self.hosts]

    def to_rank_order(self, blocks: Sequence[Array], counts: Sequence[int]) -> Array:
        """The reverse: one array with the parts in the order of ranks."""
        parts: dict[int, Array] = {}
        for ranks, block in zip(self.hosts, blocks, strict=True):
            ends = list(accumulate(counts[rank] for rank in ranks))
            parts |= zip(ranks, np.split(block, ends[:-1]), strict=True)
        return np.concatenate([parts[rank] for rank in range(self.size)])
