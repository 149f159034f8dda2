"""`init_process_group` with an address or a `TCPStore` instead of a launcher."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from unisono.mindspore.mint import distributed as dist

JOIN = """
import sys
import numpy as np
from unisono.mindspore.mint import distributed as dist
port, rank, by_store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "store"
if by_store:
    store = dist.TCPStore("127.0.0.1", port, 2, rank == 0)
    dist.init_process_group(store=store, world_size=2, rank=rank)
    assert store.add("joined", 1) in (1, 2)
else:
    dist.init_process_group("hccl", f"tcp://127.0.0.1:{port}", world_size=2, rank=rank)
x = np.array([rank + 1.0])
dist.all_reduce(x)
assert x.tolist() == [3.0] and dist.get_rank() == rank
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("means", ["url", "store"])
def test_joining_by_address(means: str, port: str) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", JOIN, port, str(rank), means],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    errors = [process.communicate(timeout=60)[1] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], errors


FORK = """
import os, sys
from unisono.errors import NotReady
from unisono.mindspore.mint import distributed as dist
port, rank = sys.argv[1], int(sys.argv[2])

def join():
    dist.init_process_group(init_method=f"tcp://127.0.0.1:{port}", world_size=2, rank=rank)

join()
child = os.fork() if rank == 0 else None
if child == 0:
    try:
        join()
    except NotReady as error:
        os._exit(0 if "forked after init" in str(error) else 3)
    os._exit(4)
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
dist.barrier()
dist.destroy_process_group()
"""


def test_a_forked_child_cannot_join_as_its_parent(port: str) -> None:
    """The parent is that rank of the job already, so a child that joins would wait in vain."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", FORK, port, str(rank)],
            env={**os.environ, "UNISONO_TIMEOUT": "20"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    errors = [process.communicate(timeout=60)[1] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], errors


def test_the_scheduler_of_msrun_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MS_ROLE", "MS_SCHED")
    store = dist.TCPStore("127.0.0.1", 1, is_master=True)  # the scheduler must not serve here
    with pytest.raises(SystemExit) as leaving:
        dist.init_process_group(store=store, world_size=2, rank=0)
    assert leaving.value.code == 0
