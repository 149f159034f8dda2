"""`unisono.spawn`: a function on n ranks, as threads or processes of this program."""

from __future__ import annotations

import contextlib
import contextvars
import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from unisono.errors import ArgumentError, ArgumentTypeError, PeerLost, RankFailed
from unisono.launch.process import Job, core_blocks, die_with_parent, ended, ending

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

__all__ = ["spawn"]

#: Seconds that the other ranks get to tell their own story after the first has failed.
_PATIENCE = 1.0
#: Seconds between SIGTERM and SIGKILL.
_GRACE = 5.0


def spawn(
    fn: Callable[..., Any],
    n: int,
    *args: Any,
    engine: str = "threads",
    timeout: float | None = None,
) -> list[Any]:
    """Run `fn(*args)` on n ranks and return the n results in rank order.

    With engine "threads" the ranks are threads of this process, with any other they are processes
    of their own. If ranks raise, the first cause is raised here, with a note that names its rank.

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


def _raise_cause(errors: list[tuple[int, BaseException]], n: int) -> None:
    """Raise the first error that is not a consequence of another rank's; nothing if none failed."""
    if not errors:
        return
    causes = [entry for entry in errors if not isinstance(entry[1], PeerLost)]
    rank, cause = (causes or errors)[0]
    cause.add_note(f"on rank {rank} of {n}")
    others = sorted((other, error) for other, error in errors if other != rank)
    if others:
        names = ", ".join(f"rank {other} ({type(error).__name__})" for other, error in others)
        cause.add_note(f"raised as well: {names}")
    raise cause


# ---- ranks as threads ----------------------------------------------------------------------------


def _on_threads(fn: Callable[..., Any], n: int, args: tuple[Any, ...], timeout: float) -> list[Any]:
    # Launching is above engines and groups, and `import unisono` alone must not load NumPy.
    from unisono.core import groups
    from unisono.engines.threads.engine import threads_world

    engines = threads_world(n, timeout)
    results: list[Any] = [None] * n
    errors: list[tuple[int, BaseException]] = []

    def live(rank: int) -> None:
        groups.install(engines[rank], in_thread=True, claimed=False)
        try:
            results[rank] = fn(*args)
        except BaseException as error:
            errors.append((rank, error))
            engines[rank].hub.leave(rank, f"raised {type(error).__name__}: {error}")
        finally:
            groups.close()

    threads = [
        threading.Thread(
            target=contextvars.copy_context().run,
            args=(live, rank),
            name=f"unisono rank {rank}",
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
    _raise_cause(errors, n)
    return results


# ---- ranks as processes --------------------------------------------------------------------------


def _on_processes(
    fn: Callable[..., Any], n: int, args: tuple[Any, ...], engine: str, timeout: float
) -> list[Any]:
    # multiprocessing is needed by few who import unisono. "spawn", for fork copies held locks.
    import multiprocessing
    from multiprocessing import resource_tracker

    from unisono.core import environment, registry

    registry.choose(engine, environment.Launch(0, n, 0, n, "", "spawn"))
    work = _pickled(fn, args)
    context = multiprocessing.get_context("spawn")
    # Started first, or it would inherit the first rank's secret and core.
    resource_tracker.ensure_running()
    job = Job(n)
    blocks = core_blocks(n)
    processes: list[SpawnProcess] = []
    pipes: list[Connection] = []
    try:
        for rank in range(n):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(
                target=_live,
                args=(sender, os.getpid(), work, engine, timeout),
                name=f"unisono rank {rank}",
            )
            with _at_place(job.variables(rank), blocks[rank] if blocks else None):
                process.start()
            sender.close()
            processes.append(process)
            pipes.append(receiver)
        results, errors = _collect(processes, pipes)
    except BaseException:
        _end(processes, 0.0)
        raise
    finally:
        for pipe in pipes:
            pipe.close()
    # Ranks that have answered still have to leave the world and to run their exit handlers.
    _end(processes, 0.0 if errors else _GRACE)
    _raise_cause(errors, n)
    return [results[rank] for rank in range(n)]


def _pickled(fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """Function and arguments as bytes; multiprocessing's pickler would share torch's tensors."""
    for what, thing in ((f"the function {fn!r}", fn), ("an argument", args)):
        try:
            pickle.dumps(thing)
        except Exception as error:
            raise ArgumentTypeError(
                f"{what} cannot be sent to another process ({error}); define it at module level, "
                "or use engine='threads'"
            ) from error
    return pickle.dumps((fn, args))


@contextlib.contextmanager
def _at_place(variables: dict[str, str], cores: set[int] | None) -> Iterator[None]:
    """Let a child that is started now inherit these variables and cores."""
    before = {name: os.environ.get(name) for name in variables}
    cores_before = os.sched_getaffinity(0)
    os.environ.update(variables)
    if cores is not None:
        os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores_before)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _collect(
    processes: list[SpawnProcess], pipes: list[Connection]
) -> tuple[dict[int, Any], list[tuple[int, BaseException]]]:
    """Take answers as they come, until all are there or the first failure is old enough."""
    from multiprocessing.connection import wait

    results: dict[int, Any] = {}
    errors: list[tuple[int, BaseException]] = []
    waiting = dict(enumerate(pipes))
    give_up = float("inf")
    while waiting and time.monotonic() < give_up:
        ready = wait(list(waiting.values()), 0.1)
        for rank, pipe in list(waiting.items()):
            # A forked grandchild may hold the pipe open, so the end of the process counts too.
            gone = _code(processes[rank]) is not None
            if pipe not in ready and not gone:
                continue
            del waiting[rank]
            error, results[rank] = _answer(pipe, processes[rank], rank)
            if error is not None:
                errors.append((rank, error))
                give_up = min(give_up, time.monotonic() + _PATIENCE)
    return results, errors


def _answer(pipe: Connection, process: SpawnProcess, rank: int) -> tuple[BaseException | None, Any]:
    """What the rank sent, as its error and its result."""
    try:
        answer = pipe.recv_bytes() if pipe.poll() else b""
    except (EOFError, OSError):
        answer = b""
    if not answer:
        deadline = time.monotonic() + _GRACE
        while _code(process) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return RankFailed(f"rank {rank} {_ending(_code(process))}", [rank]), None
    try:
        error, result = pickle.loads(answer)
    except Exception as reason:
        text = f"rank {rank} sent a result that cannot be read here: {reason}"
        return RankFailed(text, [rank]), None
    return error, result


def _code(process: SpawnProcess) -> int | None:
    """How a rank has ended, or None; it stays uncollected, so that the others can see it too."""
    assert process.pid is not None
    try:
        return ended(process.pid)
    except ChildProcessError:  # multiprocessing collects now and then
        return process.exitcode


def _ending(code: int | None) -> str:
    if code is None:
        return "closed its pipe without an answer and lives on"
    hint = "; is spawn called under `if __name__ == '__main__':`?" if code == 1 else ""
    return f"ended without a result: {ending(code)}{hint}"


def _end(processes: list[SpawnProcess], patience: float) -> None:
    """Wait, then SIGTERM, then SIGKILL: when this returns no rank is left."""
    for act, seconds in ((None, patience), ("terminate", _GRACE), ("kill", _GRACE)):
        alive = [process for process in processes if process.is_alive()]
        if act is not None:
            for process in alive:
                getattr(process, act)()
        deadline = time.monotonic() + seconds
        for process in alive:
            process.join(max(0.0, deadline - time.monotonic()))
    for process in processes:
        process.close()


def _live(sender: Connection, parent: int, work: bytes, engine: str, timeout: float) -> None:
    """The life of a rank that is a process: join the world, run the function, answer, leave."""
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
                "level of a file, or use engine='threads'"
            ) from error
        groups.init(engine, timeout, claimed=False)
        answer = _packed_result(fn(*args), rank)
    except BaseException as error:
        answer = _packed_error(error, rank)
        failed = True
    # The cause goes out before the world is left, for leaving makes the others fail as well.
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


def _packed_error(error: BaseException, rank: int) -> bytes:
    trace = "".join(traceback.format_exception(error)).rstrip()
    error.add_note(f"its traceback in the rank's process:\n{trace}")
    try:
        answer = pickle.dumps((error, None))
        pickle.loads(answer)
    except Exception as reason:
        stand_in = RankFailed(
            f"rank {rank} raised {type(error).__name__}, which cannot be pickled ({reason})", [rank]
        )
        stand_in.add_note(f"its traceback in the rank's process:\n{trace}")
        answer = pickle.dumps((stand_in, None))
    return answer
