"""The marker `ranks`: what a user's pytest shows when ranks pass, fail, skip, die or hang."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from tests.helpers import worlds
from tests.helpers.launcher import Terminal

pytestmark = pytest.mark.needs("spawn")

PROCESSES = [name for name in worlds.engines() if name != "threads"]


@pytest.fixture(autouse=True)
def no_options_of_this_suite(monkeypatch):
    # A user's run does not have the options that this suite is run with.
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)


def mark(n: int, engine: str, **more: object) -> str:
    options = [f"{key}={value!r}" for key, value in {"engine": engine, **more}.items()]
    return f"@pytest.mark.ranks({', '.join([str(n), *options])})"


HEADER = """
import sys
import numpy as np
import pytest
from unisono.core import buffers, dispatch, groups
from unisono.core.dtypes import ReduceOp

def total(value):
    array = np.array([float(value)])
    buffer = buffers.view(array)
    dispatch.all_reduce(groups.world(), buffer, buffer, ReduceOp.SUM)
    return array[0]
"""


def test_ranks_form_a_world(pytester, engine):
    # The plugin starts all ranks on one host, where hybrid is shm.
    name = "shm" if engine == "hybrid" else engine
    pytester.makepyfile(f"""{HEADER}
{mark(3, engine)}
def test_sum():
    world = groups.init()   # a test that calls init finds the world there
    assert world.size == 3
    assert world.engine.name == "{name}"
    assert total(world.rank) == 3

def test_alone():
    assert not groups.is_initialized()
""")
    pytester.runpytest().assert_outcomes(passed=2)


def test_threads_are_the_default(pytester):
    pytester.makepyfile(f"""{HEADER}
import os, threading
seen = []

@pytest.mark.ranks(2)
def test_here():
    seen.append((os.getpid(), threading.get_ident()))
    total(0)

def test_after():
    assert {{pid for pid, _ in seen}} == {{os.getpid()}}
    assert len(set(seen)) == 2
""")
    pytester.runpytest().assert_outcomes(passed=2)


@pytest.mark.thorough
def test_parameters_classes_and_fixtures(pytester, engine):
    pytester.makepyfile(f"""{HEADER}
@pytest.fixture
def base(request):
    return 100

class TestMany:
    scale = 2

    {mark(2, engine)}
    @pytest.mark.parametrize("step", [1, 10], ids=["one", "ten::[x]"])
    def test_steps(self, base, step, tmp_path):
        assert tmp_path.exists()
        assert total(base + step) == self.scale * (base + step)
""")
    result = pytester.runpytest("-v")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*TestMany::test_steps?one? PASSED*"])


def test_failure_shows_the_rank_and_its_traceback(pytester, engine):
    pytester.makepyfile(f"""{HEADER}
{mark(3, engine)}
def test_bad():
    rank = groups.world().rank
    sys.stdout.write(f"printed by {{rank}}\\n")  # print() makes two writes, and threads mix them
    if rank == 1:
        apples = 3
        assert apples == 4, "too few apples"
    total(rank)
""")
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            ">*assert apples == 4, *",
            "E*AssertionError: too few apples",
            "*on rank 1 of 3*",
            "*printed by 1*",
        ]
    )
    result.stdout.no_fnmatch_line("E*unisono.errors.PeerLost*")
    # The traceback has the user's own frames and none of the plugin's.
    result.stdout.no_fnmatch_line("*spawn.py*")


@pytest.mark.thorough
@pytest.mark.parametrize("process_engine", PROCESSES)
def test_summary_names_the_rank(pytester, process_engine):
    pytester.makepyfile(f"""{HEADER}
{mark(2, process_engine)}
def test_bad():
    if groups.world().rank == 1:
        raise ValueError("broken")
""")
    result = pytester.runpytest("-rf")
    result.stdout.fnmatch_lines(["FAILED *::test_bad - on rank 1 of 2: ValueError*"])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ("pytest.skip('not today')", {"skipped": 1}),
        ("pytest.fail('on purpose')", {"failed": 1}),
        ("pytest.xfail('known')", {"xfailed": 1}),
    ],
    ids=["skip", "fail", "xfail"],
)
def test_outcomes_pass_through(pytester, engine, body, outcome):
    pytester.makepyfile(f"""{HEADER}
{mark(2, engine)}
def test_it():
    if groups.world().rank == 1:
        {body}
    total(1)
""")
    pytester.runpytest().assert_outcomes(**outcome)


@pytest.mark.thorough
def test_marks_for_skip_and_xfail(pytester, engine):
    pytester.makepyfile(f"""{HEADER}
{mark(2, engine)}
@pytest.mark.skip(reason="not today")
def test_skipped():
    raise AssertionError

{mark(2, engine)}
@pytest.mark.xfail(strict=True, raises=ZeroDivisionError)
def test_expected():
    1 / 0
""")
    pytester.runpytest().assert_outcomes(skipped=1, xfailed=1)


@pytest.mark.thorough
@pytest.mark.parametrize("process_engine", PROCESSES)
def test_failing_fixture(pytester, process_engine):
    pytester.makepyfile(f"""{HEADER}
import os

@pytest.fixture
def broken():
    if os.environ["UNISONO_RANK"] == "1":
        raise LookupError("no such table")

{mark(2, process_engine)}
def test_it(broken):
    total(1)
""")
    result = pytester.runpytest()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["E*LookupError: no such table", "*on rank 1 of 2*"])


@pytest.mark.parametrize("process_engine", PROCESSES)
def test_rank_that_dies(pytester, process_engine):
    pytester.makepyfile(f"""{HEADER}
import os

{mark(3, process_engine)}
def test_it():
    if groups.world().rank == 2:
        os.kill(os.getpid(), 9)
    total(1)
""")
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*on rank 2 of 3*ended without a report: killed by SIGKILL*"])


@pytest.mark.thorough
@pytest.mark.parametrize("process_engine", PROCESSES)
def test_rank_that_hangs(pytester, process_engine):
    pytester.makepyfile(f"""{HEADER}
import time

{mark(2, process_engine, timeout=8)}
def test_it():
    if groups.world().rank == 1:
        time.sleep(100)
""")
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    # On a slow machine rank 0 may not have ended either; then it is shown first.
    result.stdout.fnmatch_lines(["*rank 1 was still running after 8 s*"])


@pytest.mark.thorough
@pytest.mark.parametrize("process_engine", PROCESSES)
def test_rank_that_fails_and_then_does_not_end(pytester, process_engine):
    """Its error is the cause, although it is ended in the end, as one that only waited is."""
    pytester.makepyfile(f"""{HEADER}
import atexit, time

{mark(2, process_engine)}
def test_it():
    if groups.world().rank == 1:
        atexit.register(time.sleep, 100)
        raise ValueError("broken")
    total(1)
""")
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*ValueError: broken", "*on rank 1 of 2*"])


@pytest.mark.thorough
@pytest.mark.parametrize("process_engine", PROCESSES)
def test_other_tests_and_their_fixtures_are_not_affected(pytester, process_engine):
    """A module's fixture is kept during a test on processes and ends before the next module."""
    source = f"""{HEADER}
import os
@pytest.fixture(scope="module")
def opened():
    yield os.getpid()
    with open("ended", "a") as stream:
        print(os.getpid(), file=stream)

def test_before(opened):
    assert opened == os.getpid()

{mark(2, process_engine)}
def test_ranks(opened):
    assert opened == os.getpid()
    total(1)
"""
    pytester.makepyfile(test_a=source)
    pytester.makepyfile(
        test_b="""
import os
from pathlib import Path
def test_next_module():
    assert str(os.getpid()) in Path("ended").read_text().split()
"""
    )
    pytester.runpytest().assert_outcomes(passed=3)
    assert len((pytester.path / "ended").read_text().split()) == 3


@pytest.mark.thorough
@pytest.mark.parametrize("process_engine", PROCESSES)
def test_options_reach_the_ranks_or_stay_here(pytester, process_engine):
    pytester.makeconftest("""
def pytest_addoption(parser):
    parser.addoption("--colour")
""")
    pytester.makepyfile(f"""{HEADER}
{mark(2, process_engine)}
def test_it(pytestconfig):
    assert pytestconfig.getoption("colour") == "blue"
    total(1)
""")
    result = pytester.runpytest(
        "--colour", "blue", "-k", "test_it", "--junitxml=out.xml", "-x", "."
    )
    result.assert_outcomes(passed=1)
    assert (pytester.path / "out.xml").read_text().count("<testcase") == 1


@pytest.mark.parametrize(
    ("marker", "text"),
    [
        ("ranks()", "ranks()"),
        ("ranks('x')", "'x', not 1 or more"),
        ("ranks(0)", "0, not 1 or more"),
        ("ranks(True)", "True, not 1 or more"),
        ("ranks(2, engine='warp')", "no engine 'warp'; installed: "),
        ("ranks(2, engin='shm')", "engin='shm'"),
        ("ranks(2, timeout=-1)", "timeout is -1"),
    ],
)
def test_wrong_use_is_a_usage_error(pytester, marker, text):
    pytester.makepyfile(f"""
import pytest
@pytest.mark.{marker}
def test_it():
    raise AssertionError("ran although its marker is wrong")
""")
    result = pytester.runpytest()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: *::test_it: *{text.replace('[', '[[]')}*ranks(4)*"])


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("async def test_it(): pass", "async"),
        (
            "import unittest\nclass TestIt(unittest.TestCase):\n    def test_it(self): pass",
            "plain classes",
        ),
    ],
    ids=["async", "unittest"],
)
def test_functions_that_cannot_have_ranks(pytester, source, text):
    pytester.makepyfile(f"import pytest\npytestmark = pytest.mark.ranks(2)\n{source}")
    result = pytester.runpytest()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: *{text}*"])


def test_marker_is_documented(pytester):
    pytester.runpytest("--markers").stdout.fnmatch_lines(
        ["@pytest.mark.ranks(n, engine='threads'*"]
    )


@pytest.mark.thorough
@pytest.mark.parametrize("process_engine", PROCESSES)
def test_nothing_is_left_behind(pytester, process_engine):
    """The processes of a test that failed are gone when its report is there."""
    pytester.makepyfile(f"""{HEADER}
import os, time
{mark(2, process_engine)}
def test_it():
    with open("pids", "a") as stream:
        print(os.getpid(), file=stream)
    total(1)
    if groups.world().rank == 0:
        raise ValueError
    time.sleep(100)
""")
    pytester.runpytest().assert_outcomes(failed=1)
    pids = [int(word) for word in (pytester.path / "pids").read_text().split()]
    assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


# ---- with --pdb ----------------------------------------------------------------------------------


@pytest.mark.thorough
def test_the_rank_that_fails_has_the_debugger(tmp_path: Path) -> None:
    """On processes and on threads; the ranks that only lost it do not ask for the terminal."""
    (tmp_path / "test_it.py").write_text(
        "import numpy as np, pytest\n"
        "import unisono.torch.distributed as dist\n"
        "def body():\n"
        "    value = dist.get_rank() * 10\n"
        "    dist.all_reduce(np.ones(1))\n"
        "    assert value != 10\n"
        "    dist.barrier()\n"
        "@pytest.mark.ranks(3, engine='shm', timeout=1)\n"
        "def test_processes(): body()\n"
        "@pytest.mark.ranks(3)\n"
        "def test_threads(): body()\n"
    )
    command = [sys.executable, "-m", "pytest", "--pdb", "-p", "no:cacheprovider", "test_it.py"]
    with Terminal(*command, cwd=tmp_path) as terminal:
        terminal.wait_for("test_it.py::test_processes failed on rank 1")
        terminal.wait_for("(rank 1) ")
        time.sleep(2)  # longer than the test may take without a debugger
        terminal.type("p value + 1\n")
        terminal.wait_for("11")
        terminal.type("c\n")
        terminal.wait_for("(Pdb) ")
        terminal.type("p value + 2\n")
        terminal.wait_for("12")
        terminal.type("c\n")
        assert terminal.end() == 1
        assert "2 failed" in terminal.all
