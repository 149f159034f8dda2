"""Lists whose tensors may differ in size: comm_func joins and divides only equal ones."""

from __future__ import annotations

import ast

from unisono.port.flow import MAKERS
from unisono.port.scopes import Scopes
from unisono.port.site import Refused, Site

__all__ = ["check_sizes", "may_be_uneven"]


def check_sizes(site: Site) -> None:
    """Refuse lists whose tensors may differ in size, where one tensor takes the list's place."""
    for row in site.rule.rows:
        given = site.given.get(row.source or "")
        if given is None or "list_to_tensor" not in row.changes:
            continue
        if may_be_uneven(given[1], site.file.scopes):
            raise Refused(
                f"the tensors of {row.source} may differ in size, and comm_func needs equal ones; "
                "mint has functions for uneven ones"
            )


def may_be_uneven(node: ast.expr, scopes: Scopes) -> bool:
    """Tell whether a list is made with a size for each of its tensors.

    That is `[torch.empty(n) for n in sizes]`, and `x.split(sizes)` unless the sizes are one number.
    """
    if isinstance(node, ast.Name):
        home = scopes.scope_of[node].find(node.id)
        bindings = home.bindings[node.id] if home else []
        # A name that is part of its own value would be followed without an end.
        values = [one.value for one in bindings if one.value is not None]
        return any(may_be_uneven(value, scopes) for value in values if node.id not in _names(value))
    if isinstance(node, ast.ListComp):
        own = {name for loop in node.generators for name in _names(loop.target)}
        return any(own & _names(shape) for shape in _shapes(node.elt))
    if not isinstance(node, ast.Call):
        return False
    function = node.func
    word = function.attr if isinstance(function, ast.Attribute) else ast.unparse(function)
    if word in ("list", "tuple") and len(node.args) == 1:
        return may_be_uneven(node.args[0], scopes)
    if word != "split" or not isinstance(function, ast.Attribute):
        return False
    given = [*node.args, *(word.value for word in node.keywords)]
    sizes = given[1:2] if ast.unparse(function.value) == "torch" else given[:1]
    return not all(_is_number(size, scopes) for size in sizes)


def _shapes(element: ast.expr) -> list[ast.expr]:
    """Return what says the shape of a new tensor."""
    found: list[ast.expr] = []
    for call in ast.walk(element):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        method = call.func.attr
        if method in MAKERS or method.startswith("new_"):
            single = method in ("full", "new_full", "tensor", "new_tensor")
            found += call.args[:1] if single else call.args
    return found


def _is_number(node: ast.expr, scopes: Scopes) -> bool:
    if isinstance(node, ast.Name):
        home = scopes.scope_of[node].find(node.id)
        bindings = home.bindings[node.id] if home else []
        return bool(bindings) and all(
            one.kind == "assignment" and isinstance(one.value, ast.Constant | ast.BinOp)
            for one in bindings
        )
    return isinstance(node, ast.Constant | ast.BinOp)


def _names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
