"""`unisono doctor --network`: on one host, on two with slow links, with misleading names."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence

import pytest

from tests.helpers import hosts
from tests.helpers.hosts import Hosts, Program
from tests.helpers.processes import wait_until
from unisono.core import registry
from unisono.core.environment import Launch
from unisono.errors import UnisonoError
from unisono.tools.doctor import network

DOCTOR = [sys.executable, "-m", "unisono", "doctor", "--network"]
RATE, DELAY = 200e6, 0.002  # bits per second, and seconds through one link

need_hosts = pytest.mark.skipif(hosts.why_not() is not None, reason=str(hosts.why_not()))
need_slow_hosts = pytest.mark.skipif(
    hosts.why_not(rate=True, delay=True) is not None,
    reason=str(hosts.why_not(rate=True, delay=True)),
)


def several_hosts_engine() -> dict[str, str]:
    """Variables for a job on several hosts: none if the engine for that is there."""
    try:
        reason = registry.load("hybrid").unavailable()
    except UnisonoError as error:
        reason = str(error)
    return {} if reason is None else {"UNISONO_ENGINE": "torch:gloo"}


def check_exit_codes(job: Sequence[Program], codes: Sequence[int]) -> None:
    found = [program.wait(60) for program in job]
    output = "\n".join(program.out + program.err for program in job)
    assert found == list(codes), output


# ---- one host ------------------------------------------------------------------------------------


def on_one_host(*arguments: str) -> subprocess.CompletedProcess[str]:
    run = [sys.executable, "-m", "unisono", "run", "-n", "2", "-m", "unisono", "doctor"]
    return subprocess.run([*run, *arguments], capture_output=True, text=True, timeout=60)


def test_one_host() -> None:
    done = on_one_host("--network")
    assert done.returncode == 0, done.stderr
    assert "all 2 ranks are on one host, so there is no network" in done.stdout
    assert socket.gethostname() in done.stdout
    assert "warning" not in done.stdout + done.stderr
    assert {line[:3] for line in done.stdout.splitlines()} == {"[0]"}


def test_one_host_as_json() -> None:
    done = on_one_host("--network", "--json")
    findings = json.loads("\n".join(line[4:] for line in done.stdout.splitlines()))
    assert findings["engine"] == "shm"
    assert [host["ranks"] for host in findings["hosts"]] == [[0, 1]]
    assert findings["pairs"] == findings["warnings"] == []
    assert findings["error"] is None


def test_without_a_job() -> None:
    done = subprocess.run(DOCTOR, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert "this process is alone" in done.stderr
    assert "torchrun --nnodes 2" in done.stderr


# ---- two hosts -----------------------------------------------------------------------------------


@pytest.mark.thorough
@need_slow_hosts
def test_two_hosts_with_slow_links() -> None:
    with Hosts(2, rate=f"{RATE:.0f}bit", delay=DELAY) as hosts:
        job = hosts.ranks((0, 0, 1, 1), [*DOCTOR, "--json"], several_hosts_engine())
        check_exit_codes(job, [0] * 4)
        findings = json.loads(job[0].out)
        assert [program.out for program in job[1:]] == [""] * 3
        names, addresses = hosts.names, hosts.addresses
    for index, host in enumerate(findings["hosts"]):
        assert host["name"] == names[index]
        assert host["addresses"] == [addresses[index]]
        assert host["ranks"] == [2 * index, 2 * index + 1]
    (pair,) = findings["pairs"]
    assert pair["hosts"] == list(names)
    assert pair["ranks"] == [0, 2]
    assert 2 * DELAY * 0.95 < pair["latency"] < 1  # two links, one way
    assert 0.5 < pair["bandwidth"] * 8 / RATE < 2
    assert findings["warnings"] == []


@pytest.mark.thorough
@need_hosts
def test_three_hosts_as_a_table_by_torchrun() -> None:
    with Hosts(3) as hosts:
        command = ["--no-python", *DOCTOR]
        job = hosts.torchrun(1, command, several_hosts_engine(), static=True)
        check_exit_codes(job, [0] * 3)
        output = job[0].out
        names = hosts.names
    lines = [line.split() for line in output.splitlines()]
    assert "3 ranks on 3 hosts" in output
    assert ["from", "to", "latency", "bandwidth"] in lines
    found = [tuple(line[:2]) for line in lines if line[1] in names]
    assert found == [(names[0], names[1]), (names[0], names[2]), (names[1], names[2])]


# ---- names that mislead --------------------------------------------------------------------------


@need_hosts
def test_hosts_that_resolve_their_own_name_to_loopback_are_warned() -> None:
    """The warning comes before ranks wait for each other, which may take long or never end."""
    with Hosts(2, loopback=True) as hosts:
        job = hosts.ranks((0, 1), DOCTOR, several_hosts_engine())
        for program, name, address in zip(job, hosts.names, hosts.addresses, strict=True):
            wait_until(lambda program=program: "\n" in program.err)
            told = program.err.splitlines()[0]
            assert f"warning: host '{name}' resolves its own name to 127.0.1.1" in told
            assert f"its network address, {address}" in told
            assert "/etc/hosts" in told
            assert "GLOO_SOCKET_IFNAME" in told


@pytest.mark.thorough
@need_hosts
def test_hosts_that_cannot_connect() -> None:
    variables = {**several_hosts_engine(), "UNISONO_TIMEOUT": "4"}
    with Hosts(2) as hosts:
        # Rank 0 uses the right address of the master; rank 1 gets a wrong one.
        command = ["sh", "-c", '[ "$RANK" = 0 ] || MASTER_ADDR=localhost; exec "$@"', "sh", *DOCTOR]
        job = hosts.ranks((0, 1), [*command, "--json"], variables)
        check_exit_codes(job, [1, 1])
        findings = json.loads(job[0].out)
        assert findings["error"]
        assert findings["warnings"] == []
        assert job[1].out == ""
        assert f"on host '{hosts.names[1]}' MASTER_ADDR is 'localhost'" in job[1].err
        assert "see the warnings above" in job[1].err
        assert "Traceback" not in job[0].err + job[1].err


def several(rank: int = 0) -> Launch:
    return Launch(rank, 4, rank % 2, 2, "job", "test")


def resolving(monkeypatch: pytest.MonkeyPatch, table: dict[str, str]) -> None:
    """Resolve names as the table says, and call this host "here"."""

    def getaddrinfo(name: str, port: object) -> list[tuple]:
        if name not in table:
            raise socket.gaierror(-2, "unknown")
        return [(socket.AF_INET, 1, 6, "", (table[name], 0))]

    monkeypatch.setattr(socket, "gethostname", lambda: "here")
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.delenv("MASTER_ADDR", raising=False)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({"here": "10.0.0.1"}, None),
        ({"here": "127.0.1.1"}, "to 127.0.1.1, a loopback address"),
        ({"here": "::1"}, "to ::1, a loopback address"),
        ({}, "cannot resolve its own name"),
    ],
)
def test_own_names(
    monkeypatch: pytest.MonkeyPatch, table: dict[str, str], text: str | None
) -> None:
    resolving(monkeypatch, table)
    found = network.suspicious_names(several())
    assert len(found) == (text is not None)
    assert (text or "") in "".join(found)
    # On one host a loopback address works.
    assert network.suspicious_names(Launch(0, 2, 0, 2, "job", "test")) == []


def test_the_address_of_the_master(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, {"here": "10.0.0.1", "localhost": "127.0.0.1", "there": "10.0.0.2"})
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    assert network.suspicious_names(several(0)) == []
    (found,) = network.suspicious_names(several(2))
    assert "on host 'here' MASTER_ADDR is 'localhost', which is 127.0.0.1 there" in found
    os.environ["MASTER_ADDR"] = "there"
    assert network.suspicious_names(several(2)) == []


def test_names_of_other_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, {"here": "127.0.1.1", "near": "127.0.0.1", "far": "10.0.0.2"})
    (found,) = network._misleading(["here", "near", "far", "nowhere"])
    assert "host 'here' resolves 'near', which is another host, to 127.0.0.1" in found
    assert "in the /etc/hosts of 'here'" in found
