"""Where a statement stands: its block, its line, and the loops around it."""

from __future__ import annotations

import ast

from unisono.port.scopes import Scopes

__all__ = ["block_of", "is_alone", "loops_around", "position"]

_FIELDS = ("body", "orelse", "finalbody")
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def block_of(statement: ast.stmt, scopes: Scopes) -> list[ast.stmt]:
    """Return the block that a statement stands in."""
    outer = scopes.parents[statement]
    for field in _FIELDS:
        block = getattr(outer, field, None)
        if isinstance(block, list) and statement in block:
            return block
    return [statement]


def is_alone(statement: ast.stmt, scopes: Scopes) -> bool:
    """Tell whether a statement shares its line with no other, so that there is room for more."""
    outer = scopes.parents[statement]
    neighbours = [one.lineno for one in block_of(statement, scopes) if one is not statement]
    inline = not isinstance(outer, ast.Module) and getattr(outer, "lineno", 0) == statement.lineno
    return not inline and statement.lineno not in neighbours


def loops_around(node: ast.AST, scopes: Scopes) -> set[ast.AST]:
    """Return the loops of the function that a node stands in."""
    found: set[ast.AST] = set()
    for outer in scopes.chain(node):
        if isinstance(outer, _FUNCTIONS):
            break
        if isinstance(outer, _LOOPS):
            found.add(outer)
    return found


def position(node: ast.expr | ast.stmt) -> tuple[int, int]:
    """Return where a node begins, to say which of two comes first in the text."""
    return node.lineno, node.col_offset
