"""What ranks are asked to do, and what they answer."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from unisono.errors import RankFailed
from unisono.launch.outcome import ErrorSummary

__all__ = [
    "Answer",
    "Cell",
    "Event",
    "Function",
    "Namespace",
    "OutputPiece",
    "Task",
    "perform",
    "standing",
]

#: The variables of one rank.
Namespace = dict[str, Any]

_HERE = str(Path(__file__).parent)


class Task(Protocol):
    """Something that each rank does with its own variables."""

    def run(self, namespace: Namespace) -> Any:
        """Do it, and return the rank's result."""

    def parts(self) -> Mapping[str, Any]:
        """What has to travel to another process, with what it is called in an error."""


@dataclass(frozen=True)
class Function:
    """Call a function; with `takes_variables` its first argument are the rank's variables."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    takes_variables: bool = False

    def run(self, namespace: Namespace) -> Any:
        """Call it."""
        first = (namespace,) if self.takes_variables else ()
        return self.function(*first, *self.args, **self.kwargs)

    def parts(self) -> Mapping[str, Any]:
        """The function and its arguments."""
        return {
            f"the function {self.function!r}": self.function,
            "an argument": (self.args, self.kwargs),
        }


@dataclass(frozen=True)
class Cell:
    """Run source code in the rank's variables; the result is the value of its last expression."""

    source: str
    name: str
    wants_result: bool = True

    def check(self) -> None:
        """Raise SyntaxError here, once, and not on every rank."""
        compile(self.source, self.name, "exec", dont_inherit=True)

    def run(self, namespace: Namespace) -> Any:
        """Run it.

        >>> Cell("x = 2\\nx + 1", "<cell>").run({})
        3
        """
        # So that tracebacks show its lines; without a time of change, nobody looks for a file.
        lines = self.source.splitlines(keepends=True)
        linecache.cache[self.name] = (len(self.source), None, lines, self.name)
        tree = ast.parse(self.source, self.name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, self.name, "exec", dont_inherit=True), namespace)
        if not isinstance(last, ast.Expr):
            return None
        code = compile(ast.Expression(last.value), self.name, "eval", dont_inherit=True)
        result = eval(code, namespace)
        return result if self.wants_result else None

    def parts(self) -> Mapping[str, Any]:
        """Text, which can always travel."""
        return {}


@dataclass(frozen=True)
class OutputPiece:
    """Something that a rank has written to "out" or "err"."""

    rank: int
    kind: str
    data: bytes


@dataclass(frozen=True)
class Answer:
    """How a task ended on one rank; `standing` is what `standing()` said afterwards.

    `task` is its number, where an answer to an earlier one might come.
    """

    rank: int
    result: Any = None
    error: BaseException | None = None
    summary: ErrorSummary | None = None
    standing: Mapping[str, int] | None = None
    task: int | None = None


Event = OutputPiece | Answer


def perform(
    task: Task, namespace: Namespace
) -> tuple[Any, BaseException | None, ErrorSummary | None]:
    """Do a task on this rank: its result, or its error and a summary of that."""
    try:
        return task.run(namespace), None, None
    except BaseException as caught:
        error = _for_the_caller(caught)
        return None, error, ErrorSummary.of(error)


def _for_the_caller(error: BaseException) -> BaseException:
    """The error that the caller gets: without our own frames, which say nothing to the user."""
    trace: TracebackType | None = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_HERE):
        trace = trace.tb_next
    if isinstance(error, SystemExit):  # it would end the program
        error = RankFailed(f"sys.exit({error.code!r}) was called by a rank")
    return error.with_traceback(trace)


def standing(has_failed: bool) -> dict[str, int] | None:
    """Where this rank stands in its world; None if it has none, or if nobody can tell.

    Ranks that have all failed may go on in their world if they stand at the same place: each has
    made as many calls in every group, and no messages, which might have been received or not.
    """
    from unisono.core import groups

    if not groups.is_initialized():
        return None
    if not has_failed:
        return {}
    world = groups.world()
    reports = world.engine.records() if world.engine is not None else []
    if not reports:
        return None
    calls = groups.calls_by_group()
    begun = max((record.sequence for record in reports[world.rank].calls), default=0)
    return calls if begun == sum(calls.values()) else None
