"""Ranks that mpiexec starts, for the tests: a pool like the one of worlds.py, and plain jobs.

As a program (`mpiexec ... python -m tests.helpers.mpi_pool SOCKET ENGINE TIMEOUT`) it is one rank
of a pool: it connects to the test's socket, says which rank it is, and runs what it is sent.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.helpers import hosts, worlds
from tests.helpers.paths import ROOT
from unisono.core import environment

__all__ = ["MpiPool", "SocketPool", "launcher", "is_open_mpi", "start"]

_START = 60.0  # seconds for all ranks to come
_GRACE = 10.0  # seconds for all ranks to leave


@functools.cache
def mpiexec() -> str:
    """The mpiexec of the MPI that mpi4py loads: pip puts both next to this Python."""
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        raise RuntimeError("engine 'mpi' is tested with mpiexec: pip install mpich")
    return found


@functools.cache
def is_open_mpi() -> bool:
    """Whether it is Open MPI's, which refuses more ranks than cores unless it is told."""
    said = subprocess.run([mpiexec(), "--version"], capture_output=True, text=True, timeout=60)
    return "Open MPI" in said.stdout


def launcher(n: int, *more: str) -> list[str]:
    """The command that starts n ranks of what follows it."""
    flags = ["--oversubscribe", "--allow-run-as-root"] if is_open_mpi() else []
    return [*hosts.own_memory(), mpiexec(), *flags, *more, "-n", str(n)]


def start(n: int, *command: str, more: tuple[str, ...] = (), **options: Any) -> subprocess.Popen:
    """Start n ranks of a Python program, in a session of their own."""
    paths = [str(ROOT), *filter(None, sys.path)]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **options.pop("env", {})}
    return subprocess.Popen(
        [*launcher(n, *more), sys.executable, *command],
        env=variables,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        **options,
    )


class SocketPool(worlds._Pool):
    """n ranks that come by a socket, join one world and run what they are sent.

    A subclass starts them (`launch`), tells whether they have failed (`code`) and ends them.
    """

    def __init__(self, engine: str, n: int, timeout: float) -> None:
        self.n = n
        self.pids = [0] * n
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())  # nobody else may enter it
            address = str(Path(folder) / "socket")
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(address)
            listener.listen(n)
            listener.settimeout(0.2)
            self.launch(n, "-m", "tests.helpers.mpi_pool", address, engine, str(timeout))
            pipes = dict(self._accept(listener) for _ in range(n))
        self.pipes = [pipes[rank] for rank in range(n)]

    def launch(self, n: int, *command: str) -> None:
        """Start n ranks of a Python program."""
        raise NotImplementedError

    def code(self) -> int | None:
        """The exit code of the job, None while it runs."""
        raise NotImplementedError

    def end(self) -> None:
        """Wait for the ranks, and end those that do not end by themselves."""
        raise NotImplementedError

    def _accept(self, listener: socket.socket) -> tuple[int, Connection]:
        limit = time.monotonic() + _START
        while time.monotonic() < limit and self.code() is None:
            with contextlib.suppress(TimeoutError):
                connection, _ = listener.accept()
                connection.setblocking(True)
                pipe = Connection(connection.detach())
                rank, pid = pipe.recv()
                self.pids[rank] = pid
                return rank, pipe
        code = self.code()
        self.end()
        raise RuntimeError(f"{self.n} ranks did not start; exit code {code}")

    def _receive(self, rank: int) -> tuple[Any, BaseException | None]:
        try:
            return self.pipes[rank].recv()
        except (EOFError, ConnectionResetError):
            limit = time.monotonic() + _GRACE
            while self.code() is None and time.monotonic() < limit:
                time.sleep(0.05)
            return None, RuntimeError(f"rank {rank} of {self.n} died with exit code {self.code()}")

    def close(self) -> None:
        """Ask the ranks to end, and end those that do not."""
        for pipe in self.pipes:
            pipe.close()
        self.end()


class MpiPool(SocketPool):
    """n ranks under one mpiexec."""

    def launch(self, n: int, *command: str) -> None:
        self.job = start(n, *command)

    def code(self) -> int | None:
        return self.job.poll()

    def end(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.job.wait(_GRACE)
        if self.job.poll() is not None:
            return
        for pid in filter(None, self.pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.job.terminate()
        try:
            self.job.wait(_GRACE)
        except subprocess.TimeoutExpired:
            os.killpg(self.job.pid, signal.SIGKILL)
            self.job.wait()


def _main(address: str, engine: str, timeout: str) -> None:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    pipe = Connection(connection.detach())
    pipe.send((environment.find().rank, os.getpid()))
    worlds._serve(pipe, engine, float(timeout), {})


if __name__ == "__main__":
    _main(*sys.argv[1:])
