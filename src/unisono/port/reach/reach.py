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

from unisono.port.program import SourceFile, SourceTree
from unisono.port.reach.collective_calls import CollectiveCalls, MadeCollective, makes_group
from unisono.port.reach.definitions import Definition, Definitions, FunctionNode, body_of
from unisono.port.reach.differences import differences
from unisono.port.reach.rank_forms import RankForms
from unisono.port.reach.rank_tests import Facts, Split, assume_rank
from unisono.port.reach.reasons import RankTest, code_of, rank_tests, reason
from unisono.port.reach.sequence_items import collectives, key
from unisono.port.reach.sequences import Sequences

__all__ = ["Reach", "Unreached"]

#: Errors that come from the program or its environment, and so on all ranks or on none.
_COMMON_ERRORS = {"ImportError", "ModuleNotFoundError", "AttributeError", "NotImplementedError"}


@dataclasses.dataclass(frozen=True)
class Unreached:
    """A collective that some ranks may not reach, and why; `certain` if they do not, for sure."""

    collective: MadeCollective
    reason: str
    certain: bool


class Reach:
    """Compares what the ranks of a program make."""

    def __init__(
        self,
        program: SourceTree,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        definitions = Definitions(program)
        self._calls = CollectiveCalls(program, definitions, progress)
        communicating = {node for nodes in self._calls.communicating.values() for node in nodes}
        forms = RankForms(definitions, communicating)
        self._sequences = Sequences(self._calls, forms, definitions)

    def unreached(self, file: SourceFile) -> list[Unreached]:
        """Return the collectives of a file that some ranks may not reach, by their lines."""
        found: dict[ast.Call, Unreached] = {}
        for node in self._calls.communicating.get(file, ()):
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
        found = rank_tests(self._body, file, sequences)
        self._tests = sorted(found, key=lambda test: test.line)

    def unreached(self) -> Iterator[Unreached]:
        """Yield all that some ranks may not reach."""
        target = Definition(self._file, self._function)
        if (name := self._sequences.only_some(target)) is not None:
            text = f"only some ranks run {target.name}, by its decorator @{name}"
            yield from (Unreached(each, text, False) for each in self._made(self._body)[:1])
            return
        compared: list[tuple[Facts, Facts]] = []
        for test in self._tests:
            found = test.split(self._facts_around(test.node))
            if found is None or found.sides in compared or found.sides[::-1] in compared:
                continue
            compared.append(found.sides)
            yield from self._compare(test, found)
        yield from self._in_handlers()

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

    def _compare(self, test: RankTest, found: Split) -> Iterator[Unreached]:
        passed, failed = (
            self._sequences.function(Definition(self._file, self._function), side)
            for side in found.sides
        )
        causes = [each for each in self._tests if each.divides(found.sides)]
        reasons: set[str] = set()
        for part in differences(passed, failed, found):
            made = part.collective
            text = reason(made.call, causes)
            if text is None:
                text = f"ranks with and without `{test.text}` (line {test.line}) part before it"
            if text not in reasons:
                reasons.add(text)
                certain = found.certain and part.unconditional and made.group is None
                yield Unreached(made, text, certain and not makes_group(made.path))

    def _in_handlers(self) -> Iterator[Unreached]:
        for node in code_of(self._body, self._sequences):
            if not isinstance(node, ast.Try | ast.TryStar) or self._made(node.body):
                continue
            later = [each for each in self._made(self._body) if not _precedes(each.call, node)]
            for handler in node.handlers:
                made = [] if _common(handler.type) else self._made(handler.body)
                if made and key(made[0]) not in map(key, later[:1]):
                    text = f"only ranks with an error (line {handler.lineno}) reach it"
                    yield Unreached(made[0], text, False)

    def _made(self, statements: list[ast.stmt]) -> list[MadeCollective]:
        return collectives(self._sequences.block(statements, {}, self._file))


def _precedes(call: ast.Call, node: ast.stmt) -> bool:
    end = node.end_lineno or 0, node.end_col_offset or 0
    return (call.lineno, call.col_offset) < end


def _common(kind: ast.expr | None) -> bool:
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind] if kind is not None else []
    return bool(kinds) and all(ast.unparse(each) in _COMMON_ERRORS for each in kinds)
