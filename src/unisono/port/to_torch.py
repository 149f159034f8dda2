"""MindSpore to torch.distributed: what comes back as a new tensor gets memory before the call."""

from __future__ import annotations

import ast

from unisono.port.flow import is_new, is_pure, is_unknown_to_autograd, why_not_rebind
from unisono.port.gradients.forward_pass import check_message
from unisono.port.plan import Action, Plan
from unisono.port.primitives.hoist import statement_before
from unisono.port.rules import difference_text
from unisono.port.site import Refused, Site
from unisono.port.to_mindspore import check_place

__all__ = ["InPlace", "plan_to_torch"]

_DIST = "«torch.distributed»"
#: MindSpore's default of a root, which torch wants to be told.
_DEFAULT_ROOT = "0"
#: Calls with one tensor on every rank, where torch has a list on one.
_ONE_SIDED = {
    "batch_isend_irecv",
    "gather_into_tensor",
    "scatter_tensor",
    "CollectiveGather",
    "CollectiveScatter",
}

_MESSAGES = ("isend", "irecv")
#: Lists that one rank alone has in torch, and the parameter that says which.
_ROOTED_LISTS = {
    "gather": ("gather_list", "dst"),
    "gather_object": ("object_gather_list", "dst"),
    "scatter": ("scatter_list", "src"),
}


def plan_to_torch(site: Site) -> tuple[str, str, Plan]:
    """Return the verdict, its reason, and the change for one call; or raise Refused."""
    rule = site.rule
    if rule.source.name in ("init", "init_process_group"):
        return _start(site)
    if rule.source.name == "get_backend":
        raise Refused("the names of backends differ, and so would tests of them", "groups.backends")
    switched = "mindspore.ops.communication.set_comm_ops_inplace" in site.program.paths
    if switched and rule.source.path.startswith("mindspore.ops.communication."):
        raise Refused(difference_text("groups.switch"), "groups.switch")
    if rule.source.name == "create_group":
        raise Refused(difference_text("groups.members-only"), "groups.members-only")
    if rule.source.name == "P2POp" and rule.pair is not None:
        raise Refused(difference_text("send_recv.batch"), "send_recv.batch")
    check_message(site)
    roots = {
        row.target: _DEFAULT_ROOT
        for row in rule.rows
        if row.role in ("root", "peer")
        and row.target
        and row.source
        and row.source not in site.given
    }
    if rule.same_shape:
        if rule.source.name == "Send" and not isinstance(
            site.file.scopes.parents[site.call], ast.Expr
        ):
            raise Refused("it uses what Send returns, and torch's send returns nothing")
        replaced = {**roots, **_list_on_root(site), **_operation(site)}
        plan = Plan(rule.target.path, site.arguments(**replaced))
        return Action.REWRITE, "; ".join(["the same call with other names", *site.notes]), plan
    return InPlace(site, roots).plan()


def _start(site: Site) -> tuple[str, str, Plan]:
    """Start torch with its own choice of a backend: MindSpore's names mean nothing to it."""
    site.differences += ["groups.backends", "groups.start"]
    kept = [name for name in site.given if name not in ("backend", "backend_name")]
    if kept:
        raise Refused(f"it passes {', '.join(kept)}; check how the program is started")
    return Action.REWRITE, "torch chooses the backend", Plan(site.rule.target.path, ())


def _operation(site: Site) -> dict[str, str]:
    """Return the function of a message: MindSpore takes its name too, and torch does not."""
    if site.rule.source.name != "P2POp" or "op" not in site.given:
        return {}
    value = site.given["op"][1]
    if isinstance(value, ast.Constant) and value.value in _MESSAGES:
        return {"op": f"{_DIST}.{value.value}"}
    if site.reference_at(value) is None:
        raise Refused("the operation is a variable; its value may be a string")
    return {}


def _list_on_root(site: Site) -> dict[str, str]:
    """Return a list as torch wants it: on the root, and nowhere else. MindSpore has it on all."""
    name, root = _ROOTED_LISTS.get(site.rule.source.name, ("", ""))
    value = site.given.get(name, (None, None))[1]
    if value is None or isinstance(value, ast.IfExp | ast.Constant):
        return {}
    rank = site.given.get(root, (None, None))[1]
    if rank is not None and not is_pure(rank):
        raise Refused("the rank that has the list is an expression; give it a name first")
    text = site.text(rank) if rank is not None else _DEFAULT_ROOT
    site.notes.append(f"torch wants {name} on the rank {root} alone")
    return {name: f"{site.text(value)} if {_DIST}.get_rank() == {text} else None"}


class InPlace:
    """A call that returns in comm_func and writes in torch."""

    def __init__(self, site: Site, roots: dict[str, str]) -> None:
        self.site, self.rule, self.file = site, site.rule, site.file
        self.replaced, self.first, self.input = {**roots}, list[str](), ""
        self.value: tuple[ast.expr, str] | None = None
        site.differences += ["groups.new-tensor"]

    def plan(self) -> tuple[str, str, Plan]:
        """Return the verdict, its reason and the change."""
        name = self.rule.source.name
        if name in _ONE_SIDED:
            raise Refused(
                f"torch's {self.rule.target.name} works with lists that only one rank has; "
                "write the two sides by hand"
            )
        result, handle, statement = self._names()
        if self.rule.source.name == "Receive":
            lines, reason = self._received(result)
            return self._done(lines, reason, statement)
        source = self._source()
        reads = {node.id for node in ast.walk(self.site.call) if isinstance(node, ast.Name)}
        in_place = next((row for row in self.rule.rows if row.role in ("in_out", "template")), None)
        if in_place is not None:
            if result in reads - {ast.unparse(source)}:
                raise Refused(f"{result!r} is another argument of the call too")
            lines, reason = self._same_tensor(result, handle, source)
        else:
            # The old value is still needed while the new one arrives.
            memory = self.file.fresh_name("result") if result in reads else result
            lines = [*self._named(source), _call(handle)]
            lines.insert(-1, f"{memory} = {self._memory(source)}")
            if memory != result:
                if self.site.mode != "sync":
                    raise Refused(f"{result!r} is read and written by a call that returns at once")
                lines.append(f"{result} = {memory}")
            reason = "the result gets memory before the call"
            output = next(row for row in self.rule.rows if row.role == "output")
            assert output.target is not None
            many = self.rule.returns("sync").startswith("tensors")
            text = f"list({memory})" if many else memory
            if output.source is None:
                self.first.append(text)
            else:
                self.replaced[output.target] = text
        if self.rule.only_root:
            lines.append(self._zeros(result))
        return self._done(lines, reason, statement)

    def _zeros(self, result: str) -> str:
        """Return the statement that makes zeros of what other ranks than the root have."""
        root = self.site.value("root")
        if root is not None and not is_pure(root) and root not in self.site.constructed:
            raise Refused("the rank that gets the result is an expression; give it a name first")
        text = self.site.text(root) if root is not None else _DEFAULT_ROOT
        return f"if {_DIST}.get_rank() != {text}:\n    {result}.zero_()"

    def _done(self, lines: list[str], reason: str, statement: ast.stmt) -> tuple[str, str, Plan]:
        there = (*lines, "the statement itself") if self.value else tuple(lines)
        check_place(there, statement, self.file.scopes)
        arguments = self.site.arguments(*self.first, **self.replaced)
        reason = "; ".join([reason, *self.site.notes])
        if self.value is None:
            return Action.REWRITE, reason, Plan(self.rule.target.path, arguments, tuple(lines))
        self.file.hoisted[self.value[0]] = self.value[1]
        before = ((statement, tuple(lines)),)
        plan = Plan(self.rule.target.path, arguments, before=before, values=(self.value,))
        return Action.REWRITE, reason, plan

    def _names(self) -> tuple[str, str | None, ast.stmt]:
        """Return the names that get the result and the handle, and the statement."""
        parents = self.file.scopes.parents
        value: ast.expr = self.site.call
        outer = parents[value]
        pair = self.rule.returns(self._mode).endswith(("_none", "_handle"))
        alone = not pair and not self._in_tuple
        if not alone and isinstance(outer, ast.Subscript) and ast.unparse(outer.slice) == "0":
            value, outer, alone = outer, parents[outer], True
        if isinstance(outer, ast.Expr):
            raise Refused("nobody takes the result", "groups.new-tensor")
        if isinstance(outer, ast.Assign) and len(outer.targets) == 1:
            target = outer.targets[0]
            if alone and isinstance(target, ast.Name):
                return target.id, None, outer
            if pair and not alone and isinstance(target, ast.Tuple) and len(target.elts) == 2:
                result, handle = target.elts
                if isinstance(result, ast.Name) and isinstance(handle, ast.Name):
                    return result.id, None if handle.id == "_" else handle.id, outer
        if pair and not alone:
            raise Refused(
                "the pair that it returns is not taken apart here", "groups.tuple-or-handle"
            )
        if self.site.mode != "sync":
            raise Refused("the result is used before the program waits for it")
        statement = statement_before(value, self.site.call, self.file)
        result_name = self.file.fresh_name("result")
        self.value = (value, result_name if alone else f"({result_name},)")
        return result_name, None, statement

    @property
    def _in_tuple(self) -> bool:
        """Tell whether the primitive takes its tensor in a tuple, and returns a tuple."""
        return self.rule.source.path == "mindspore.ops.Broadcast"

    @property
    def _mode(self) -> str:
        return "async" if self.site.mode == "async" else "sync"

    def _source(self) -> ast.expr:
        value = self.site.value("in_out", "input", "template")
        if value is None:
            raise Refused("it passes no tensor")
        if not self._in_tuple:
            return value
        elements = value.elts if isinstance(value, ast.Tuple | ast.List) else []
        if len(elements) != 1 or isinstance(elements[0], ast.Starred):
            raise Refused("it does not pass a tuple with one tensor", "broadcast.tuple")
        row = next(row for row in self.rule.rows if row.role == "in_out")
        assert row.target is not None
        self.replaced[row.target] = self.site.text(elements[0])
        return elements[0]

    def _received(self, result: str) -> tuple[list[str], str]:
        """Return the lines for a primitive that knows shape and dtype of what it receives."""
        shape, dtype = (self.site.text(self.site.given[name][1]) for name in ("shape", "dtype"))
        row = next(row for row in self.rule.rows if row.role == "template")
        assert row.target is not None
        self.replaced[row.target] = result
        lines = [f"{result} = «torch».empty({shape}, dtype={dtype})", _call(None)]
        return lines, "the result gets memory before the call"

    def _same_tensor(
        self, result: str, handle: str | None, source: ast.expr
    ) -> tuple[list[str], str]:
        """Return the lines for a result that has the shape of the input."""
        row = next(row for row in self.rule.rows if row.role in ("in_out", "template"))
        assert row.target is not None
        if isinstance(source, ast.Name) and source.id == result:
            alone = why_not_rebind(source, self.site.call, self.file) is None
            if alone and is_unknown_to_autograd(source, self.file):
                return [_call(handle)], "nobody else has the tensor, so it can be overwritten"
        text = self.site.text(source)
        self.replaced[row.target] = result
        moved = source in self.file.hoisted or source in self.file.changed
        if moved or is_new(source, self.file.scopes):
            return [f"{result} = {text}", _call(handle)], "nobody else has the tensor"
        text = text if is_pure(source) or isinstance(source, ast.Call) else f"({text})"
        return [f"{result} = {text}.clone()", _call(handle)], "the input stays as it was"

    def _named(self, source: ast.expr) -> list[str]:
        """Give the input a name if it is an expression: its shape is needed too."""
        if is_pure(source) or source in self.file.hoisted:
            return []
        row = next(row for row in self.rule.rows if row.role == "input")
        assert row.target is not None
        self.input = self.file.fresh_name("tensor")
        self.replaced[row.target] = self.input
        return [f"{self.input} = {self.site.text(source)}"]

    def _memory(self, source: ast.expr) -> str:
        """Return the expression that makes memory for a result of another shape."""
        text, group = self.input or self.site.text(source), self.site.group_text
        size = f"{_DIST}.get_world_size({group})"
        shapes = next(
            (row.source for row in self.rule.rows if "tensors_to_shapes" in row.changes), None
        )
        if shapes is not None:
            shape = self.site.text(self.site.given[shapes][1])
            if not self.rule.returns("sync").startswith("tensors"):
                return f"{text}.new_empty({shape})"
            part = self.file.loop_names[0]
            return f"tuple({text}[0].new_empty({part}) for {part} in {shape})"
        if self.rule.shape == "(N*d0, d1, ...)":
            # A tensor without dimensions is one row, so the first one is not multiplied.
            return f"{text}.new_empty(({size}, *{text}.shape)).reshape(-1, *{text}.shape[1:])"
        if self.rule.shape == "(d0/N, ...)":
            return f"{text}.new_empty(({text}.shape[0] // {size}, *{text}.shape[1:]))"
        if self.rule.source.name == "AlltoAll":
            return f"{text}.new_empty({text}.shape)"
        if self.rule.source.name == "AlltoAllV":
            counts = self.site.given["recv_numel_list"][1]
            if not isinstance(counts, ast.Name | ast.Attribute | ast.List | ast.Tuple):
                raise Refused("how much it receives is an expression; give it a name first")
            return f"{text}.new_empty(sum({self.site.text(counts)}))"
        raise Refused(f"the shape of what {self.rule.source.name} returns is not known")


def _call(handle: str | None) -> str:
    return f"{handle} = {{call}}" if handle else "{call}"
