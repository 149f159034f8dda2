"""`unisono.spawn`: a function on n ranks, as threads or processes of this program."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from unisono.errors import ArgumentError, ArgumentTypeError, LaunchError, RankFailed
from unisono.launch.outcome import ErrorSummary, RankOutcome, exit_text
from unisono.launch.process import die_with_parent
from unisono.launch.rank_errors import pack_error, raise_cause

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

    from unisono.launch.supervisor import Supervisor

__all__ = ["spawn"]

#: Seconds that the other ranks get to report their own errors after the first has failed.
_SETTLE = 1.0
#: Seconds that a rank gets to end after its answer, and between SIGTERM and SIGKILL.
_GRACE = 5.0
#: How a rank ends that has come to the call of spawn itself, by importing the program.
_NO_GUARD = 77
_GUARD_TEXT = (
    "ranks that are processes import the program that spawns them: call spawn under "
    "`if __name__ == '__main__':`, or use engine='threads'"
)
_RANK_NAME = "unisono rank"


def spawn(
    fn: Callable[..., Any],
    n: int,
    *args: Any,
    engine: str = "threads",
    timeout: float | None = None,
) -> list[Any]:
    """Run `fn(*args)` on n ranks and return the n results in rank order.

    With engine "threads" the ranks are threads of this process, with any other engine each is a
    process. If ranks fail, the error that caused the others is raised here, with a note that names
    its rank.

    >>> from unisono.core import groups
    >>> spawn(lambda base: base + groups.world().rank, 3, 10)
    [10, 11, 12]
    """
    from unisono.core import environment

    if not callable(fn):
        raise ArgumentTypeError(f"spawn needs a function, not {fn!r}")
    if not isinstance(n, int):
        raise ArgumentTypeError(f"the number of ranks is {n!r}; give an int")
    if n < 1:
        raise ArgumentError(f"the number of ranks is {n}; give 1 or more")
    deadline = environment.timeout(timeout)
    if engine == "threads":
        return _on_threads(fn, n, args, deadline)
    return _on_processes(fn, n, args, engine, deadline)


# ---- ranks as threads ----------------------------------------------------------------------------


def _on_threads(fn: Callable[..., Any], n: int, args: tuple[Any, ...], timeout: float) -> list[Any]:
    # Launching is above engines and groups, and `import unisono` alone must not load NumPy.
    from unisono.core import groups
    from unisono.engines.threads.engine import threads_world

    engines = threads_world(n, timeout)
    results: list[Any] = [None] * n
    errors: dict[int, BaseException] = {}  # in the order in which they were raised

    def run_rank(rank: int) -> None:
        groups.install(engines[rank], in_thread=True, claimed=False)
        try:
            results[rank] = fn(*args)
        except BaseException as error:
            errors[rank] = error
            engines[rank].hub.leave(rank, f"raised {type(error).__name__}: {error}")
        finally:
            groups.close()

    threads = [
        threading.Thread(
            target=contextvars.copy_context().run,
            args=(run_rank, rank),
            name=f"{_RANK_NAME} {rank}",
            daemon=True,  # a rank that never ends must not keep an interrupted program alive
        )
        for rank in range(n)
    ]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)  # an endless join would not let Ctrl-C through
    except BaseException:
        for rank, rank_engine in enumerate(engines):
            rank_engine.hub.leave(rank, "was interrupted")
        raise
    failures = [RankOutcome(rank, None, ErrorSummary.of(error)) for rank, error in errors.items()]
    raise_cause(errors, failures, n)
    return results


# ---- ranks as processes --------------------------------------------------------------------------


def _on_processes(
    fn: Callable[..., Any], n: int, args: tuple[Any, ...], engine: str, timeout: float
) -> list[Any]:
    # Few who import unisono need these.
    import multiprocessing
    from multiprocessing import resource_tracker

    from unisono.core import environment, registry
    from unisono.launch.supervisor import EndPolicy, Supervisor

    _refuse_without_guard()
    registry.choose(engine, environment.Launch(0, n, 0, n, "", "spawn"))
    work = _pickled(fn, args)
    context = multiprocessing.get_context("spawn")  # because fork copies locks that are held
    # Started first, or it would inherit the first rank's secret and core.
    resource_tracker.ensure_running()
    with contextlib.ExitStack() as stack:
        processes = stack.enter_context(contextlib.ExitStack())  # closed after they have ended
        supervisor = stack.enter_context(Supervisor(n, EndPolicy(_SETTLE, kill_after=_GRACE)))
        answers = _Answers(supervisor)
        for rank in range(n):
            receiver, sender = context.Pipe(duplex=False)
            stack.callback(receiver.close)
            process = context.Process(
                target=_run_rank,
                args=(sender, os.getpid(), work, engine, timeout),
                name=f"{_RANK_NAME} {rank}",
            )
            with supervisor.next_rank_inherits():
                process.start()
            processes.callback(process.close)
            sender.close()
            assert process.pid is not None
            supervisor.adopt(process.pid, functools.partial(_collected, process))
            answers.waiting[rank] = receiver
        supervisor.watch(answers.receive, until=lambda: not answers.waiting)
        answers.receive(0.0)  # what the last to end have left
        if not answers.errors:
            # Ranks that have answered still have to leave the world and to run their exit handlers.
            supervisor.stop(after=_GRACE)
            supervisor.watch()
    raise_cause(answers.errors, supervisor.failures.values(), n)
    return [answers.results[rank] for rank in range(n)]


def _refuse_without_guard() -> None:
    """End a rank that comes here because it imports the program, which has no guard."""
    from multiprocessing import process

    me = process.current_process()
    if getattr(me, "_inheriting", False):
        if me.name.startswith(_RANK_NAME):
            sys.exit(_NO_GUARD)  # without a traceback: the program that spawned us explains it
        raise LaunchError(_GUARD_TEXT)


def _collected(process: SpawnProcess) -> int:
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def _pickled(fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """Pickle function and arguments; multiprocessing's own pickler would share torch's tensors."""
    for what, thing in ((f"the function {fn!r}", fn), ("an argument", args)):
        try:
            pickle.dumps(thing)
        except Exception as error:
            raise ArgumentTypeError(
                f"{what} cannot be sent to another process ({error}); define it at module level, "
                "or use engine='threads'"
            ) from error
    return pickle.dumps((fn, args))


class _Answers:
    """What the ranks send back through their pipes: a result or an error."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.waiting: dict[int, Connection] = {}
        self.results: dict[int, Any] = {}
        self.errors: dict[int, BaseException] = {}
        self._supervisor = supervisor
        self._closed: dict[int, float] = {}  # ranks that closed their pipe without an answer: when

    def receive(self, seconds: float) -> None:
        """Take the answers that are there, or come within a short time."""
        from multiprocessing.connection import wait

        pipes = [pipe for rank, pipe in self.waiting.items() if rank not in self._closed]
        ready = wait(pipes, min(seconds, 0.1))
        if not pipes:  # then it has not waited
            time.sleep(min(seconds, 0.01))
        for rank, pipe in list(self.waiting.items()):
            # A forked grandchild may hold the pipe open, so the end of the process counts too.
            has_ended = rank in self._supervisor.codes
            if pipe in ready or has_ended:
                self._take(rank, pipe, has_ended)
            elif rank in self._closed and time.monotonic() - self._closed[rank] > _GRACE:
                self._fail(rank, "closed its pipe without an answer and is still running")

    def _take(self, rank: int, pipe: Connection, has_ended: bool) -> None:
        try:
            answer = pipe.recv_bytes() if rank not in self._closed and pipe.poll() else b""
        except (EOFError, OSError):
            answer = b""
        if answer:
            self._read(rank, answer)
        elif has_ended:
            code = self._supervisor.codes[rank]
            if code == _NO_GUARD:
                raise LaunchError(_GUARD_TEXT)
            self._fail(rank, f"ended without a result: {exit_text(code)}")
        else:
            self._closed[rank] = time.monotonic()

    def _read(self, rank: int, answer: bytes) -> None:
        try:
            error, result = pickle.loads(answer)
        except Exception as reason:
            self._fail(rank, f"sent a result that cannot be read here: {reason}")
            return
        if error is None:
            self.results[rank] = result
            del self.waiting[rank]
            self._supervisor.answered(rank, None)
        else:
            self._note(rank, error)

    def _fail(self, rank: int, what: str) -> None:
        self._note(rank, RankFailed(f"rank {rank} {what}", [rank]))

    def _note(self, rank: int, error: BaseException) -> None:
        del self.waiting[rank]
        # A rank that we have told to end says no more about the cause.
        if rank not in self._supervisor.stopped:
            self.errors[rank] = error
            self._supervisor.answered(rank, ErrorSummary.of(error))


def _run_rank(sender: Connection, parent: int, work: bytes, engine: str, timeout: float) -> None:
    """Be a rank that is a process: join the world, run the function, answer, leave."""
    die_with_parent(parent)
    from unisono.core import groups

    rank = int(os.environ["UNISONO_RANK"])
    failed = False
    try:
        try:
            fn, args = pickle.loads(work)
        except Exception as error:
            raise ArgumentTypeError(
                f"the function cannot be found in a new process ({error}); define it at module "
                "level of a file, or use engine='threads' or, in a notebook, unisono.ranks"
            ) from error
        groups.init(engine, timeout, claimed=False)
        answer = _packed_result(fn(*args), rank)
    except BaseException as error:
        answer = pack_error(error, rank)
        failed = True
    # Answer before leaving the world, because leaving makes the others fail as well.
    with contextlib.suppress(OSError):
        sender.send_bytes(answer)
    groups.close(exiting=failed)
    if failed:
        sys.exit(1)


def _packed_result(result: Any, rank: int) -> bytes:
    try:
        return pickle.dumps((None, result))
    except Exception as error:
        raise ArgumentTypeError(
            f"the result of rank {rank}, a {type(result).__name__}, cannot be sent to the "
            f"parent ({error}); return plain data, or use engine='threads'"
        ) from error
