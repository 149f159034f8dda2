"""Collectives that write into tensors with a gradient: what a user sees is the same as in torch.

Autograd does not know that the tensor was overwritten. The gradient is that of a program without
the call, and a backward through the tensor warns. Each program runs over Gloo, over unisono's face,
and over torch with the backend "unisono".
"""

from __future__ import annotations

import warnings
from datetime import timedelta

import pytest
import torch
import torch.distributed as upstream

import unisono.torch.distributed as dist
from tests.helpers import worlds
from unisono.mindspore.mint import distributed as mint

RANKS = 2


@pytest.fixture(scope="module")
def pool():
    """Processes of their own, because they are in Gloo's world as well."""
    every = worlds.Worlds()
    yield every
    every.close()


@pytest.fixture(scope="module")
def meeting(tmp_path_factory):
    return str(tmp_path_factory.mktemp("gloo") / "store")


def join(world, path):
    """The groups of the three worlds, each with the module that it belongs to."""
    if not upstream.is_initialized():
        upstream.init_process_group(
            "gloo",
            init_method=f"file://{path}",
            rank=world.rank,
            world_size=RANKS,
            timeout=timedelta(seconds=30),
        )
        join.backend = upstream.new_group(backend="unisono")
    return [(upstream, None), (dist, None), (upstream, join.backend)]


# ---- programs ------------------------------------------------------------------------------------
#
# `call(x, async_op)` writes into x, in place. A program returns what a user may see.


def state(x):
    return x.tolist(), x.requires_grad, x.is_leaf


def on_leaf(call):
    x = torch.ones(3, requires_grad=True)
    call(x)
    (2 * x).sum().backward()
    return state(x), x.grad.tolist()


def on_other(call):
    x = torch.ones(3, requires_grad=True)
    y = 3 * x
    call(y)
    (y * y).sum().backward()
    return state(y), x.grad.tolist()


def on_saved(call):
    """The exponential needs its result in the backward."""
    x = torch.zeros(3, requires_grad=True)
    y = x.exp()
    call(y)
    y.sum().backward()
    return state(y), x.grad.tolist()


def on_view(call):
    x = torch.ones(4, requires_grad=True)
    y = x[1:]
    call(y)
    (2 * y).sum().backward()
    return state(x), x.grad.tolist()


def without_gradient(call):
    x = torch.ones(3, requires_grad=True)
    y = 3 * x
    with torch.no_grad():
        call(y)
    (y * y).sum().backward()
    return state(y), x.grad.tolist()


def on_detached(call):
    x = torch.ones(3, requires_grad=True)
    call(x.detach())
    (2 * x).sum().backward()
    return state(x), x.grad.tolist()


def in_inference(call):
    with torch.inference_mode():
        x = torch.ones(3)
        call(x)
    y = x.clone()
    call(x)
    return y.tolist(), state(x)


PROGRAMS = {
    program.__name__: program
    for program in (
        on_leaf,
        on_other,
        on_saved,
        on_view,
        without_gradient,
        on_detached,
        in_inference,
    )
}
#: Programs whose backward goes through a tensor that was written while autograd was recording.
WARNED = {"on_leaf", "on_other", "on_saved", "on_view"}


def all_reduce(module, group, x, async_op):
    return module.all_reduce(x, group=group, async_op=async_op)


def broadcast(module, group, x, async_op):
    return module.broadcast(x, 0, group=group, async_op=async_op)


def scatter(module, group, x, async_op):
    entries = [torch.full((3,), 5.0) for _ in range(RANKS)] if module.get_rank() == 0 else None
    return module.scatter(x, entries, 0, group=group, async_op=async_op)


def run_programs(world, path, verb, async_op):
    """What each program shows in each world, and whether it warned."""
    found = {}
    for name, program in PROGRAMS.items():
        ways = []
        for module, group in join(world, path):

            def call(x, module=module, group=group):
                work = verb(module, group, x, async_op)
                if async_op:
                    work.wait()

            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                seen = program(call)
            ways.append((seen, any("autograd" in str(item.message) for item in caught)))
        found[name] = ways
    return found


@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize("verb", [all_reduce, broadcast, scatter])
def test_same_as_torch(pool, meeting, verb, async_op):
    for part in pool.run("shm", RANKS, run_programs, meeting, verb, async_op):
        for name, (gloo, face, backend) in part.items():
            assert gloo[1] == (name in WARNED), name
            assert face == gloo, name
            assert backend == gloo, name


# ---- what torch leaves to the backend ------------------------------------------------------------


def outputs(verb, rank):
    """Tensors with a gradient that each collective writes into, and the call."""
    x, whole = torch.ones(2), torch.ones(2 * RANKS)
    made = torch.ones(2 * RANKS, requires_grad=True)
    several = [torch.ones(2, requires_grad=True) for _ in range(RANKS)]
    one = several[:1]
    if verb == "all_gather_into_tensor":
        return [made], lambda: dist.all_gather_into_tensor(made, x)
    if verb == "all_gather":
        return several, lambda: dist.all_gather(several, x)
    if verb == "gather":
        written = several if rank == 0 else []
        return written, lambda: dist.gather(x, written or None, 0)
    if verb == "reduce":
        return one[: rank == 0], lambda: dist.reduce(one[0], 0)
    if verb == "reduce_scatter":
        return one, lambda: dist.reduce_scatter(one[0], list(whole.chunk(RANKS)))
    if verb == "reduce_scatter_tensor":
        return one, lambda: dist.reduce_scatter_tensor(one[0], whole)
    if verb == "all_to_all":
        return several, lambda: dist.all_to_all(several, list(whole.chunk(RANKS)))
    if verb == "all_to_all_single":
        return [made], lambda: dist.all_to_all_single(made, whole)
    if verb == "all_reduce_coalesced":
        return several, lambda: dist.all_reduce_coalesced(several)
    if verb == "recv":
        message = (lambda: dist.recv(one[0], 1)) if rank == 0 else (lambda: dist.send(one[0], 0))
        return one[: rank == 0], message
    assert verb == "mint"
    return one, lambda: mint.all_reduce(one[0])


VERBS = [
    "all_gather_into_tensor",
    "all_gather",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "all_to_all",
    "all_to_all_single",
    "all_reduce_coalesced",
    "recv",
    "mint",
]


def warned(tensor):
    """How many warnings a backward through a tensor gives."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tensor.sum().backward()
    assert all("test_in_place_gradients.py" in str(item.message) for item in caught)
    return len(caught)


def write_all(world, path):
    join(world, path)
    found = {}
    for verb in VERBS:
        tensors, call = outputs(verb, world.rank)
        call()
        found[verb] = [warned(tensor) for tensor in tensors]
    return found


@pytest.mark.thorough
def test_every_collective_warns_and_a_message_does_not(pool, meeting):
    for rank, found in enumerate(pool.run("shm", RANKS, write_all, meeting)):
        for verb in VERBS:
            only_on_root = verb in ("gather", "reduce", "recv") and rank != 0
            assert bool(found[verb]) != only_on_root, verb
            # What is received is a new value; pipelines send its gradient back themselves.
            assert set(found[verb]) <= {0 if verb == "recv" else 1}, verb


def other_cases(world, path):
    join(world, path)
    again = torch.ones(2, requires_grad=True)
    for _ in range(3):  # as a program does that averages its parameters in each step
        dist.all_reduce(again)
    strided = torch.ones(2, 3, requires_grad=True)
    dist.all_reduce(strided.t())
    part = (strided * 1).t()
    dist.all_reduce(part)
    source = torch.ones(2, requires_grad=True)
    dist.all_gather([torch.ones(2) for _ in range(RANKS)], source)
    return warned(again), strided.unique().tolist(), warned(part), warned(source)


def test_tensors_that_are_written_again_or_strided_or_only_read(pool, meeting):
    for once, values, strided, read in pool.run("shm", RANKS, other_cases, meeting):
        assert once == 1
        assert values == [float(RANKS)]
        assert strided == 1
        assert read == 0  # it holds what it held; its gradient has nothing of the others', as ever
