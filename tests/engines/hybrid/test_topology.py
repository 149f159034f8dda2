"""Topology: hosts, leaders, and vectors in the order of hosts or of ranks."""

from __future__ import annotations

import numpy as np

from unisono.engines.hybrid.topology import Topology

#: Six ranks on three hosts, placed one by one.
CYCLIC = ["a 1", "b 2", "c 3", "a 1", "b 2", "c 3"]


def test_hosts_are_in_the_order_of_their_first_ranks() -> None:
    topology = Topology.of(CYCLIC, 4)
    assert topology.hosts == ((0, 3), (1, 4), (2, 5))
    assert topology.names == ("1", "2", "3")
    assert (topology.host, topology.name, topology.here) == (1, "2", (1, 4))
    assert (topology.local_rank, topology.is_leader) == (1, False)
    assert topology.leaders == (0, 1, 2)
    assert [topology.host_of(rank) for rank in range(6)] == [0, 1, 2, 0, 1, 2]


def test_a_subgroup_in_an_order_of_its_own() -> None:
    """Ranks 5, 0, 3 become ranks 0, 1, 2; a host without members is left out."""
    topology = Topology.of(CYCLIC, 0).among([5, 0, 3])
    assert topology.hosts == ((0,), (1, 2))
    assert topology.names == ("3", "1")
    assert (topology.rank, topology.size, topology.is_leader) == (1, 3, True)


def test_vectors_in_the_order_of_hosts_and_back() -> None:
    topology, counts = Topology.of(CYCLIC, 0), [1, 2, 0, 3, 1, 2]
    whole = np.arange(sum(counts))
    blocks = topology.to_host_order(whole, counts)
    assert [block.tolist() for block in blocks] == [[0, 3, 4, 5], [1, 2, 6], [7, 8]]
    assert topology.by_host(counts) == [4, 3, 2]
    assert topology.to_rank_order(blocks, counts).tolist() == whole.tolist()
