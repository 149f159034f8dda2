"""Results of the JAX face: eager, compiled, batched and in loops, for each dtype."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")

import jax.numpy as jnp  # noqa: E402

import unisono.jax as collectives  # noqa: E402
from tests.helpers.jax_cases import COLLECTIVES, double_precision, expected, operand  # noqa: E402
from tests.helpers.thorough import essential  # noqa: E402
from unisono.errors import ArgumentError, ArgumentTypeError, NotReady, Unsupported  # noqa: E402

SIZES = essential(1, [3, 2, 4])
WAYS = {"eager": lambda function: function, "jit": jax.jit}


def values(world, name, way):
    every = [operand(rank, world.size) for rank in range(world.size)]
    result = WAYS[way](COLLECTIVES[name])(jnp.asarray(every[world.rank]))
    assert isinstance(result, jax.Array) and result.dtype == jnp.float32
    wanted = expected(name, world.rank, world.size, every)
    assert result.shape == wanted.shape
    np.testing.assert_allclose(result, wanted, rtol=1e-6, err_msg=name)


def every_value(world):
    for name in COLLECTIVES:
        for way in WAYS:
            values(world, name, way)


@pytest.mark.parametrize("n", SIZES)
def test_values(all_worlds, n):
    all_worlds.run("shm", n, every_value)


def batched(world):
    """One collective of a batch does what one of each entry does, whatever the axis."""
    x = jnp.asarray(operand(world.rank, world.size))
    for name, function in COLLECTIVES.items():
        wanted = np.stack([function(x + i) for i in range(4)])
        for axis in range(3):
            batch = jnp.stack([x + i for i in range(4)], axis)
            result = jax.vmap(function, in_axes=axis)(batch)
            np.testing.assert_allclose(result, wanted, rtol=1e-6, err_msg=f"{name}, axis {axis}")


def test_vmap(all_worlds):
    all_worlds.run("shm", 2, batched)


def of_each_dtype(world):
    with double_precision():
        for dtype in ("bfloat16", "float64", "int8", "uint32"):
            x = jnp.arange(4).astype(dtype) + world.rank
            assert jax.jit(collectives.all_reduce)(x).dtype == x.dtype
            assert jax.jit(collectives.all_reduce)(x).tolist() == [1.0, 3.0, 5.0, 7.0]
            assert collectives.all_gather(x).tolist() == [0, 1, 2, 3, 1, 2, 3, 4]
        assert collectives.all_reduce(jnp.asarray([True, False]), "band").tolist() == [True, False]
        assert collectives.all_reduce(2.5) == 5.0 and collectives.all_reduce(2.5).ndim == 0
        assert jax.jit(collectives.all_reduce)(jnp.ones(2, jnp.complex64)).tolist() == [2, 2]
        assert collectives.all_reduce(jnp.zeros((0, 3))).shape == (0, 3)


def test_dtypes(all_worlds):
    all_worlds.run("shm", 2, of_each_dtype)


def messages(world):
    def pass_on(x):
        if world.rank == 0:
            collectives.send(x, 1, tag=5)
            collectives.send(x + 1, 1, tag=5)
            return collectives.recv(jax.ShapeDtypeStruct((2,), jnp.float32), 1, tag=6)
        first = collectives.recv(x, 0, tag=5)
        second = collectives.recv(x, 0, tag=5)
        collectives.send((first + 10 * second)[:2], 0, tag=6)
        return first

    for way in WAYS.values():
        result = way(pass_on)(jnp.arange(3.0))
        assert result.tolist() == ([10, 21] if world.rank == 0 else [0, 1, 2])


def test_messages(all_worlds):
    all_worlds.run("shm", 2, messages)


def in_groups(world):
    from unisono.torch import distributed

    swapped = collectives.new_group([2, 1])
    other = distributed.new_group([0, 2])
    x = jnp.asarray([float(world.rank)])
    assert collectives.get_rank(swapped) == [-1, 1, 0][world.rank]
    if world.rank:
        gathered = jax.jit(lambda x: collectives.all_gather(x, swapped))(x)
        assert gathered.tolist() == [2, 1]
        # Roots are ranks of the world.
        assert collectives.broadcast(x, 2, swapped.name).tolist() == [2]
        with pytest.raises(ArgumentError, match=r"src 0 is not in group .* \[2, 1\]"):
            collectives.broadcast(x, 0, swapped)
    else:
        with pytest.raises(NotReady, match="not in group"):
            collectives.all_reduce(x, group=swapped)
    if world.rank != 1:
        assert collectives.all_reduce(x, group=other).tolist() == [2]
    assert collectives.all_reduce(x, group="world").tolist() == [3]


def test_groups_of_every_face(all_worlds):
    all_worlds.run("shm", 3, in_groups)


def wrong_arguments(world):
    x = jnp.ones(3)
    wrong = [
        (ArgumentTypeError, "op must be", lambda: collectives.all_reduce(x, "add")),
        (ArgumentTypeError, "op must be", lambda: collectives.all_reduce(x, "premul_sum")),
        (Unsupported, "band", lambda: collectives.all_reduce(x, "band")),
        (ArgumentTypeError, "x must be", lambda: collectives.all_reduce(object())),
        (ArgumentTypeError, "key", lambda: collectives.all_reduce(jax.random.key(0))),
        (ArgumentTypeError, "group must be", lambda: collectives.all_reduce(x, group=3)),
        (ArgumentError, "no group 'none'", lambda: collectives.all_reduce(x, group="none")),
        (ArgumentError, "multiple", lambda: collectives.reduce_scatter(x)),
        (ArgumentError, "no axes", lambda: collectives.all_gather(x[0])),
        (ArgumentError, "src 9", lambda: collectives.broadcast(x, 9)),
        (ArgumentTypeError, "whole number", lambda: collectives.broadcast(x, "0")),
        (ArgumentError, "2 lengths", lambda: collectives.all_to_all(x, [3], [3])),
        (ArgumentError, "x has 3 rows", lambda: collectives.all_to_all(x, [1, 1], [1, 1])),
        (ArgumentTypeError, "like must", lambda: collectives.recv(3.0, 0)),
    ]
    for kind, text, call in wrong:
        with pytest.raises(kind, match=text):
            call()
        with pytest.raises(kind, match=text):
            jax.jit(call)()


def test_wrong_arguments(all_worlds):
    all_worlds.run("shm", 2, wrong_arguments)
