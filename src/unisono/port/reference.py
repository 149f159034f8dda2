"""One use of an upstream name, and a primitive with its calls."""

from __future__ import annotations

import ast
import dataclasses

from unisono.port.scopes import Binding

__all__ = ["Primitive", "Reference"]


@dataclasses.dataclass(frozen=True, eq=False)
class Reference:
    """One use of an upstream name; `path` is the name in the table, `rest` what follows it.

    `node` is the name with all its dots. `call` is the call of it, or None where it is used as a
    value. `through` says by which other name the program reaches it, or None. For the call of a
    primitive, `node` is what is called, and `building` the use that has built it.
    """

    path: str
    rest: str
    node: ast.expr
    binding: Binding
    call: ast.Call | None
    prefixed: bool = False
    through: str | None = None
    building: Reference | None = None

    @property
    def dialect(self) -> str:
        """Return "torch" or "mindspore"."""
        return self.path.partition(".")[0]


@dataclasses.dataclass(frozen=True, eq=False)
class Primitive:
    """A primitive that a file builds, and its calls.

    `place` is the name or the attribute of `self` that keeps it, None if it is called at once.
    `obstacle` says why the program may use it in ways that cannot be seen, or None.
    """

    building: Reference
    place: ast.Name | ast.Attribute | None = None
    calls: tuple[Reference, ...] = ()
    obstacle: str | None = None
