"""PyTorch's suite as a test class for any backend: what it skips by name, it runs here.

The suite asks for its backend by name: a test runs if the name is "gloo", or "mpi", or is found in
a table of features. So it is imported with a string that compares equal to the names whose tests we
claim. It reads BACKEND and WORLD_SIZE from the environment while it is imported: both must be set
before, and a process serves one backend and one world size. Ranks import this module as well.
"""

from __future__ import annotations

import collections
import importlib
import os
import time
import unittest
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.testing._internal import common_distributed

import unisono
from tests.torch.suite.runner import DEADLINE, GPU, PATCH, START_METHOD

#: Whose tests a backend has to pass: Gloo's are the most, and all_to_all on CPU is MPI's alone.
CLAIMED = ("gloo", "mpi")

#: The tests of CUDA tensors are nccl's.
CLAIMED_ON_GPU = (*CLAIMED, "nccl")

#: The group tests use ranks 1 and 2. Upstream skips them in worlds of less than eight.
SMALLEST_WORLD_OF_GROUP_TESTS = 3

#: How long the other ranks may go on when one has failed: their errors often say more.
GRACE = 2.0

SKIPS = {skip.exit_code: skip.message for skip in common_distributed.TEST_SKIPS.values()}


class Claim(str):
    """The name of a backend, equal to the claimed names as well.

    A set looks at hashes first, so only "gloo" is found in one, never "mpi". This suits: the tables
    of the suite list gloo where a feature is there, and mpi where one is missing.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        claimed = CLAIMED_ON_GPU if os.environ[GPU] == "1" else CLAIMED
        return other in claimed or str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash("gloo")


def _import_suite() -> Any:
    """Import the suite, once the names and the world's size are in its way no more."""
    backend = os.environ["BACKEND"]
    if os.environ[PATCH] == "1":
        unisono.patch("torch")
    if backend == "unisono":
        importlib.import_module("unisono.torch.backend")
    if backend.upper() not in vars(dist.Backend):
        raise LookupError(f"torch knows no backend {backend!r}; it has {dist.Backend.backend_list}")
    if os.environ[GPU] == "1":
        _share_gpu(int(os.environ["WORLD_SIZE"]))
    if int(os.environ["WORLD_SIZE"]) >= SMALLEST_WORLD_OF_GROUP_TESTS:
        common_distributed.skip_if_small_worldsize = lambda function: function
    common_distributed.DistTestCases.backend_feature["plugin"].add(backend)
    # Only this string passes the comparisons, and the environment gives plain ones.
    overlay = collections.ChainMap({"BACKEND": Claim(backend)}, os.environ)
    with mock.patch.object(os, "environ", overlay):
        return importlib.import_module("torch.testing._internal.distributed.distributed_test")


def _share_gpu(ranks: int) -> None:
    """Let the suite, which has a GPU for each rank, do with one."""
    common_distributed.skip_if_no_gpu = lambda function: function
    common_distributed.init_multigpu_helper = lambda *_: {rank: [0] for rank in range(ranks)}


upstream = _import_suite()


class TorchSuite(upstream.TestDistBackend, upstream.DistributedTest._DistTestBase):
    """All tests; each starts its ranks, and passes if every one of them ends well."""

    @property
    def deadline(self) -> float:
        """Seconds until this test counts as failed and its ranks are killed."""
        return float(os.environ[DEADLINE])

    def setUp(self) -> None:
        super().setUp()
        self.addCleanup(Path(self.file_name).unlink, missing_ok=True)
        self._spawn_processes()

    def _spawn_processes(self) -> None:
        context = torch.multiprocessing.get_context(os.environ[START_METHOD])
        self._start_processes(context.Process)

    @classmethod
    def _run(cls, rank: int, test_name: str, file_name: str, pipe: Connection, **options) -> None:
        # Known since the test began, and a forked rank was imported earlier.
        upstream.INIT_METHOD = os.environ["INIT_METHOD"]
        if os.environ[GPU] == "1":
            # Upstream asks once whether there are enough, and torch asks later which there are.
            counts, count = [int(os.environ["WORLD_SIZE"])], torch.cuda.device_count
            torch.cuda.device_count = lambda: counts.pop() if counts else count()
            set_device = torch.cuda.set_device
            torch.cuda.set_device = lambda device: set_device(0)
        super()._run(rank, test_name, file_name, pipe, **options)

    def _join_processes(self, function: Callable[[], None]) -> None:
        """Wait for all ranks and judge them all; upstream asks the first one alone."""
        pipes = [self.pid_to_pipe[process.pid] for process in self.processes]
        said: list[str] = ["" for _ in pipes]
        try:
            late = self._wait(pipes, said)
        finally:
            for process in self.processes:
                process.kill()
                process.join()
            for pipe in pipes:
                pipe.close()
        _judge([process.exitcode for process in self.processes], said, late)

    def _wait(self, pipes: list[Connection], said: list[str]) -> list[int]:
        """Collect what ranks say until all have ended; answer those that have not in time."""
        deadline = time.monotonic() + self.deadline
        has_failed = False
        while living := [rank for rank, one in enumerate(self.processes) if one.exitcode is None]:
            left = deadline - time.monotonic()
            if left <= 0:
                for rank in living:
                    said[rank] += _stack(pipes[rank])
                # Ranks that had to stop because of another one are victims, not late.
                return [] if has_failed else living
            wait([self.processes[rank].sentinel for rank in living], timeout=min(left, 0.5))
            for rank, pipe in enumerate(pipes):
                said[rank] += _hear(pipe)
            codes = {process.exitcode for process in self.processes}
            if not has_failed and codes - {None, 0}:
                has_failed = True
                deadline = min(deadline, time.monotonic() + GRACE)
        for rank, pipe in enumerate(pipes):
            said[rank] += _hear(pipe)
        return []


def _hear(pipe: Connection) -> str:
    """What a rank has sent: the traceback of its error."""
    words = ""
    try:
        while pipe.poll():
            words += pipe.recv()
    except (EOFError, OSError):
        pass  # it has ended
    return words


def _stack(pipe: Connection) -> str:
    """Ask a rank that still runs where it is."""
    try:
        pipe.send(common_distributed.MultiProcessTestCase.Event.GET_TRACEBACK)
        if pipe.poll(3):
            return pipe.recv()
    except (EOFError, OSError):
        pass
    return "(does not say where it is)"


def _judge(codes: list[int | None], said: list[str], late: list[int]) -> None:
    """Raise unless every rank ended well; a skip is one that all ranks agree on."""
    if not late and set(codes) == {0}:
        return
    if not late and len(set(codes)) == 1 and codes[0] in SKIPS:
        raise unittest.SkipTest(SKIPS[codes[0]])
    lines = [f"late: ranks {late}"] if late else []
    for rank, (code, words) in enumerate(zip(codes, said, strict=True)):
        skipped = f" ({SKIPS[code]})" if code in SKIPS else ""
        lines.append(f"rank {rank} ended with {code}{skipped}\n{words}".rstrip())
    raise AssertionError("\n".join(lines))
