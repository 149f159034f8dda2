"""MindSpore to torch's functions with a gradient: calls that return their results stay expressions.

Two things need statements of their own: a result that is zeros on all ranks but one, and an input
that is an expression and is needed twice, as data and for the shape of the result.
"""

from __future__ import annotations

import ast

from unisono.port.gradients.forward_pass import operator_of
from unisono.port.plan import VALUE, Action, NewArgument, Plan
from unisono.port.site import Refused, Site
from unisono.port.to_mindspore import check_place
from unisono.port.to_torch import InPlace

__all__ = ["plan_to_functional"]

_DIST = "«torch.distributed»"
_TORCH = "«torch»"
_MODULE = "torch.distributed.nn.functional"
_REASON = "the function has the gradient of MindSpore's call"
#: Operators whose gradient is wrong in torch, made of what every rank has.
_FROM_ALL = {
    "max": f"{_TORCH}.stack({{call}}).amax(0)",
    "min": f"{_TORCH}.stack({{call}}).amin(0)",
    "prod": "«math».prod({call})",
}


def plan_to_functional(site: Site) -> tuple[str, str, Plan]:
    """Return the verdict, its reason, and the change for one call; or raise Refused."""
    return _Returned(site).plan()


class _Returned(InPlace):
    """A call that returns its result on both sides."""

    def __init__(self, site: Site) -> None:
        super().__init__(site, {})
        site.differences.remove("groups.new-tensor")
        self.function = site.rule.target.path
        self.before: list[str] = []

    def plan(self) -> tuple[str, str, Plan]:
        """Return the verdict, its reason and the change."""
        text = self._text()
        if self.before or self.rule.only_root:
            result, handle, statement = self._names()
            lines = [*self.before, f"{result} = {text}"]
            lines += [self._zeros(result)] if self.rule.only_root else []
            lines += [f"{handle} = None"] if handle else []
            return self._done(lines, _REASON, statement)
        arguments = self._arguments()
        reason = "; ".join([_REASON, *self.site.notes])
        parent = self.file.scopes.parents[self.site.call]
        if isinstance(parent, ast.Expr):
            raise Refused("nobody takes the result", "groups.new-tensor")
        if not self.rule.returns("sync").endswith("_none"):
            return Action.REWRITE, reason, self._in_place(self.site.call, text, arguments)
        if isinstance(parent, ast.Subscript) and ast.unparse(parent.slice) == "0":
            return Action.REWRITE, reason, self._in_place(parent, text, arguments)
        result, handle, statement = self._names()
        lines = [f"{result} = {text}", *([f"{handle} = None"] if handle else [])]
        check_place(tuple(lines), statement, self.file.scopes)
        return Action.REWRITE, reason, Plan(self.function, arguments, tuple(lines))

    def _in_place(self, node: ast.expr, text: str, arguments: tuple[NewArgument, ...]) -> Plan:
        """Return the plan for an expression that changes where it stands."""
        self.file.changed[node] = VALUE.format(len(self.file.changed))
        return Plan(self.function, arguments, values=((node, text),))

    def _arguments(self) -> tuple[NewArgument, ...]:
        arguments = self.site.arguments(*self.first, **self.replaced)
        if operator_of(self.site) in _FROM_ALL:
            arguments = tuple(one for one in arguments if ".ReduceOp." not in (one.text or ""))
        return arguments

    def _text(self) -> str:
        """Return what becomes of the call, and note which arguments change."""
        name = self.rule.target.name
        if name == "all_reduce" and (operator := operator_of(self.site)) in _FROM_ALL:
            self.function = f"{_MODULE}.all_gather"
            self.site.notes.append(f"torch's own gradient of {operator} is wrong")
            return _FROM_ALL[operator]
        if name in ("all_reduce", "reduce"):
            return "{call}"
        if name == "all_gather":
            # A tensor without dimensions is one row, and torch joins only rows.
            return f"{_TORCH}.cat({_TORCH}.atleast_1d({{call}}))"
        source = self._source()
        size = f"{_DIST}.get_world_size({self.site.group_text})"
        if name == "scatter":
            self.replaced["tensors"] = f"{self._operand(source)}.chunk({size})"
            return "{call}"
        self.before += self._named(source)
        text = self.input or self.site.text(source)
        if name == "reduce_scatter":
            self.first.append(f"{_TORCH}.empty_like({text}.chunk({size})[0])")
            self.replaced["input_list"] = f"{text}.chunk({size})"
            return "{call}"
        if name == "all_to_all":
            part = self.file.loop_names[0]
            shapes = self.site.text(self.site.given["output_shape_list"][1])
            memory = f"[{text}[0].new_empty({part}) for {part} in {shapes}]"
            self.replaced["output_tensor_list"] = memory
        elif self.rule.source.name == "AlltoAll":
            self.first.append(f"{_TORCH}.empty_like({text})")
        elif self.rule.source.name == "AlltoAllV":
            self.first.append(self._memory(source))
        else:
            self.replaced["output"] = self._memory(source)
        return "{call}"

    def _operand(self, source: ast.expr) -> str:
        text = self.site.text(source)
        primary = ast.Name | ast.Attribute | ast.Subscript | ast.Call
        return text if isinstance(source, primary) else f"({text})"
