"""Groups of real torch on the backend "unisono" after a rank was lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.launcher import run
from tests.helpers.thorough import essential

pytest.importorskip("torch")

#: Rank `victim` kills itself in a loop; `SURVIVE` follows on the others.
LOSS = """
import os, signal, sys, warnings
import torch
import torch.distributed as dist
import unisono
dist.init_process_group("unisono")
rank, victim = dist.get_rank(), int(sys.argv[1])
part = dist.new_group([0, 1, 2])
x = torch.ones(4)
def total(value, group=None):
    y = torch.tensor([float(value)])
    dist.all_reduce(y, group=group)
    return y.item()
def lose(group):
    try:
        for step in range(1000):
            if step == 20 and rank == victim:
                os.kill(os.getpid(), signal.SIGKILL)
            dist.all_reduce(x, group=group)
    except unisono.PeerLost as error:
        return error.ranks
assert lose(dist.group.WORLD) == (victim,)
"""


def survivors(folder: Path, text: str, victim: int, *options: str) -> list[str]:
    """What the ranks but the victim print."""
    script = folder / "script.py"
    script.write_text(LOSS + text)
    done = run("-n", "4", *options, str(script), str(victim))
    assert done.returncode == (137 if options else 0), done.stderr
    return sorted(done.stdout.splitlines())


@pytest.mark.parametrize("victim", [1, *essential(0, [0, 3])])
def test_the_world_shrinks(victim: int, tmp_path: Path) -> None:
    """Also without rank 0, which held torch's store."""
    text = """
made = dist.group.WORLD.shrink()
assert made is dist.group.WORLD and dist.get_world_size() == 3
number = dist.get_rank()
assert dist.get_process_group_ranks(made) == [0, 1, 2]
half = dist.new_group([0, 2])
import torch.distributed._functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel
model = DistributedDataParallel(torch.nn.Linear(2, 1))
model(torch.full((1, 2), float(number))).sum().backward()
gradient = next(model.parameters()).grad[0, 0].item()  # the mean of 0, 1 and 2
print(number, total(rank), total(rank, half) if number != 1 else -1, gradient,
      functional.all_reduce(torch.ones(1), "sum", made).item())
try:
    if rank != 3:
        dist.all_reduce(x, group=part)
        print("still there")
except ValueError:  # torch does not know the group any more
    pass
dist.destroy_process_group()
"""
    left = [rank for rank in range(4) if rank != victim]
    half = [float(left[0] + left[2]), -1, float(left[0] + left[2])]
    assert survivors(tmp_path, text, victim) == [
        f"[{rank}] {number} {float(sum(left))} {half[number]} 1.0 3.0"
        for number, rank in enumerate(left)
    ]


@pytest.mark.thorough
def test_a_group_of_some_shrinks(tmp_path: Path) -> None:
    text = """
if rank == 3:
    sys.exit()
made = part.shrink()
assert dist.get_process_group_ranks(made) == [0, 2]
assert dist.get_rank(made) == [0, 2].index(rank)
assert dist.group.WORLD is not made
print(total(rank, made))
"""
    assert survivors(tmp_path, text, 1) == ["[0] 2.0", "[2] 2.0"]


@pytest.mark.thorough
def test_excluded_ranks_do_not_take_part(tmp_path: Path) -> None:
    text = """
if rank == 2:
    sys.exit()
print(dist.group.WORLD.shrink([2]).size(), total(rank))
"""
    assert survivors(tmp_path, text, 1) == ["[0] 2 3.0", "[3] 2 3.0"]


@pytest.mark.thorough
@pytest.mark.parametrize("again", range(4))
def test_survivors_make_a_new_group(again: int, tmp_path: Path) -> None:
    """A rank that has only lost another has not left: it can still tell the others of the group."""
    text = """
import time
time.sleep(0.02 * (rank == 0))  # the one that prepares the group comes last
group = dist.new_group([0, 2, 3], use_local_synchronization=True)
print(total(rank, group))
"""
    found = survivors(tmp_path, text, 1, "--on-failure", "continue")
    assert found == ["[0] 5.0", "[2] 5.0", "[3] 5.0"]


@pytest.mark.thorough
def test_the_function_of_torch_says_what_to_call(tmp_path: Path) -> None:
    text = """
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    try:
        dist.shrink_group([victim])
    except TypeError as error:
        assert "does not support shrinking" in str(error)
        print(*(one.message for one in seen if "shrink" in str(one.message)))
dist.group.WORLD.shrink()
"""
    said = (
        "torch.distributed.shrink_group works with backends that are written in C++ only; "
        "call group.shrink() instead, as in torch.distributed.group.WORLD.shrink()"
    )
    assert survivors(tmp_path, text, 1) == [f"[{rank}] {said}" for rank in (0, 2, 3)]


CAUSE = """
import os, signal
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from unisono.errors import PeerLost, cause
dist.init_process_group("unisono")
rank, step = dist.get_rank(), 0
model = DistributedDataParallel(torch.nn.Linear(2, 1))
while step < 20:
    try:
        if step == 5 and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        model.zero_grad()
        model(torch.full((1, 2), float(rank))).sum().backward()
        step += 1
    except RuntimeError as error:
        lost = cause(error)
        assert isinstance(lost, PeerLost) and type(error) is RuntimeError, repr(error)
        print(lost.ranks, "all_reduce" in lost.__notes__[0])
        dist.group.WORLD.shrink()
        model = DistributedDataParallel(model.module)
print(dist.get_world_size(), model.module.weight.grad[0, 0].item())
dist.destroy_process_group()
"""


@pytest.mark.thorough
def test_an_error_of_ddp_has_a_cause(tmp_path: Path) -> None:
    """DDP waits in C++, which makes a RuntimeError of PeerLost; training goes on without rank 1."""
    script = tmp_path / "script.py"
    script.write_text(CAUSE)
    done = run("-n", "3", str(script))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"[{rank}] {line}" for rank in (0, 2) for line in ("(1,) True", "2 1.0")
    ]
