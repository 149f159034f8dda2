"""Jobs on several hosts: every verb, both faces and DDP; what crosses the network; a lost host.

Ranks run several_hosts_rank.py and print what they did; see hosts.py for the hosts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from tests.helpers import hosts, several_hosts_rank
from tests.helpers.hosts import Hosts
from tests.helpers.processes import wait_until
from tests.helpers.programs import Program
from tests.helpers.several_hosts_rank import PAYLOAD
from tests.helpers.thorough import essential_rows
from unisono.core import registry
from unisono.errors import UnisonoError

pytestmark = pytest.mark.skipif(hosts.why_not() is not None, reason=str(hosts.why_not()))

SCRIPT = several_hosts_rank.__file__
CORE = ("verbs", "overlapping", "groups", "messages")
FACES = ("torch", "mindspore")
JOB = 90.0  # seconds; a job that takes longer hangs


def absence(engine: str) -> str | None:
    """Why an engine is not there or cannot run."""
    try:
        return registry.load(engine).unavailable()
    except UnisonoError as error:
        return str(error)


def need(engine: str) -> None:
    """Skip a test whose engine is not there or cannot run."""
    reason = absence(engine)
    if reason is not None:
        pytest.skip(f"engine {engine!r}: {reason}")


def answers(programs: Sequence[Program], timeout: float = JOB) -> list[dict[str, Any]]:
    """What the ranks said, in rank order; all of them must have succeeded."""
    codes = [program.wait(timeout) for program in programs]
    lines = [line for program in programs for line in program.out.splitlines()]
    told = [json.loads(line) for line in lines if line.startswith("{")]
    errors = [
        f"{each['engine']}, {each['host']}: {each['error']}" for each in told if "error" in each
    ]
    assert not errors, "\n".join(errors)
    assert set(codes) == {0}, "\n".join([str(codes), *(program.err for program in programs)])
    return sorted(told, key=lambda each: each["rank"])


def check_core(told: list[dict[str, Any]], names: Sequence[str], ranks: int) -> None:
    """Everybody was there, on its host, and has run all of it."""
    size = len(names) * ranks
    assert [each["rank"] for each in told] == list(range(size))
    assert {each["size"] for each in told} == {size}
    assert sorted(each["host"] for each in told) == sorted(name for name in names * ranks)
    for each in told:
        assert each["verbs"] > 200
        assert each["overlapping"] == 16
        assert each["groups"] > 20
        assert each["messages"] == 3 * (size - 1)


def check_faces(told: list[dict[str, Any]]) -> None:
    size = len(told)
    given = [[100 * rank + index for index in range(2 * size)] for rank in range(size)]
    for rank, each in enumerate(told):
        here = [other for other in range(size) if told[other]["host"] == each["host"]]
        mine = slice(2 * rank, 2 * rank + 2)
        expected = {
            "total": [sum(column) for column in zip(*given, strict=True)],
            "joined": [number for row in given for number in row],
            "part": [sum(column) for column in zip(*given, strict=True)][mine],
            "spread": given[-1],
            "exchanged": [number for row in given for number in row[mine]],
            "near": [sum(column) for column in zip(*(given[o] for o in here), strict=True)],
        }
        assert each["torch"] == expected
        assert each["mindspore"] == expected


def check_training(told: list[dict[str, Any]]) -> None:
    """torch's backend has chosen hybrid by itself; all ranks hold the same model, the right one."""
    assert all(each["ddp"]["close"] for each in told)
    assert len({each["ddp"]["digest"] for each in told}) == 1
    assert {each["ddp"]["engine"] for each in told} == {"hybrid"}


# ---- every verb, both faces, DDP -----------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("count", [2, 3], ids="{}-hosts".format)
def test_torchrun(count: int) -> None:
    """One job for both engines, because it takes longer to start than to run."""
    need("torch:gloo")
    command = ["torch:gloo", *CORE, *FACES]
    if absence("hybrid") is None:
        command += ["--", "hybrid", *CORE, *FACES, "ddp"]
    with Hosts(count) as cluster:
        told = answers(cluster.torchrun(2, [SCRIPT, *command], static=count == 3))
        names = cluster.names
    for engine in {"torch:gloo", "hybrid"} & set(command):
        ranks = [each for each in told if each["engine"] == engine]
        check_core(ranks, names, 2)
        check_faces(ranks)
        if engine == "hybrid":
            check_training(ranks)


@pytest.mark.skipif(
    hosts.why_not(mpiexec=True) is not None, reason=str(hosts.why_not(mpiexec=True))
)
@pytest.mark.parametrize(("kind", "count"), essential_rows(1, [("hybrid:mpi", 3), ("mpi", 2)]))
def test_mpiexec(kind: str, count: int) -> None:
    need(kind)
    with Hosts(count) as cluster:
        job = cluster.mpiexec(2, [sys.executable, SCRIPT, kind, *CORE, *FACES])
        told = answers([job])
        check_core(told, cluster.names, 2)
        check_faces(told)


# ---- what crosses the network --------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("hosts_of_ranks", "more"),
    [((0, 0, 0, 0, 1, 1, 1, 1), ()), ((0, 1, 2, 0, 2, 1), CORE)],
    ids=["2-hosts", "3-hosts-in-turns"],
)
def test_traffic_does_not_grow_with_the_ranks_of_a_host(
    hosts_of_ranks: tuple[int, ...], more: tuple[str, ...]
) -> None:
    """One of the jobs, whose ranks are not in the order of hosts, runs all the rest too."""
    need("hybrid")
    count = max(hosts_of_ranks) + 1
    ranks = len(hosts_of_ranks) // count
    with Hosts(count) as cluster:
        command = [sys.executable, SCRIPT, "hybrid", "traffic", *more]
        told = answers(cluster.ranks(hosts_of_ranks, command))
        outside = [cluster.traffic(host) for host in range(count)]
        assert [each["host"] for each in told] == [cluster.names[place] for place in hosts_of_ranks]
        if more:
            check_core(told, cluster.names, ranks)
    for host in range(count):
        cells = told[hosts_of_ranks.index(host)]["traffic"]
        assert {cell["ranks"] for cell in cells} == {1, 2, ranks}
        for cell in cells:
            check_traffic(cell, host, count)
        # The counter is that of the link; what the ranks read is a part of all that it carried.
        assert sum(cell["sent"] for cell in cells) <= outside[host].sent


def check_traffic(cell: dict[str, Any], host: int, count: int) -> None:
    """No more than a tenth above the least that any algorithm needs, and a constant."""
    part = (count - 1) * PAYLOAD / count
    least = {
        "all_reduce": {"sent": 2 * part, "received": 2 * part},
        "all_gather": {"received": part},
        "reduce_scatter": {"sent": part, "received": part},
        # The root's own host needs nothing of a broadcast.
        "broadcast": {"received": PAYLOAD if host else 0},
    }
    for way, needed in least[cell["verb"]].items():
        assert 0.99 * needed <= cell[way] < 1.1 * needed + 200_000, (host, cell)


# ---- a host that disappears ----------------------------------------------------------------------


@pytest.mark.thorough
def test_a_host_that_disappears_is_named_on_every_rank() -> None:
    need("hybrid")
    timeout = 5.0
    with Hosts(2) as cluster:
        command = [sys.executable, SCRIPT, "hybrid", "loop"]
        job = cluster.ranks((0, 0, 1, 1), command, {"UNISONO_TIMEOUT": str(timeout)})
        wait_until(lambda: all("looping" in each.out or each.process.poll() for each in job))
        cluster.cut(1)
        told = answers(job, timeout=60)
        for rank, each in enumerate(told):
            end = each["loop"]
            assert "UnisonoError" in end["kind"], end
            other = cluster.names[1 if rank < 2 else 0]
            assert other in end["text"], end
            assert end["seconds"] < timeout + 10, end
