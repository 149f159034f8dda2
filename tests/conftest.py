"""The fixtures of the conformance suite: `engine`, `ranks` and `world`."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import hosts
import worlds
from unisono.core import gaps

pytest_plugins = ["pytester"]


def pytest_report_header() -> str:
    return f"unisono engines under test: {', '.join(worlds.engines())}"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(kind): skipped on engines with this known gap")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Engines have known gaps, in one shipped list; and upstream's need no crowd to be tested."""
    for item in items:
        engine = getattr(item, "callspec", None) and item.callspec.params.get("engine")
        if not engine:
            continue
        for mark in item.iter_markers("needs"):
            for gap in gaps.of(engine):
                if gap.kind == mark.args[0]:
                    item.add_marker(pytest.mark.skip(reason=f"{engine}: {gap.what}"))
        if engine.startswith("hybrid") and (reason := hosts.why_not()):
            item.add_marker(pytest.mark.skip(reason=f"no hosts for engine hybrid: {reason}"))
        if engine not in ("threads", "shm") and item.callspec.params.get("ranks", 2) not in (2, 3):
            item.add_marker(pytest.mark.skip(reason="other sizes are for engines of our own"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    # Session scope makes pytest group the tests by engine and size, so that pools are reused.
    if "engine" in metafunc.fixturenames:
        metafunc.parametrize("engine", worlds.engines(), scope="session")


@pytest.fixture(scope="session", params=[1, 2, 3, 4, 8], ids="{}-ranks".format)
def ranks(request: pytest.FixtureRequest) -> int:
    """How many ranks the world has: alone, a pair, odd, even, more than cores."""
    return request.param


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
