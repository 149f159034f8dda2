"""Collectives that only some ranks may reach: the others would wait for them for ever.

The analysis, in full:

1. For each test of the rank (rank_tests.py) in a function, the sequence of collectives that the
   function makes (sequences.py) is written down twice: for ranks that pass the test, and for those
   that do not. What is known of the rank decides all tests of it in the function. Tests that are
   the same on all ranks stay in both sequences as they are.
2. Both sequences must be the same: the same collectives in the same order, whatever functions of
   the program make them. Where they part is a warning, at the call in this function; there is one
   for each test.
3. A collective of a group of its own is compared only if a side of the test has just one rank of
   the world, or if the test asks for the rank in that very group. Otherwise the members of the
   group may be just the ranks that come there.
4. A loop whose rounds are counted by the rank is a test: some ranks have more rounds.
5. A collective in an except branch is a warning, because one rank alone may have the error; not if
   the try block makes collectives too, or if the same one comes next for ranks without an error;
   and not for errors of all ranks, such as ImportError.
6. A collective in a function that a decorator keeps for some ranks is a warning.
7. A branch that raises counts as leaving only if the ranks that take it are known.

It does not follow functions that are passed as values, methods of other objects than `self`, or
values that depend on data.
"""

from __future__ import annotations

import ast
import dataclasses
import itertools
from collections.abc import Callable, Iterator

from unisono.port.call_graph import Definition, Definitions, FunctionNode, body_of, same_code
from unisono.port.collective_calls import Collective, CollectiveCalls, makes_group
from unisono.port.differences import differences
from unisono.port.program import SourceFile, SourceTree
from unisono.port.rank_forms import RankForms
from unisono.port.rank_tests import Facts, Split, assume_rank, decide, depends_on_rank, split
from unisono.port.sequence_items import collectives, key
from unisono.port.sequences import Sequences, is_exit, rounds

__all__ = ["Reach", "Unreached"]

#: Errors that come from the program or its environment, and so on all ranks or on none.
_COMMON_ERRORS = {"ImportError", "ModuleNotFoundError", "AttributeError", "NotImplementedError"}
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)


@dataclasses.dataclass(frozen=True)
class Unreached:
    """A collective that some ranks may not reach, and why; `certain` if they do not, for sure."""

    collective: Collective
    reason: str
    certain: bool


@dataclasses.dataclass(frozen=True)
class _Test:
    """A test of the rank, or a loop that is counted by it (then `form` is None)."""

    node: ast.AST  # the statement or expression that it decides
    form: ast.expr | None
    text: str
    line: int

    def split(self, facts: Facts) -> Split | None:
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


class Reach:
    """Compares what the ranks of a program make."""

    def __init__(
        self,
        program: SourceTree,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        definitions = Definitions(program)
        self._calls = CollectiveCalls(program, definitions, progress)
        self._sequences = Sequences(self._calls, RankForms(definitions), definitions)

    def unreached(self, file: SourceFile) -> list[Unreached]:
        """Return the collectives of a file that some ranks may not reach, by their lines."""
        found: dict[ast.Call, Unreached] = {}
        for node in self._calls.loud.get(file, ()):
            for each in self._in_function(node, file):
                call = each.collective.call
                if call not in found or (each.certain and not found[call].certain):
                    found[call] = each
        return sorted(
            found.values(),
            key=lambda each: (each.collective.call.lineno, each.collective.call.col_offset),
        )

    def _in_function(self, node: FunctionNode, file: SourceFile) -> list[Unreached]:
        try:
            return list(_Ways(self._sequences, file, node).unreached())
        except RecursionError:  # in code that is nested hundreds of times; nobody wrote that
            return []


class _Ways:
    """Compares the ways of the ranks through one function."""

    def __init__(self, sequences: Sequences, file: SourceFile, function: FunctionNode) -> None:
        self._sequences, self._file, self._function = sequences, file, function
        self._body = body_of(function)
        self._tests = sorted(self._find_tests(), key=lambda test: test.line)

    def unreached(self) -> Iterator[Unreached]:
        """Yield all that some ranks may not reach."""
        target = Definition(self._file, self._function)
        if (name := self._sequences.only_some(target)) is not None:
            reason = f"only some ranks run {target.name}, by its decorator @{name}"
            yield from (Unreached(each, reason, False) for each in self._made(self._body)[:1])
            return
        compared: list[tuple[Facts, Facts]] = []
        for test in self._tests:
            found = test.split(self._facts_around(test.node))
            if found is None or found.sides in compared or found.sides[::-1] in compared:
                continue
            compared.append(found.sides)
            yield from self._compare(test, found)
        yield from self._in_handlers()

    # ---- tests ----

    def _find_tests(self) -> Iterator[_Test]:
        for node in (inner for each in self._body for inner in self._code(each)):
            tests: list[ast.expr] = []
            loops: list[tuple[ast.AST, ast.expr]] = []
            if isinstance(node, ast.If | ast.While | ast.Assert):
                tests = [node.test]
            elif isinstance(node, ast.For | ast.AsyncFor):
                loops = [(node, node.iter)]
            elif node not in self._sequences.around:
                continue
            elif isinstance(node, ast.IfExp):
                tests = [node.test]
            elif isinstance(node, ast.BoolOp):
                tests = node.values[:-1]
            elif isinstance(node, _COMPREHENSIONS):
                tests = [test for each in node.generators for test in each.ifs]
                loops = [(each, each.iter) for each in node.generators]
            for test in tests:
                form = self._sequences.form(test, self._file)
                if depends_on_rank(form):
                    line = getattr(test, "lineno", getattr(node, "lineno", 0))
                    yield _Test(node, form, _short(test), line)
            for loop, counted in loops:
                if _counts_by_rank(self._sequences.form(counted, self._file)):
                    yield _Test(loop, None, "", counted.lineno)

    def _code(self, node: ast.stmt) -> Iterator[ast.AST]:
        """Yield the code of a function, with match statements as tests."""
        if isinstance(node, FunctionNode):
            return
        for inner in same_code(node):
            yield inner
            if isinstance(inner, ast.Match):
                for made in self._sequences.without_match([inner]):
                    while isinstance(made, ast.If):
                        yield made
                        if len(made.orelse) != 1:
                            break
                        made = made.orelse[0]
            elif isinstance(inner, ast.ClassDef):
                for each in inner.body:
                    yield from self._code(each)

    def _facts_around(self, node: ast.AST) -> Facts:
        """Return what the tests around a node say of the rank."""
        facts: Facts = {}
        chain = self._file.scopes.chain(node)
        for inner, outer in itertools.pairwise(chain):
            if outer is self._function:
                break
            if isinstance(outer, ast.If) and inner is not outer.test:
                form = self._sequences.form(outer.test, self._file)
                facts = assume_rank(form, inner in outer.body, facts)
        return facts

    # ---- comparing ----

    def _compare(self, test: _Test, found: Split) -> Iterator[Unreached]:
        passed, failed = (
            self._sequences.function(Definition(self._file, self._function), side)
            for side in found.sides
        )
        causes = [each for each in self._tests if each.divides(found.sides)]
        reasons: set[str] = set()
        for part in differences(passed, failed, found):
            reason = _reason(part.collective.call, causes)
            if reason is None:
                reason = f"ranks with and without `{test.text}` (line {test.line}) part before it"
            if reason not in reasons:
                reasons.add(reason)
                made = part.collective
                certain = found.certain and part.unconditional and made.group is None
                yield Unreached(made, reason, certain and not makes_group(made.path))

    def _in_handlers(self) -> Iterator[Unreached]:
        for node in (inner for each in self._body for inner in self._code(each)):
            if not isinstance(node, ast.Try | ast.TryStar):
                continue
            if self._made(node.body):
                continue
            later = [each for each in self._made(self._body) if not _precedes(each.call, node)]
            for handler in node.handlers:
                made = [] if _common(handler.type) else self._made(handler.body)
                if made and key(made[0]) not in map(key, later[:1]):
                    reason = f"only ranks with an error (line {handler.lineno}) reach it"
                    yield Unreached(made[0], reason, False)

    def _made(self, statements: list[ast.stmt]) -> list[Collective]:
        return collectives(self._sequences.block(statements, {}, self._file))


def _reason(call: ast.Call, causes: list[_Test]) -> str | None:
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


def _precedes(call: ast.Call, node: ast.stmt) -> bool:
    end = node.end_lineno or 0, node.end_col_offset or 0
    return (call.lineno, call.col_offset) < end


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


def _common(kind: ast.expr | None) -> bool:
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind] if kind is not None else []
    return bool(kinds) and all(ast.unparse(each) in _COMMON_ERRORS for each in kinds)


def _short(test: ast.expr) -> str:
    text = ast.unparse(test)
    return text if len(text) <= 50 else f"{text[:47]}..."
