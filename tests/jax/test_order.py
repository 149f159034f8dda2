"""Collectives of compiled programs run in program order on every rank, and none is left out."""

from __future__ import annotations

import time

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")

import jax.numpy as jnp  # noqa: E402

import unisono.jax as collectives  # noqa: E402

CALLS = 12


def with_delays(world, seed):
    """Ranks take different times before each call, and no call needs the result of another."""
    random = np.random.default_rng([seed, world.rank])

    def late(x):
        time.sleep(random.uniform(0, 0.02))
        return x

    def program(x):
        results = []
        for call in range(CALLS):
            # Out of order, if anything were: other ranks would find another sum or another verb.
            slow = jax.pure_callback(late, jax.ShapeDtypeStruct(x.shape, x.dtype), x + call)
            if call % 3 == 2:
                results.append(collectives.all_gather(slow)[: len(x)])
            else:
                results.append(collectives.all_reduce(slow))
        return results

    x = jnp.arange(4.0)
    for _ in range(3):
        for call, result in enumerate(jax.jit(program)(x)):
            wanted = (x + call) * (1 if call % 3 == 2 else world.size)
            assert result.tolist() == wanted.tolist()


def test_independent_collectives_with_random_delays(all_worlds):
    for seed in range(3):
        all_worlds.run("shm", 3, with_delays, seed)


def unused(world):
    """Ranks that use a result and ranks that do not run the same collectives."""

    def program(x):
        first = collectives.all_reduce(x)
        second = collectives.all_gather(x * 2)
        collectives.barrier()
        return first if world.rank == 0 else second

    calls = world.calls
    for _ in range(2):
        result = jax.jit(program)(jnp.ones(2))
    assert result.tolist() == ([2.0, 2.0] if world.rank == 0 else [2.0] * 4)
    assert world.calls - calls == 6


def test_a_result_that_is_not_used(all_worlds):
    all_worlds.run("shm", 2, unused)


def between_programs(world):
    """A program that is still running when its caller goes on ends before the next collective."""
    slow = jax.jit(lambda a: jnp.linalg.matrix_power(a / len(a), 60))
    program = jax.jit(lambda a: collectives.all_reduce(a[0, 0] * 0 + 1))
    a = jnp.ones((400, 400))
    for _ in range(5):
        pending = program(slow(a)) if world.rank == 0 else program(a)
        # At once, without waiting; a mix-up would be a mismatch of counts.
        assert collectives.all_reduce(jnp.full(3, 2.0)).tolist() == [4.0] * 3
        assert pending == 2


def test_eager_calls_come_after_programs(all_worlds):
    all_worlds.run("shm", 2, between_programs)


def large(world):
    """Callbacks of large arrays, several at once: none waits for a thread of JAX."""

    def program(arrays):
        sums = [collectives.all_reduce(jnp.sin(array)) for array in arrays]
        return [collectives.all_gather(total * 2) for total in sums]

    arrays = [jnp.full((3 << 20) // 4, float(k + world.rank)) for k in range(4)]
    compiled = jax.jit(program)
    pending = [compiled([array + step for array in arrays]) for step in range(4)]
    for step, results in enumerate(pending):
        for k, result in enumerate(results):
            wanted = 2 * sum(np.sin(k + step + rank) for rank in range(2))
            np.testing.assert_allclose(result[:: 1 << 18], wanted, rtol=1e-4, atol=1e-6)


def test_large_arrays_in_flight(all_worlds):
    all_worlds.run("shm", 2, large)
