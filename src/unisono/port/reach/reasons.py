"""The tests of the rank in a function, and which of them keeps ranks from a call."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator

from unisono.port.program import SourceFile
from unisono.port.reach.definitions import FunctionNode, same_code
from unisono.port.reach.rank_tests import Facts, Split, decide, depends_on_rank, split
from unisono.port.reach.sequences import Sequences, is_exit, rounds

__all__ = ["RankTest", "code_of", "rank_tests", "reason"]

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)


@dataclasses.dataclass(frozen=True)
class RankTest:
    """A test of the rank, or a loop that is counted by it (then `form` is None)."""

    node: ast.AST  # the statement or expression that it decides
    form: ast.expr | None
    text: str
    line: int

    def split(self, facts: Facts) -> Split | None:
        """Divide the ranks by the test; None if all of them give the same answer."""
        if self.form is not None:
            return split(self.form, facts)
        name = rounds(self.node)
        sides = {**facts, name: True}, {**facts, name: False}
        return Split(sides, (False, False), None, certain=False)

    def divides(self, sides: tuple[Facts, Facts]) -> bool:
        """Tell whether ranks of both sides give different answers."""
        if self.form is None:
            return sides[0].get(rounds(self.node)) != sides[1].get(rounds(self.node))
        answers = [decide(self.form, side) for side in sides]
        return None not in answers and answers[0] != answers[1]


def rank_tests(
    statements: list[ast.stmt], file: SourceFile, sequences: Sequences
) -> Iterator[RankTest]:
    """Yield the tests of the rank in the code of a function."""
    for node in code_of(statements, sequences):
        tests: list[ast.expr] = []
        loops: list[tuple[ast.AST, ast.expr]] = []
        if isinstance(node, ast.If | ast.While | ast.Assert):
            tests = [node.test]
        elif isinstance(node, ast.For | ast.AsyncFor):
            loops = [(node, node.iter)]
        elif node not in sequences.around:
            continue
        elif isinstance(node, ast.IfExp):
            tests = [node.test]
        elif isinstance(node, ast.BoolOp):
            tests = node.values[:-1]
        elif isinstance(node, _COMPREHENSIONS):
            tests = [test for each in node.generators for test in each.ifs]
            loops = [(each, each.iter) for each in node.generators]
        for test in tests:
            form = sequences.form(test, file)
            if depends_on_rank(form):
                line = getattr(test, "lineno", getattr(node, "lineno", 0))
                yield RankTest(node, form, _short(test), line)
        for loop, counted in loops:
            if _counts_by_rank(sequences.form(counted, file)):
                yield RankTest(loop, None, "", counted.lineno)


def code_of(statements: list[ast.stmt], sequences: Sequences) -> Iterator[ast.AST]:
    """Yield the code of a function, with match statements as tests."""
    for statement in statements:
        if isinstance(statement, FunctionNode):
            continue
        for node in same_code(statement):
            yield node
            if isinstance(node, ast.Match):
                for made in sequences.without_match([node]):
                    yield from _chain(made)
            elif isinstance(node, ast.ClassDef):
                yield from code_of(node.body, sequences)


def _chain(node: ast.stmt) -> Iterator[ast.If]:
    """Yield a test and those in its else branch."""
    while isinstance(node, ast.If):
        yield node
        if len(node.orelse) != 1:
            break
        node = node.orelse[0]


def reason(call: ast.Call, causes: list[RankTest]) -> str | None:
    """Say which of the tests that divide the ranks keeps some of them from a call."""
    around = [each for each in causes if _contains(each.node, call)]
    for test in reversed(around):
        if test.form is None:
            return f"the rounds of the loop in line {test.line} depend on the rank"
        if _passes(test.node, call):
            return f"only ranks with `{test.text}` (line {test.line}) reach it"
    for test in reversed(around):
        return f"ranks with `{test.text}` (line {test.line}) do not reach it"
    place = call.lineno, call.col_offset
    leaving = [(each, who) for each in causes if (who := _who_leaves(each.node))]
    before = [each for each in leaving if (each[0].line, 0) < place]
    for test, who in reversed(before):
        return f"ranks {who} `{test.text}` leave in line {test.line}, before it"
    for test, who in leaving:
        return f"ranks {who} `{test.text}` leave in line {test.line}, before its next round"
    return None


def _contains(node: ast.AST, call: ast.Call) -> bool:
    if isinstance(node, ast.comprehension):
        return True  # it has no place of its own, and nothing else in the function is counted by it
    place = call.lineno, call.col_offset
    begin = getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
    end = getattr(node, "end_lineno", 0), getattr(node, "end_col_offset", 0)
    return begin <= place < end


def _passes(node: ast.AST, call: ast.Call) -> bool:
    """Tell whether ranks that pass a test around a call come to the call."""
    if isinstance(node, ast.If):
        return any(_contains(each, call) for each in node.body)
    if isinstance(node, ast.IfExp):
        return _contains(node.body, call)
    return not isinstance(node, ast.BoolOp) or isinstance(node.op, ast.And)


def _who_leaves(node: ast.AST) -> str | None:
    """Return whether ranks with a test, or those without, leave at it."""
    if isinstance(node, ast.Assert):
        return "without"
    if not isinstance(node, ast.If):
        return None
    for who, block in (("with", node.body), ("without", node.orelse)):
        for inner in (inner for each in block for inner in same_code(each)):
            if isinstance(inner, _LEAVES) or (isinstance(inner, ast.expr) and is_exit(inner)):
                return who
    return None


def _counts_by_rank(form: ast.expr) -> bool:
    """Tell whether a loop has more rounds on some ranks: `range(rank)`, `range(rank, n)`.

    `range(rank * n, rank * n + n)` and `range(rank, n, size)` divide work among the ranks.
    """
    if not isinstance(form, ast.Call) or len(form.args) > 2:
        return False
    return [depends_on_rank(each) for each in form.args].count(True) == 1


def _short(test: ast.expr) -> str:
    text = ast.unparse(test)
    return text if len(text) <= 50 else f"{text[:47]}..."
