"""`nn.functional`: gradients against finite differences, and against real torch over Gloo.

The loss is a weighted sum of what the functions return, added up over the ranks. The processes
have joined three worlds: unisono's, Gloo's, and torch's with the backend "unisono".
"""

from __future__ import annotations

import functools
import inspect
import math
import warnings
from datetime import timedelta

import numpy as np
import pytest
import torch
import torch.distributed as upstream
import torch.distributed.nn.functional as upstream_functional

import unisono
import unisono.torch.distributed as dist
import unisono.torch.distributed.nn as dnn
from tests.helpers import worlds
from tests.helpers.functional_cases import (
    CASES,
    MOVES,
    REDUCTIONS,
    SHAPE,
    directions,
    loss_of,
    numbers,
    operands,
    product,
)
from tests.helpers.thorough import essential
from unisono.errors import ArgumentError, ArgumentTypeError, NotReady
from unisono.torch.distributed.nn import functional

SIZES = essential(1, (3, 2, 4))
DTYPES = essential(1, ("float64", "float32"))
#: How far finite differences step, and how far they may be off.
STEPS = {"float64": (1e-4, 1e-6), "float32": (1e-2, 1e-2)}


@pytest.fixture(scope="module")
def pool():
    """Processes of their own, because they are in Gloo's world as well."""
    every = worlds.Worlds()
    yield every
    every.close()


@pytest.fixture(scope="module")
def meeting(tmp_path_factory):
    return str(tmp_path_factory.mktemp("gloo"))


def join(world, path):
    """Be in all worlds: the groups of unisono, of Gloo, and of torch's backend "unisono"."""
    warnings.simplefilter("ignore", FutureWarning)  # torch 2.13 would rename most of the module
    if not upstream.is_initialized():
        upstream.init_process_group(
            "gloo",
            init_method=f"file://{path}/{world.size}",
            rank=world.rank,
            world_size=int(world.size),
            timeout=timedelta(seconds=30),
        )
        everyone, others = list(range(world.size)), list(range(1, world.size))
        join.groups = {
            name: (
                ranks,
                dist.new_group(ranks),
                upstream.new_group(ranks),
                upstream.new_group(ranks, backend="unisono"),
            )
            for name, ranks in (("world", everyone), ("subgroup", others))
        }
    return join.groups


def gradients_of(use, f, group, ranks, x, create_graph=False):
    leaves = [part.clone().requires_grad_() for part in x]
    loss = loss_of(use(f, group, ranks, leaves))
    found = torch.autograd.grad(
        loss, leaves, create_graph=create_graph, allow_unused=True, materialize_grads=True
    )
    return loss, leaves, found


# ---- finite differences --------------------------------------------------------------------------


def differences(world, path, name, dtype):
    """For each case and direction: this rank's part of the derivative, by both ways."""
    ranks, group, *_ = join(world, path)[name]
    if world.rank not in ranks:
        return None
    kind, step = getattr(torch, dtype), STEPS[dtype][0]
    found = {}
    for case, use in CASES.items():
        x = operands(ranks, kind)

        def loss(sign, along, use=use, x=x):
            moved = [part + sign * step * way for part, way in zip(x, along, strict=True)]
            return loss_of(use(functional, group, ranks, moved)).item()

        rows = []
        _, _, gradients = gradients_of(use, functional, group, ranks, x)
        for along in directions(ranks, kind):
            slope = (loss(1, along) - loss(-1, along)) / (2 * step)
            rows.append((product(gradients, along).item(), slope))
        found[case] = rows
    return found


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["world", "subgroup"])
def test_first_derivatives(pool, meeting, size, dtype, name):
    parts = [part for part in pool.run("shm", size, differences, meeting, name, dtype) if part]
    assert len(parts) == (size if name == "world" else size - 1)
    check(parts, STEPS[dtype][1])


def check(parts, tolerance):
    """Ranks' parts add up to the derivative of the sum of their losses."""
    for case in CASES:
        rows = np.sum([part[case] for part in parts], axis=0)
        assert rows.shape[1] == 2
        for by_autograd, by_steps in rows:
            near = math.isclose(by_autograd, by_steps, rel_tol=tolerance, abs_tol=tolerance)
            assert near, f"{case}: {by_autograd} by autograd, {by_steps} by differences"
        assert np.abs(rows).max() > 0.01, f"{case}: this checks nothing"


def second_differences(world, path):
    ranks, group, *_ = join(world, path)["world"]
    step, found = STEPS["float64"][0], {}
    for case, use in CASES.items():
        x = operands(ranks, torch.float64)
        weights = [numbers(2000 + index, SHAPE, torch.float64) for index in range(len(ranks))]

        def slope(sign, along, use=use, x=x, weights=weights):
            moved = [part + sign * step * way for part, way in zip(x, along, strict=True)]
            return product(gradients_of(use, functional, group, ranks, moved)[2], weights).item()

        _, leaves, first = gradients_of(use, functional, group, ranks, x, create_graph=True)
        second = torch.autograd.grad(
            product(first, weights), leaves, allow_unused=True, materialize_grads=True
        )
        found[case] = [
            (product(second, along).item(), (slope(1, along) - slope(-1, along)) / (2 * step))
            for along in directions(ranks, torch.float64)
        ]
    return found


@pytest.mark.parametrize("size", SIZES)
def test_second_derivatives(pool, meeting, size):
    check(pool.run("shm", size, second_differences, meeting), 1e-5)


def ties(world, path):
    """Two ranks of three share the maximum, and one has zeros where a product is made."""
    join(world, path)
    x = torch.tensor([2.0, 0.0 if world.rank == 1 else 3.0]).requires_grad_()
    if world.rank == 2:
        x = torch.tensor([1.0, 5.0]).requires_grad_()
    shares = torch.autograd.grad(functional.all_reduce(x, dist.ReduceOp.MAX)[0], x)[0]
    products = torch.autograd.grad(functional.all_reduce(x, dist.ReduceOp.PRODUCT)[1], x)[0]
    return shares[0].item(), products[1].item()


def test_operands_that_are_equal_or_zero(pool, meeting):
    shares, products = zip(*pool.run("shm", 3, ties, meeting), strict=True)
    assert shares == (1.5, 1.5, 0.0)  # of three losses
    assert products == (0.0, 45.0, 0.0)


# ---- real torch ----------------------------------------------------------------------------------

#: What torch does wrong, and why it is not compared.
DEFECTS = {
    "subgroup broadcast": "takes a rank of the world for one of the group, and returns zeros",
    "subgroup gather": "takes a rank of the world for one of the group, and does not match",
    "subgroup scatter": "takes a rank of the world for one of the group, and does not match",
    "subgroup all_gather": "the backward is an all_to_all, see there",
    "subgroup all_to_all": "takes ranks of the group for ranks of the world, and fails",
    "world _all_gather_base": "the backward is written for nccl only",
    "subgroup _all_gather_base": "the backward is written for nccl only",
}


def compare(world, path, name, dtype):
    """Outputs and gradients by unisono's face, by Gloo, and by the backend in torch."""
    ranks, group, gloo, backend = join(world, path)[name]
    if world.rank not in ranks:
        return None
    found = {}
    for case in [*MOVES, *(f"{reduction} SUM" for reduction in REDUCTIONS)]:
        if f"{name} {case}" in DEFECTS:
            continue
        use = CASES[case]
        if case.endswith(" SUM"):
            theirs = functools.partial(use.func, op=upstream.ReduceOp.SUM)
        else:
            theirs = use
        ways = []
        for f, members, function in (
            (functional, group, use),
            (upstream_functional, gloo, theirs),
            (upstream_functional, backend, theirs),
        ):
            leaves = [part.requires_grad_() for part in operands(ranks, getattr(torch, dtype))]
            outputs = function(f, members, ranks, leaves)
            weighted = [
                out * numbers(index, out.shape, out.dtype) for index, out in enumerate(outputs)
            ]
            loss = sum(out.sum() for out in weighted)
            gradients = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
            if case.startswith("reduce ") and world.rank != ranks[-1]:
                outputs = []  # undefined in torch, zeros here
            ways.append([part.detach().numpy() for part in (*outputs, *gradients)])
        found[case] = ways
    return found


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["world", "subgroup"])
def test_same_as_torch(pool, meeting, size, dtype, name):
    parts = [part for part in pool.run("shm", size, compare, meeting, name, dtype) if part]
    for part in parts:
        assert len(part) == (9 if name == "world" else 4)
        for case, (ours, theirs, through_backend) in part.items():
            for left, right, third in zip(ours, theirs, through_backend, strict=True):
                assert left.dtype == right.dtype
                np.testing.assert_allclose(left, right, 1e-5, 1e-5, err_msg=case)
                np.testing.assert_allclose(third, right, 1e-5, 1e-5, err_msg=case)


def wrong_upstream(world, path):
    """The gradient of a broadcast in a group whose ranks are not those of the world."""
    ranks, group, gloo, _ = join(world, path)["subgroup"]
    if world.rank not in ranks:
        return None
    found = []
    for f, members in ((functional, group), (upstream_functional, gloo)):
        x = torch.ones(2, requires_grad=True)
        found.append(torch.autograd.grad(f.broadcast(x, ranks[0], members).sum(), x)[0][0].item())
    return found


def test_defects_of_torch_are_not_followed(pool, meeting):
    _, (ours, theirs), others = pool.run("shm", 3, wrong_upstream, meeting)
    assert ours == 2.0  # both ranks' losses depend on it
    assert theirs == 0.0, "torch is right now: take this out of DEFECTS"
    assert others[0] == 0.0


# ---- as programs use it --------------------------------------------------------------------------


def contrastive(features, texts, scale):
    """The loss of pairs: each image has one text, and all others are wrong."""
    logits = scale * features @ texts.t()
    labels = torch.arange(len(logits))
    entropy = torch.nn.functional.cross_entropy
    return (entropy(logits, labels) + entropy(logits.t(), labels)) / 2


def encoders():
    return [torch.nn.Linear(5, 4, bias=False).double() for _ in range(2)]


def train_on_pairs(world, path):
    """Each rank encodes its pairs, and compares them with those of all ranks."""
    join(world, path)
    torch.manual_seed(0)
    models, scale = encoders(), torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    pairs = torch.randn(2, 2 * int(world.size), 5, dtype=torch.float64)
    mine = pairs[:, 2 * world.rank : 2 * world.rank + 2]
    encoded = [
        torch.nn.functional.normalize(model(part), dim=-1)
        for model, part in zip(models, mine, strict=True)
    ]
    contrastive(*[torch.cat(dist.nn.all_gather(part)) for part in encoded], scale).backward()
    gradients = [model.weight.grad for model in models]
    for gradient in gradients:
        dist.all_reduce(gradient, dist.ReduceOp.AVG)  # as DDP does

    alone = [
        torch.nn.functional.normalize(model(part), dim=-1)
        for model, part in zip(models, pairs, strict=True)
    ]
    for model in models:
        model.weight.grad = None
    contrastive(*alone, scale).backward()
    expected = [model.weight.grad for model in models]
    return [
        (gradient.abs().max().item(), torch.allclose(gradient, single))
        for gradient, single in zip(gradients, expected, strict=True)
    ]


@pytest.mark.parametrize("size", SIZES)
def test_features_gathered_with_their_gradient(pool, meeting, size):
    for found in pool.run("shm", size, train_on_pairs, meeting):
        for largest, same in found:
            assert largest > 1e-3
            assert same


# ---- every public name ---------------------------------------------------------------------------

NAMES = [*functional.__all__, "_all_gather_base"]


def test_every_name_has_a_use():
    assert {case.partition(" ")[0] for case in CASES} == set(NAMES)
    assert set(dnn.__all__) == set(functional.__all__)
    for name in functional.__all__:
        assert getattr(dnn, name) is getattr(functional, name)
    assert dist.nn is dnn


def test_torch_has_no_further_function():
    theirs = {
        name
        for name, thing in vars(upstream_functional).items()
        if inspect.isfunction(thing) and thing.__module__ == upstream_functional.__name__
    }
    assert theirs - {"_not_supported_under_compile", "_deprecated"} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_signatures_are_those_of_torch(name):
    ours = inspect.signature(getattr(functional, name)).parameters.values()
    theirs = inspect.signature(getattr(upstream_functional, name)).parameters.values()
    assert [item.name for item in ours] == [item.name for item in theirs]
    for left, right in zip(ours, theirs, strict=True):
        if left.name == "op":
            assert "SUM" in str(left.default) and "SUM" in str(right.default)
        else:
            assert left.default == right.default


def zeros(world, path):
    """Which cases give some rank's operands no gradient, though they need one."""
    ranks, group, *_ = join(world, path)["world"]
    found = {}
    for case, use in CASES.items():
        x = operands(ranks, torch.float64)
        leaves = [part.requires_grad_() for part in x]
        outputs = use(functional, group, ranks, leaves)
        assert all(output.requires_grad for output in outputs), case
        sum(output.sum() for output in outputs).backward()
        found[case] = sum(leaf.grad.abs().sum().item() for leaf in leaves if leaf.grad is not None)
    return found


def test_no_name_gives_zeros_silently(pool, meeting):
    parts = pool.run("shm", 3, zeros, meeting)
    for case in CASES:
        ranks_with = sum(part[case] > 0 for part in parts)
        # The tensors of other ranks than the root's are not read; of a maximum, one is chosen.
        assert ranks_with == (1 if case in ("broadcast", "scatter") else 3), case


# ---- mistakes ------------------------------------------------------------------------------------


def call_with_numpy(name):
    x = np.zeros(SHAPE)
    given = {"tensors": [x, x], "src": 0, "dst": 0}
    lists = ("tensors", "input_list", "output_tensor_list", "input_tensor_list")
    parameters = inspect.signature(getattr(functional, name)).parameters.values()
    arguments = {
        item.name: [x, x] if item.name in lists else given.get(item.name, x)
        for item in parameters
        if item.default is inspect.Parameter.empty
    }
    arguments |= {"tensors": [x, x]} if name == "scatter" else {}
    return getattr(functional, name)(**arguments)


@pytest.mark.parametrize("name", NAMES)
def test_other_tensors_are_refused(name):
    with pytest.raises(ArgumentTypeError, match=r"expected a torch tensor.*got numpy\.ndarray"):
        call_with_numpy(name)


def mistakes():
    found = []
    x = torch.ones(2, requires_grad=True)
    for call in (
        lambda: functional.scatter(None),
        lambda: functional.scatter([x]),
        lambda: functional.scatter([x, torch.ones(3)]),
        lambda: functional.broadcast(x, 5),
        lambda: functional.all_reduce(x, "sum"),
        lambda: functional.all_reduce(x, group=dist.GroupMember.NON_GROUP_MEMBER),
        lambda: functional.reduce_scatter(torch.empty(2), [x]),
    ):
        try:
            call()
        except Exception as error:
            found.append(type(error))
    return found


def test_mistakes():
    expected = [
        ArgumentTypeError,
        ArgumentError,
        ArgumentError,
        ArgumentError,
        ArgumentTypeError,
        ArgumentError,
        ArgumentError,
    ]
    assert unisono.spawn(mistakes, 2) == [expected, expected]


def outside():
    members = dist.new_group([0])
    if dist.get_rank() == 0:
        return functional.all_reduce(torch.ones(1), group=members).item()
    with pytest.raises((NotReady, ArgumentError), match="not in"):
        functional.all_reduce(torch.ones(1), group=members)
    return None


def test_a_rank_outside_the_group():
    assert unisono.spawn(outside, 2) == [1.0, None]


def test_names_that_are_missing():
    with pytest.raises(AttributeError, match="RemoteModule is not in unisono; nearest"):
        _ = dnn.RemoteModule
    with pytest.raises(AttributeError, match="not in unisono; nearest: all_reduce"):
        _ = functional.all_reduced


# ---- tensors for the result ----------------------------------------------------------------------


def reuse():
    """One tensor for the result of two calls: what the first left there is gone."""
    x = torch.ones(2, requires_grad=True)
    landing = torch.empty(2)
    first = functional.reduce_scatter(landing, [x, x])
    used = first * first
    functional.reduce_scatter(landing, [2 * x, 2 * x])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        used.sum().backward()
    dist.barrier()
    found = []
    for factor in (1.0, 2.0):  # each step has the graph of its own call only
        functional.reduce_scatter(landing, [factor * x, factor * x])
        found.append(torch.autograd.grad(landing.sum(), x)[0].tolist())
    return found


def test_a_tensor_that_is_written_again():
    # Each rank's two entries are in both ranks' results.
    assert unisono.spawn(reuse, 2) == [[[2.0, 2.0], [4.0, 4.0]]] * 2


def odd_layouts():
    """Gradients and tensors that are not contiguous, tensors without dimensions, complex ones."""
    size, found = dist.get_world_size(), []
    x = torch.ones(3, 4).t().requires_grad_()
    found.append(torch.autograd.grad(functional.all_reduce(x).sum(), x)[0].unique().tolist())
    y = torch.tensor(2.0, requires_grad=True)
    found.append(torch.autograd.grad(sum(functional.all_gather(y)), y)[0].item())
    z = torch.tensor([1 + 2j], requires_grad=True)
    out = functional.all_reduce(z, dist.ReduceOp.PRODUCT)
    (gradient,) = torch.autograd.grad(out.real.sum(), z)
    whole = torch.full((size,), 1 + 2j).requires_grad_()
    (expected,) = torch.autograd.grad(size * whole.prod().real, whole)
    found.append(torch.allclose(gradient, expected[:1]))
    found.append(functional.all_reduce(torch.ones(2, dtype=torch.int64)).tolist())
    with torch.no_grad():
        found.append(functional.all_reduce(x).requires_grad)
    return found


def test_layouts_and_dtypes():
    expected = [[3.0], 3.0, True, [3, 3], False]
    assert unisono.spawn(odd_layouts, 3) == [expected] * 3
