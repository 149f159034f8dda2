"""What torch's tools may ask a group, its backend and its works: ours answer where Gloo's do."""

from __future__ import annotations

import functools
import inspect
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.helpers import backend_cases as cases
from tests.helpers.backend_cases import join, same_each
from tests.helpers.launcher import run as launch
from unisono.errors import Unsupported

RANKS = 2
CPU = torch.device("cpu")
#: What Gloo has for its own settings.
OF_GLOO = {"Device", "Options", "_Options", "create_default_device", "create_device"}
#: Gloo's answers for a group and for its backend, with what they are called with.
QUESTIONS = {
    "allocate_tensor": lambda group: group.allocate_tensor(2, dtype=torch.int8, device=CPU),
    "supports_tensor_alloc": lambda group: group.supports_tensor_alloc(CPU),
    "eager_connect_single_device": lambda group: group.eager_connect_single_device(CPU),
    "_register_on_completion_hook": lambda group: group._register_on_completion_hook(print),
    "setUsePgForSymmMemRendezvous": lambda group: group.setUsePgForSymmMemRendezvous(False),
    "_set_default_timeout": lambda group: group._set_default_timeout(cases.TIMEOUT),
    **{
        name: lambda group, name=name: getattr(group, name)()
        for name in ("memory_stats", "suspend", "resume", "_wait_for_pending_works", "_has_hooks")
    },
}


def answer(question, group):
    """What a question gives: a value, or the kind of refusal."""
    try:
        given = question(group)
    except (RuntimeError, TypeError) as error:
        return RuntimeError if isinstance(error, RuntimeError) else type(error)
    return given if isinstance(given, (bool, int, str, type(None))) else type(given).__mro__[1]


def ask(rank, folder):
    ours = dist.group.WORLD
    backend = join.gloo._get_backend(CPU)
    asked = 0
    for theirs in (join.gloo, backend):
        for name in dir(theirs):
            if name.startswith("__") or name in OF_GLOO:
                continue
            kind = type(theirs)
            assert name in dir(ours), name
            if name in QUESTIONS:
                question = QUESTIONS[name]
            elif not inspect.isroutine(getattr(kind, name)):
                question = functools.partial(lambda name, group: getattr(group, name), name)
            else:
                continue  # calls, which have tests of their own
            asked += 1
            if name not in ("group_name", "group_desc", "_device_types", "options"):
                assert answer(question, ours) == answer(question, theirs), name
    assert asked > 20
    assert ours.options.backend == "unisono"
    assert ours.options.global_ranks_in_group == [0, 1]
    assert ours.options._timeout == cases.TIMEOUT
    with pytest.raises(Unsupported, match="new_group"):
        ours.merge_remote_group(dist.HashStore(), 4)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:torch.distributed.shrink_group")
def test_a_group_answers_what_gloo_answers(run):
    run(ask)


def finish(rank, folder):
    group, tensor = dist.group.WORLD, torch.ones(3)
    blocking = dist.AllreduceOptions()
    blocking.asyncOp = False
    with_timeout = dist.AllreduceOptions()
    with_timeout.timeout = timedelta(seconds=20)
    for options, result in ((blocking, []), (None, [tensor]), (with_timeout, [tensor])):
        work = group.allreduce([tensor], options)
        assert work.wait() and work.is_completed() and work.is_success()
        assert work.exception() is None
        future = work.get_future()
        assert future.done()
        same_each(future.value(), result)
        same_each(work.result(), result)
        assert future.then(lambda done: len(done.value())).wait() == len(result)
        with pytest.raises(RuntimeError, match="recv"):
            work.source_rank()
    with_peer = group.send([tensor], 1, 0) if rank == 0 else group.recv([tensor], 0, 0)
    with_peer.wait()
    assert with_peer.get_future().wait()
    if rank == 1:
        assert with_peer.source_rank() == 0


def test_a_finished_work_has_a_future(run):
    run(finish)


DIST2 = """
import torch
from datetime import timedelta
from torch.distributed import ReduceOp, _dist2
groups = [_dist2.new_group("unisono", timedelta(seconds=60), "cpu") for _ in range(2)]
for number, group in enumerate(groups):
    tensor = torch.tensor([group.rank() + 1.0 + number])
    group.allreduce(tensor, ReduceOp.SUM, timedelta(seconds=60)).wait()
    assert tensor.item() == 3.0 + 2 * number, tensor
with _dist2.process_group(groups[0]):
    assert _dist2.current_process_group() is groups[0]
try:
    _dist2.new_group("unisono", timedelta(seconds=60), "cpu", color=3)
except TypeError as error:
    print(error)
for group in groups:
    group.shutdown()
"""


@pytest.mark.thorough
def test_dist2_makes_groups(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(DIST2)
    done = launch("-n", "2", str(script))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"[{rank}] backend unisono takes no further arguments, got ['color']" for rank in range(2)
    ]
