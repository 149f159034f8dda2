"""`unisono.ranks`: ranks that stay alive between calls, as threads or processes."""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

from unisono.errors import ArgumentError, ArgumentTypeError, NotReady, PeerLost
from unisono.launch.outcome import Blame, RankOutcome, name_ranks
from unisono.launch.rank_errors import raise_cause
from unisono.notebook.run import Backend, Run
from unisono.notebook.tasks import Answer, Cell, Function, Task

__all__ = ["Ranks", "ranks"]

_NEW_WORLD = (
    "the ranks keep their variables, and the next call has a new world: make groups that you made "
    "before again"
)


def ranks(n: int, *, engine: str = "threads", timeout: float | None = None) -> Ranks:
    """Make n ranks that stay alive until they are closed: threads, or processes of this host.

    With engine "threads" they are threads of this process, with any other engine processes. `with`
    closes them at its end; so do `close`, the end of the program, and losing the last reference.

    >>> import unisono, unisono.torch.distributed as dist
    >>> with unisono.ranks(3) as ranks:
    ...     ranks(lambda base: base + dist.get_rank(), 10)
    ...     ranks.execute("x = 2")
    ...     ranks.execute("x + 1")
    [10, 11, 12]
    [None, None, None]
    [3, 3, 3]
    """
    return Ranks(n, engine, timeout)


class Ranks:
    """Ranks that wait for calls; `unisono.ranks` makes them.

    Each rank has variables of its own for `execute`, `push` and `pull`. A call returns what every
    rank returned, in rank order. If ranks fail, the error that caused the others is raised here,
    with a note that names its rank.
    """

    def __init__(self, n: int, engine: str = "threads", timeout: float | None = None) -> None:
        from unisono.core import environment, registry

        if not isinstance(n, int) or isinstance(n, bool):
            raise ArgumentTypeError(f"the number of ranks is {n!r}; give an int")
        if n < 1:
            raise ArgumentError(f"the number of ranks is {n}; give 1 or more")
        self.size = n
        self.engine = engine
        self._timeout = environment.timeout(timeout)
        registry.choose(engine, environment.Launch(0, n, 0, n, "", "ranks"))
        self._in_use = threading.Lock()
        self._sources = itertools.count(1)
        self._open()

    def _open(self) -> None:
        self._backend = _backend(self.size, self.engine, self._timeout)
        self._owner = os.getpid()
        # Neither the threads nor this knows us, so we can be collected.
        self._end = weakref.finalize(self, _close, self._backend, self._owner)
        self._needs_world = True
        try:
            self._run(Function(_nothing), is_first=True)
        except BaseException:
            self.close()
            raise

    # ---- what users call -------------------------------------------------------------------------

    def __call__(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> list[Any]:
        """Run `function(*args, **kwargs)` on every rank and return the results in rank order."""
        __tracebackhide__ = True
        if not callable(function):
            raise ArgumentTypeError(f"ranks need a function, not {function!r}")
        return self._run(Function(function, args, kwargs))

    def execute(self, source: str, *, results: bool = True, name: str | None = None) -> list[Any]:
        """Run source code on every rank, in its variables.

        Return the values of its last expression, or None for each rank without `results`. `name`
        is what tracebacks call it.
        """
        __tracebackhide__ = True
        cell = Cell(source, name or f"ranks source {next(self._sources)}", results)
        cell.check()
        return self._run(cell)

    def push(self, /, **variables: Any) -> None:
        """Set variables on every rank; ranks that are threads get the same objects."""
        __tracebackhide__ = True
        self._run(Function(_push, (variables,), takes_variables=True))

    def pull(self, name: str) -> list[Any]:
        """Return a variable of every rank, in rank order."""
        __tracebackhide__ = True
        return self._run(Function(_pull, (name,), takes_variables=True))

    def restart(self) -> None:
        """End these ranks and start new ones, which have no variables yet."""
        self.close()
        self._open()

    def close(self) -> None:
        """End the ranks; closing twice is allowed."""
        self._end()

    @property
    def is_usable(self) -> bool:
        """Whether the ranks can be called: they are ours, not closed, and none has died."""
        return self._owner == os.getpid() and self._end.alive and not self._backend.lost()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "" if self.is_usable else ", lost" if self._end.alive else ", closed"
        return f"<{self.size} ranks, engine {self.engine!r}{state}>"

    # ---- running a task --------------------------------------------------------------------------

    def _run(self, task: Task, *, is_first: bool = False) -> list[Any]:
        __tracebackhide__ = True  # IPython and pytest leave this frame out
        if not self._in_use.acquire(blocking=False):
            raise NotReady("these ranks are running another call; make others for this one")
        try:
            self._check_usable()
            with Run(self.size, self._backend, is_first) as run:
                self._backend.start(task, renew=self._needs_world)
                self._needs_world = True  # until all have answered
                try:
                    answers = run.wait()
                except BaseException:  # we do not know what they do, so nobody may use them
                    self.close()
                    raise
            self._needs_world = run.has_interrupted_ranks or _needs_world(answers)
            self._raise(run, answers)
            return [answers[rank].result for rank in range(self.size)]
        finally:
            self._in_use.release()

    def _check_usable(self) -> None:
        if os.getpid() != self._owner:
            raise NotReady(
                "these ranks belong to the process that this one was forked from; make others here"
            )
        if not self._end.alive:
            raise NotReady("these ranks are closed; make others with unisono.ranks, or restart()")
        lost = self._backend.lost()
        if lost:
            how = "; ".join(f"rank {rank}: {text}" for rank, text in sorted(lost.items()))
            raise PeerLost(
                f"{name_ranks(lost)} of {self.size} ended ({how}), so these ranks cannot be used "
                "any more; restart() starts new ones, without the variables",
                sorted(lost),
            )

    def _raise(self, run: Run, answers: dict[int, Answer]) -> None:
        """Raise the error that caused the others; nothing if no rank failed."""
        __tracebackhide__ = True
        failed = [answer for answer in answers.values() if answer.error is not None]
        lost = self._backend.lost()
        if lost:
            note = f"{name_ranks(lost)} ended: restart() starts new ranks, without the variables"
        else:
            note = _NEW_WORLD if self._needs_world else ""
        if run.is_interrupted:
            interrupt = KeyboardInterrupt()
            places = [
                f"rank {one.rank} was at {one.summary.site}"
                for one in sorted(failed, key=lambda one: one.rank)
                if one.summary is not None and one.summary.site
            ]
            for text in ("; ".join(places[:8]), note):
                if text:
                    interrupt.add_note(text)
            raise interrupt
        errors = {one.rank: one.error for one in failed if one.error is not None}
        try:
            raise_cause(
                errors, [RankOutcome(one.rank, None, one.summary) for one in failed], self.size
            )
        except BaseException as error:
            if note:
                error.add_note(note)
            raise


def _backend(n: int, engine: str, timeout: float) -> Backend:
    # Few who import unisono need these.
    if engine == "threads":
        from unisono.notebook.threads import ThreadRanks

        return ThreadRanks(n, timeout)
    from unisono.notebook.processes import ProcessRanks

    return ProcessRanks(n, engine, timeout)


def _close(backend: Backend, owner: int) -> None:
    if os.getpid() == owner:  # the ranks are not those of a forked child
        backend.close()


def _needs_world(answers: dict[int, Answer]) -> bool:
    """Tell whether the ranks have no world that they can go on in."""
    every = list(answers.values())
    if all(one.error is None for one in every):
        return any(one.standing is None for one in every)
    calls: dict[str, int] = {}
    for one in every:
        is_innocent = one.summary is not None and one.summary.blame == Blame.FAILED
        if one.standing is None or not is_innocent or isinstance(one.error, KeyboardInterrupt):
            return True
        # Not every rank is in every group.
        if any(calls.setdefault(group, count) != count for group, count in one.standing.items()):
            return True
    return False


def _nothing() -> None:
    """What new ranks do first, once they have met."""


def _push(namespace: dict[str, Any], variables: dict[str, Any]) -> None:
    namespace.update(variables)


def _pull(namespace: dict[str, Any], name: str) -> Any:
    if name not in namespace:
        raise NameError(f"there is no variable {name!r} on this rank")
    return namespace[name]
