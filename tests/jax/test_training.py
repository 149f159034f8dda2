"""Data-parallel training in one compiled step gives the weights of one process."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")

import jax.numpy as jnp  # noqa: E402

import unisono.jax as collectives  # noqa: E402
from tests.helpers.jax_cases import double_precision  # noqa: E402
from tests.helpers.thorough import essential  # noqa: E402

STEPS, SAMPLES = 20, 12


def data():
    random = np.random.default_rng(3)
    inputs = random.normal(size=(SAMPLES, 4))
    return inputs, np.sin(inputs.sum(axis=1))


def start():
    random = np.random.default_rng(4)
    return {"in": random.normal(size=(4, 8)), "out": random.normal(size=8)}


def loss(weights, inputs, targets):
    found = jnp.tanh(inputs @ weights["in"]) @ weights["out"]
    return jnp.mean((found - targets) ** 2)


def train(gradient_of, inputs, targets):
    @jax.jit
    def step(weights):
        value, gradients = gradient_of(weights, inputs, targets)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value

    weights = jax.tree.map(jnp.asarray, start())
    for _ in range(STEPS):
        weights, value = step(weights)
    return jax.tree.map(np.asarray, weights), float(value)


def alone():
    with double_precision():
        return train(jax.value_and_grad(loss), *data())


def in_parallel(world, way):
    with double_precision():
        inputs, targets = (part[world.rank :: world.size] for part in data())

        def averaged(weights, inputs, targets):
            return collectives.all_reduce(loss(weights, inputs, targets), "avg")

        def of_gradients(*arguments):
            results = jax.value_and_grad(loss)(*arguments)
            return jax.tree.map(lambda x: collectives.all_reduce(x, "avg"), results)

        def of_loss(*arguments):
            # Each rank's loss is the mean of all: the sum of losses is `size` times that.
            value, gradients = jax.value_and_grad(averaged)(*arguments)
            total = jax.tree.map(collectives.all_reduce, gradients)
            return value, jax.tree.map(lambda g: g / world.size, total)

        return train({"gradients": of_gradients, "loss": of_loss}[way], inputs, targets)


@pytest.mark.parametrize("way", essential(1, ["gradients", "loss"]))
def test_weights_are_those_of_one_process(all_worlds, way):
    weights, value = alone()
    for found, last in all_worlds.run("shm", 3, in_parallel, way):
        np.testing.assert_allclose(last, value, rtol=1e-9)
        for name, array in weights.items():
            np.testing.assert_allclose(found[name], array, rtol=1e-9)
