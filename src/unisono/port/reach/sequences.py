"""The sequence of collectives that the code of a function makes, in the order of its run.

A sequence has collectives, choices between two sequences, loops, and the points at which code
leaves. Facts about the rank decide tests: what is left of a choice is a test whose answer is not
known. A call of a function of the program stands for the sequence of that function, as far as all
ranks make it; a long one is kept as one item.
"""

from __future__ import annotations

import ast
import dataclasses

from unisono.port.program import SourceFile
from unisono.port.reach.collective_calls import CollectiveCalls, MadeCollective, step
from unisono.port.reach.definitions import Definition, Definitions, FunctionNode, body_of
from unisono.port.reach.match_tests import as_tests
from unisono.port.reach.rank_decorators import RankDecorators
from unisono.port.reach.rank_forms import RankForms
from unisono.port.reach.rank_tests import (
    Facts,
    assume_rank,
    decide,
    has_known_ranks,
    one_rank,
)
from unisono.port.reach.sequence_items import (
    Item,
    Leave,
    Loop,
    Whole,
    choice,
    collectives,
    decided,
    leaves,
    mapped,
    may_return,
    only_raises,
    summed_up,
)

__all__ = ["Sequences", "is_exit", "rounds"]

#: A function with more collectives than this is compared as a whole.
_LONG = 24
#: So many functions that call each other are followed; what is below is compared as a whole.
_DEPTH = 20
_EXITS = {"sys.exit", "exit", "quit", "os._exit"}
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


class Sequences:
    """The sequences of a program's functions."""

    def __init__(self, calls: CollectiveCalls, forms: RankForms, definitions: Definitions) -> None:
        self._calls, self._forms, self._definitions = calls, forms, definitions
        self._decorators = RankDecorators(forms, definitions)
        self._summaries: dict[ast.AST, tuple[Item, ...] | None] = {}
        self._depth = 0
        self._match: dict[ast.Match, list[ast.stmt]] = {}

    @property
    def around(self) -> set[ast.AST]:
        """Return all code that makes a collective."""
        return self._calls.around

    def form(self, test: ast.expr, file: SourceFile) -> ast.expr:
        """Return the form of a test."""
        return self._forms.form(test, file)

    def without_match(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        """Replace match statements by tests."""
        if not any(isinstance(each, ast.Match) for each in statements):
            return statements
        found: list[ast.stmt] = []
        for each in statements:
            if isinstance(each, ast.Match):
                found += self._match.setdefault(each, as_tests(each))
            else:
                found.append(each)
        return found

    # ---- statements ----

    def block(self, statements: list[ast.stmt], facts: Facts, file: SourceFile) -> tuple[Item, ...]:
        """Return what a block makes; nothing follows a point at which it always leaves."""
        found: list[Item] = []
        for statement in self.without_match(statements):
            found += self._statement(statement, facts, file)
            if leaves(found):
                break
        return tuple(found)

    def function(self, target: Definition, facts: Facts) -> tuple[Item, ...]:
        """Return what a function makes; that it returns at its end is no item."""
        assert isinstance(target.node, FunctionNode)
        found = self.block(body_of(target.node), facts, target.file)
        return found[:-1] if found and isinstance(found[-1], Leave) else found

    def _statement(self, node: ast.stmt, facts: Facts, file: SourceFile) -> list[Item]:
        if isinstance(node, ast.If):
            return [
                *self.expression(node.test, facts, file),
                *self._branches(node.test, node.body, node.orelse, facts, file),
            ]
        if isinstance(node, _LOOPS):
            return self._loop(node, facts, file)
        if isinstance(node, ast.Try | ast.TryStar):
            return self._try(node, facts, file)
        if isinstance(node, ast.With | ast.AsyncWith):
            found = [
                item
                for each in node.items
                for item in self.expression(each.context_expr, facts, file)
            ]
            return [*found, *self.block(node.body, facts, file)]
        if isinstance(node, ast.ClassDef):
            return list(self.block(node.body, facts, file)) if node in self._calls.around else []
        found = self.expression(node, facts, file)
        if isinstance(node, ast.Assert):
            form = self.form(node.test, file)
            fails = has_known_ranks(form) and decide(form, facts) is False
            return [*found, Leave("raise")] if fails else found
        if isinstance(node, ast.Return | ast.Raise | ast.Continue | ast.Break):
            return [*found, Leave(type(node).__name__.lower())]
        if isinstance(node, ast.Expr) and is_exit(node.value):
            return [*found, Leave("return")]
        return found

    def _branches(
        self,
        test: ast.expr,
        first: list[ast.stmt],
        second: list[ast.stmt],
        facts: Facts,
        file: SourceFile,
    ) -> list[Item]:
        form = self.form(test, file)
        answer = decide(form, facts)
        if answer is not None:
            taken, other = (first, second) if answer else (second, first)
            found = list(self.block(taken, facts, file))
            if only_raises(found) and not has_known_ranks(form):
                return list(self.block(other, facts, file))
            return found
        return choice(
            form,
            self.block(first, assume_rank(form, True, facts), file),
            self.block(second, assume_rank(form, False, facts), file),
        )

    def _loop(
        self, node: ast.For | ast.AsyncFor | ast.While, facts: Facts, file: SourceFile
    ) -> list[Item]:
        before: list[Item] = []
        if isinstance(node, ast.While):
            form = self.form(node.test, file)
            runs = decide(form, facts) is not False
            inside = (*self.expression(node.test, facts, file), *self.block(node.body, facts, file))
        else:
            before = self.expression(node.iter, facts, file)
            runs = facts.get(rounds(node)) is not False
            inside = self.block(node.body, facts, file)
        if inside and isinstance(last := inside[-1], Leave) and last.kind == "continue":
            inside = inside[:-1]
        if not runs or not (collectives(inside) or may_return(inside)):
            inside = ()
        return [*before, *([Loop(inside)] if inside else []), *self.block(node.orelse, facts, file)]

    def _try(self, node: ast.Try | ast.TryStar, facts: Facts, file: SourceFile) -> list[Item]:
        found = list(self.block(node.body, facts, file))
        if (
            node.handlers
            and found
            and isinstance(last := found[-1], Leave)
            and last.kind == "raise"
        ):
            found.pop()  # a handler takes it
        end: list[Item] = []
        if not leaves(found):
            found += self.block(node.orelse, facts, file)
        if found and isinstance(found[-1], Leave):
            end = [found.pop()]
        return [*found, *self.block(node.finalbody, facts, file), *end]

    # ---- expressions ----

    def expression(self, node: ast.AST, facts: Facts, file: SourceFile) -> list[Item]:
        """Return what an expression, or a statement without blocks, makes."""
        if isinstance(node, ast.Lambda):
            return []
        if node not in self._calls.around and not isinstance(node, ast.Return):
            return []
        if isinstance(node, ast.IfExp):
            form = self.form(node.test, file)
            first = self.expression(node.body, facts, file)
            second = self.expression(node.orelse, facts, file)
            return [
                *self.expression(node.test, facts, file),
                *decided(form, first, second, facts),
            ]
        if isinstance(node, ast.BoolOp):
            return self._short_circuit(node, node.values, facts, file)
        if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            return self._comprehension(node, facts, file)
        children = ast.iter_child_nodes(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            children = iter([*node.decorator_list, *node.args.defaults])
        found = [item for child in children for item in self.expression(child, facts, file)]
        if isinstance(node, ast.Call):
            found += self._called(node, facts, file)
        return found

    def _short_circuit(
        self, node: ast.BoolOp, values: list[ast.expr], facts: Facts, file: SourceFile
    ) -> list[Item]:
        first, *others = values
        found = self.expression(first, facts, file)
        if not others:
            return found
        rest = self._short_circuit(node, others, facts, file)
        form = self.form(first, file)
        sides = (rest, []) if isinstance(node.op, ast.And) else ([], rest)
        return [*found, *decided(form, *sides, facts)]

    def _comprehension(
        self,
        node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp,
        facts: Facts,
        file: SourceFile,
    ) -> list[Item]:
        elements = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        inside = [item for each in elements for item in self.expression(each, facts, file)]
        before: list[Item] = []
        for generator in reversed(node.generators):
            for test in reversed(generator.ifs):
                form = self.form(test, file)
                inside = [
                    *self.expression(test, facts, file),
                    *decided(form, inside, [], facts),
                ]
            before = self.expression(generator.iter, facts, file)
            if facts.get(rounds(generator)) is False:
                inside = []
            inside = [*before, *([Loop(tuple(inside))] if collectives(inside) else [])]
        return inside

    def _called(self, call: ast.Call, facts: Facts, file: SourceFile) -> list[Item]:
        if call in self._calls.direct:
            return [self._calls.direct[call]]
        target = self._calls.functions.get(call)
        if target is None:
            return []
        assert isinstance(target.node, FunctionNode)
        arguments = {
            name: self.form(value, where)
            for name, value, where in self._definitions.arguments(call, target, file)
        }

        def seen_from_here(found: MadeCollective) -> MadeCollective:
            group = found.group
            if group is not None and group in arguments:
                text = ast.unparse(arguments[group])
                group = None if text == "None" else text
            here = step(target)
            # A function that calls itself is named once.
            way = found.way[found.way.index(here) + 1 :] if here in found.way else found.way
            return dataclasses.replace(found, call=call, group=group, way=(here, *way))

        return mapped(self.summary(target), seen_from_here, arguments, facts)

    # ---- functions ----

    def summary(self, target: Definition) -> tuple[Item, ...]:
        """Return what all ranks make that call a function: where they differ, the shorter way."""
        node = target.node
        assert isinstance(node, FunctionNode)
        if node not in self._summaries and self._depth < _DEPTH:
            self._summaries[node] = None  # for a function that calls itself
            self._depth += 1
            try:
                self._summaries[node] = self._sum_up(target)
            finally:
                self._depth -= 1
        known = self._summaries.get(node)
        return (Whole(node, self._calls.first(target)),) if known is None else known

    def _sum_up(self, target: Definition) -> tuple[Item, ...]:
        if self.only_some(target):
            return ()
        views = [summed_up(self.function(target, one_rank(rank))) for rank in (0, 1)]
        found = min(views, key=lambda items: len(collectives(items)))
        if len(collectives(found)) > _LONG:
            return (Whole(target.node, collectives(found)[0]),)
        return found

    def only_some(self, target: Definition) -> str | None:
        """Return the decorator by which only some ranks run a function."""
        return self._decorators.restricting(target)


def is_exit(node: ast.expr) -> bool:
    """Tell whether an expression ends the process."""
    return isinstance(node, ast.Call) and ast.unparse(node.func) in _EXITS


def rounds(node: ast.AST) -> str:
    """Return the name of the fact whether a loop has rounds."""
    return f"rounds of {id(node)}"
