"""Collectives that only some ranks may reach: the others would wait for them for ever."""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator

from unisono import mapping
from unisono.port.program import Reference, SourceFile

__all__ = ["is_collective", "unreached"]

#: Names that mean the rank in nearly every program.
_RANK_NAME = re.compile(
    r"(^|_)(rank|rank_id|local_rank|is_main|is_master|is_main_process|is_master_process|"
    r"is_rank_zero|is_rank_0|is_first_rank)$"
)
_RANK_QUESTIONS = {"get_rank", "get_local_rank", "get_node_local_rank", "get_group_rank"}
#: Messages join two ranks, and questions none.
_NOT_COLLECTIVE = {"send_recv", "groups"}
_ENDS = (ast.Return, ast.Continue, ast.Break)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def is_collective(reference: Reference) -> bool:
    """Tell whether every rank of the group has to make a call; building a primitive is none."""
    if reference.call is None or reference.rest or reference.path not in _collectives():
        return False
    return reference.building is not None or reference.path not in _primitives()


@functools.cache
def _collectives() -> frozenset[str]:
    return frozenset(
        call.path
        for entry in mapping.load().values()
        if entry.name not in _NOT_COLLECTIVE
        for call in entry.calls
        if not call.name.startswith(("send_", "recv_"))
    )


@functools.cache
def _primitives() -> frozenset[str]:
    return frozenset(call.path for call in mapping.calls().values() if call.style == "built")


def unreached(file: SourceFile) -> dict[Reference, str]:
    """Return the collectives of a file that some ranks may not reach, and why.

    A call is in doubt under a test of the rank, unless the other branch, or an opposite test in the
    same function, makes the same call; after a statement by which some ranks leave; and in an
    except branch. A call that a program makes in a function of its own is not followed.
    """
    by_function: dict[ast.AST, list[Reference]] = defaultdict(list)
    for reference in filter(is_collective, file.references):
        chain = file.scopes.chain(reference.node)
        home = next((node for node in chain if isinstance(node, _FUNCTIONS)), file.tree)
        by_function[home].append(reference)
    found = {}
    for together in by_function.values():
        for reference in together:
            if reason := _reason(reference, together, file):
                found[reference] = reason
    return found


def _reason(reference: Reference, others: list[Reference], file: SourceFile) -> str | None:
    chain = file.scopes.chain(reference.node)
    for inner, outer in itertools.pairwise(chain):
        if isinstance(outer, ast.If | ast.While) and inner is not outer.test:
            if _tests_rank(outer.test) and not _has_partner(reference, outer, others, file):
                return f"only ranks with `{_short(outer.test)}` (line {outer.lineno}) reach it"
        elif isinstance(outer, ast.IfExp) and inner is not outer.test:
            if _tests_rank(outer.test):
                return f"only ranks with `{_short(outer.test)}` reach it"
        elif isinstance(outer, ast.ExceptHandler):
            return f"only ranks with an error (line {outer.lineno}) reach it"
        if isinstance(inner, ast.stmt):
            for earlier in _before(inner, outer):
                if _some_leave(earlier):
                    assert isinstance(earlier, ast.If)
                    test = _short(earlier.test)
                    return f"ranks with `{test}` leave in line {earlier.lineno}, before it"
        if isinstance(outer, _FUNCTIONS):
            return None
    return None


def _tests_rank(test: ast.expr) -> bool:
    for node in ast.walk(test):
        if isinstance(node, ast.Name) and _RANK_NAME.search(node.id):
            return True
        if isinstance(node, ast.Attribute) and _RANK_NAME.search(node.attr):
            return True
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func
            name = name.id if isinstance(name, ast.Name) else name
            if isinstance(name, str) and (name in _RANK_QUESTIONS or _RANK_NAME.search(name)):
                return True
    return False


def _has_partner(
    reference: Reference, test: ast.If | ast.While, others: list[Reference], file: SourceFile
) -> bool:
    """Tell whether ranks for which a test fails make the same call elsewhere."""
    for other in others:
        if other is reference or other.path != reference.path:
            continue
        chain = file.scopes.chain(other.node)
        for inner, outer in itertools.pairwise(chain):
            if outer is test and isinstance(test, ast.If):
                if (inner in test.body) != (_branch(reference, test, file)):
                    return True
            elif isinstance(outer, ast.If) and inner is not outer.test:
                same_branch = (inner in outer.body) == _branch(reference, test, file)
                if same_branch and _opposite(test.test, outer.test):
                    return True
            if isinstance(outer, _FUNCTIONS):
                break
    return False


def _branch(reference: Reference, test: ast.If | ast.While, file: SourceFile) -> bool:
    """Tell whether a call stands in the first branch of a test."""
    return any(node in test.body for node in file.scopes.chain(reference.node))


def _opposite(first: ast.expr, second: ast.expr) -> bool:
    """Tell whether one test is the negation of the other.

    >>> _opposite(*(ast.parse(text, mode="eval").body for text in ("rank == 0", "rank != 0")))
    True
    """
    turned = {ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is}
    for one, other in ((first, second), (second, first)):
        if isinstance(one, ast.UnaryOp) and isinstance(one.op, ast.Not):
            return ast.dump(one.operand) == ast.dump(other)
    if not (isinstance(first, ast.Compare) and isinstance(second, ast.Compare)):
        return False
    return (
        ast.dump(first.left) == ast.dump(second.left)
        and turned.get(type(first.ops[0])) is type(second.ops[0])
        and [ast.dump(each) for each in first.comparators]
        == [ast.dump(each) for each in second.comparators]
    )


def _before(inner: ast.stmt, outer: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements that run before one in the same block."""
    for field in ("body", "orelse", "finalbody"):
        block = getattr(outer, field, None)
        if isinstance(block, list) and inner in block:
            yield from block[: block.index(inner)]


def _some_leave(statement: ast.stmt) -> bool:
    """Tell whether ranks leave at a statement, and others go on."""
    if not isinstance(statement, ast.If) or not _tests_rank(statement.test):
        return False
    first = isinstance(statement.body[-1], _ENDS)
    second = bool(statement.orelse) and isinstance(statement.orelse[-1], _ENDS)
    return first != second


def _short(test: ast.expr) -> str:
    text = ast.unparse(test)
    return text if len(text) <= 50 else f"{text[:47]}..."
