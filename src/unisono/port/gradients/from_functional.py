"""Torch's functions with a gradient to MindSpore: calls that return their results on both sides.

`functional.all_reduce(x)` becomes `comm_func.all_reduce(x)[0]` where it stands. Where the values or
the gradients differ, the call stays.
"""

from __future__ import annotations

import ast

from unisono.port.flow import is_new, is_pure, why_not_rebind
from unisono.port.groups import check_root_in_group
from unisono.port.plan import VALUE, Action, Plan
from unisono.port.site import Refused, Site

__all__ = ["plan_from_functional"]

_COMM = "«mindspore.communication»"
_GRADIENTS = "groups.gradients"


def plan_from_functional(site: Site) -> tuple[str, str, Plan]:
    """Return the verdict, its reason, and the change for one call; or raise Refused."""
    name = site.rule.source.name
    if name == "broadcast":
        raise Refused(
            "the gradients differ: torch adds them up at src, in MindSpore each rank keeps its own",
            _GRADIENTS,
        )
    if name == "gather":
        raise Refused(
            "ranks other than dst get a list of zeros, and MindSpore's result means nothing there",
            "gather.placeholder",
        )
    check_root_in_group(site)
    return _Function(site).plan()


class _Function:
    """A function of torch that returns its result."""

    def __init__(self, site: Site) -> None:
        self.site, self.file, self.name = site, site.file, site.rule.source.name
        self.node: ast.expr = site.call  # what the new text replaces
        self.replaced: dict[str, str] = {}

    def plan(self) -> tuple[str, str, Plan]:
        """Return the verdict, its reason and the change."""
        pair = self.site.rule.returns("sync").endswith("_none")
        text = self._shaped("{call}[0]" if pair else "{call}")
        arguments = self.site.arguments(**self.replaced)
        if self.site.average:
            text = f"({text} / {_COMM}.get_group_size({self.site.group_text}))"
        self.file.changed[self.node] = VALUE.format(len(self.file.changed))
        reason = "; ".join(["both return a tensor with a gradient", *self.site.notes])
        values = ((self.node, text),)
        return Action.REWRITE, reason, Plan(self.site.rule.target.path, arguments, values=values)

    def _argument(self, name: str) -> ast.expr:
        if name not in self.site.given:
            raise Refused(f"it does not say {name}")
        return self.site.given[name][1]

    def _shaped(self, text: str) -> str:
        """Return what becomes of the call, and note which arguments change."""
        if self.name == "all_gather":
            return self._parts(text)
        if self.name == "scatter":
            self._join("tensors", any_list=True)
        elif self.name == "reduce_scatter":
            self._check_memory("output")
            self._join("input_list", any_list=False)
        elif self.name == "all_to_all":
            outputs = self._check_memory("output_tensor_list")
            part = self.file.loop_names[0]
            self.replaced["output_shape_list"] = f"[{part}.shape for {part} in {outputs}]"
        elif self.name == "all_to_all_single":
            output = self._check_memory("output")
            shape = f"{output}.shape"
            like = _like(self._argument("output"))
            if like is not None and is_pure(like):
                shape = f"{self.site.text(like)}.shape"
            self.replaced["output_shape"] = shape
            if self.site.rule.primitive is not None:
                del self.replaced["output_shape"]
                same = like is not None and ast.dump(like) == ast.dump(self._argument("input"))
                return text if same else f"{text}.reshape({shape})"
        return text

    def _parts(self, text: str) -> str:
        """Return the text for a tuple with every rank's tensor, or for all of them joined."""
        rows = self._around(self.site.call, "atleast_1d") or self.site.call
        joined = self._around(rows, "cat")
        if joined is not None:
            self.node = joined
            return text
        tensor = self._argument("tensor")
        if not is_pure(tensor):
            raise Refused("what it gathers is an expression; give it a name first")
        size = f"{_COMM}.get_group_size({self.site.group_text})"
        return f"{text}.reshape({size}, *{self.site.text(tensor)}.shape).unbind()"

    def _around(self, node: ast.expr, function: str) -> ast.Call | None:
        """Return the call of a function of torch that gets nothing but an expression."""
        outer = self.file.scopes.parents[node]
        if isinstance(outer, ast.Call) and outer.args == [node] and not outer.keywords:
            names = [f"{torch}.{function}" for torch in self._torch_names()]
            return outer if ast.unparse(outer.func) in names else None
        return None

    def _join(self, name: str, any_list: bool) -> None:
        """Note the tensor that a list is made of, or that it can be made into."""
        value = self._argument(name)
        if isinstance(value, ast.Call) and ast.unparse(value.func) == "list" and value.args:
            value = value.args[0]
        row = next(row for row in self.site.rule.rows if row.source == name)
        assert row.target is not None
        if (
            isinstance(value, ast.Call)
            and isinstance(value.func, ast.Attribute)
            and value.func.attr == "chunk"
            and len(value.args) == 1
            and not value.keywords
        ):
            self.replaced[row.target] = self.site.text(value.func.value)
            return
        if not any_list:
            raise Refused(
                "the parts of the list may differ in size, and MindSpore divides one tensor into "
                "equal parts; pass x.chunk(n)",
                "reduce_scatter.uneven",
            )
        names = self._torch_names()
        if not names:
            raise Refused("the list has to be joined, and the file does not import torch for it")
        self.replaced[row.target] = f"{names[0]}.cat({self.site.text(value)})"

    def _torch_names(self) -> list[str]:
        return [name for name, path in self.file.imports.items() if path == "torch"]

    def _check_memory(self, name: str) -> str:
        """Return the memory for the result as text; refuse it if the program reads it too."""
        value = self._argument(name)
        if is_new(value, self.file.scopes) or isinstance(value, ast.ListComp):
            return self.site.text(value)
        if isinstance(value, ast.Name):
            scope = self.file.scopes.scope_of[value].find(value.id)
            uses = scope.uses[value.id] if scope else []
            reads = [use for use in uses if isinstance(use.ctx, ast.Load)]
            if reads == [value] and why_not_rebind(value, self.site.call, self.file) is None:
                return value.id
        raise Refused(f"the result is in {ast.unparse(value)!r} too, and MindSpore returns another")


def _like(node: ast.expr) -> ast.expr | None:
    """Return the tensor of `torch.empty_like(tensor)`."""
    if not isinstance(node, ast.Call) or ast.unparse(node.func).rpartition(".")[2] != "empty_like":
        return None
    return node.args[0] if len(node.args) == 1 and not node.keywords else None
