"""Programs of torch that ask for gloo and stay as they are: patched by an option or by a call."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.launcher import UNISONO
from tests.helpers.launcher import run as run_by_unisono
from tests.helpers.paths import with_tests

torch = pytest.importorskip("torch")

DEADLINE = 120
PATCH = ("--patch", "torch")
PATCHED = f"unisono: patched torch {torch.__version__}: its gloo groups are unisono's (engine shm)"

#: Nothing of unisono in it. It prints whose groups it has, and what torch tells about them.
ASKS_FOR_GLOO = """
import os, sys
import torch
import torch.distributed as dist
from datetime import timedelta
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

def check(group=None):
    group = dist.group.WORLD if group is None else group
    assert group.size() == 2
    tensor = torch.tensor([1.0, group.rank()])
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [2, 1]
    tell(group)

def tell(group):
    asked = dist.get_backend(group)
    # torch's groups for "cpu:gloo" have no name where a third party has registered a backend.
    names = "" if ":" in asked else f"{group.name()} {group._get_backend_name()}"
    print(asked, dist.get_backend_config(group), names, type(group).__module__)

rank = int(os.environ["RANK"])
for number, backend in enumerate(("gloo", "GLOO", "cpu:gloo", None)):
    # A store for each: gloo cannot start in one store twice.
    place = f"file://{sys.argv[1]}/{number}"
    dist.init_process_group(backend, init_method=place, rank=rank, world_size=2)
    check()
    check(dist.new_group([0, 1], timeout=timedelta(seconds=60)))
    if backend != "gloo":
        dist.destroy_process_group()
        continue
    dist.monitored_barrier(timeout=timedelta(seconds=60))
    check(dist.new_group(backend="cpu:gloo"))
    both, alone = dist.new_subgroups_by_enumeration([[0], [1]])[0], dist.new_group([0])
    assert both.size() == 1 and (alone == dist.GroupMember.NON_GROUP_MEMBER) == (rank == 1)
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("rows", "columns"))
    check(mesh.get_group("rows"))
    tell(mesh.get_group("columns"))
    torch.distributed.distributed_c10d._set_pg_timeout(timedelta(seconds=50))
    try:
        dist.split_group(split_ranks=[[0, 1]])
    except RuntimeError as error:
        print(error)
    model = DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
    model(torch.full((1, 2), float(rank))).sum().backward()
    assert model.module.weight.grad.tolist() == [[0.5, 0.5]]
    dist.destroy_process_group()
print(dist.is_gloo_available(), dist.is_backend_available("gloo"))
"""


def write(folder: Path, text: str) -> str:
    path = folder / "script.py"
    path.write_text(text)
    return str(path)


def output_of(*arguments: str, **options) -> str:
    done = run_by_unisono(*arguments, timeout=DEADLINE, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run one process, a world of its own."""
    environ = {**os.environ, "PYTHONPATH": with_tests(), **variables}
    return subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=DEADLINE
    )


def test_an_unchanged_program(tmp_path: Path) -> None:
    script = write(
        tmp_path,
        """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
tensor = torch.ones(2)
dist.all_reduce(tensor)
dist.monitored_barrier()
print(dist.get_backend(), tensor.tolist(), type(dist.group.WORLD).__name__)
""",
    )
    done = run_by_unisono("-n", "2", *PATCH, script, timeout=DEADLINE)
    assert done.returncode == 0, done.stdout + done.stderr
    said = "gloo [2.0, 2.0] UnisonoGroup"
    assert sorted(done.stdout.splitlines()) == [f"[0] {said}", f"[1] {said}"]
    assert done.stderr.splitlines() == [PATCHED]


@pytest.mark.thorough
def test_torch_tells_the_same_as_of_gloo(tmp_path: Path) -> None:
    script = write(tmp_path, ASKS_FOR_GLOO)
    outputs = []
    for name, options in (("ours", PATCH), ("theirs", ())):
        (tmp_path / name).mkdir()
        outputs.append(output_of("-n", "2", *options, script, str(tmp_path / name)))
    ours, theirs = outputs
    of_groups = [line for line in ours.splitlines() if ":gloo" in line]
    assert len(of_groups) == 2 * 11
    assert {line.split()[-1] for line in of_groups} == {"unisono.torch.backend.process_group"}
    assert "torch.distributed.distributed_c10d" in theirs and "unisono" not in theirs
    said = ours.replace("unisono.torch.backend.process_group", "torch.distributed.distributed_c10d")
    assert sorted(said.splitlines()) == sorted(theirs.splitlines())


ALONE = """
store = dist.HashStore()
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
assert type(dist.group.WORLD).__module__.startswith("unisono.")
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    "code",
    [
        'import unisono\nunisono.patch("torch")\nimport torch.distributed as dist\n',
        "import torch.distributed as dist\n"
        "from torch.distributed.distributed_c10d import _new_process_group_helper as make\n"
        'import unisono\nunisono.patch("torch")\nunisono.patch("torch")\n'
        # Libraries that have a copy of `init_process_group` call it by this name.
        "from datetime import timedelta\n"
        'make(1, 0, [], "gloo", dist.HashStore(), "other", timeout=timedelta(seconds=60))\n'
        "(other,) = dist.distributed_c10d._world.pg_map\n"
        'assert type(other).__module__.startswith("unisono.") and other.name() == "gloo"\n',
    ],
    ids=["before", "after"],
)
def test_a_call_before_or_after_the_import(code: str) -> None:
    done = python(code + ALONE)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == [PATCHED]


@pytest.mark.thorough
def test_without_entry_points() -> None:
    code = 'import torch, unisono\nunisono.patch("torch")\nimport torch.distributed as dist'
    done = python(code + ALONE, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert done.returncode == 0, done.stderr


@pytest.mark.thorough
def test_timeouts_and_groups_that_are_made_of_others() -> None:
    code = """
from datetime import timedelta
world = dist.group.WORLD
dist.distributed_c10d._set_pg_timeout(timedelta(seconds=50))
assert world._core.engine.timeout == 50
assert world.split_group([0]).name() == "gloo"
shrunk = world.shrink()
assert shrunk is dist.group.WORLD and shrunk is not world
assert shrunk.name() == dist.get_backend() == "gloo"
"""
    code = 'import unisono\nunisono.patch("torch")\nimport torch.distributed as dist' + ALONE + code
    done = python(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.thorough
def test_other_backends_are_left_alone() -> None:
    code = """
import unisono
unisono.patch("torch")
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

def of(backend, store):
    try:
        dist.init_process_group(backend, store=store, rank=0, world_size=1)
    except (AssertionError, RuntimeError) as error:
        return type(error).__name__, str(error).partition(".")[0].partition("\\n")[0]
    found = type(dist.group.WORLD).__module__, dist.get_backend()
    dist.destroy_process_group()
    return found

assert of("fake", FakeStore()) == ("torch.distributed.distributed_c10d", "fake")
assert of("unisono", dist.HashStore()) == ("unisono.torch.backend.process_group", "unisono")
mpi = of("mpi", dist.HashStore())
assert mpi == ("RuntimeError", "Distributed package doesn't have MPI built in"), mpi
if not dist.is_nccl_available():
    for backend in ("nccl", "cpu:gloo,cuda:nccl"):
        nccl = of(backend, dist.HashStore())
        assert nccl == ("RuntimeError", "Distributed package doesn't have NCCL built in"), nccl
"""
    done = python(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.thorough
def test_another_launcher_and_processes_that_a_program_starts(tmp_path: Path) -> None:
    script = write(
        tmp_path,
        """
import os, torch.multiprocessing
import torch.distributed as dist

def child(rank, path):
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    dist.barrier()
    os.write(1, f"{type(dist.group.WORLD).__module__}\\n".encode())

if __name__ == "__main__":
    dist.init_process_group()
    dist.barrier()
    os.write(1, f"{type(dist.group.WORLD).__module__}\\n".encode())
    if dist.get_rank() == 0:
        torch.multiprocessing.spawn(child, (os.path.abspath("store"),), nprocs=2)
    dist.destroy_process_group()
""",
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    done = subprocess.run(
        [*UNISONO, "patch", "torch", *torchrun, script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["unisono.torch.backend.process_group"] * 4
    first_line, *_ = done.stderr.splitlines()
    assert first_line == PATCHED.removesuffix(" (engine shm)")


@pytest.mark.thorough
def test_over_the_engine_that_is_gloo_itself(tmp_path: Path) -> None:
    """The engine makes its own groups, below the names that are replaced."""
    script = write(
        tmp_path,
        """
import torch, torch.distributed as dist
import unisono.torch.distributed as ours
from unisono.core import groups
dist.init_process_group("gloo")
assert type(dist.group.WORLD).__module__.startswith("unisono.")
ours.init_process_group("torch:gloo")
one, two = torch.ones(1), torch.ones(1)
dist.all_reduce(one)
ours.all_reduce(two)
assert groups.world().engine._group is not dist.group.WORLD
print(dist.group.WORLD._core.engine.name, one.item(), two.item())
ours.destroy_process_group()
dist.destroy_process_group()
""",
    )
    lines = output_of("-n", "2", "--engine", "torch:gloo", *PATCH, script).splitlines()
    assert sorted(lines) == [f"[{rank}] torch:gloo 2.0 2.0" for rank in range(2)]


@pytest.mark.thorough
def test_a_rank_that_is_lost(tmp_path: Path) -> None:
    script = write(
        tmp_path,
        """
import os, signal, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(torch.ones(1))
""",
    )
    done = run_by_unisono("-n", "2", *PATCH, script, timeout=DEADLINE)
    assert done.returncode == 128 + 9
    first, *_, last = done.stderr.splitlines()
    assert first == PATCHED
    assert "PeerLost" in done.stderr
    assert last.startswith("unisono: rank 1 of 2 ")
