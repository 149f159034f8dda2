"""What becomes of each use of a dialect: a decision, its reason, and the change to the source."""

from __future__ import annotations

import ast
import dataclasses

from unisono.port.program import Reference

__all__ = ["Decision", "NewArgument", "Plan", "Action"]


class Action:
    """What happens to a use: the words of reports."""

    REWRITE = "rewrite"
    COPY_BACK = "copy back"
    LEAVE = "leave"


@dataclasses.dataclass(frozen=True)
class NewArgument:
    """One argument of the new call: an old one by its number, a text, or a text in its place."""

    keyword: str | None
    old: int | None = None
    text: str | None = None


@dataclasses.dataclass(frozen=True)
class Plan:
    """A change: the new function, its arguments, and the statements around it.

    Texts may name modules as `«mindspore.communication»`: the name that the file uses for them
    replaces it. In `statements`, `{call}` is the new call. Without statements the call, or the name
    without a call, is replaced where it stands. `later` are statements to put after others, `at` is
    another statement in whose place the statements come, `instead` are other statements with what
    replaces them, and `elsewhere` are expressions that get another text. `needs` are calls that
    have to be ported together: if one of them stays, all stay.
    """

    function: str
    arguments: tuple[NewArgument, ...] | None = None
    statements: tuple[str, ...] = ()
    later: tuple[tuple[ast.stmt, tuple[str, ...]], ...] = ()
    at: ast.stmt | None = None
    instead: tuple[tuple[ast.stmt, tuple[str, ...]], ...] = ()
    elsewhere: tuple[tuple[ast.expr, str], ...] = ()
    needs: tuple[ast.Call, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class Decision:
    """What becomes of one use, and why."""

    reference: Reference
    verdict: str
    reason: str
    target: str | None = None
    differences: tuple[str, ...] = ()
    plan: Plan | None = None
    consumed: tuple[Reference, ...] = ()  # names inside its arguments that go with it
