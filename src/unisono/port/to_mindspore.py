"""torch.distributed to MindSpore: results that torch writes in place come back as new tensors."""

from __future__ import annotations

import ast

from unisono.port.blocks import block_of, is_alone
from unisono.port.flow import is_pure, why_not_rebind
from unisono.port.gathered import joined_later
from unisono.port.plan import Action, Plan
from unisono.port.rules import Row, difference_text
from unisono.port.scopes import Scope, Scopes
from unisono.port.site import Refused, Site

__all__ = ["check_place", "plan_to_mindspore"]

_COMM = "«mindspore.communication»"
#: What torch needs to start and MindSpore gets from its launcher.
_FROM_LAUNCHER = {"rank", "world_size", "init_method"}


def plan_to_mindspore(site: Site) -> tuple[str, str, Plan]:
    """Return the verdict, its reason, and the change for one call; or raise Refused."""
    rule = site.rule
    if rule.source.name == "init_process_group":
        return _start(site)
    if rule.source.name in ("recv", "recv_object_list") and _context(site)[0] != "statement":
        raise Refused("it uses the rank of the sender, which MindSpore does not tell")
    if rule.source.name == "get_backend":
        raise Refused("the names of backends differ, and so would tests of them", "groups.backends")
    if rule.source.name == "P2POp" and rule.pair is not None:
        raise Refused(difference_text("send_recv.batch"), "send_recv.batch")
    _check_root(site)
    _check_handle(site)
    if rule.same_shape:
        if rule.pair is None and rule.source.name == "all_gather_into_tensor":
            site.differences.append("all_gather.stacked")
            site.notes.append("mint fills only the joined form of the output")
        plan = Plan(rule.target.path, site.arguments())
        return Action.REWRITE, _why_same(site), plan
    return _Functional(site).plan()


def _why_same(site: Site) -> str:
    return "; ".join(["the same call with other names", *site.notes])


def _context(site: Site) -> tuple[str, ast.stmt, str | None]:
    """Return how the program uses what the call returns, the statement, and the handle's name."""
    parents = site.file.scopes.parents
    parent = parents[site.call]
    if isinstance(parent, ast.Expr):
        return "statement", parent, None
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1:
        target = parent.targets[0]
        if isinstance(target, ast.Name):
            return "handle", parent, target.id
    if isinstance(parent, ast.Attribute) and parent.attr == "wait":
        outer = parents[parent]
        statement = parents[outer]
        if isinstance(outer, ast.Call) and not outer.args and isinstance(statement, ast.Expr):
            return "waited", statement, None
    return "expression", site.file.scopes.statement(site.call), None


def _check_root(site: Site) -> None:
    for row in site.rule.rows:
        if row.role in ("root", "peer") and row.source and row.source not in site.given:
            if site.value("group_root") is None and row.difference != "send_recv.any-source":
                raise Refused(f"it does not say {row.source}", row.difference)
            difference = row.difference if site.value("group_root") is None else "groups.group-root"
            raise Refused(difference_text(difference), difference)


def _check_handle(site: Site) -> None:
    """Refuse handles that are asked for more than MindSpore's can do."""
    context, _, name = _context(site)
    if context != "handle" or name is None:
        return
    home = site.file.scopes.scope_of[site.call].find(name)
    for use in home.uses[name] if home else ():
        outer = site.file.scopes.parents[use]
        if isinstance(outer, ast.Attribute) and outer.attr != "wait":
            raise Refused(f"MindSpore's handles have no {outer.attr}", "groups.handles")


def _start(site: Site) -> tuple[str, str, Plan]:
    """init_process_group: MindSpore's launcher gives what torch takes as arguments."""
    for name in sorted(_FROM_LAUNCHER & set(site.given)):
        value = site.given[name][1]
        text = ast.unparse(value)
        by_launcher = "environ" in text or "getenv" in text or text in ("-1", "None", "'env://'")
        if not by_launcher:
            raise Refused(
                f"it passes {name}; MindSpore reads that from its launcher (msrun)", "groups.start"
            )
    left_out = [name for name in site.given if name != "backend"]
    notes = ["MindSpore chooses the backend by the device"]
    if left_out:
        notes.append(f"left out, because the launcher decides: {', '.join(left_out)}")
    site.differences += ["groups.backends", "groups.start"]
    return Action.REWRITE, "; ".join(notes), Plan(site.rule.target.path, ())


class _Functional:
    """A call that writes in torch and returns in comm_func."""

    def __init__(self, site: Site) -> None:
        self.site, self.rule, self.file = site, site.rule, site.file
        self.context, self.statement, self.handle = _context(site)
        self.output = self._output()
        self.before: list[str] = []
        self.reason = ""
        site.differences += ["groups.new-tensor"]

    def _output(self) -> Row:
        for row in self.rule.rows:
            if row.source and row.role in ("in_out", "output", "template"):
                return row
        raise Refused(f"{self.rule.source.name} has no counterpart of this shape")

    def plan(self) -> tuple[str, str, Plan]:
        """Return the verdict, its reason and the change."""
        if self.rule.pair is None or self.rule.source.name == "batch_isend_irecv":
            raise Refused(difference_text("send_recv.batch"), "send_recv.batch")
        if self.rule.source.name == "scatter":
            name = "scatter.full-shape-everywhere"
            raise Refused(difference_text(name), name)
        mode = self.site.mode
        returns = self.rule.returns("async" if mode == "async" else "sync")
        if returns == "absent":
            difference = next(
                (row.difference for row in self.rule.rows if row.role == "async"), None
            )
            raise Refused(difference_text(difference), difference)
        if self.context == "expression":
            raise Refused(
                "what it returns is used in an expression; give the call a line of its own, or use "
                "mindspore:mint"
            )
        if joined := self._joined():
            return joined
        target = self._target()
        if mode == "sync":
            return self._synchronous(target, pair=returns.endswith("_none"))
        return self._asynchronous(target, mode)

    # ---- the tensor that is written ----

    def _target(self) -> str:
        """Return the tensor or list to write into, as text that can stand twice."""
        name = self.output.source
        assert name is not None
        if name not in self.site.given:
            if self.rule.only_root:
                return ""
            raise Refused(f"it does not say {name}")
        value = self.site.given[name][1]
        if is_pure(value) and not isinstance(value, ast.Constant):
            return self.site.text(value)
        if isinstance(value, ast.Constant):
            if value.value is None and self.rule.only_root:
                return ""
            raise Refused(f"{name} is a constant")
        fresh = self.file.fresh_name("tensors" if self._is_list else "tensor")
        self.before.append(f"{fresh} = {self.site.text(value)}")
        return fresh

    @property
    def _is_list(self) -> bool:
        assert self.rule.pair is not None
        changes = self.output.changes
        many = any(
            result.mindspore.returns.startswith("tensors") for result in self.rule.pair.results
        )
        return "list_to_tensor" in changes or many

    def _why_identity(self) -> str | None:
        """Return why the tensor must keep its identity, None if its name may get a new value."""
        if self.output.role == "output":
            return "the program has made the tensor for the result, and decided on its shape"
        if self.before:
            return "the tensor is the value of an expression"
        assert self.output.source is not None
        value = self.site.given[self.output.source][1]
        return why_not_rebind(value, self.site.call, self.file)

    def _store(self, target: str, result: str) -> list[str]:
        """Return the statements that put a result where torch puts it."""
        if not self._is_list:
            shape = f".reshape({target}.shape)" if self.output.role == "output" else ""
            if "tensors_to_shapes" in self.output.changes:
                shape = ""
            return [f"{target}[...] = {result}{shape}"]
        part, piece = self.file.loop_names
        pieces = f"{result}.chunk(len({target}))"
        if "tensors_to_shapes" in self.output.changes:
            pieces = result
        return [f"for {part}, {piece} in zip({target}, {pieces}):\n    {part}[...] = {piece}"]

    def _arguments(self, target: str) -> Plan:
        replaced: dict[str, str] = {}
        shapes = self.output.target
        if "tensors_to_shapes" in self.output.changes and shapes:
            part = self.file.loop_names[0] if self._is_list else ""
            many = f"[{part}.shape for {part} in {target}]"
            replaced[shapes] = many if self._is_list else f"{target}.shape"
        elif self.before and shapes:
            replaced[shapes] = target
        for row in self.rule.rows:
            if row.role == "input" and "list_to_tensor" in row.changes and row.target:
                assert row.source is not None
                joined = f"{self._torch()}.cat({self.site.text(self.site.given[row.source][1])})"
                replaced[row.target] = joined
        return Plan(self.rule.target.path, self.site.arguments(**replaced))

    def _torch(self) -> str:
        for name, path in self.file.imports.items():
            if path == "torch":
                return name
        raise Refused("the list has to be joined, and the file does not import torch for it")

    # ---- statements ----

    def _joined(self) -> tuple[str, str, Plan] | None:
        """Return the change where a list is gathered only to be joined, None for other lists."""
        given, tensor = self.site.given.get(self.output.source or ""), self.site.value("input")
        usable = self.context == ("statement" if self.site.mode == "sync" else "handle")
        if self.rule.source.name != "all_gather" or not (given and tensor and usable):
            return None
        joined = joined_later(self.site, given[1], tensor)
        if joined is None:
            return None
        target = (
            joined.following.targets[0] if isinstance(joined.following, ast.Assign) else given[1]
        )
        handle = self.handle or "_"
        line = f"{ast.unparse(target)}, {handle} = {{call}}"
        if handle == "_" and self.file.reads_underscore:
            line = f"{ast.unparse(target)} = {{call}}[0]"
        plan = Plan(
            self.rule.target.path,
            self.site.arguments(),
            (line,),
            at=joined.following,
            removed=(joined.made, self.statement) if joined.following else (joined.made,),
            elsewhere=() if joined.following else ((joined.joining, joined.text),),
        )
        return Action.REWRITE, "the list is only joined, and the call returns it joined", plan

    def _synchronous(self, target: str, pair: bool) -> tuple[str, str, Plan]:
        if self.context != "statement":
            raise Refused("what it returns is used, and without async_op torch returns None")
        plan = self._arguments(target)
        result = "{call}[0]" if pair else "{call}"
        if self.site.average:
            result += f" / {_COMM}.get_group_size({self.site.group_text})"
        if self.rule.only_root:
            return self._on_root(target, plan)
        identity = self._why_identity()
        if identity is None:
            plain = not pair or self.site.average or self.file.reads_underscore
            new = f"{target} = {result}" if plain else f"{target}, _ = {{call}}"
            return self._done(plan, [new])
        return self._done(plan, self._store(target, result), identity)

    def _on_root(self, target: str, plan: Plan) -> tuple[str, str, Plan]:
        """Write the result on the root only: other ranks keep what they had."""
        root = self.site.value("root")
        assert root is not None
        self.site.differences.append(f"{self.rule.source.name}.placeholder")
        if not target:  # a rank that passes no list gets nothing
            return self._done(plan, ["{call}"])
        result = self.file.result_name
        inner = "\n".join(self._store(target, result)).replace("\n", "\n    ")
        if self._is_list:
            test = target  # torch wants the list on the root, and nowhere else
        else:
            if not is_pure(root):
                raise Refused(
                    "the rank that gets the result is an expression; give it a name first"
                )
            test = f"{_COMM}.get_rank() == {self.site.text(root)}"
        lines = [f"{result} = {{call}}", f"if {test}:\n    {inner}"]
        return self._done(plan, lines, "only the root gets the result, the others keep theirs")

    def _asynchronous(self, target: str, mode: str) -> tuple[str, str, Plan]:
        plan = self._arguments(target)
        if self.context == "statement":
            raise Refused("nobody keeps the handle, so nobody can wait for the result")
        if self.context == "waited":
            result = self.file.result_name
            handle = self.file.fresh_name("handle")
            lines = [f"{result}, {handle} = {{call}}", f"{handle}.wait()"]
            return self._done(plan, [*lines, *self._store(target, result)], "it waits at once")
        identity = self._why_identity()
        if identity is None:
            return self._done(plan, [f"{target}, {self.handle} = {{call}}"])
        if mode == "open":
            raise Refused(f"a variable decides whether it returns at once, and {identity}")
        wait = self._wait(target)
        result = self.file.fresh_name("result")
        verdict, reason, plan = self._done(plan, [f"{result}, {self.handle} = {{call}}"], identity)
        later = ((wait, tuple(self._store(target, result))),)
        return verdict, reason, Plan(plan.function, plan.arguments, plan.statements, later)

    def _wait(self, target: str) -> ast.stmt:
        """Return the one statement that waits for the handle, if that is plain to see."""
        scopes = self.file.scopes
        assert self.handle is not None
        home = scopes.scope_of[self.site.call].find(self.handle)
        if home is None or self.handle in home.captured:
            raise Refused("the handle belongs to another function too")
        block = block_of(self.statement, scopes)
        waits = []
        for use in self._uses_of_handle(home):
            statement = scopes.statement(use)
            plain = isinstance(statement, ast.Expr) and ast.unparse(statement) == (
                f"{self.handle}.wait()"
            )
            if not plain or statement not in block:
                raise Refused(
                    f"line {use.lineno} uses the handle in a way that hides when the result is "
                    "there; mindspore:mint keeps the tensor in place"
                )
            waits.append(statement)
        if len(waits) != 1:
            raise Refused("it is not plain to see where the program waits for the result")
        check_place(("", ""), waits[0], scopes)
        first, last = self.statement.lineno, waits[0].lineno
        base = target.partition(".")[0].partition("[")[0]
        owner = scopes.scope_of[self.site.call].find(base)
        for binding in owner.bindings[base] if owner else ():
            if first < getattr(binding.node, "lineno", 0) <= last:
                raise Refused(f"{base!r} gets another value before the program waits")
        return waits[0]

    def _uses_of_handle(self, home: Scope) -> list[ast.Name]:
        """Return the uses of the handle up to where its name gets another value."""
        assert self.handle is not None
        names = sorted(home.uses[self.handle], key=lambda name: (name.lineno, name.col_offset))
        here = next(n for n, name in enumerate(names) if name.lineno == self.statement.lineno)
        for loop in self.file.scopes.chain(self.statement):
            if isinstance(loop, ast.For | ast.AsyncFor | ast.While):
                inside = [name for name in names if loop in self.file.scopes.chain(name)]
                if isinstance(inside[0].ctx, ast.Load):
                    raise Refused("the program waits above the call, in the next round of a loop")
        rest = names[here + 1 :]
        count = next(
            (n for n, name in enumerate(rest) if not isinstance(name.ctx, ast.Load)), len(rest)
        )
        return rest[:count]

    def _done(
        self, plan: Plan, lines: list[str], identity: str | None = None
    ) -> tuple[str, str, Plan]:
        notes = list(self.site.notes)
        if self.site.average:
            notes.append("comm_func has no average: the sum is divided")
        if identity is None:
            verdict, reason = Action.REWRITE, "the name is bound to the new tensor"
        else:
            verdict, reason = Action.COPY_BACK, f"the result is copied back: {identity}"
        statements = (*self.before, *lines)
        check_place(statements, self.statement, self.file.scopes)
        return (
            verdict,
            "; ".join([reason, *notes]),
            Plan(plan.function, plan.arguments, statements),
        )


def check_place(statements: tuple[str, ...], statement: ast.stmt, scopes: Scopes) -> None:
    """Refuse to put several statements where there is room for one."""
    if not is_alone(statement, scopes) and (len(statements) > 1 or "\n" in statements[0]):
        raise Refused("it shares its line with other statements; give it a line of its own")
