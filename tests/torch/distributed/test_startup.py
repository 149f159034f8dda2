"""How ranks of the PyTorch face find each other, and which backend's name means what."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from datetime import timedelta

import pytest
import torch.distributed as upstream

import unisono
import unisono.torch.distributed as dist
from tests.helpers.thorough import essential
from unisono.core import environment
from unisono.errors import ArgumentError, LaunchError, Unsupported

SCRIPT = """
import sys
import numpy as np
import unisono.torch.distributed as dist
rank = int(sys.argv[1])
dist.init_process_group(%s)
assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (rank, 2, "shm")
x = np.full(2, rank + 1.0)
dist.all_reduce(x)
dist.destroy_process_group()
assert not dist.is_initialized() and "torch" not in sys.modules
print(x.tolist())
"""
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "UNISONO_RANK", "UNISONO_SIZE")


def run_two(arguments, **variables):
    """Start two ranks that call init_process_group with these arguments; both must see the sum."""
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    environment |= {"UNISONO_TIMEOUT": "30", **variables}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT % arguments, str(rank)],
            env=environment | ({"RANK": str(rank)} if "WORLD_SIZE" in variables else {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for process in ranks:
            output, errors = process.communicate(timeout=40)
            assert (process.returncode, output) == (0, "[3.0, 3.0]\n"), errors
    finally:
        for process in ranks:
            process.kill()


@pytest.mark.parametrize("empty", essential(1, [False, True]), ids=["new file", "empty file"])
def test_file(tmp_path, empty):
    path = tmp_path / "meeting"
    if empty:
        path.touch()
    run_two(f"'gloo', init_method='file://{path}', rank=rank, world_size=2")
    assert not path.exists()  # so that the next job can use the same name
    run_two(f"'shm', 'file://{path}', None, 2, rank")


def test_a_file_that_nobody_else_reads_is_removed(tmp_path, bare):
    path = tmp_path / "meeting"
    with pytest.raises(RuntimeError, match=r"ranks \[1\]"):
        dist.init_process_group(
            "gloo", f"file://{path}", timedelta(seconds=0.3), world_size=2, rank=0
        )
    assert not path.exists() and not dist.is_initialized()


@pytest.mark.thorough
def test_environment(port):
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    run_two("'cpu:gloo,cuda:nccl', rank=rank, world_size=2", **address)
    run_two("init_method='env://'", WORLD_SIZE="2", **address)
    run_two("rank=rank", WORLD_SIZE="2", **address)


def test_address(port):
    run_two(f"'nccl', 'tcp://localhost:{port}', rank=rank, world_size=2")


def test_numbers_in_the_call_count_for_more_than_our_launchers(port):
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ours = {"UNISONO_RANK": "0", "UNISONO_SIZE": "1", "UNISONO_JOB": "another"}
    run_two("rank=rank, world_size=2", **address, **ours)


# ---- what is refused, before anybody is waited for -----------------------------------------------

BAD = {
    "backend is a number": {"backend": 5},
    "device twice": {"backend": "cpu:gloo,cpu:nccl"},
    "file without a rank": {"init_method": "file:///nowhere/x", "world_size": 2},
    "file without a size": {"init_method": "file:///nowhere/x", "rank": 0},
    "file without a path": {"init_method": "file://", "rank": 0, "world_size": 1},
    "tcp without a port": {"init_method": "tcp://localhost", "rank": 0, "world_size": 1},
    "unknown method": {"init_method": "pigeon://x", "rank": 0, "world_size": 1},
    "method is a number": {"init_method": 5},
    "rank alone": {"rank": 0},
    "size alone": {"world_size": 2},
    "nobody to ask": {"rank": 0, "world_size": 2},
    "timeout is a number": {"timeout": 5},
}


@pytest.fixture
def bare(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("label", BAD)
def test_bad_combinations_are_upstreams_errors(label, bare):
    given = {"backend": "gloo"} | BAD[label]
    with pytest.raises(Exception, match=r".") as theirs:
        upstream.init_process_group(**given)
    with pytest.raises(theirs.type):
        dist.init_process_group(**given)
    assert not dist.is_initialized()


def test_what_only_we_refuse(bare):
    with pytest.raises(ValueError, match=r"no backend 'pigeon'; there are cuda, gloo, .*threads"):
        dist.init_process_group("pigeon")
    with pytest.raises(ValueError, match="rank 3 is not below"):
        dist.init_process_group(init_method="file:///nowhere/x", rank=3, world_size=2)
    with pytest.raises(Unsupported, match="store"):
        dist.init_process_group(store=upstream.HashStore(), rank=0, world_size=1)


def test_a_file_of_another_program(tmp_path):
    path = tmp_path / "notes"
    path.write_text("buy milk")
    with pytest.raises(LaunchError, match="not empty"):
        environment.from_file(path, 0, 2)
    assert path.read_text() == "buy milk"
    with pytest.raises(LaunchError, match="cannot open"):
        environment.from_file(tmp_path / "no" / "such", 0, 2)


def test_a_file_tells_every_rank_the_same_secret(tmp_path):
    path = tmp_path / "meeting"
    first, second = (environment.from_file(path, rank, 2) for rank in range(2))
    assert (first.job, first.secret) == (second.job, second.secret) and len(first.secret) == 32
    assert (second.rank, second.local_rank, second.size, second.one_host) == (1, 1, 2, True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.unlink()
    assert environment.from_file(path, 0, 2).job != first.job


# ---- ranks that are there already ----------------------------------------------------------------


def join(backend):
    assert dist.is_initialized() and dist.is_available()
    with pytest.raises(ArgumentError, match="already"):
        dist.init_process_group(backend, rank=7, world_size=9)
    dist.init_process_group(backend, rank=dist.get_rank(), timeout=timedelta(seconds=33))
    assert dist.group.WORLD.engine.timeout == 33
    with pytest.raises(ValueError, match="already"):
        dist.init_process_group(backend)
    return dist.get_rank(), dist.get_backend()


@pytest.mark.parametrize("backend", [None, "unisono", "gloo", "nccl", "MPI", "ucc", "threads"])
def test_spawned_ranks(backend):
    assert unisono.spawn(join, 2, backend, engine="threads") == [(0, "threads"), (1, "threads")]


def test_what_is_available(monkeypatch):
    assert dist.is_gloo_available() and dist.is_backend_available("unisono")
    assert dist.is_backend_available("threads") and dist.is_backend_available("cpu:gloo")
    assert not dist.is_backend_available("cpu:gloo,cuda:pigeon")
    for there in (dist.is_nccl_available, dist.is_ucc_available, dist.is_xccl_available):
        assert there() is False
    assert dist.is_mpi_available() is dist.is_backend_available("mpi")
    # As in a torch with nccl, on which engine torch:nccl runs.
    monkeypatch.setattr(upstream, "is_nccl_available", lambda: True)
    assert dist.is_nccl_available() and dist.is_backend_available("cpu:gloo,cuda:nccl")
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert not dist.is_torchelastic_launched()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    assert dist.is_torchelastic_launched()


def test_local_rank(monkeypatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert dist.get_node_local_rank(3) == 3
    with pytest.raises(RuntimeError, match="LOCAL_RANK"):
        dist.get_node_local_rank()
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert dist.get_node_local_rank(3) == 2


def test_the_timeout_reaches_the_engine(bare):
    dist.init_process_group("threads", timeout=timedelta(seconds=7))
    try:
        assert dist.group.WORLD.engine.timeout == 7 and dist.get_world_size() == 1
        with pytest.raises(ValueError, match="initialised already"):
            dist.init_process_group()
    finally:
        dist.destroy_process_group(dist.group.WORLD)
    assert dist.group.WORLD is None
