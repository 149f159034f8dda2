"""Handles that nobody keeps: calls go on, keep their tensors, and let go of them at their end."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers import launcher, worlds
from tests.helpers.processes import wait_until
from tests.helpers.ways import general_way
from unisono.core.groups import Group
from unisono.mindspore.communication import comm_func
from unisono.torch import distributed as dist

without_torch = pytest.mark.skipif(find_spec("torch") is None, reason="there is no torch")

#: Calls in the background of which nobody keeps the handle.
DROPPED: dict[str, Callable[[Any], Any]] = {
    "in place": lambda x: dist.all_reduce(x, async_op=True),
    "new": lambda x: comm_func.all_reduce(x, async_op=True)[1],
    "list": lambda x: dist.all_gather([np.empty(1000) for _ in range(2)], x, async_op=True),
}


def keeps_memory(world: Group) -> None:
    """A call that nobody waits for keeps its tensor, and its end lets go of it."""
    for name, call in DROPPED.items():
        for way in (nullcontext, general_way):
            x = np.ones(1000)
            alive = weakref.ref(x)
            if world.rank == 1:
                dist.recv(np.empty(1), 0)  # rank 0 has seen that its call goes on
            with way():
                call(x)
            del x
            if world.rank == 0:
                gc.collect()
                assert alive() is not None, name
                dist.send(np.empty(1), 1)
            dist.barrier()
            wait_until(lambda alive=alive: alive() is None)


def test_memory_stays_until_the_call_has_ended(all_worlds: worlds.Worlds) -> None:
    all_worlds.run("shm", 2, keeps_memory)


def drops_thousands(world: Group) -> float:
    """The ends of many calls visit Python, where a thread keeps the interpreter busy."""
    x, idle = np.ones(8), threading.Event()

    def work() -> None:
        while not idle.is_set():
            sum(range(1000))

    busy = threading.Thread(target=work)
    busy.start()
    for _ in range(2000):
        dist.all_reduce(np.ones(8), async_op=True)
    dist.all_reduce(x)
    idle.set()
    busy.join()
    return float(x[0])


def test_many_calls_may_be_dropped(all_worlds: worlds.Worlds) -> None:
    assert all_worlds.run("shm", 2, drops_thousands) == [2.0, 2.0]


LEAVES = """
import numpy as np
import unisono.torch.distributed as dist

dist.init_process_group()
for _ in range(200):
    dist.all_reduce(np.ones(8), async_op=True)
if dist.get_rank() == 0:
    dist.all_reduce(np.ones(8), async_op=True)  # which has no answer
"""


def test_the_interpreter_ends_while_calls_are_under_way(tmp_path: Path) -> None:
    """Their ends find no Python any more."""
    (tmp_path / "leaves.py").write_text(LEAVES)
    done = launcher.run("-n", "2", "leaves.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def lets_go_of_cycles(world: Group) -> None:
    """A tensor that has its own handle as an attribute is collected, whichever way it went."""
    import torch

    alive = []
    for way in (nullcontext, general_way):
        for _ in range(2):
            x = torch.ones(1000)
            with way():
                x.work = dist.all_reduce(x, async_op=True)  # type: ignore[attr-defined]
            x.work.wait()  # type: ignore[attr-defined]
            alive.append(weakref.ref(x))
            del x
    gc.collect()
    assert [each() for each in alive] == [None] * 4


@without_torch
def test_a_tensor_may_have_its_handle(all_worlds: worlds.Worlds) -> None:
    all_worlds.run("shm", 2, lets_go_of_cycles)
