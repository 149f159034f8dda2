"""Joining a world by an address or a `TCPStore`, and that store itself."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta

import pytest

from unisono.errors import CommTimeout
from unisono.mindspore.mint import distributed as dist

JOIN = """
import sys
import numpy as np
from unisono.mindspore.mint import distributed as dist
port, rank, by_store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "store"
if by_store:
    store = dist.TCPStore("127.0.0.1", port, 2, rank == 0)
    dist.init_process_group(store=store, world_size=2, rank=rank)
    assert store.add("come", 1) in (1, 2)
else:
    dist.init_process_group("hccl", f"tcp://127.0.0.1:{port}", world_size=2, rank=rank)
x = np.array([rank + 1.0])
dist.all_reduce(x)
assert x.tolist() == [3.0] and dist.get_rank() == rank
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("way", ["url", "store"])
def test_joining_by_address(way: str, port: str) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", JOIN, port, str(rank), way],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    errors = [process.communicate(timeout=60)[1] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], errors


def test_store() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=0.2))
    other = dist.TCPStore("127.0.0.1", store.port, timeout=timedelta(seconds=0.2))
    store.set("name", "value")
    assert other.get("name") == b"value"
    assert (other.add("number", 2), store.add("number", -5)) == (2, -3)
    assert (store.delete_key("name"), other.delete_key("name")) == (True, False)
    with pytest.raises(CommTimeout, match="name"):
        other.get("name")
    store.set("text", b"no number")
    with pytest.raises(RuntimeError, match="not a number"):
        store.add("text", 1)
    for wrong in (lambda: store.set(1, ""), lambda: store.set("", 1), lambda: store.add("", "1")):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(ValueError, match="port"):
        dist.TCPStore("127.0.0.1", 70000)


def test_the_server_goes_with_its_store() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=0.2))
    store.set("text", "here")
    other = dist.TCPStore("127.0.0.1", store.port, timeout=timedelta(seconds=0.2))
    assert other.get("text") == b"here"
    del store
    with pytest.raises(RuntimeError, match=str(other.port)):
        other.get("text")


def test_the_scheduler_of_msrun_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MS_ROLE", "MS_SCHED")
    store = dist.TCPStore("127.0.0.1", 1, is_master=True)  # nobody may serve at port 1
    with pytest.raises(SystemExit) as leaving:
        dist.init_process_group(store=store, world_size=2, rank=0)
    assert leaving.value.code == 0
