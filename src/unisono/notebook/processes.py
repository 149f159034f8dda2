"""Ranks that are processes of this host and wait for tasks.

They are started as programs of their own (`rank_process`): they do not import the program that has
made them, so it needs no `if __name__ == '__main__':`.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection, Pipe
from typing import IO

from unisono.errors import RankFailed
from unisono.launch.cores import core_blocks
from unisono.launch.outcome import ErrorSummary, exit_text
from unisono.launch.process import JobEnvironment
from unisono.launch.supervisor import EndPolicy, Supervisor
from unisono.notebook import transfer
from unisono.notebook.tasks import Answer, Event, OutputPiece, Task

__all__ = ["ProcessRanks"]

#: Seconds that ranks get to end by themselves, and between SIGTERM and SIGKILL.
_GRACE = 2.0
#: What a rank is told instead of a task, if it is to leave its world.
_LEAVE = b""
_PROGRAM = (
    "import sys; sys.path[:] = {path!r}; "
    "from unisono.notebook.rank_process import main; main(**{arguments!r})"
)


class ProcessRanks:
    """The ranks, seen from the program that uses them."""

    #: Seconds that a rank has to end its call after an interrupt: the user decides.
    patience = float("inf")

    def __init__(self, n: int, engine: str, timeout: float) -> None:
        self._n = n
        self._engine, self._timeout = engine, timeout
        self._supervisor = Supervisor(
            n, EndPolicy(float("inf"), kill_after=_GRACE), has_threads=True
        )
        self._connections: list[Connection] = []
        self._pipes: list[dict[str, IO[bytes]]] = []
        self._selector = selectors.DefaultSelector()
        self._reported: set[int] = set()  # ranks whose end has been an event
        self._failures: list[BaseException] = []  # to start ranks
        self._started, self._closed = threading.Event(), threading.Event()
        # The kernel ends a rank together with the thread that has started it, so this one stays.
        self._keeper = threading.Thread(target=self._keep, name="unisono ranks", daemon=True)
        self._keeper.start()
        self._started.wait()
        if self._failures:
            self.close()
            raise self._failures[0]

    def _keep(self) -> None:
        try:
            blocks = core_blocks(self._n)
            for rank in range(self._n):
                self._start_rank(rank, blocks[rank] if blocks else None)
        except BaseException as error:
            self._failures.append(error)
        finally:
            self._started.set()
        self._closed.wait()

    def _start_rank(self, rank: int, cores: set[int] | None) -> None:
        ours, theirs = Pipe()
        self._connections.append(ours)
        arguments = {
            "parent": os.getpid(),
            "descriptor": theirs.fileno(),
            "cores": cores,
            "engine": self._engine,
            "timeout": self._timeout,
        }
        with theirs:
            process = self._supervisor.start(
                [sys.executable, "-c", _PROGRAM.format(path=sys.path, arguments=arguments)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                # A Ctrl-C at the terminal is for the program, which tells the ranks.
                process_group=0,
            )
        assert process.stdout is not None
        assert process.stderr is not None
        self._pipes.append({"out": process.stdout, "err": process.stderr})
        self._selector.register(ours, selectors.EVENT_READ, (rank, ""))
        for kind, pipe in self._pipes[rank].items():
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ, (rank, kind))

    # ---- tasks -----------------------------------------------------------------------------------

    def start(self, task: Task, *, renew: bool) -> None:
        """Give a task to all ranks; with `renew` they get a new world first."""
        try:
            packed = transfer.dumps(task)
        except Exception:
            for what, part in task.parts().items():
                transfer.pack(part, what)
            raise
        if renew:
            self._supervisor.job = JobEnvironment(self._n)
        for rank, connection in enumerate(self._connections):
            variables = self._supervisor.job.variables(rank) if renew else None
            with contextlib.suppress(OSError):  # one that has just ended is seen later
                connection.send_bytes(pickle.dumps((packed, variables)))

    def output(self) -> AbstractContextManager[None]:
        """A context in which the output of the ranks becomes events: always."""
        return contextlib.nullcontext()

    def events(self, seconds: float) -> Sequence[Event]:
        """What happened; waits for it, but not longer than that."""
        found: list[Event] = []
        for key, _ in self._selector.select(seconds):
            rank, kind = key.data
            found += self._read(rank, kind) if kind else self._receive(rank)
        self._supervisor.check()
        for rank, code in self._supervisor.codes.items():
            if rank not in self._reported:
                self._reported.add(rank)
                found += self._receive(rank)
                text = f"rank {rank} ended without a result: {exit_text(code)}"
                error = RankFailed(text, [rank])
                found.append(Answer(rank, error=error, summary=ErrorSummary.of(error)))
        return found

    def _receive(self, rank: int) -> Iterator[Event]:
        """Take the answer of a rank, if there is one, and what it has written before."""
        connection = self._connections[rank]
        try:
            data = connection.recv_bytes() if connection.poll() else None
        except (EOFError, OSError):
            data = None
            with contextlib.suppress(KeyError):  # its end will be seen
                self._selector.unregister(connection)
        for kind in ("out", "err"):
            yield from self._read(rank, kind)
        if data is not None:
            yield _answer(rank, data)

    def _read(self, rank: int, kind: str) -> Iterator[OutputPiece]:
        """Take what is in a pipe now."""
        pipe = self._pipes[rank][kind]
        while not pipe.closed:
            try:
                data = os.read(pipe.fileno(), 1 << 16)
            except BlockingIOError:
                return
            if not data:
                self._selector.unregister(pipe)
                pipe.close()
                return
            yield OutputPiece(rank, kind, data)

    def leave(self, rank: int, reason: str) -> None:
        """Let a rank that has failed leave its world: others shall not wait for it."""
        with contextlib.suppress(OSError):
            self._connections[rank].send_bytes(_LEAVE)

    def interrupt(self, ranks: Iterable[int]) -> None:
        """Raise KeyboardInterrupt in the ranks; those that have no task ignore it."""
        self._supervisor.send(signal.SIGINT)

    def give_up(self, ranks: Iterable[int]) -> Sequence[Answer]:
        """End ranks that do not react to an interrupt."""
        self._supervisor.end_by(signal.SIGKILL, "was ended by the user")
        return []

    def lost(self) -> dict[int, str]:
        """Ranks that have ended, and how."""
        self._supervisor.check()
        return {rank: exit_text(code) for rank, code in self._supervisor.codes.items()}

    def close(self) -> None:
        """End the ranks: by themselves, because nobody has tasks for them any more, or by force."""
        for connection in self._connections:
            connection.close()
        with self._supervisor:
            self._supervisor.stop(after=_GRACE)
            self._supervisor.watch()
        self._selector.close()
        for pipes in self._pipes:
            for pipe in pipes.values():
                pipe.close()
        self._closed.set()


def _answer(rank: int, data: bytes) -> Answer:
    packed, summary, standing = pickle.loads(data)
    try:
        error, result = pickle.loads(packed)
    except Exception as reason:
        error, result = (
            RankFailed(f"the result of rank {rank} cannot be read: {reason}", [rank]),
            None,
        )
        summary = ErrorSummary.of(error)
    return Answer(rank, result, error, summary, standing)
