"""Local ranks where ranks are placed in turns on several hosts, on each engine that joins hosts."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import pytest

import unisono
from tests.helpers import hosts, local_ranks
from tests.helpers.hosts import Hosts, Program
from tests.helpers.local_ranks import ask
from tests.helpers.thorough import essential
from unisono.core import groups, registry
from unisono.errors import UnisonoError

SCRIPT = local_ranks.__file__
PLACES = (0, 1, 0, 1)  # the host of each rank

# Rank; in the world and then in the reversed group: local rank and how many are on this host; in
# the group [3, 0, 2]: how many are on this host, and local rank.
EXPECTED = [
    [0, 0, 2, 1, 2, 2, 0],
    [1, 0, 2, 1, 2, 1, -1],
    [2, 1, 2, 0, 2, 2, 1],
    [3, 1, 2, 0, 2, 1, 0],
]


def need(engine: str) -> None:
    """Skip a test whose engine cannot run here."""
    try:
        reason = registry.load(engine).unavailable()
    except UnisonoError as error:
        reason = str(error)
    if reason is not None:
        pytest.skip(f"engine {engine!r}: {reason}")


def check(hosts: Hosts, programs: Sequence[Program]) -> None:
    codes = [program.wait(90) for program in programs]
    assert set(codes) == {0}, "\n".join(program.err for program in programs)
    lines = [line for program in programs for line in program.out.splitlines()]
    answers: list[Any] = sorted((json.loads(line) for line in lines), key=lambda each: each[1][0])
    assert [host for host, _ in answers] == [hosts.names[place] for place in PLACES]
    assert [found for _, found in answers] == EXPECTED


@pytest.mark.skipif(hosts.why_not() is not None, reason=str(hosts.why_not()))
@pytest.mark.parametrize("kind", essential(1, ["hybrid", "torch:gloo"]))
def test_ranks_in_turns_on_two_hosts(kind: str) -> None:
    need(kind)
    with Hosts(2) as hosts:
        check(hosts, hosts.ranks(PLACES, [sys.executable, SCRIPT, kind]))


@pytest.mark.skipif(
    hosts.why_not(mpiexec=True) is not None, reason=str(hosts.why_not(mpiexec=True))
)
@pytest.mark.parametrize("kind", essential(1, ["mpi", "hybrid:mpi"]))
def test_ranks_in_turns_by_mpiexec(kind: str) -> None:
    need(kind)
    program = [sys.executable, SCRIPT, kind]
    with Hosts(2) as hosts:
        # One rank on each host, and the same once more.
        check(hosts, [hosts.mpiexec(1, [*program, ":", "-n", "2", *program])])


def ask_an_engine_that_knows_hosts() -> list[int]:
    """Ask on a world whose engine knows of two hosts."""
    engine = groups.world().engine
    assert engine is not None
    engine.hosts = [f"identity-{place} node-{place}" for place in PLACES]
    return ask()


def test_an_engine_that_knows_the_hosts_answers() -> None:
    assert unisono.spawn(ask_an_engine_that_knows_hosts, 4) == EXPECTED


def test_an_engine_of_one_host_has_all_ranks_there() -> None:
    whole = [[rank, rank, 4, 3 - rank, 4, 3] for rank in range(4)]
    assert [found[:-1] for found in unisono.spawn(ask, 4)] == whole
