"""`nn.functional` in forward mode: tangents against finite differences, and with backward mode.

Ranks are processes: torch has one level of forward mode for all threads.
"""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad

import unisono
from tests.helpers import worlds
from tests.helpers.functional_cases import CASES, directions, loss_of, operands, product
from tests.helpers.thorough import essential
from unisono.errors import Unsupported
from unisono.torch.distributed.nn import functional

STEP, TOLERANCE = 1e-4, 1e-6
SIZES = essential(1, (3, 2))


@pytest.fixture(scope="module")
def pool():
    every = worlds.Worlds()
    yield every
    every.close()


def dual(parts, along):
    """Tensors that move; those that stay have no tangent, as those of a rank that does not."""
    return [
        forward_ad.make_dual(part, way) if way.any() else part
        for part, way in zip(parts, along, strict=True)
    ]


def moved(parts, along, sign):
    return [part + sign * STEP * way for part, way in zip(parts, along, strict=True)]


def tangents(world):
    """For each case and direction: this rank's results' tangents, and differences of results."""
    ranks = list(range(world.size))
    found = {}
    for case, use in CASES.items():
        x, rows = operands(ranks, torch.float64), []
        for along in directions(ranks, torch.float64):
            with forward_ad.dual_level():
                outputs = use(functional, None, ranks, dual(x, along))
                ours = [forward_ad.unpack_dual(output).tangent for output in outputs]
            ahead, behind = (use(functional, None, ranks, moved(x, along, s)) for s in (1, -1))
            theirs = [(one - two) / (2 * STEP) for one, two in zip(ahead, behind, strict=True)]
            rows.append((ours, theirs))
        found[case] = rows
    return found


@pytest.mark.parametrize("size", SIZES)
def test_tangents(pool, size):
    parts = pool.run("shm", size, tangents)
    for case in CASES:
        total = 0.0
        for part in parts:
            for ours, theirs in part[case]:
                for one, other in zip(ours, theirs, strict=True):
                    assert torch.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE), case
                    total += one.abs().sum().item()
        assert total > 0.01, f"{case}: this checks nothing"


def mixed(world):
    """The second derivative in two ways: the tangent of a gradient, the gradient of a tangent."""
    ranks = list(range(world.size))
    found = {}
    for case, use in CASES.items():
        x = operands(ranks, torch.float64)
        along = directions(ranks, torch.float64)[-1]
        with forward_ad.dual_level():
            leaves = [part.clone().requires_grad_() for part in x]
            loss = loss_of(use(functional, None, ranks, dual(leaves, along)))
            slope = forward_ad.unpack_dual(loss).tangent
            by_backward = torch.autograd.grad(
                slope, leaves, retain_graph=True, allow_unused=True, materialize_grads=True
            )
            first = torch.autograd.grad(
                loss, leaves, create_graph=True, allow_unused=True, materialize_grads=True
            )
            by_forward = [forward_ad.unpack_dual(one).tangent for one in first]
        by_forward = [
            torch.zeros_like(part) if tangent is None else tangent
            for part, tangent in zip(x, by_forward, strict=True)
        ]
        found[case] = product(by_backward, along).item(), product(by_forward, along).item()
    return found


def test_tangents_of_gradients_are_gradients_of_tangents(pool):
    parts = pool.run("shm", 3, mixed)
    for case in CASES:
        backward, forward = (sum(part[case][way] for part in parts) for way in (0, 1))
        assert backward == pytest.approx(forward, rel=1e-9, abs=1e-9), case
        assert abs(backward) > 0.01, f"{case}: this checks nothing"


def whole_numbers_and_reused_tensors(world):
    x = torch.ones(2)
    with forward_ad.dual_level():
        count = functional.all_reduce(torch.ones(2, dtype=torch.int64))
        found = []
        for factor in (1.0, 2.0):
            y = forward_ad.make_dual(factor * x, factor * x)
            landing = torch.empty(2)
            functional.reduce_scatter(landing, [y, y])
            found.append(forward_ad.unpack_dual(landing).tangent.tolist())
    return count.tolist(), found


def test_whole_numbers_and_tensors_for_results(pool):
    expected = [2, 2], [[2.0, 2.0], [4.0, 4.0]]
    assert pool.run("shm", 2, whole_numbers_and_reused_tensors) == [expected] * 2


TRANSFORMS = {
    "grad": lambda f, x: torch.func.grad(lambda y: f(y).sum())(x),
    "vmap": lambda f, x: torch.func.vmap(f)(x),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x,)),
    "functionalize": lambda f, x: torch.func.functionalize(f)(x),
}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own in jvp
def test_transforms_of_torch_func_are_refused(name):
    def call():
        for function in (functional.all_reduce, lambda x: functional.all_gather(x)[0]):
            with pytest.raises(Unsupported, match="make "):
                TRANSFORMS[name](function, torch.ones(2, 3))

    unisono.spawn(call, 1)
