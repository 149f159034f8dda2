"""Run tests of the suite in processes of their own, and say how each one ended."""

from __future__ import annotations

import concurrent.futures
import contextlib
import importlib
import multiprocessing
import os
import re
import tempfile
import time
import unittest
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SUITE = "tests.torch.suite.suite:TorchSuite"

#: A variable: how the ranks of a test start. A forked rank need not import torch again, which takes
#: seconds; a spawned one ends as a program does, with the interpreter's own end.
START_METHOD = "TORCH_SUITE_START"

#: A variable: how long a test may take, in seconds.
DEADLINE = "TORCH_SUITE_DEADLINE"

#: A variable: "1" if torch is patched, so that its backend gloo is unisono.
PATCH = "TORCH_SUITE_PATCH"

#: A variable: "1" if all ranks share the first GPU.
GPU = "TORCH_SUITE_GPU"

#: Much of what ranks print is torch's own warnings; errors are near the end.
LOG_TAIL = 3000

#: Why the suite leaves a test out, by words in its reason; the first that fits.
SKIP_KINDS = {
    "needs a GPU": re.compile(r"cuda|gpu|nccl", re.IGNORECASE),
    "another world size": re.compile(r"world ?size", re.IGNORECASE),
    "left out": re.compile(""),
}


@dataclass(frozen=True)
class Outcome:
    """How a test ended: `status` is "passed", "failed" or one of SKIP_KINDS."""

    test: str
    status: str
    detail: str
    seconds: float

    @property
    def ran(self) -> bool:
        return self.status in ("passed", "failed")


class Run:
    """The suite for one backend and world size, in `jobs` processes; a context manager.

    The suite fixes backend and size when it is imported, hence a process pool for each pair; and it
    keeps the folder of its test in the environment, hence one test at a time in a process.
    """

    def __init__(
        self,
        backend: str,
        world_size: int,
        *,
        jobs: int = 1,
        start: str = "fork",
        deadline: float = 120,
        patch: bool = False,
        gpu: bool = False,
        suite: str = SUITE,
    ) -> None:
        self._suite = suite
        self._resources = contextlib.ExitStack()
        # All that a test leaves behind, also when it is killed, is in here.
        folder = tempfile.TemporaryDirectory(prefix="suite-", ignore_cleanup_errors=True)
        variables = {
            "BACKEND": backend,
            "WORLD_SIZE": str(world_size),
            "INIT_METHOD": "file://",  # replaced for every test
            "TMPDIR": self._resources.enter_context(folder),
            "OMP_NUM_THREADS": "1",  # ranks are more than cores already
            START_METHOD: start,
            DEADLINE: str(deadline),
            PATCH: "1" if patch else "0",
            GPU: "1" if gpu else "0",
        }
        pool = concurrent.futures.ProcessPoolExecutor(
            jobs, multiprocessing.get_context("spawn"), _prepare, (variables,)
        )
        self._pool = self._resources.enter_context(pool)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._resources.close()

    def tests(self) -> list[str]:
        """The names of all tests, those that will be skipped among them."""
        return self._pool.submit(_tests, self._suite).result()

    def outcomes(self, tests: list[str]) -> Iterator[Outcome]:
        """Run these tests and yield each outcome when it is known."""
        futures = [self._pool.submit(_run, self._suite, test) for test in tests]
        for future in concurrent.futures.as_completed(futures):
            yield future.result()


# ---- in a process of the pool ----


def _prepare(variables: dict[str, str]) -> None:
    os.environ.update(variables)
    tempfile.tempdir = None  # asks TMPDIR again
    # Ranks inherit these two, so that a failed test can show what they printed.
    log = os.open(_log(), os.O_CREAT | os.O_RDWR | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(log, stream)


def _log() -> Path:
    return Path(os.environ["TMPDIR"], f"log-{os.getpid()}")


def _class(suite: str) -> Any:
    module, _, name = suite.partition(":")
    return getattr(importlib.import_module(module), name)


def _tests(suite: str) -> list[str]:
    return unittest.defaultTestLoader.getTestCaseNames(_class(suite))


def _run(suite: str, test: str) -> Outcome:
    os.truncate(_log(), 0)
    result = unittest.TestResult()
    begin = time.monotonic()
    _class(suite)(test).run(result)
    seconds = time.monotonic() - begin
    bad = [*result.failures, *result.errors]
    if bad:
        detail = "\n".join(text for _, text in bad)
        return Outcome(test, "failed", f"{detail}\nprinted:\n{_tail()}", seconds)
    if result.unexpectedSuccesses:
        return Outcome(test, "failed", "upstream expects it to fail, and it passes", seconds)
    if result.skipped:
        reason = result.skipped[0][1]
        kind = next(kind for kind, words in SKIP_KINDS.items() if words.search(reason))
        return Outcome(test, kind, reason, seconds)
    return Outcome(test, "passed", "", seconds)


def _tail() -> str:
    return _log().read_text(errors="replace")[-LOG_TAIL:]
