"""MindSpore to torch where a gradient has to pass: torch.distributed.nn.functional.

MindSpore differentiates its primitives and comm_func. torch's calls that write into a tensor are
unknown to autograd, so a program that trains through them would get wrong gradients. The functions
of torch.distributed.nn.functional return a tensor, and have the gradient. They are used for
1. primitives, wherever they are called;
2. comm_func in a method `construct`, which is the forward pass of a cell;
where torch's gradient is right: for sums, for averages in all_reduce, and for what only moves.
"""

from __future__ import annotations

import ast

from unisono.port.flow import is_pure
from unisono.port.plan import Action, Lines, NewArgument, Plan
from unisono.port.primitives.built import method_of
from unisono.port.primitives.hoist import statement_before
from unisono.port.site import Refused, Site
from unisono.port.to_mindspore import check_place

__all__ = ["plan_with_gradient"]

_FUNCTIONAL = "torch.distributed.nn.functional"
_DIST = "«torch.distributed»"
_RIGHT_OPERATORS = {
    "all_reduce": ("SUM", "AVG"),
    "reduce_scatter_tensor": ("SUM",),
}
#: torch's calls that write, and the functions with a gradient.
_FUNCTIONS = {
    "all_gather_into_tensor": "all_gather",
    "all_reduce": "all_reduce",
    "all_to_all_single": "all_to_all_single",
    "reduce_scatter_tensor": "reduce_scatter",
}


def plan_with_gradient(site: Site) -> tuple[str, str, Plan] | None:
    """Return the change to a function with a gradient, or None where the call goes another way."""
    name = site.rule.target.name
    if name not in _FUNCTIONS or not _is_differentiated(site) or site.mode != "sync":
        return None
    if site.value("splits") is not None:
        return None
    operator, group = site.argument("op"), site.argument("group")
    if name in _RIGHT_OPERATORS:
        kind = (operator.text or "").rpartition(".")[2] if operator else "SUM"
        if kind not in _RIGHT_OPERATORS[name]:
            return None
    site.differences += ["groups.new-tensor", "groups.gradients"]
    arguments, before = _tensors(site, name)
    arguments += [each for each in (operator, group) if each is not None]
    result = "{call}"
    if name == "all_gather_into_tensor":  # tensors without dimensions are joined too
        result = "«torch».cat(«torch».atleast_1d({call}))"
    plan = _in_place_of(site, result, f"{_FUNCTIONAL}.{_FUNCTIONS[name]}", tuple(arguments), before)
    return Action.REWRITE, "; ".join(["it returns a tensor with a gradient", *site.notes]), plan


def _is_differentiated(site: Site) -> bool:
    if site.reference.building is not None:
        return True
    method = method_of(site.call, site.file.scopes)
    functional = site.rule.source.style == "functional"
    return functional and method is not None and method.name == "construct"


def _tensors(site: Site, name: str) -> tuple[list[NewArgument], tuple[Lines, ...]]:
    """Return the first arguments, and the statements before that they need."""
    index, value = next(
        site.given[row.source]
        for row in site.rule.rows
        if row.role in ("in_out", "input") and row.source in site.given
    )
    if name in ("all_reduce", "all_gather_into_tensor"):
        return [NewArgument(None, index)], ()
    before: tuple[Lines, ...] = ()
    text = site.text(value)
    if not is_pure(value):  # its shape is needed too
        statement = statement_before(site.call, site.call, site.file)
        check_place(("", ""), statement, site.file.scopes)
        name_of_value = site.file.fresh_name("tensor")
        before, text = ((statement, (f"{name_of_value} = {text}",)),), name_of_value
    if name == "all_to_all_single":
        texts = [f"«torch».empty_like({text})", text]
    else:
        size = f"{_DIST}.get_world_size({site.group_text})"
        rows = f"{text}.shape[0] // {size}"
        texts = [f"{text}.new_empty(({rows}, *{text}.shape[1:]))", f"list({text}.chunk({size}))"]
    return [NewArgument(None, text=each) for each in texts], before


def _in_place_of(
    site: Site,
    result: str,
    function: str,
    arguments: tuple[NewArgument, ...],
    before: tuple[Lines, ...],
) -> Plan:
    """Return the change that puts a result where the program takes it."""
    outer = site.file.scopes.parents[site.call]
    value: ast.expr = site.call
    if site.rule.returns("sync").endswith("_none"):
        pair = outer.targets[0] if isinstance(outer, ast.Assign) else None
        if isinstance(outer, ast.Subscript) and ast.unparse(outer.slice) == "0":
            value = outer
        elif isinstance(pair, ast.Tuple) and len(pair.elts) == 2:
            target, handle = map(ast.unparse, pair.elts)
            lines = (f"{target} = {result}", *(() if handle == "_" else (f"{handle} = None",)))
            assert isinstance(outer, ast.stmt)
            check_place(lines, outer, site.file.scopes)
            return Plan(function, arguments, lines, before=before)
        else:
            raise Refused(
                "the pair that it returns is not taken apart here", "groups.tuple-or-handle"
            )
    values = () if value is site.call and result == "{call}" else ((value, result),)
    return Plan(function, arguments, before=before, values=values)
