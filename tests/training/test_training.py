"""Real trainings on torch's backend "unisono": Gloo's numbers, and the same bits in every run.

A small transformer learns a rule under DDP, FSDP, tensor and pipeline parallelism; its states are
saved, loaded and resharded. The cases are in training_cases.py.
"""

from __future__ import annotations

import copy

from tests.helpers import training_cases as cases  # first: it silences torch

# isort: split

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed import pipelining
from torch.distributed.algorithms.join import Join
from torch.distributed.checkpoint import state_dict as states
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Shard, distribute_tensor, init_device_mesh

from tests.helpers.thorough import essential
from tests.helpers.training_cases import (
    STEPS,
    adam,
    digest,
    loss_of,
    run,
    seeded,
    sentences,
    wrapped,
)

BACKENDS = ("gloo", "unisono")


# ---- optimizers and stages -----------------------------------------------------------------------


def zero(options):
    """Each rank keeps the optimizer's state of its share of the parameters, and broadcasts them."""
    model = wrapped(seeded())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01, **options)
    losses = run(model, optimizer)
    held = len(optimizer.optim.state)
    assert 0 < held < len(list(model.parameters())), held
    optimizer.consolidate_state_dict(to=0)
    if dist.get_rank() == 0:
        state = optimizer.state_dict()["state"]
        assert len(state) == len(list(model.parameters()))
    return losses, digest(model)


def zero_joining():
    model = wrapped(seeded())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    with Join([model, optimizer]):
        losses = run(model, optimizer, STEPS - 5 * (dist.get_rank() == 0))
    return losses, digest(model)


class FirstHalf(nn.Module):
    """From words to what the second block takes."""

    def __init__(self, model):
        super().__init__()
        self.embedding, self.places, self.block = model.embedding, model.places, model.blocks[0]

    def forward(self, words):
        return self.block(self.embedding(words) + self.places)


def pipeline(kind):
    """Each of two ranks holds half of the model, and batches flow through in three parts."""
    model, rank = seeded(), dist.get_rank()
    part = FirstHalf(model) if rank == 0 else nn.Sequential(model.blocks[1], model.head)
    stage = pipelining.PipelineStage(part, rank, 2, torch.device("cpu"))
    schedule = getattr(pipelining, kind)(stage, n_microbatches=3, loss_fn=loss_of)
    optimizer = adam(part)
    numbers = []  # losses in the last stage; in the first, the length of a gradient
    for step in range(STEPS):
        words, target = sentences(step, rank=0)
        optimizer.zero_grad()
        losses = []
        if rank == 0:
            schedule.step(words)
            numbers.append(part.places.grad.norm().item())
        else:
            schedule.step(target=target, losses=losses)
            numbers.append(sum(loss.item() for loss in losses) / 3)
        optimizer.step()
    return numbers, digest(part)


# ---- the numbers of Gloo -------------------------------------------------------------------------

#: Trainings whose ranks end with the same model.
COPIES = {
    "ddp": (cases.ddp, {}),
    "ddp, buckets are views": (cases.ddp, {"gradient_as_bucket_view": True}),
    "ddp, static graph": (cases.ddp, {"static_graph": True}),
    "ddp, all of it": (cases.ddp, {"static_graph": True, "gradient_as_bucket_view": True}),
    "ddp, accumulating": (cases.ddp_accumulating,),
    "ddp, unused parameters": (cases.ddp_unused,),
    "ddp, buffers": (cases.ddp_buffers,),
    "ddp, sparse gradients": (cases.ddp_sparse,),
    "ddp, joining": (cases.ddp_joining,),
    "zero": (zero, {}),
    "zero, parameters are views": (zero, {"parameters_as_bucket_view": True}),
    "zero, joining": (zero_joining,),
}

#: Trainings whose ranks hold parts of one model.
PARTS = {
    "fsdp2": (cases.fsdp2,),
    "fsdp2, clipped": (cases.fsdp2_clipped,),
    "fsdp1": (cases.fsdp1,),
    "tensor parallel": (cases.tensor_parallel,),
    "gpipe": (pipeline, "ScheduleGPipe"),
    "1f1b": (pipeline, "Schedule1F1B"),
}


@pytest.mark.parametrize("name", essential(2, COPIES))
def test_copies(on, name):
    theirs, ours, again = (on(backend, 2, *COPIES[name]) for backend in (*BACKENDS, "unisono"))
    cases.assert_alike(ours, theirs)
    assert ours == again, "two runs differ"
    assert ours[0][1] == ours[1][1], "ranks hold different parameters"
    assert ours[0][0] != ours[1][0], "ranks have the same data"
    assert ours[0][0][-1] < 0.5 * ours[0][0][0], "it does not learn"


@pytest.mark.thorough
@pytest.mark.parametrize("name", PARTS)
def test_parts(on, name):
    theirs, ours = (on(backend, 2, *PARTS[name]) for backend in BACKENDS)
    cases.assert_alike(ours, theirs)
    assert ours[1][0][-1] < 0.7 * ours[1][0][0], "it does not learn"


@pytest.mark.thorough
@pytest.mark.parametrize("case", [cases.two_dimensions, cases.hybrid_shards])
def test_two_dimensions(on, case):
    theirs, ours = (on(backend, 4, case) for backend in BACKENDS)
    cases.assert_alike(ours, theirs)
    assert len({bits for _, bits in ours}) == 1, "ranks have collected different parameters"


@pytest.mark.thorough
def test_ways_agree_with_each_other(on):
    """Two ranks that train copies, or shards, do the same sums."""
    expected = on("unisono", 2, cases.ddp, {})
    for case in (cases.fsdp2, cases.fsdp1):
        cases.assert_alike(on("unisono", 2, case), expected)


@pytest.mark.thorough
def test_ddp_on_four_ranks(on):
    theirs, ours, again = (on(backend, 4, cases.ddp, {}) for backend in (*BACKENDS, "unisono"))
    cases.assert_alike(ours, theirs)
    assert ours == again
    assert len({bits for _, bits in ours}) == 1


# ---- checkpoints ---------------------------------------------------------------------------------


def saved(folder, make, save):
    """Train, save, go on; then begin elsewhere, load and go on: both must be the same."""
    model = make()
    optimizer = adam(model)
    run(model, optimizer, 5)
    finish = save(whole_state(model, optimizer), folder)
    bits = digest(model)
    expected = run(model, optimizer, 5)
    finish()

    model = make()
    optimizer = adam(model)
    run(model, optimizer, 2)
    state = whole_state(model, optimizer)
    dcp.load(state, checkpoint_id=folder)
    of_model, of_optimizer = state["model"], state["optimizer"]
    states.set_state_dict(
        model, optimizer, model_state_dict=of_model, optim_state_dict=of_optimizer
    )
    assert digest(model) == bits
    return run(model, optimizer, 5), expected


def whole_state(model, optimizer):
    of_model, of_optimizer = states.get_state_dict(model, optimizer)
    return {"model": of_model, "optimizer": of_optimizer}


def save_now(state, folder):
    dcp.save(state, checkpoint_id=folder)
    return lambda: None


def save_meanwhile(state, folder):
    """Save in another thread, which has a group of its own, while training goes on."""
    future = dcp.async_save(state, checkpoint_id=folder, process_group=dist.new_group())
    return future.result


def make_ddp():
    return wrapped(seeded())


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled, unavailable or uninitialized")
@pytest.mark.parametrize("make", [make_ddp, cases.sharded])
@pytest.mark.parametrize("save", [save_now, save_meanwhile])
def test_checkpoints(on, tmp_path, make, save):
    for backend in BACKENDS:
        for found, expected in on(backend, 2, saved, str(tmp_path / backend), make, save):
            assert found == expected
    # What was sharded over ranks of unisono can be put together by a process alone.
    whole, other = ({"model": seeded(3).state_dict()} for _ in BACKENDS)
    for state, backend in zip((whole, other), BACKENDS, strict=True):
        dcp.load(state, checkpoint_id=tmp_path / backend, no_dist=True)
    for name, tensor in whole["model"].items():
        torch.testing.assert_close(other["model"][name], tensor, rtol=1e-5, atol=1e-6)


def collected():
    """The whole state on rank 0, and from there into a model that is sharded afresh."""
    model = cases.sharded()
    optimizer = adam(model)
    run(model, optimizer, 5)
    options = states.StateDictOptions(full_state_dict=True, cpu_offload=True)
    # A copy, because on the CPU some of it is the optimizer's own.
    of_model, of_optimizer = copy.deepcopy(states.get_state_dict(model, optimizer, options=options))
    expected = run(model, optimizer, 5)
    assert bool(of_model) == (dist.get_rank() == 0)

    other = cases.sharded()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.5)
    optimizer = adam(other)
    options = states.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    # Not set_state_dict: it takes an empty state, as other ranks have it, for none.
    states.set_model_state_dict(other, of_model, options=options)
    states.set_optimizer_state_dict(other, optimizer, of_optimizer, options=options)
    return run(other, optimizer, 5), expected


@pytest.mark.thorough
def test_whole_states_come_from_one_rank(on):
    for found, expected in on("unisono", 2, collected):
        assert found == expected


# ---- DTensor -------------------------------------------------------------------------------------


def spread(dtype):
    """Every way to lay a tensor out, from every other, and a product of two."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    torch.manual_seed(3)
    matrix = torch.randn(7, 9).to(dtype)  # odd sizes: shares are uneven
    ways = [[a, b] for a in placements() for b in placements()]
    for before in ways:
        tensor = distribute_tensor(matrix, mesh, before)
        for after in ways:
            moved = tensor.redistribute(mesh, after)
            assert torch.equal(moved.full_tensor(), matrix), (before, after)
    left = distribute_tensor(matrix, mesh, [Shard(0), Shard(1)])
    right = distribute_tensor(matrix.t().contiguous(), mesh, [Shard(1), Shard(0)])
    product = left @ right
    assert isinstance(product, DTensor)
    return product.full_tensor().float().tolist()


def placements():
    return dist.tensor.Replicate(), Shard(0), Shard(1)


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtensors_move_between_layouts(on, dtype):
    torch.manual_seed(3)
    matrix = torch.randn(7, 9).to(dtype)
    expected = (matrix @ matrix.t()).float()
    for product in on("unisono", 4, spread, dtype):
        torch.testing.assert_close(torch.tensor(product), expected)
