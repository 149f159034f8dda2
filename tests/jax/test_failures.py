"""Errors of collectives in compiled programs are those of the same calls outside."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")

import jax.numpy as jnp  # noqa: E402

import unisono  # noqa: E402
import unisono.jax as collectives  # noqa: E402
from tests.helpers.jobs import Ranks  # noqa: E402
from tests.helpers.processes import DEADLINE  # noqa: E402
from unisono.core import groups  # noqa: E402
from unisono.errors import MismatchError, NotReady, Unsupported  # noqa: E402


def mismatch(world):
    x = jnp.ones(3)
    differing = jax.jit(lambda x: collectives.all_reduce(x, ["sum", "max"][world.rank]))
    at_its_line = r"rank 0: all_reduce .* at .*test_failures.py:\d+"
    with pytest.raises(MismatchError, match=at_its_line), collectives.original_errors():
        differing(x)
    # As JAX raises it: the type is another, the text is the same. Then all go on.
    with pytest.raises(jax.errors.JaxRuntimeError, match="MismatchError: ranks disagree"):
        differing(x).block_until_ready()
    assert jax.jit(collectives.all_reduce)(x).tolist() == [2.0] * 3


def test_mismatch(all_worlds):
    all_worlds.run("shm", 2, mismatch)


def mismatch_while_nobody_waits(world):
    """The error of a program that was dispatched without waiting does not stay in later ones."""
    slow = jax.jit(lambda a: jnp.linalg.matrix_power(a / len(a), 1000))
    differing = jax.jit(lambda a: collectives.all_reduce(a[0], ["sum", "max"][world.rank]))
    step = collectives.original_errors()(lambda a: differing(slow(a)))
    a = jnp.ones((600, 600))
    for _ in range(2):
        with pytest.raises(MismatchError):
            step(a)
        assert jax.jit(collectives.all_reduce)(1.0) == 2.0
    # An eager call waits for the program before it, and tells its error.
    differing(slow(a))
    with pytest.raises(MismatchError):
        collectives.barrier()
    assert collectives.all_reduce(1.0) == 2.0


@pytest.mark.thorough
def test_mismatch_while_nobody_waits(all_worlds):
    all_worlds.run("shm", 2, mismatch_while_nobody_waits, of_its_own=True)


def other_errors(world):
    with pytest.raises(jax.errors.JaxRuntimeError), collectives.original_errors():
        jax.jit(lambda: jax.pure_callback(lambda: 1 / 0, jax.ShapeDtypeStruct((), "float32")))()
    with pytest.raises(KeyError), collectives.original_errors():
        raise KeyError


def test_other_errors_pass(all_worlds):
    all_worlds.run("shm", 2, other_errors)


KILLED = """
import jax, jax.numpy as jnp
import unisono.jax as collectives

collectives.init("shm", 20)
program = jax.jit(lambda x: collectives.all_reduce(x))
program(jnp.ones(4)).block_until_ready()
say(ready=True)
hear()

def train():
    with collectives.original_errors():
        program(jnp.ones(4))

say(**fault(train))
smaller = groups.world().shrink()
say(total=float(jax.jit(lambda x: collectives.all_reduce(x, group=smaller))(1.0)))
"""


def test_a_killed_rank():
    with Ranks(3, KILLED) as ranks:
        ranks.read_all()
        ranks[0].tell()
        ranks[1].tell()
        ranks.wait_for_sleep(0, 1)
        ranks[2].signal(signal.SIGKILL)
        for said in ranks.read_all(0, 1):
            assert said["kind"] == "PeerLost" and said["ranks"] == [2]
            assert "SIGKILL" in said["text"] and said["seconds"] < DEADLINE
        assert [said["total"] for said in ranks.read_all(0, 1)] == [2.0, 2.0]


LATE = """
import jax
import unisono.jax as collectives

collectives.init("shm", 1)
if rank == 0:
    say(**fault(collectives.original_errors()(jax.jit(lambda: collectives.barrier()))))
hear()
"""


@pytest.mark.thorough
def test_a_rank_that_does_not_come():
    with Ranks(2, LATE) as ranks:
        said = ranks[0].read()
        assert said["kind"] == "CommTimeout" and said["ranks"] == [1]


def closed(world):
    group = collectives.new_group([0, 1])
    program = jax.jit(lambda x: collectives.all_reduce(x, group=group))
    assert program(1.0) == 2.0
    group.close()
    with pytest.raises(NotReady, match="is closed now"), collectives.original_errors():
        program(1.0)


def test_a_group_that_was_closed(all_worlds):
    all_worlds.run("shm", 2, closed)


def test_ranks_that_are_threads_are_eager_only():
    def eager_and_compiled():
        rank = groups.world().rank
        x = jnp.asarray([1.0 + rank])
        assert collectives.all_reduce(x).tolist() == [3.0]
        gradient = jax.grad(lambda x: (rank + 1) * collectives.all_reduce(x).sum())(x)
        assert gradient.tolist() == [3.0]
        with pytest.raises(Unsupported, match="needs ranks that are processes"):
            jax.jit(collectives.all_reduce)(x)

    unisono.spawn(eager_and_compiled, 2)


LEFT_RUNNING = """
import jax, jax.numpy as jnp
import unisono.jax as collectives

collectives.init()
slow = jax.jit(lambda a: jnp.linalg.matrix_power(a / len(a), 60))
program = jax.jit(lambda a: collectives.all_reduce(a[0, 0]))
for _ in range(3):
    program(slow(jnp.ones((400, 400))))
print("the end")
"""


@pytest.mark.thorough
def test_a_script_may_end_while_a_program_runs(tmp_path):
    script = tmp_path / "left_running.py"
    script.write_text(LEFT_RUNNING)
    command = [sys.executable, "-m", "unisono", "run", "-n", "2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == ["[0] the end", "[1] the end"]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("sys.modules['jax'] = None", "pip install 'jax>="),
        ("import jax; jax.__version_info__ = (0, 6, 2)", "needs JAX 0.7.2 or newer"),
    ],
)
def test_what_to_install(body, text):
    code = f"import sys; {body}\ntry: import unisono.jax\nexcept ImportError as e: print(e)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert text in done.stdout
