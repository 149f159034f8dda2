"""The name "unisono" in torch's tables: alone, as the default of CPU tensors, and beside others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.helpers.launcher import run as run_by_unisono
from tests.helpers.thorough import essential_rows

DEADLINE = 120


def python(code: str, **variables: str) -> str:
    """What one process prints, a world of its own."""
    done = subprocess.run(
        [sys.executable, "-c", f"import torch.distributed as dist\n{code}"],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


BARE = """
dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
print(type(dist.group.WORLD).__name__, dist.get_backend_config())
"""


@pytest.mark.parametrize(
    ("value", "found"), essential_rows(1, [("1", "UnisonoGroup"), ("0", "ProcessGroup")])
)
def test_a_variable_makes_it_the_default(value: str, found: str) -> None:
    name, config = python(BARE, UNISONO_TORCH_DEFAULT=value).split()
    assert name == found
    assert config == f"cpu:{'unisono' if value == '1' else 'gloo'}"


@pytest.mark.thorough
def test_a_call_makes_it_the_default() -> None:
    code = "from unisono.torch.backend import use_by_default\nuse_by_default()"
    assert python(code + BARE, UNISONO_TORCH_DEFAULT="") == "UnisonoGroup cpu:unisono\n"


@pytest.mark.thorough
def test_meshes_have_the_default(tmp_path: Path) -> None:
    script = tmp_path / "mesh.py"
    script.write_text("""
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("rows", "columns"))
groups = [dist.group.WORLD, mesh.get_group("rows"), mesh.get_group("columns")]
tensor = torch.ones(1)
dist.all_reduce(tensor, group=groups[1])
print(tensor.item(), {type(group).__name__ for group in groups})
""")
    environ = {**os.environ, "UNISONO_TORCH_DEFAULT": "1"}
    done = run_by_unisono("-n", "2", str(script), env=environ, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr
    said = "2.0 {'UnisonoGroup'}"
    assert sorted(done.stdout.splitlines()) == [f"[0] {said}", f"[1] {said}"]


@pytest.mark.thorough
def test_one_device_of_a_group_beside_another_backend() -> None:
    """torch would make all of the group ours, and say nothing."""
    code = """
import unisono
for backend in ("cpu:gloo,cuda:unisono", "cuda:unisono,cpu:gloo", "cpu:unisono,cuda:gloo"):
    try:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    except unisono.ArgumentError as error:
        print(error)
for backend in ("cpu:unisono,cuda:nccl", "cpu:unisono", "unisono"):
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    dist.destroy_process_group()
"""
    lines = python(code).splitlines()
    assert len(lines) == 3
    for line in lines:
        assert line.startswith('torch cannot combine backend "unisono" with others in one group')
        assert 'new_group(backend="gloo")' in line
