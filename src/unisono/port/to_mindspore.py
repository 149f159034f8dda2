"""torch.distributed to MindSpore: results that torch writes in place come back as new tensors."""

from __future__ import annotations

import ast
import dataclasses

from unisono.port.flow import is_pure, why_not_rebind
from unisono.port.groups import (
    all_ranks,
    check_root,
    check_root_in_group,
    check_tag,
    end_group,
    start,
    why_same,
)
from unisono.port.plan import Action, Plan
from unisono.port.results.gathered import joined_later
from unisono.port.results.handle_lists import collected
from unisono.port.results.handles import (
    Use,
    appended_to,
    check_questions,
    is_quiet,
    use_of,
    uses_of,
    wait_for,
)
from unisono.port.results.uneven import check_sizes
from unisono.port.rules import Row, difference_text
from unisono.port.scopes import Scopes, is_alone
from unisono.port.site import Refused, Site

__all__ = ["check_place", "plan_to_mindspore"]

_COMM = "«mindspore.communication»"


def plan_to_mindspore(site: Site) -> tuple[str, str, Plan]:
    """Return the verdict, its reason, and the change for one call; or raise Refused."""
    rule = site.rule
    if rule.source.name == "init_process_group":
        return start(site)
    if rule.source.name in ("recv", "recv_object_list") and use_of(site).kind != "statement":
        raise Refused("it uses the rank of the sender, which MindSpore does not tell")
    if rule.source.name == "get_backend":
        raise Refused("the names of backends differ, and so would tests of them", "groups.backends")
    if rule.source.name == "P2POp" and rule.pair is not None:
        raise Refused(difference_text("send_recv.batch"), "send_recv.batch")
    check_root(site)
    check_root_in_group(site)
    check_tag(site)
    check_questions(site)
    if rule.same_shape:
        if rule.pair is None and rule.source.name == "all_gather_into_tensor":
            site.differences.append("all_gather.stacked")
            site.notes.append("mint fills only the joined form of the output")
        if rule.target.name == "destroy_group":
            return end_group(site)
        plan = Plan(rule.target.path, site.arguments(**all_ranks(site)))
        return Action.REWRITE, why_same(site), plan
    return _Functional(site).plan()


class _Functional:
    """A call that writes in torch and returns in comm_func."""

    def __init__(self, site: Site) -> None:
        self.site, self.rule, self.file = site, site.rule, site.file
        self.use = use_of(site)
        self.statement = self.use.statement
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
        check_sizes(self.site)
        if self.use.kind == "expression":
            raise Refused(
                "what it returns is used in an expression; give the call a line of its own, or use "
                "mindspore:mint"
            )
        if self.use.kind == "returned" and mode != "sync":
            raise Refused(
                "it returns the handle, and the caller would need the result beside it; "
                "mindspore:mint keeps the tensor in place"
            )
        if joined := self._joined():
            return joined
        target = self._target()
        if mode == "sync":
            return self._synchronous(target)
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
        told = "tensors_to_shapes" in self.output.changes and not self._is_list
        if self.output.role == "output" and not told:
            return "the program has made the tensor for the result, and decided on its shape"
        if self.before:
            return "the tensor is the value of an expression"
        if self.site.average:
            return "a quotient may have another dtype than the tensor"
        assert self.output.source is not None
        value = self.site.given[self.output.source][1]
        # A call that is told the shape of its result returns what the program has made room for.
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
        usable = self.use.kind == ("statement" if self.site.mode == "sync" else "handle")
        if self.rule.source.name != "all_gather" or not (given and tensor and usable):
            return None
        joined = joined_later(self.site, given[1], tensor)
        if joined is None:
            return None
        target, gone = given[1], [joined.made]
        if isinstance(joined.following, ast.Assign):
            target = joined.following.targets[0]
            gone.append(self.statement)
        name = ast.unparse(target)
        line = f"{name}, {self.use.name} = {{call}}" if self.use.name else self._bind(name)
        plan = Plan(
            self.rule.target.path,
            self.site.arguments(),
            (line,),
            at=joined.following,
            replaced=tuple((statement, ()) for statement in gone),
            values=() if joined.following else ((joined.joining, joined.text),),
        )
        return Action.REWRITE, "the list is only joined, and the call returns it joined", plan

    @property
    def _returns_pair(self) -> bool:
        """Tell whether a blocking call returns None beside the tensor; primitives do not."""
        return self.rule.returns("sync").endswith("_none")

    def _bind(self, target: str) -> str:
        """Return the statement that gives a name the result of a blocking call."""
        if not self._returns_pair:
            return f"{target} = {{call}}"
        if self.file.reads_underscore:
            return f"{target} = {{call}}[0]"
        return f"{target}, _ = {{call}}"

    def _synchronous(self, target: str) -> tuple[str, str, Plan]:
        if self.use.kind not in ("statement", "returned"):
            raise Refused("what it returns is used, and without async_op torch returns None")
        plan = self._arguments(target)
        average = f" / {_COMM}.get_group_size({self.site.group_text})" if self.site.average else ""
        if self.rule.only_root:
            return self._on_root(target, plan, average)
        identity = self._why_identity()
        if identity is None:
            return self._done(plan, [self._bind(target)])
        result = "{call}[0]" if self._returns_pair else "{call}"
        return self._done(plan, self._store(target, f"{result}{average}"), identity)

    def _on_root(self, target: str, plan: Plan, average: str) -> tuple[str, str, Plan]:
        """Write the result on the root only: other ranks keep what they had."""
        root = self.site.value("root")
        assert root is not None
        self.site.differences.append(f"{self.rule.source.name}.placeholder")
        if not target:  # a rank that passes no list gets nothing
            return self._done(plan, ["{call}"])
        result = self.file.result_name
        inner = "\n".join(self._store(target, f"{result}{average}")).replace("\n", "\n    ")
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
        if self.use.kind == "statement":
            raise Refused("nobody keeps the handle, so nobody can wait for the result")
        if self.use.kind == "waited":
            result = self.file.result_name
            handle = self.file.fresh_name("handle")
            lines = [f"{result}, {handle} = {{call}}", f"{handle}.wait()"]
            return self._done(plan, [*lines, *self._store(target, result)], "it waits at once")
        if self.use.kind in ("appended", "listed"):
            return self._in_list(target, plan, self.use)
        assert self.use.kind == "handle"
        identity = self._why_identity()
        try:
            if listed := self._appended_later(target, plan):
                return listed
        except Refused:
            if identity is not None:
                raise
        if identity is None:
            return self._done(plan, [f"{target}, {self.use.name} = {{call}}"])
        wait = wait_for(self.site, self.use, target)
        result = self.file.fresh_name("result")
        if not target.isidentifier() and not is_quiet(self.site, target, self.statement, wait):
            held = self.file.fresh_name("tensor")
            self.before.append(f"{held} = {target}")
            target = held
        store = self._store(target, result)
        lines = [f"{result}, {self.use.name} = {{call}}"]
        if mode == "open":  # without a handle the result is there at once
            inner = "\n".join(store).replace("\n", "\n    ")
            lines.append(f"if {self.use.name} is None:\n    {inner}")
        verdict, reason, plan = self._done(plan, lines, identity)
        return verdict, reason, dataclasses.replace(plan, later=((wait, tuple(store)),))

    def _appended_later(self, target: str, plan: Plan) -> tuple[str, str, Plan] | None:
        """Return the change for a handle with a name that only goes into a list."""
        uses = uses_of(self.site, self.use) if self.site.mode == "async" else []
        outer = self.file.scopes.parents[uses[0]] if len(uses) == 1 else None
        name = appended_to(outer) if isinstance(outer, ast.Call) else None
        if outer is None or name is None:
            return None
        append = Use("appended", self.file.scopes.statement(outer), name)
        return self._in_list(target, plan, append, uses[0])

    def _in_list(
        self, target: str, plan: Plan, use: Use, handle: ast.Name | None = None
    ) -> tuple[str, str, Plan]:
        """Keep the tensor, its result and its handle together in the list that has handles."""
        if self.site.mode == "open":
            raise Refused("a variable decides whether there is a handle in the list")
        if use.kind == "listed" and self.before:
            raise Refused("the tensor is the value of an expression; give it a name first")
        found = collected(self.site, use, self.site.given[self.output.source or ""][1])
        tensor, result = self.file.kept_names
        store = self._store(tensor, result)
        variable = found.variable.id
        held = f"{tensor}, {result}, {variable}"
        values: list[tuple[ast.expr, str]] = []
        replaced: list[tuple[ast.stmt, tuple[str, ...]]] = []
        later: list[tuple[ast.stmt, tuple[str, ...]]] = []
        if found.is_comprehension:
            inner = "\n".join([f"{variable}.wait()", *store]).replace("\n", "\n    ")
            replaced.append((found.statement, (f"for {held} in {use.name}:\n    {inner}",)))
        else:
            if not is_alone(found.wait, self.file.scopes) and "\n" in store[0]:
                raise Refused(f"line {found.wait.lineno} has no room for a loop; divide it")
            values.append((found.variable, held))
            later.append((found.wait, tuple(store)))
        if use.kind == "listed":
            values.append((self.site.call, f"({target}, *{{call}})"))
            lines = []
        elif handle is None:
            name = self.file.handle_name
            entry = f"{use.name}.append(({target}, {result}, {name}))"
            lines = [f"{result}, {name} = {{call}}", entry]
        else:
            own = self.file.fresh_name("result")
            values.append((handle, f"({target}, {own}, {handle.id})"))
            lines = [f"{own}, {handle.id} = {{call}}"]
        verdict, reason, plan = self._done(plan, lines, "the list of handles has its tensor too")
        return (
            verdict,
            reason,
            dataclasses.replace(
                plan,
                later=tuple(later),
                replaced=tuple(replaced),
                values=tuple(values),
                needs=found.members,
            ),
        )

    def _done(
        self, plan: Plan, lines: list[str], identity: str | None = None
    ) -> tuple[str, str, Plan]:
        returned = self.use.kind == "returned"
        notes = list(self.site.notes)
        if self.site.average:
            notes.append("MindSpore has no average here: the sum is divided, integers as float32")
        if identity is None:
            verdict, reason = Action.REWRITE, "the name is bound to the new tensor"
        else:
            verdict, reason = Action.COPY_BACK, f"the result is copied back: {identity}"
        statements = (*self.before, *lines, *(["return None"] if returned else []))
        check_place(statements, self.statement, self.file.scopes)
        return (
            verdict,
            "; ".join([reason, *notes]),
            dataclasses.replace(plan, statements=statements),
        )


def check_place(statements: tuple[str, ...], statement: ast.stmt, scopes: Scopes) -> None:
    """Refuse to put several statements where there is room for one."""
    many = len(statements) > 1 or any("\n" in line for line in statements)
    if many and not is_alone(statement, scopes):
        raise Refused("it shares its line with other statements; give it a line of its own")
