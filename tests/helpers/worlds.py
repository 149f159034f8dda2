"""Run a function on the ranks of an engine: threads here, or a pool of processes that is kept.

`Worlds.run(engine, n, function, *args)` calls `function(group, *args)` on n ranks and returns the
n results in rank order. With processes the function has to be importable, because it is pickled.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest

from unisono.core import groups, registry
from unisono.engines.threads.engine import threads_world
from unisono.errors import PeerLost
from unisono.launch.process import JobEnvironment

#: Engine `cuda` on a GPU that is emulated.
EMULATED = "cuda-emulated"
DEADLINE = 60.0  # seconds for any one function
_TIMEOUT = 40.0  # seconds that an engine waits: less, because its own report says more
_GRACE = 5.0  # seconds for the other ranks to end once one has failed
_POOLS = 4  # kept at a time: each holds n interpreters and their shared memory


def engines() -> list[str]:
    """The engines to test: those of one host, or those that UNISONO_TEST_ENGINES names."""
    wanted = os.environ.get("UNISONO_TEST_ENGINES")
    if not wanted:
        own = ("threads", "shm")
        return [name for name in own if registry.load(name).unavailable() is None]
    chosen = [name.strip() for name in wanted.split(",")]
    for name in chosen:
        if name == EMULATED:
            continue
        reason = registry.load(name).unavailable()
        if reason is not None:
            raise RuntimeError(
                f"UNISONO_TEST_ENGINES asks for {name!r}, which cannot run: {reason}"
            )
    return chosen


#: How many ranks a world has: alone, a pair, odd, even, more than cores. The engines of other
#: libraries need fewer; hosts have equally many ranks or not, see host_pool.py.
_SIZES = {
    "threads": (1, 2, 3, 4, 8),
    "shm": (1, 2, 3, 4, 8),
    "hybrid": (3, 4, 6),
    "cuda": (2, 3, 4),
    EMULATED: (1, 2, 3),
}

#: Those of them that `make test` runs.
_ESSENTIAL_SIZES = {"threads": (1, 2, 3), "shm": (1, 2, 3)}


def _base(engine: str) -> str:
    return engine.partition(":")[0]


def sizes(engine: str) -> tuple[int, ...]:
    """How many ranks the worlds of an engine have."""
    return _SIZES.get(_base(engine), (2, 3))


def marks(engine: str, n: int) -> tuple[pytest.MarkDecorator, ...]:
    """What marks a test on n ranks of an engine."""
    essential = n in _ESSENTIAL_SIZES.get(_base(engine), (3,))
    return () if essential else (pytest.mark.thorough,)


def is_essential(engine: str, item: pytest.Function) -> bool:
    """Whether `make test` runs a test on this engine.

    Ranks of other libraries and on other hosts take seconds to start. So there it runs only what
    shares one world of an engine, and what is marked as essential; and no tests of faces, which do
    the same above every engine.
    """
    if engine in ("threads", "shm"):
        return True
    shares_a_world = "ranks" in item.callspec.params
    marked = item.get_closest_marker("essential") is not None
    return item.path.parent.name == "engines" and (shares_a_world or marked)


def opened(engine: str) -> str:
    """The engine that ranks open for one that is under test."""
    return "cuda" if engine == EMULATED else engine


class Worlds:
    """Runs functions on ranks; keeps the pools of the engines whose ranks are processes."""

    def __init__(self) -> None:
        self._pools: dict[tuple[str, int], _Pool] = {}  # the one used last is the last

    def run(
        self,
        engine: str,
        n: int,
        function: Callable[..., Any],
        *args: Any,
        of_its_own: bool = False,
        dying: Sequence[int] = (),
    ) -> list[Any]:
        """The n results of `function(group, *args)`; raises the error of the rank that failed.

        A function that may leave its world broken needs one `of_its_own`. Ranks that are `dying`
        in it have no result.
        """
        if engine == "threads":
            return _run_threads(n, function, args)
        if of_its_own:
            with contextlib.closing(_make_pool(engine, n)) as pool:
                return pool.run(function, args, dying=dying)
        pool = self._pool(engine, n)
        try:
            return pool.run(function, args)
        except BaseException:
            self._pools.pop((engine, n)).close()
            raise

    def close(self) -> None:
        """End every pool."""
        while self._pools:
            self._pools.popitem()[1].close()

    def _pool(self, engine: str, n: int) -> _Pool:
        pool = self._pools.pop((engine, n), None)
        if pool is None:
            while len(self._pools) >= _POOLS:
                self._pools.pop(next(iter(self._pools))).close()
            pool = _make_pool(engine, n)
        self._pools[engine, n] = pool
        return pool


def _make_pool(engine: str, n: int) -> _Pool:
    """Processes of this host, unless the engine needs mpiexec or several hosts."""
    if _base(engine) == "mpi":
        from tests.helpers.mpi_pool import MpiPool  # it builds on this module

        return MpiPool(engine, n, _TIMEOUT)
    if _base(engine) == "hybrid":
        from tests.helpers.host_pool import HostsPool

        return HostsPool(engine, n, _TIMEOUT)
    return _Pool(engine, n, _TIMEOUT)


def _raise_first(failures: dict[int, BaseException], n: int) -> None:
    """Raise the cause: ranks that lost a peer or ran into a timeout only suffer from it."""
    if failures:
        rank = min(failures, key=lambda r: (isinstance(failures[r], PeerLost | TimeoutError), r))
        failures[rank].add_note(f"on rank {rank} of {n}")
        raise failures[rank]


# ---- ranks that are threads ----------------------------------------------------------------------


def _run_threads(n: int, function: Callable[..., Any], args: tuple[Any, ...]) -> list[Any]:
    ranks = threads_world(n, _TIMEOUT)
    results: list[Any] = [None] * n
    failures: dict[int, BaseException] = {}

    def body(rank: int) -> None:
        try:
            results[rank] = function(groups.install(ranks[rank], in_thread=True), *args)
        except BaseException as error:
            failures[rank] = error
            ranks[rank].hub.leave(rank, f"raised {error!r}")

    threads = [threading.Thread(target=body, args=(rank,), daemon=True) for rank in range(n)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + DEADLINE
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    late = [rank for rank, thread in enumerate(threads) if thread.is_alive()]
    for engine in ranks:
        engine.close()
    _raise_first(failures, n)
    if late:
        raise TimeoutError(f"ranks {late} of {n} are still running after {DEADLINE:g} s")
    return results


# ---- ranks that are processes --------------------------------------------------------------------


class _Pool:
    """n processes that have joined one world and run what they are sent."""

    def __init__(self, engine: str, n: int, timeout: float) -> None:
        self.n = n
        context = multiprocessing.get_context("spawn")
        self._job = JobEnvironment(n)  # holds the ranks' port
        self.pipes: list[Connection] = []
        self.processes = []
        for rank in range(n):
            variables = self._job.variables(rank)
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(theirs, engine, timeout, variables), daemon=True
            )
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def run(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        deadline: float = DEADLINE,
        dying: Sequence[int] = (),
    ) -> list[Any]:
        """Send the function to every rank and collect what comes back."""
        task = pickle.dumps((function, args))
        for pipe in self.pipes:
            # A process that has died is reported below, with its exit code.
            with contextlib.suppress(BrokenPipeError):
                pipe.send_bytes(task)
        results: dict[int, Any] = {}
        failures: dict[int, BaseException] = {}
        for rank, result, error in self._answers(deadline, dying):
            if error is None:
                results[rank] = result
            elif rank not in dying:
                failures[rank] = error
        _raise_first(failures, self.n)
        return [results[rank] for rank in sorted(results)]

    def _answers(
        self, deadline: float, dying: Sequence[int]
    ) -> Iterator[tuple[int, Any, BaseException | None]]:
        missing = dict(enumerate(self.pipes))
        end = time.monotonic() + deadline
        while missing:
            ready = wait(list(missing.values()), max(0.0, end - time.monotonic()))
            if not ready:
                ranks = sorted(missing)
                error = TimeoutError(f"ranks {ranks} of {self.n} are still running")
                yield ranks[0], None, error
                return
            for rank in [rank for rank, pipe in missing.items() if pipe in ready]:
                result, error = self._receive(rank)
                del missing[rank]
                if error is not None and rank not in dying:
                    end = min(end, time.monotonic() + _GRACE)
                yield rank, result, error

    def _receive(self, rank: int) -> tuple[Any, BaseException | None]:
        try:
            return self.pipes[rank].recv()
        except EOFError:
            self.processes[rank].join(_GRACE)
            code = self.processes[rank].exitcode
            return None, RuntimeError(f"rank {rank} of {self.n} died with exit code {code}")

    def close(self) -> None:
        """Ask the processes to end, and end those that do not."""
        for pipe in self.pipes:
            pipe.close()
        end = time.monotonic() + _GRACE
        for process in self.processes:
            process.join(max(0.0, end - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()


def _serve(pipe: Connection, engine: str, timeout: float, variables: dict[str, str]) -> None:
    """What one process does: join, then run what comes until the pipe is closed."""
    os.environ.update(variables)
    world = None
    with contextlib.suppress(EOFError, OSError):
        while True:
            task = pipe.recv_bytes()
            try:
                if world is None:
                    world = groups.init(_prepare(engine), timeout)
                function, args = pickle.loads(task)
                answer = pickle.dumps((function(world, *args), None))
            except BaseException as error:
                groups.close()  # so that the others do not wait for this rank
                pipe.send_bytes(_pack(error))
                return
            pipe.send_bytes(answer)
    groups.close()


def _prepare(engine: str) -> str:
    """The name of an engine by which this process can open it."""
    if engine == EMULATED:
        from tests.helpers import cuda_emulator  # it builds the kernels when it is used

        cuda_emulator.install()
    return opened(engine)


def _pack(error: BaseException) -> bytes:
    """The error as bytes; a traceback cannot travel, so it goes along as a note."""
    error.add_note("".join(traceback.format_tb(error.__traceback__)))
    try:
        packed = pickle.dumps((None, error))
        pickle.loads(packed)
    except Exception:
        text = "".join(traceback.format_exception(error))
        packed = pickle.dumps((None, RuntimeError(f"an error that cannot be pickled: {text}")))
    return packed
