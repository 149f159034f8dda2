"""Collectives in graphs on the backend "unisono": autograd goes through them, and torch.compile.

Compiled functions must not break around a collective, and must return what eager ones do.
"""

from __future__ import annotations

from tests.helpers import training_cases as cases  # first: it silences torch

# isort: split

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable
from torch._dynamo.testing import CompileCounterWithBackend
from torch._inductor.utils import run_and_get_code
from torch.distributed.fsdp import fully_shard

from tests.helpers.training_cases import adam, digest, run, seeded, wrapped

pytestmark = pytest.mark.thorough

BACKENDS = ("gloo", "unisono")


def numbers(*shape):
    """Other numbers on each rank."""
    chance = torch.Generator().manual_seed(17 + dist.get_rank())
    return torch.randn(*shape, generator=chance)


def world():
    return dist.group.WORLD


# ---- autograd ------------------------------------------------------------------------------------

DIFFERENTIABLE = {
    "all_reduce": lambda x: differentiable.all_reduce(x * x),
    "all_reduce max": lambda x: differentiable.all_reduce(x * x, dist.ReduceOp.MAX),
    "broadcast": lambda x: differentiable.broadcast(x * x, 1),
    # Gloo overwrites the tensors of the others.
    "reduce": lambda x: differentiable.reduce(x * x, 1) * dist.get_rank(),
    "all_gather": lambda x: torch.cat(differentiable.all_gather(x * x)),
    "gather": lambda x: torch.cat(differentiable.gather(x * x, 1)),
    "scatter": lambda x: differentiable.scatter(list((x * x).chunk(2)), 1),
    "reduce_scatter": lambda x: differentiable.reduce_scatter(
        torch.empty(2, 3), list((x * x).chunk(2))
    ),
    "all_to_all": lambda x: torch.cat(
        differentiable.all_to_all([torch.empty(2, 3) for _ in range(2)], list((x * x).chunk(2)))
    ),
    "all_to_all_single": lambda x: differentiable.all_to_all_single(torch.empty(4, 3), x * x),
    "all_gather_single_autograd": lambda x: functional.all_gather_single_autograd(
        x * x, 0, world()
    ),
    "all_gather_single_autograd 1": lambda x: functional.all_gather_single_autograd(
        x * x, 1, world()
    ),
    "reduce_scatter_single_autograd": lambda x: functional.reduce_scatter_single_autograd(
        x * x, "sum", 0, world()
    ),
    "all_to_all_single_autograd": lambda x: functional.all_to_all_single_autograd(
        x * x, [1, 1] if dist.get_rank() == 0 else [3, 3], [1, 3], world()
    ),
}


def through(name):
    x = numbers(4, 3).requires_grad_()
    y = DIFFERENTIABLE[name](x)
    weights = torch.arange(1.0, y.numel() + 1).reshape(y.shape) * (dist.get_rank() + 1)
    (y * weights).sum().backward()
    return y.tolist(), x.grad.tolist()


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_come_back(on, name):
    theirs, ours = (on(backend, 2, through, name) for backend in BACKENDS)
    for found, expected in zip(ours, theirs, strict=True):
        for value, other in zip(found, expected, strict=True):
            torch.testing.assert_close(torch.tensor(value), torch.tensor(other))


# ---- compiled functions --------------------------------------------------------------------------


def reduce_in_place(x):
    y = x * 2
    dist.all_reduce(y)
    return y + 1


def gather_in_place(x):
    y = torch.empty(2 * x.shape[0], x.shape[1])
    dist.all_gather_single(y, x * 2)
    return y + 1


def scatter_in_place(x):
    y = torch.empty(x.shape[0] // 2, x.shape[1])
    dist.reduce_scatter_single(y, x * 2)
    return y + 1


def exchange_in_place(x):
    y = torch.empty_like(x)
    dist.all_to_all_single(y, x * 2)
    return y + 1


def list_in_place(x):
    y = [torch.empty_like(x) for _ in range(2)]
    dist.all_gather(y, x * 2)
    return torch.cat(y) + 1


#: Functions with a collective between two computations.
FUNCTIONS = {
    "all_reduce": lambda x: functional.all_reduce(x * 2, "sum", world()) + 1,
    "all_reduce avg": lambda x: functional.all_reduce(x * 2, "avg", world()) + 1,
    "all_reduce_coalesced": lambda x: torch.cat(
        functional.all_reduce_coalesced([x * 2, x * 3], "max", world())
    ),
    "all_gather_single": lambda x: functional.all_gather_single(x * 2, 0, world()) + 1,
    "all_gather_single 1": lambda x: functional.all_gather_single(x * 2, 1, world()) + 1,
    "all_gather_coalesced": lambda x: torch.cat(
        functional.all_gather_single_coalesced([x * 2, x * 3], world())
    ),
    "reduce_scatter_single": lambda x: functional.reduce_scatter_single(x * 2, "sum", 0, world()),
    "reduce_scatter_coalesced": lambda x: torch.cat(
        functional.reduce_scatter_single_coalesced([x * 2, x * 3], "sum", [0, 0], world())
    ),
    "all_to_all_single": lambda x: functional.all_to_all_single(x * 2, None, None, world()) + 1,
    "all_to_all_single uneven": lambda x: functional.all_to_all_single(
        x * 2, [1, 1] if dist.get_rank() == 0 else [3, 3], [1, 3], world()
    ),
    "broadcast": lambda x: functional.broadcast(x * 2, 1, world()) + 1,
    "permute": lambda x: functional.permute_tensor(x.flatten() * 2, [1, 0], world()),
    "dist.all_reduce": reduce_in_place,
    "dist.all_gather_single": gather_in_place,
    "dist.reduce_scatter_single": scatter_in_place,
    "dist.all_to_all_single": exchange_in_place,
    "dist.all_gather": list_in_place,
}


#: Those that inductor lowers by different code; it takes a second or two for each.
BY_INDUCTOR = (
    "all_reduce",
    "all_reduce_coalesced",
    "all_gather_single 1",
    "all_gather_coalesced",
    "reduce_scatter_coalesced",
    "all_to_all_single uneven",
    "dist.all_reduce",
    "dist.all_gather_single",
)


def compiled(compiler, names):
    """Whether each function returns the same compiled and eager, and the number of its graphs."""
    found = {}
    for name in names:
        torch._dynamo.reset()
        counter = CompileCounterWithBackend(compiler)
        fast = torch.compile(FUNCTIONS[name], backend=counter, fullgraph=True)
        results = [fast(numbers(4, 3) + turn) for turn in range(3)]
        expected = [FUNCTIONS[name](numbers(4, 3) + turn) for turn in range(3)]
        same = all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))
        found[name] = same, counter.frame_count
    return found


@pytest.mark.parametrize("compiler", ["aot_eager", "inductor"])
def test_compiled_functions(on, compiler):
    names = FUNCTIONS if compiler == "aot_eager" else BY_INDUCTOR
    for rank, found in enumerate(on("unisono", 2, compiled, compiler, list(names))):
        assert found == dict.fromkeys(names, (True, 1)), f"rank {rank}"


def compiled_gradient(compiler):
    """A layer that is cut between ranks, with collectives in both passes."""

    def step(x, w):
        y = functional.all_gather_single_autograd(x @ w, 0, world())
        z = functional.reduce_scatter_single_autograd(torch.tanh(y), "sum", 0, world())
        return functional.all_to_all_single_autograd(z, [2, 2], [2, 2], world()).square().sum()

    found = []
    for function in (step, torch.compile(step, backend=compiler, fullgraph=True)):
        x, w = numbers(4, 3).requires_grad_(), numbers(3, 5).requires_grad_()
        loss = function(x, w)
        loss.backward()
        found.append((loss.detach(), x.grad, w.grad))
    for value, other in zip(*found, strict=True):
        torch.testing.assert_close(value, other)
    return found[0][0].item()


@pytest.mark.parametrize("compiler", ["aot_eager", "inductor"])
def test_compiled_gradients(on, compiler):
    assert on("unisono", 2, compiled_gradient, compiler) == pytest.approx(
        on("gloo", 2, compiled_gradient, "aot_eager")
    )


def bucketed(kind):
    """Two collectives of a kind in one graph, which inductor makes one."""
    call = {
        "all_reduces": lambda x: functional.all_reduce(x, "sum", world()),
        "reduce_scatters": lambda x: functional.reduce_scatter_single(x, "sum", 0, world()),
        "all_gathers": lambda x: functional.all_gather_single(x, 0, world()),
    }[kind]

    def two(x):
        return call(x * 2) + call(x * 3)

    torch._dynamo.reset()
    x = numbers(4, 3)
    with torch._inductor.config.patch({f"bucket_{kind}_fx": "all"}):
        try:
            fast, code = run_and_get_code(torch.compile(two, fullgraph=True), x)
        except RuntimeError as error:  # of all ranks, so that they are still in step
            return str(error)
    torch.testing.assert_close(fast, two(x))
    return "".join(code).count("wait_tensor.default(")


@pytest.mark.parametrize("kind", ["all_reduces", "reduce_scatters"])
def test_bucketed(on, kind):
    assert on("unisono", 2, bucketed, kind) == [1, 1]


@pytest.mark.xfail(reason="torch takes all_gather_into_tensor_out from backends in C++ only")
def test_bucketed_gathers(on):
    assert on("unisono", 2, bucketed, "all_gathers") == [1, 1]


# ---- compiled models -----------------------------------------------------------------------------


def inner(compiler):
    """Compile, then wrap."""
    return wrapped(torch.compile(seeded(), backend=compiler))


def outer(compiler):
    """Wrap, then compile: the graph is split where buckets end."""
    return torch.compile(wrapped(seeded()), backend=compiler)


def shards(compiler):
    """Compile each block of a model that is sharded."""
    model = seeded()
    for block in model.blocks:
        block.compile(backend=compiler)
        fully_shard(block)
    return fully_shard(model)


def train_compiled(make, compiler):
    """What a training returns, and how many graphs it took."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend(compiler)
    with pytest.MonkeyPatch.context() as patch:
        # torch splits graphs like buckets only if the first one is not larger than the others.
        patch.setattr(dist, "_DEFAULT_FIRST_BUCKET_BYTES", 8192)
        model = make(counter)
        return run(model, adam(model), 12), digest(model), counter.frame_count


def train_eagerly():
    model = wrapped(seeded())
    return run(model, adam(model), 12), digest(model)


@pytest.mark.parametrize(
    ("make", "compiler", "graphs"),
    [
        (inner, "aot_eager", 3),
        (outer, "aot_eager", 3),
        (shards, "aot_eager", 1),
        (outer, "inductor", 3),
    ],
)
def test_compiled_models(on, make, compiler, graphs):
    ours = on("unisono", 2, train_compiled, make, compiler)
    cases.assert_alike([result[:2] for result in ours], on("unisono", 2, train_eagerly), rel=1e-4)
    assert ours[0][1] == ours[1][1], "ranks hold different parameters"
    assert ours[0][2] >= graphs


# ---- bad splits ----------------------------------------------------------------------------------


def disagree():
    """Both send one row and three rows; what they expect to receive does not fit that."""
    memory = torch.full((40, 3), 7.0)
    splits = [1, 3] if dist.get_rank() == 0 else [3, 1]
    with pytest.raises((RuntimeError, ValueError)) as caught:
        dist.all_to_all_single(memory[:4], numbers(4, 3), splits, [1, 3])
    return str(caught.value), memory[4:].unique().tolist()


def test_splits_that_disagree(on):
    """The rank that expects less than what would come must not write beyond its memory."""
    for text, behind in on("unisono", 2, disagree):
        assert "receiving" in text or "split" in text
        assert behind == [7.0]
