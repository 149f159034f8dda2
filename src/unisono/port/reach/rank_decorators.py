"""Decorators by which only some ranks run a function: known by name, or by what they do."""

from __future__ import annotations

import ast

from unisono.port.program import SourceFile
from unisono.port.reach.definitions import Definition, Definitions
from unisono.port.reach.rank_forms import RankForms
from unisono.port.reach.rank_names import is_rank_decorator
from unisono.port.reach.rank_tests import depends_on_rank

__all__ = ["RankDecorators"]


class RankDecorators:
    """Finds the decorators of a program that test the rank."""

    def __init__(self, forms: RankForms, definitions: Definitions) -> None:
        self._forms, self._definitions = forms, definitions

    def restricting(self, target: Definition) -> str | None:
        """Return the decorator by which only some ranks run a function."""
        if not isinstance(target.node, ast.FunctionDef | ast.AsyncFunctionDef):
            return None
        for decorator in target.node.decorator_list:
            node = decorator.func if isinstance(decorator, ast.Call) else decorator
            name = ast.unparse(node)
            if is_rank_decorator(name.rpartition(".")[2]) or self._tests(node, target.file):
                return name
        return None

    def _tests(self, node: ast.expr, file: SourceFile) -> bool:
        """Tell whether a decorator of the program runs its function only under a rank test."""
        found = self._definitions.find(node, file)
        if found is None or not isinstance(found.node, ast.FunctionDef) or not found.node.args.args:
            return False
        own = found.node.args.args[0].arg
        runs = [
            call
            for call in ast.walk(found.node)
            if isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and call.func.id == own
        ]
        return bool(runs) and all(self._under_test(call, found) for call in runs)

    def _under_test(self, call: ast.Call, decorator: Definition) -> bool:
        chain = decorator.file.scopes.chain(call)
        tests = [node.test for node in chain if isinstance(node, ast.If | ast.IfExp)]
        return any(depends_on_rank(self._forms.form(test, decorator.file)) for test in tests)
