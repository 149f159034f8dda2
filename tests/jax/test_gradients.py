"""Gradients of the JAX face: those of the sum of all ranks' losses."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")

import jax.numpy as jnp  # noqa: E402

import unisono.jax as collectives  # noqa: E402
from tests.helpers.jax_cases import COLLECTIVES, double_precision, operand  # noqa: E402
from tests.helpers.thorough import essential, essential_rows  # noqa: E402
from unisono.errors import Unsupported  # noqa: E402

STEP = 1e-5


def loss_of(name, world):
    """A loss that differs between ranks, so that a rank mixed up with another is seen."""
    return lambda x: ((1 + world.rank) * jnp.sin(COLLECTIVES[name](jnp.sin(x)))).sum()


def check(name, function, x, gradient, world):
    """Compare the gradient of each rank with differences of the sum of all ranks' losses."""
    for rank in range(world.size):
        random = np.random.default_rng(rank)
        direction = random.normal(size=x.shape) * (world.rank == rank)
        ahead, behind = function(x + STEP * direction), function(x - STEP * direction)
        change = collectives.all_reduce(ahead - behind) / (2 * STEP)
        slope = collectives.all_reduce((gradient * direction).sum())
        np.testing.assert_allclose(slope, change, rtol=1e-6, atol=1e-8, err_msg=name)


def against_differences(world, name):
    with double_precision():
        x = jnp.asarray(operand(world.rank, world.size, np.float64))
        loss = loss_of(name, world)
        gradient = jax.grad(loss)(x)
        check(name, jax.jit(loss), x, gradient, world)
        value, compiled = jax.jit(jax.value_and_grad(jax.jit(loss)))(x)
        np.testing.assert_allclose(compiled, gradient, rtol=1e-12, err_msg=name)
        np.testing.assert_allclose(value, loss(x), rtol=1e-12)


FIRST = ["all_reduce", "all_reduce max", "all_gather"]
ROWS = [(2, name) for name in FIRST]
ROWS += [(n, name) for n in (2, 3, 4) for name in COLLECTIVES if n > 2 or name not in FIRST]


@pytest.mark.parametrize(("n", "name"), essential_rows(len(FIRST), ROWS))
def test_gradients_are_those_of_the_sum_of_losses(all_worlds, n, name):
    all_worlds.run("shm", n, against_differences, name)


def slope_of(loss):
    return lambda x: (jax.grad(loss)(x) * jnp.cos(x)).sum()


def second_order(world, name):
    with double_precision():
        x = jnp.asarray(operand(world.rank, world.size, np.float64))
        slope = slope_of(loss_of(name, world))
        check(name, jax.jit(slope), x, jax.jit(jax.grad(slope))(x), world)


@pytest.mark.thorough
@pytest.mark.parametrize("name", essential(1, COLLECTIVES))
def test_second_order(all_worlds, name):
    all_worlds.run("shm", 2, second_order, name)


def formulas(world):
    """With float32, against the adjoint of each collective written in NumPy."""
    size, rank = world.size, world.rank
    x = jnp.asarray(operand(rank, size))
    cotangents = [operand(10 + other, size) for other in range(size)]
    wanted = {
        "all_reduce": np.sum(cotangents, axis=0),
        "all_reduce avg": np.mean(cotangents, axis=0),
        "reduce": cotangents[1],
        "broadcast": np.sum(cotangents, axis=0) * (rank == 1),
        "all_to_all splits": cotangents[(rank + 1) % size],
    }
    for name, gradient in wanted.items():
        for way in (lambda function: function, jax.jit):
            pulled = jax.vjp(way(COLLECTIVES[name]), x)[1](jnp.asarray(cotangents[rank]))[0]
            np.testing.assert_allclose(pulled, gradient, rtol=1e-6, err_msg=name)
            assert pulled.dtype == jnp.float32


@pytest.mark.thorough
def test_formulas(all_worlds):
    all_worlds.run("shm", 3, formulas)


def forward_mode(world):
    with double_precision():
        x = jnp.asarray(operand(world.rank, world.size, np.float64))
        tangent = jnp.cos(x)
        for name, function in COLLECTIVES.items():
            result, pushed = jax.jit(lambda x, t, f=function: jax.jvp(f, (x,), (t,)))(x, tangent)
            np.testing.assert_allclose(result, function(x))
            ahead, behind = function(x + STEP * tangent), function(x - STEP * tangent)
            change = (ahead - behind) / (2 * STEP)
            np.testing.assert_allclose(pushed, change, rtol=1e-6, atol=1e-8, err_msg=name)


@pytest.mark.thorough
def test_forward_mode(all_worlds):
    all_worlds.run("shm", 2, forward_mode)


def ties_and_zeros(world):
    x = jnp.asarray([2.0, 2.0 * world.rank])
    gradient = jax.grad(lambda x: collectives.all_reduce(x, "max").sum())(x)
    # Both ranks' losses have slope 1; they share the first number, and rank 1 has the second.
    assert gradient.tolist() == [1.0, 2.0 * world.rank]
    gradient = jax.jit(jax.grad(lambda x: collectives.all_reduce(x, "prod").sum()))(x)
    assert gradient.tolist() == [4.0, 4.0 * (world.rank == 0)]


@pytest.mark.thorough
def test_ties_of_max_and_zeros_of_prod(all_worlds):
    all_worlds.run("shm", 2, ties_and_zeros)


def in_loops(world):
    with double_precision():
        x = jnp.asarray(operand(world.rank, world.size, np.float64))

        def mix(x):
            return jnp.sin(collectives.all_reduce(x) + world.rank)

        def unrolled(x):
            return mix(mix(mix(x))).sum()

        def scanned(x):
            return jax.lax.scan(lambda c, _: (mix(c), None), x, None, length=3)[0].sum()

        def looped(x):
            return jax.lax.fori_loop(0, 3, lambda _, c: mix(c), x).sum()

        def repeated(x):
            return jax.checkpoint(lambda x: mix(mix(x)))(mix(x)).sum()

        gradient = jax.grad(unrolled)(x)
        check("loop", unrolled, x, gradient, world)
        for function in (scanned, looped, repeated):
            for way in (jax.grad, lambda function: jax.jit(jax.grad(function))):
                np.testing.assert_allclose(way(function)(x), gradient, rtol=1e-12)


@pytest.mark.thorough
def test_loops_and_checkpoints(all_worlds):
    all_worlds.run("shm", 2, in_loops)


def inside_custom_vjp(world):
    """The pair of functions of tensor parallelism: a sum in one direction only."""

    @jax.custom_vjp
    def enter(x):
        return x

    enter.defvjp(lambda x: (x, None), lambda _, g: (collectives.all_reduce(g),))

    @jax.custom_vjp
    def leave(x):
        return collectives.all_reduce(x)

    leave.defvjp(lambda x: (collectives.all_reduce(x), None), lambda _, g: (g,))

    loss = jax.jit(jax.value_and_grad(lambda x: leave((1 + world.rank) * enter(x)).sum()))
    value, gradient = loss(jnp.ones(2))
    assert value == 6.0 and gradient.tolist() == [3.0, 3.0]


def test_inside_custom_vjp(all_worlds):
    all_worlds.run("shm", 2, inside_custom_vjp)


def used_by_one_rank(world):
    """A rank whose loss ignores a result takes part in the backward pass all the same."""

    def loss(x):
        total = collectives.all_reduce(x)
        return (total**2).sum() if world.rank == 0 else x.sum()

    for way in (lambda function: function, jax.jit):
        gradient = way(jax.grad(loss))(jnp.asarray([1.0, 2.0]))
        assert gradient.tolist() == ([4.0, 8.0] if world.rank == 0 else [5.0, 9.0])


def test_a_result_that_one_rank_uses(all_worlds):
    all_worlds.run("shm", 2, used_by_one_rank)


def refused(world):
    x = jnp.arange(4.0)
    with pytest.raises(Unsupported, match="send cannot be differentiated"):
        jax.grad(lambda x: (collectives.send(x, 1 - world.rank), x.sum())[1])(x)
    with pytest.raises(Unsupported, match="reduce_scatter with max cannot be differentiated"):
        jax.jit(jax.grad(lambda x: collectives.reduce_scatter(x, "max").sum()))(x)
    with pytest.raises(Unsupported, match="reduce with product cannot"):
        jax.grad(lambda x: collectives.reduce(x, 0, "prod").sum())(x)
    with pytest.raises(Unsupported, match="send under vmap"):
        jax.vmap(lambda x: collectives.send(x, 1 - world.rank))(x)
    # Whole numbers have no gradient, and pass.
    counted = jax.jit(jax.grad(lambda x: x * collectives.all_reduce(jnp.int32(3))))(2.0)
    assert counted == 6.0


def test_what_has_no_derivative_says_so(all_worlds):
    all_worlds.run("shm", 2, refused)
