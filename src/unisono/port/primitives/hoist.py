"""Compute the value of an expression in statements before the one that it stands in.

That is allowed if the order of evaluation stays the same as far as a program can tell: the
expression is always evaluated, and what is evaluated before it only reads.
"""

from __future__ import annotations

import ast
import itertools

from unisono.port.program import SourceFile
from unisono.port.site import Refused

__all__ = ["statement_before"]

_FUNCTIONS = (ast.Lambda, ast.comprehension, ast.ListComp, ast.SetComp, ast.DictComp)
_EFFECTS = (ast.Call, ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)
_OWN_LINE = "give the call a line of its own"


def statement_before(value: ast.expr, call: ast.Call, file: SourceFile) -> ast.stmt:
    """Return the statement before which a value can be computed, or raise Refused.

    `value` is the expression that a name will replace; `call` is the call in it.
    """
    calls_others = any(
        _has_effects(argument, file)
        for argument in (*call.args, *(keyword.value for keyword in call.keywords))
    )
    for inner, outer in itertools.pairwise(file.scopes.chain(value)):
        if not _is_always_evaluated(inner, outer):
            raise Refused(
                "it stands where it is not evaluated once and always: in a lambda, a comprehension "
                f"or a condition; {_OWN_LINE}"
            )
        if isinstance(outer, ast.stmt):
            _check_statement(inner, outer, file)
            return outer
        for earlier in _evaluated_before(inner, outer):
            function = isinstance(outer, ast.Call) and earlier is outer.func
            may_change = calls_others and not _is_name(earlier, function)
            if _has_effects(earlier, file) or may_change:
                raise Refused(f"the same statement calls something before it; {_OWN_LINE}")
    raise AssertionError("an expression stands in a statement")


def _is_always_evaluated(inner: ast.AST, outer: ast.AST) -> bool:
    if isinstance(outer, ast.BoolOp):
        return inner is outer.values[0]
    if isinstance(outer, ast.IfExp):
        return inner is outer.test
    if isinstance(outer, ast.Compare):
        return inner in (outer.left, outer.comparators[0])
    return not isinstance(outer, (*_FUNCTIONS, ast.GeneratorExp))


def _evaluated_before(inner: ast.AST, outer: ast.AST) -> list[ast.expr]:
    """Return the parts of an expression that are evaluated before one of them."""
    parts = list(ast.iter_child_nodes(outer))
    if isinstance(outer, ast.Dict):  # keys and values take turns
        return [part for part in (*outer.keys, *outer.values) if part not in (None, inner)]
    before = [part for part in parts[: parts.index(inner)] if isinstance(part, ast.expr)]
    before += [part.value for part in parts[: parts.index(inner)] if isinstance(part, ast.keyword)]
    return before


def _has_effects(node: ast.AST, file: SourceFile) -> bool:
    """Tell whether evaluating an expression may do more than read, and has not been moved."""
    if node in file.hoisted:
        return False
    if isinstance(node, _EFFECTS):
        return True
    return any(_has_effects(child, file) for child in ast.iter_child_nodes(node))


def _is_name(node: ast.AST, function: bool) -> bool:
    """Tell whether an expression is a name, a constant, or with dots a function that is called."""
    while function and isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name | ast.Constant)


def _check_statement(inner: ast.AST, statement: ast.stmt, file: SourceFile) -> None:
    """Refuse statements that evaluate the expression more than once, or under a condition."""
    if isinstance(statement, ast.AugAssign) and inner is statement.value:
        if not _has_effects(statement.target, file):
            return
    elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.Return | ast.Expr):
        if inner is statement.value:
            return
    elif isinstance(statement, ast.If) and inner is statement.test:
        line = file.lines[statement.lineno - 1].encode()
        if not line[statement.col_offset :].startswith(b"elif"):
            return
    elif isinstance(statement, ast.For) and inner is statement.iter:
        return
    raise Refused(f"a statement before this one would not always do the same; {_OWN_LINE}")
