"""No engine of one host opens a port."""

from __future__ import annotations

import contextlib
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.helpers.jobs import Ranks
from tests.helpers.processes import wait_until
from tests.helpers.start_cases import START, WAITING, address_of, check_started


def ports(pid: int) -> set[tuple[str, str]]:
    """Every socket of a process that is not a Unix one: its kind, and its local port in hex."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            target = str(descriptor.readlink())
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    found = set()
    for kind in ("tcp", "tcp6", "udp", "udp6", "raw"):
        with contextlib.suppress(FileNotFoundError):
            for line in Path(f"/proc/{pid}/net/{kind}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[9] in inodes:
                    found.add((kind.rstrip("6"), str(int(fields[1].rpartition(":")[2], 16))))
    return found


def test_shm_opens_no_port() -> None:
    with Ranks(3, WAITING.replace("[0, 1]", "[0, 1, 2]")) as ranks:
        for rank in range(3):
            assert ranks[rank].read() == {"ready": 1}
            assert ports(ranks[rank].pid) == set()
        for rank in range(3):
            ranks[rank].tell()
        assert [ranks[rank].read()["sum"] for rank in range(3)] == [6.0] * 3


def test_shm_opens_no_port_while_it_starts() -> None:
    with Ranks(3, START, only=[0, 1]) as ranks:
        name = address_of(ranks.job).decode().replace("\0", "@")
        wait_until(lambda: Path("/proc/net/unix").read_text().count(name) == 2)
        assert ports(ranks[0].pid) == ports(ranks[1].pid) == set()
        ranks.start(2)
        check_started(ranks, 3)


def test_threads_open_no_port() -> None:
    body = """
import unisono
def work():
    assert reduce(groups.world()) == 6
    return True
say(ready=unisono.spawn(work, 3, engine="threads"))
hear()
"""
    with Ranks(1, body) as ranks:
        assert ranks[0].read() == {"ready": [True] * 3}
        assert ports(ranks[0].pid) == set()


def test_a_port_would_be_seen() -> None:
    """The tests of this file can fail."""
    body = "import socket\nlistener = socket.create_server(('127.0.0.1', 0))\n"
    with Ranks(1, body + "say(port=listener.getsockname()[1])\nhear()") as ranks:
        port = ranks[0].read()["port"]
        assert ports(ranks[0].pid) == {("tcp", str(port))}


TORCH = """
import torch, torch.distributed as dist
dist.init_process_group("unisono"{method})
x = torch.ones(3)
dist.all_reduce(x)
dist.all_reduce(x, group=dist.new_group([0, 1]))
say(value=x.tolist())
hear()
dist.destroy_process_group()
"""


@pytest.mark.thorough
@pytest.mark.skipif(find_spec("torch") is None, reason="there is no torch")
def test_the_torch_backend_opens_no_port_of_its_own(tmp_path: Path, port: str) -> None:
    def seen(method: str) -> list[set[tuple[str, str]]]:
        with Ranks(2, TORCH.format(method=method), MASTER_PORT=port) as ranks:
            assert [ranks[rank].read() for rank in range(2)] == [{"value": [4.0] * 3}] * 2
            return [ports(ranks[rank].pid) for rank in range(2)]

    file = f', init_method="file://{tmp_path}/meeting", rank=rank, world_size=2'
    assert seen(file) == [set(), set()]
    first, second = seen("")
    # Rank 0 serves torch's store, and all ranks are connected to it, from any port.
    assert ("tcp", port) in first and ("tcp", port) not in second
    assert len(first) == 2 and len(second) == 1
