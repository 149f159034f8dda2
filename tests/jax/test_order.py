"""Collectives of compiled programs run in program order on every rank, and none is left out."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")

import jax.numpy as jnp  # noqa: E402

import unisono.jax as collectives  # noqa: E402
from tests.helpers.thorough import essential  # noqa: E402

CALLS = 12


def with_delays(world, seed):
    """Ranks compute for different times before each call, and no call needs another's result.

    JAX does independent work at the same time, so that calls become ready in any order.
    """
    random = np.random.default_rng([seed, world.rank])
    delays = random.integers(0, 6, CALLS)

    def program(x):
        results = []
        for call in range(CALLS):
            ones = jnp.ones((256, 256)) + 0 * (x[0] + call)
            for _ in range(delays[call]):
                ones = ones @ ones / len(ones)
            operand = (x + call) * ones[0, 0]
            # Out of order, another rank would find another sum, or another verb.
            if call % 3 == 2:
                results.append(collectives.all_gather(operand)[: len(x)])
            else:
                results.append(collectives.all_reduce(operand))
        return results

    x = jnp.arange(2048.0)
    compiled = jax.jit(program)
    for _ in range(5):
        for call, result in enumerate(compiled(x)):
            wanted = (x + call) * (1 if call % 3 == 2 else world.size)
            assert result.tolist() == wanted.tolist()


@pytest.mark.thorough
@pytest.mark.parametrize("seed", essential(1, range(5)))
def test_independent_collectives_with_random_delays(all_worlds, seed):
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
    slow = jax.jit(lambda a: jnp.linalg.matrix_power(a / len(a), 1000))
    program = jax.jit(lambda a: collectives.all_reduce(a[0, 0] * 0 + 1))
    a, twos = jnp.ones((600, 600)), jnp.full(3, 2.0)
    slow(a).block_until_ready()
    for _ in range(3):
        pending = program(slow(a) if world.rank == 0 else a)
        # At once, without waiting; a mix-up would be a mismatch of counts.
        assert collectives.all_reduce(twos).tolist() == [4.0] * 3
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


@pytest.mark.thorough
def test_large_arrays_in_flight(all_worlds):
    all_worlds.run("shm", 2, large)
