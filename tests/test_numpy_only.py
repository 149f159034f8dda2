"""Both faces where nothing but NumPy is installed: no framework, no MPI, nothing optional."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# A fresh environment would need a package registry. To refuse every import that fails there has
# the same effect. It is at the top of the script, because ranks that are processes run it too.
REFUSE_IMPORTS = """
import importlib.abc, sys

ALLOWED = {"numpy", "ml_dtypes", "unisono", *sys.stdlib_module_names}


class RefuseImports(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        base = name.partition(".")[0]
        # Parts of the standard library that have the platform in their names.
        if base not in ALLOWED and not base.startswith("_sysconfigdata"):
            raise ModuleNotFoundError(f"No module named {name!r} (refused)", name=name)


sys.meta_path.insert(0, RefuseImports())
for name in [name for name in sys.modules if name.partition(".")[0] in
             ("torch", "mindspore", "jax", "cupy", "mpi4py")]:
    raise SystemExit(f"{name} was imported before the test began")
"""

FACES = """
import numpy as np


def use_both_faces():
    import unisono.torch.distributed as dist
    from unisono.mindspore import communication
    from unisono.mindspore.communication import comm_func

    rank, size = dist.get_rank(), dist.get_world_size()
    found = [communication.get_rank() == rank, communication.get_group_size() == size]

    def x():
        return np.arange(size, dtype=np.float32) + 10 * rank

    every = [np.arange(size) + 10 * other for other in range(size)]
    total = np.sum(every, axis=0)

    y = x()
    found.append(dist.all_reduce(y) is None and y.tolist() == total.tolist())
    y, handle = comm_func.all_reduce(x())
    found.append(handle is None and type(y) is np.ndarray and y.tolist() == total.tolist())

    y = x()
    dist.reduce(y, 0)
    found.append(y.tolist() == (total if rank == 0 else every[rank]).tolist())
    y = comm_func.reduce(x(), 0)
    found.append(y.tolist() == (total if rank == 0 else 0 * total).tolist())

    parts = [np.empty(size, np.float32) for _ in range(size)]
    work = dist.all_gather(parts, x(), async_op=True)
    work.wait()
    found.append(np.array_equal(parts, every))
    y, handle = comm_func.all_gather_into_tensor(x(), async_op=True)
    handle.wait()
    found.append(np.array_equal(y, np.concatenate(every)))

    y = np.empty(1, np.float32)
    dist.reduce_scatter(y, np.split(x(), size))
    found.append(y.tolist() == [total[rank]])
    found.append(comm_func.reduce_scatter_tensor(x())[0].tolist() == [total[rank]])

    parts = [np.empty(1, np.float32) for _ in range(size)]
    dist.all_to_all(parts, np.split(x(), size))
    column = [[other[rank]] for other in every]
    found.append(np.array_equal(parts, column))
    parts, _ = comm_func.all_to_all_with_output_shape([(1,)] * size, np.split(x(), size))
    found.append(np.array_equal(parts, column))

    y = x()
    dist.broadcast(y, 1)
    found.append(y.tolist() == every[1].tolist())
    dist.barrier()
    comm_func.barrier()
    heavy = {"torch", "mindspore", "jax", "cupy", "mpi4py"} & set(sys.modules)
    return found, sorted(heavy)
"""

SPAWNED = """
if __name__ == "__main__":
    import unisono
    for found, heavy in unisono.spawn(use_both_faces, 2, engine=sys.argv[1], timeout=30):
        print(len(found), all(found), heavy)
"""

LAUNCHED = """
import unisono.torch.distributed as dist
dist.init_process_group()
found, heavy = use_both_faces()
print(len(found), all(found), heavy)
dist.destroy_process_group()
"""

RIGHT = "13 True []"


def run(*arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The path of the script."""
    return tmp_path / "numpy_only.py"


@pytest.mark.parametrize("engine_name", ["threads", "shm"])
def test_both_faces_with_numpy_alone(script: Path, engine_name: str) -> None:
    script.write_text(REFUSE_IMPORTS + FACES + SPAWNED)
    assert run(str(script), engine_name) == [RIGHT, RIGHT]


def test_both_faces_with_numpy_alone_when_launched(script: Path) -> None:
    script.write_text(REFUSE_IMPORTS + FACES + LAUNCHED)
    lines = run("-m", "unisono", "run", "-n", "2", str(script))
    assert sorted(lines) == [f"[0] {RIGHT}", f"[1] {RIGHT}"]


@pytest.mark.parametrize("name", ["torch", "mindspore", "jax", "cupy", "mpi4py", "pytest"])
def test_imports_are_refused(script: Path, name: str) -> None:
    body = f"\ntry:\n    import {name}\nexcept ModuleNotFoundError as error:\n    print(error)\n"
    script.write_text(REFUSE_IMPORTS + body)
    assert run(str(script)) == [f"No module named {name!r} (refused)"]
