"""Our calls in torch's own tools: torch.profiler and CommDebugMode, compared with Gloo."""

from __future__ import annotations

import gc

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

import unisono.torch.distributed as face
from tests.helpers.backend_cases import join, same
from tests.helpers.processes import wait_until

RANKS = 2


def profiled(**options):
    return profile(activities=[ProfilerActivity.CPU], **options)


def spans(profiler, prefix):
    """The names of the events with a prefix, without it, and their events."""
    found = [each for each in profiler.events() if each.name.startswith(prefix)]
    return [each.name.removeprefix(prefix) for each in found], found


def make_calls(group):
    """One blocking call of each kind, and one that goes on."""
    one, two = torch.ones(2), torch.ones(2 * RANKS)
    dist.all_reduce(one, group=group)
    dist.broadcast(one, 0, group=group)
    dist.reduce(one, 0, group=group)
    dist.all_gather([torch.empty(2) for _ in range(RANKS)], one, group=group)
    dist.gather(one, [torch.empty(2) for _ in range(RANKS)] if dist.get_rank() == 0 else None,
                group=group)  # fmt: skip
    dist.scatter(one, [torch.ones(2)] * RANKS if dist.get_rank() == 0 else None, group=group)
    dist.reduce_scatter(one, [torch.ones(2)] * RANKS, group=group)
    dist.all_gather_into_tensor(two, one, group=group)
    dist.reduce_scatter_tensor(one, two, group=group)
    dist.all_to_all_single(torch.empty(2 * RANKS), two, group=group)
    dist.barrier(group)
    dist.all_reduce(one, group=group, async_op=True).wait()


# ---- torch.profiler ------------------------------------------------------------------------------


def compare_names(rank, folder):
    names = []
    for group, prefix in ((join.gloo, "gloo:"), (dist.group.WORLD, "unisono:")):
        with profiled() as profiler:
            make_calls(group)
        names.append([name for name in spans(profiler, prefix)[0] if not name.endswith(".start")])
    # Gloo makes all_gather_into_tensor of parts, and its events come in any order.
    assert set(names[1]) >= set(names[0]) - {"all_to_all"}, names
    expected = "all_reduce broadcast reduce all_gather gather scatter reduce_scatter all_gather"
    expected += " reduce_scatter all_to_all barrier all_reduce"
    assert names[1] == expected.split()


@pytest.mark.thorough
def test_the_profiler_shows_what_it_shows_of_gloo(run):
    run(compare_names)


def look_at_details(rank, folder):
    path = folder / f"{rank}.json"
    with profiled(record_shapes=True) as profiler:
        dist.all_reduce(torch.ones(3, 4))
        dist.all_reduce(torch.ones(5), async_op=True).wait()
    profiler.export_chrome_trace(str(path))
    text = path.read_text()
    for part in ('"bytes": 48', '"bytes": 20', '"group": "world"', f'"rank": {rank}'):
        assert part in text, part
    _, (blocking, goes_on, start) = spans(profiler, "unisono:")
    assert [blocking.input_shapes, start.input_shapes] == [[[3, 4]], [[5]]]
    # A short call may end before the span of its start does.
    assert goes_on.time_range.start <= start.time_range.start <= goes_on.time_range.end


@pytest.mark.thorough
def test_a_span_has_bytes_group_rank_and_shapes(run):
    run(look_at_details)


def train(rank, folder):
    model = DistributedDataParallel(torch.nn.Linear(3, 2), broadcast_buffers=False)
    model(torch.ones(1, 3)).sum().backward()
    with profiled() as profiler:
        model(torch.ones(1, 3)).sum().backward()
        functional.wait_tensor(functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD))
    names, _ = spans(profiler, "unisono:")
    assert names.count("all_reduce") == names.count("all_reduce.start") >= 2, names


@pytest.mark.thorough
def test_the_calls_of_ddp_and_functional_collectives_are_shown(run):
    run(train)


def use_face(rank, folder):
    tensor = torch.full((3,), float(rank + 1))
    with profiled() as profiler:
        face.all_reduce(tensor)
        face.barrier()
    same(tensor, torch.full((3,), 3.0))
    assert spans(profiler, "unisono:")[0] == ["all_reduce", "barrier"]


def test_the_calls_of_the_face_are_shown(run):
    run(use_face)


def end_late(rank, folder):
    """The first call ends while its profiler is on, the others after it has stopped."""
    works = []
    for turn in range(3):
        with profiled() as profiler:
            if rank == 0:
                works += [dist.all_reduce(torch.ones(1), async_op=True) for _ in range(5)]
            else:
                wait_until((folder / f"{turn}").exists)
        if rank == 0:
            (folder / f"{turn}").touch()
            assert spans(profiler, "unisono:")[0].count("all_reduce") == 5
        del profiler
        gc.collect()
    if rank == 1:
        works = [dist.all_reduce(torch.ones(1), async_op=True) for _ in range(15)]
    tensors = [work.result()[0].item() for work in works]
    assert tensors == [2.0] * 15


def test_calls_may_outlive_the_profiler(run):
    """torch would write into freed memory."""
    run(end_late)


def fail(rank, folder):
    with profiled() as profiler:
        with pytest.raises(ValueError, match="root"):
            dist.group.WORLD.broadcast(torch.ones(1), 7)
        dist.all_reduce(torch.ones(1))
    assert spans(profiler, "unisono:")[0] == ["all_reduce"]
    dist.all_reduce(torch.ones(1))  # native again
    assert spans(profiler, "unisono:")[0] == ["all_reduce"]


def test_a_call_that_is_refused_leaves_no_open_span(run):
    run(fail)


# ---- CommDebugMode -------------------------------------------------------------------------------


def count(rank, folder):
    counts = []
    for group in (join.gloo, dist.group.WORLD):
        model = DistributedDataParallel(torch.nn.Linear(3, 2), process_group=group)
        with CommDebugMode() as mode:
            make_calls(group)
            model(torch.ones(1, 3)).sum().backward()
            functional.wait_tensor(functional.all_reduce(torch.ones(2), "sum", group))
            group.allreduce(torch.ones(2)).wait()  # another form is one call too
            dist.all_to_all_single(torch.empty(RANKS), torch.ones(RANKS), group=group)
        counts.append({str(key): value for key, value in mode.get_comm_counts().items()})
    assert counts[0] == counts[1]
    assert counts[1]["c10d.allreduce_"] == 4
    assert "c10d.allreduce_" in mode.generate_comm_debug_tracing_table(noise_level=2)


def test_comm_debug_mode_counts_what_it_counts_of_gloo(run):
    run(count)
