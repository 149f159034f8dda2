"""Which ranks of a group share a host, and who speaks for each host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from unisono.engines.common.reductions import Array

__all__ = ["Layout"]


@dataclass(frozen=True)
class Layout:
    """Hosts in the order of their first ranks, each with its ranks in order; the first one leads.

    >>> layout = Layout(((0, 2), (1, 3)), ("a", "b"), 3)
    >>> layout.host, layout.local_rank, layout.leaders, layout.is_leader
    (1, 1, (0, 1), False)
    """

    hosts: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]
    rank: int

    @classmethod
    def of(cls, told: Sequence[str], rank: int) -> Layout:
        """From what each rank said of its host: an identity and a name."""
        found: dict[str, list[int]] = {}
        names: dict[str, str] = {}
        for each, words in enumerate(told):
            identity, _, name = words.partition(" ")
            found.setdefault(identity, []).append(each)
            names[identity] = name or identity
        return cls(tuple(tuple(ranks) for ranks in found.values()), tuple(names.values()), rank)

    @property
    def size(self) -> int:
        """How many ranks the group has."""
        return sum(len(ranks) for ranks in self.hosts)

    @property
    def host(self) -> int:
        """This rank's host."""
        return self.host_of(self.rank)

    @property
    def local_rank(self) -> int:
        """This rank's place on its host; the leader's is 0."""
        return self.hosts[self.host].index(self.rank)

    @property
    def is_leader(self) -> bool:
        """Whether this rank speaks for its host."""
        return self.local_rank == 0

    @property
    def leaders(self) -> tuple[int, ...]:
        """The leader of each host."""
        return tuple(ranks[0] for ranks in self.hosts)

    def host_of(self, rank: int) -> int:
        """The host of any rank."""
        return next(host for host, ranks in enumerate(self.hosts) if rank in ranks)

    def among(self, ranks: Sequence[int]) -> Layout:
        """The layout of a subgroup, which this rank is in."""
        place = {rank: index for index, rank in enumerate(ranks)}
        kept = [
            (tuple(sorted(place[rank] for rank in here if rank in place)), name)
            for here, name in zip(self.hosts, self.names, strict=True)
        ]
        kept = sorted((here, name) for here, name in kept if here)
        hosts, names = zip(*kept, strict=True)
        return Layout(hosts, names, place[self.rank])

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
