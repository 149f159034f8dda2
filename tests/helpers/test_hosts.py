"""Hosts that are namespaces, with names, addresses and links of their own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import hosts
from tests.helpers.hosts import Hosts
from tests.helpers.leftovers import Leftovers
from tests.helpers.paths import with_tests
from tests.helpers.processes import wait_until

pytestmark = pytest.mark.skipif(hosts.why_not() is not None, reason=str(hosts.why_not()))

SERVER = """
import socket, sys
with socket.create_server(("", 5000)) as server:
    print("ready", flush=True)
    connection = server.accept()[0]
    connection.settimeout(20)
    count = 0
    while data := connection.recv(1 << 20):
        count += len(data)
    print(count)
"""
CLIENT = """
import socket, sys, time
began = time.monotonic()
connection = socket.create_connection((sys.argv[1], 5000), 5)
connection.sendall(bytes(int(sys.argv[2])))
connection.shutdown(socket.SHUT_WR)
connection.recv(1)
print(time.monotonic() - began)
"""
REACH = "import socket, sys; socket.create_connection((sys.argv[1], 5000), float(sys.argv[2]))"


@pytest.fixture(scope="module")
def pair() -> Iterator[Hosts]:
    """Two hosts with plain links."""
    with Hosts(2) as made:
        yield made


def python(*arguments: str) -> list[str]:
    return [sys.executable, "-c", *arguments]


def sent(cluster: Hosts, source: int, target: int, count: int) -> float:
    """Send so many bytes from one host to another by TCP; the seconds that it took."""
    server = cluster.popen(target, python(SERVER))
    assert server.line() == "ready"
    lasted = float(cluster.run(source, python(CLIENT, cluster.names[target], str(count))))
    assert int(server.line()) == count
    assert server.wait(20) == 0
    return lasted


def test_hosts_have_names_and_reach_each_other(pair: Hosts) -> None:
    outside = os.uname().nodename
    for host in range(2):
        found = pair.run(host, python("import socket; print(socket.gethostname())"))
        assert found.strip() == pair.names[host] != outside
    sent(pair, 0, 1, 1000)
    sent(pair, 1, 0, 1000)
    assert os.uname().nodename == outside
    assert pair.names[0] not in Path("/etc/hosts").read_text()


def test_names_resolve_to_the_address_in_the_network(pair: Hosts) -> None:
    program = "import socket, sys; print(socket.gethostbyname(sys.argv[1]))"
    for host in range(2):
        for other in range(2):
            found = pair.run(host, python(program, pair.names[other]))
            assert found.strip() == pair.addresses[other]
    with Hosts(2, loopback=True) as cluster:
        assert cluster.run(0, python(program, cluster.names[0])).strip() == "127.0.1.1"
        assert cluster.run(1, python(program, cluster.names[0])).strip() == cluster.addresses[0]


def test_identities_differ_between_hosts_and_agree_within(pair: Hosts) -> None:
    program = python("from unisono.core.rendezvous import identity; print(identity())")
    found = [pair.run(host, program) for host in (0, 0, 1, 1)]
    assert found[0] == found[1] != found[2] == found[3]
    here = subprocess.run(program, capture_output=True, text=True, check=True).stdout
    assert here not in found


def test_shared_memory_and_processes_are_a_hosts_own(pair: Hosts) -> None:
    pair.run(0, ["touch", "/dev/shm/unisono-of-node-0"])
    assert pair.run(0, ["ls", "/dev/shm"]).split() == ["unisono-of-node-0"]
    assert pair.run(1, ["ls", "/dev/shm"]).split() == []
    assert not Path("/dev/shm/unisono-of-node-0").exists()
    pair.run(0, ["rm", "/dev/shm/unisono-of-node-0"])
    seen = pair.run(1, python("import os; print(*filter(str.isdigit, os.listdir('/proc')))"))
    assert len(seen.split()) < 5
    assert pair.run(1, ["pwd"]).strip() == str(Path.cwd())


def test_traffic_is_counted(pair: Hosts) -> None:
    count = 3_000_000
    before = [pair.traffic(host) for host in range(2)]
    sent(pair, 0, 1, count)
    first, second = (pair.traffic(host) - before[host] for host in range(2))
    for number in (first.sent, second.received):
        assert count < number < 1.1 * count
    for number in (first.received, second.sent):
        assert number < 0.1 * count


def test_a_link_that_is_cut_and_one_that_is_back(pair: Hosts) -> None:
    sent(pair, 0, 1, 1000)
    pair.cut(1)
    failed = pair.popen(0, python(REACH, pair.names[1], "0.5"))
    assert failed.wait(20) != 0
    assert re.search("TimeoutError|No route to host", failed.err)
    pair.reconnect(1)
    sent(pair, 0, 1, 1000)


@pytest.mark.skipif(hosts.why_not(rate=True) is not None, reason=str(hosts.why_not(rate=True)))
def test_a_limited_rate() -> None:
    with Hosts(2, rate="100mbit") as cluster:
        lasted = sent(cluster, 0, 1, 5_000_000)
    assert 0.3 < lasted < 4  # 0.4 s at this rate, less what the buckets let through


@pytest.mark.thorough
@pytest.mark.skipif(hosts.why_not(delay=True) is not None, reason=str(hosts.why_not(delay=True)))
def test_a_delay() -> None:
    program = (
        "import socket, sys, time; began = time.monotonic()\n"
        "try: socket.create_connection((sys.argv[1], 5001), 10)\n"
        "except ConnectionRefusedError: print(time.monotonic() - began)"
    )
    with Hosts(2, delay=0.03) as cluster:
        lasted = float(cluster.run(0, python(program, cluster.names[1])))
        # There and back, through two links.
        assert 0.12 <= lasted < 5
        before = cluster.traffic(1)
        sent(cluster, 0, 1, 100_000)
        assert 100_000 < (cluster.traffic(1) - before).received < 120_000
        cluster.cut(1)
        assert cluster.popen(0, python(REACH, cluster.names[1], "0.5")).wait(20) != 0


def test_programs_that_fail(pair: Hosts) -> None:
    assert pair.popen(1, ["sh", "-c", "echo out; echo bad >&2; exit 7"]).wait(20) == 7
    with pytest.raises(AssertionError, match="ended with 3"):
        pair.run(0, ["sh", "-c", "exit 3"])
    with pytest.raises(AssertionError, match="still running after"):
        pair.popen(0, ["sleep", "60"]).wait(0.1)


# ---- the end -------------------------------------------------------------------------------------


def commands(mark: str) -> list[str]:
    """The processes of this machine that have `mark` in their command lines."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if mark in line:
            found.append(line)
    return found


def devices() -> set[str]:
    return {path.name for path in Path("/sys/class/net").iterdir()}


def mounts() -> list[str]:
    return Path("/proc/self/mounts").read_text().splitlines()


def test_nothing_stays() -> None:
    before = devices(), mounts()
    mark = f"1{os.getpid()}"
    with Hosts(2) as cluster:
        cluster.popen(0, ["sleep", mark])
        cluster.popen(1, ["setsid", "nohup", "sleep", mark])
        wait_until(lambda: len(commands(f"sleep {mark}")) >= 2)
        assert (devices(), mounts()) == before
    assert commands(f"sleep {mark}") == []
    assert (devices(), mounts()) == before


def test_nothing_stays_of_a_test_run_that_was_killed() -> None:
    mark = f"2{os.getpid()}"
    program = f"""
import time
from tests.helpers import hosts
with hosts.Hosts(2, delay={0.001 if hosts.why_not(delay=True) is None else None}) as cluster:
    cluster.popen(0, ["sleep", "{mark}"])
    cluster.popen(1, ["sleep", "{mark}"])
    print("ready", flush=True)
    time.sleep(60)
"""
    with subprocess.Popen(
        python(program), stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": with_tests()}
    ) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"ready\n"
        wait_until(lambda: len(commands(f"sleep {mark}")) >= 2)
        run.send_signal(signal.SIGKILL)
    wait_until(lambda: commands(mark) == [])


def test_hosts_that_do_not_come_up_leave_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    began = time.monotonic()
    leftovers = Leftovers(tmp_path)
    for name, value in leftovers.variables.items():
        monkeypatch.setenv(name, value)
    seen: list[int] = []

    def fail(self: Hosts) -> list[str]:
        seen.extend(leftovers.processes())
        return ["false"]

    monkeypatch.setattr(Hosts, "_add_links", fail)
    with pytest.raises(AssertionError, match="ended with 1"), Hosts(2):
        pass
    assert len(seen) > 2, "the check does not see the processes of hosts"
    leftovers.check()
    assert time.monotonic() - began < 20


def test_it_says_why_there_can_be_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "_tool", lambda name: None if name == "ip" else name)
    assert hosts.why_not() == "hosts need Linux, util-linux and iproute2; missing here: ip"
    monkeypatch.undo()
    monkeypatch.setattr(hosts, "_unshare", lambda extra=(): ["sh", "-c", "echo no >&2; exit 1"])
    hosts._rights.cache_clear()
    try:
        assert "may not make namespaces here: no; with --user: no" in str(hosts.why_not())
    finally:
        hosts._rights.cache_clear()
