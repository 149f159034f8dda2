"""The markers, and the fixtures of the conformance suite: `engine`, `ranks` and `world`."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import hosts, processes, worlds
from unisono.engines import gaps
from unisono.launch.process import ReservedPort

pytest_plugins = ["pytester"]

_IGNORED = pytest.StashKey[list[int]]()


def pytest_report_header() -> str:
    return f"unisono engines under test: {', '.join(worlds.engines())}"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(kind): skipped on engines with this known gap")
    config.addinivalue_line("markers", "each_engine: runs on each engine that is under test")
    config.addinivalue_line("markers", "thorough: for `make test-all`, not for `make test`")
    config.addinivalue_line("markers", "essential: for `make test` on every engine")
    workerinput = getattr(config, "workerinput", {})  # only a worker of pytest-xdist has it
    config.stash[_IGNORED] = processes.unignore_signals(workerinput.get("ignored_signals", ()))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of pytest-xdist which signals this process was started to ignore."""
    node.workerinput["ignored_signals"] = node.config.stash[_IGNORED]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the known gaps of engines, which are in one shipped list; mark tests by their engine."""
    for item in items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        engine = params.get("engine", params.get("process_engine"))
        if not engine:
            continue
        item.add_marker("each_engine")
        if not worlds.is_essential(engine, item):
            item.add_marker("thorough")
        for mark in item.iter_markers("needs"):
            for gap in gaps.of(worlds.opened(engine)):
                if gap.kind == mark.args[0]:
                    item.add_marker(pytest.mark.skip(reason=f"{engine}: {gap.what}"))
        pooled = "world" in item.fixturenames
        if engine.startswith("hybrid") and pooled and (reason := hosts.why_not()):
            item.add_marker(pytest.mark.skip(reason=f"no hosts for engine hybrid: {reason}"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    # Session scope makes pytest group the tests by engine and size, so that pools are reused.
    if {"engine", "ranks"} <= set(metafunc.fixturenames):
        both = [
            pytest.param(engine, n, id=f"{engine}-{n}-ranks", marks=worlds.marks(engine, n))
            for engine in worlds.engines()
            for n in worlds.sizes(engine)
        ]
        metafunc.parametrize(("engine", "ranks"), both, scope="session")
    elif "engine" in metafunc.fixturenames:
        metafunc.parametrize("engine", worlds.engines(), scope="session")


@pytest.fixture(scope="session", autouse=True)
def traces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the traces of calls that fail go: a folder of this run."""
    folder = tmp_path_factory.mktemp("traces")
    before = os.environ.get("UNISONO_TRACE")
    os.environ["UNISONO_TRACE"] = str(folder)
    yield folder
    if before is None:
        del os.environ["UNISONO_TRACE"]
    else:
        os.environ["UNISONO_TRACE"] = before


@pytest.fixture
def port() -> Iterator[str]:
    """A TCP port for the ranks of a test, which no test beside it gets."""
    held = ReservedPort()
    yield str(held)
    del held  # not before


@pytest.fixture(scope="session")
def all_worlds() -> Iterator[worlds.Worlds]:
    """The pools of this test session."""
    every = worlds.Worlds()
    yield every
    every.close()


@pytest.fixture(scope="session")
def world(all_worlds: worlds.Worlds, engine: str) -> Callable[..., list]:
    """`world(n, function, *args)` runs `function(group, *args)` on n ranks of the engine."""
    return functools.partial(all_worlds.run, engine)


@pytest.fixture(scope="session")
def on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., list]]:
    """`on(backend, n, case, *args)`: what a case returns on n ranks, see training_cases.py."""
    from tests.helpers.training_cases import Runner  # it needs torch

    runner = Runner(tmp_path_factory.mktemp("training"))
    yield runner.run
    runner.close()
