"""What becomes of each use of a dialect: a decision, its reason, and the change to the source."""

from __future__ import annotations

import ast
import dataclasses

from unisono.port.program import Reference

__all__ = ["ARGUMENT", "VALUE", "Decision", "Lines", "NewArgument", "Plan", "Action"]


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


#: In the text of what is called: an argument of the old call, as it is after the change.
ARGUMENT = "{{argument {}}}"

#: In any text: what becomes of an expression that changes where it stands, by its number.
VALUE = "{{value {}}}"

#: A statement of the program, and new ones that belong to it.
Lines = tuple[ast.stmt, tuple[str, ...]]


@dataclasses.dataclass(frozen=True)
class Plan:
    """A change: the new function, its arguments, and the statements around it.

    Texts may name modules as `«mindspore.communication»`: the name that the file uses for them
    replaces it. In `statements`, `{call}` is the new call. Without statements the call, or the name
    without a call, is replaced where it stands. `at` is another statement in whose place the
    statements come. `before` and `later` are statements to put before and after others, `replaced`
    are statements in place of others. `callee` is what is called if it is not the function itself.
    `values` are expressions, and the texts that take their place; there and in statements before,
    `{call}` is the new call. `needs` are calls that have to be ported together: if one of them
    stays, all stay.
    """

    function: str
    arguments: tuple[NewArgument, ...] | None = None
    statements: tuple[str, ...] = ()
    at: ast.stmt | None = None
    later: tuple[Lines, ...] = ()
    before: tuple[Lines, ...] = ()
    replaced: tuple[Lines, ...] = ()
    callee: str | None = None
    values: tuple[tuple[ast.expr, str], ...] = ()
    needs: tuple[ast.Call, ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        """Return all texts that may name modules."""
        around = [
            line for _, lines in (*self.before, *self.later, *self.replaced) for line in lines
        ]
        given = [argument.text or "" for argument in self.arguments or ()]
        values = [text for _, text in self.values]
        return (*self.statements, *around, *given, *values, self.callee or "")


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
