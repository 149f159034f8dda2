"""What a program does with what a collective returns, and where it waits for a handle."""

from __future__ import annotations

import ast
import dataclasses

from unisono.port.flow import is_pure
from unisono.port.scopes import Scopes, block_of, is_alone, position
from unisono.port.site import Refused, Site

__all__ = [
    "Use",
    "appended_to",
    "check_questions",
    "check_untouched",
    "is_quiet",
    "use_of",
    "uses_of",
    "wait_for",
]


@dataclasses.dataclass(frozen=True)
class Use:
    """How the program uses what a call returns.

    `kind` is "statement" (not at all), "returned", "handle" (a name), "waited" (at once),
    "appended" (to a list), "listed" (by a list comprehension) or "expression". `name` is that of
    the handle or of the list.
    """

    kind: str
    statement: ast.stmt
    name: str | None = None


def use_of(site: Site) -> Use:
    """Return how the program uses what a call returns."""
    parents = site.file.scopes.parents
    parent = parents[site.call]
    outer = parents[parent]
    if isinstance(parent, ast.Expr):
        return Use("statement", parent)
    if isinstance(parent, ast.Return):
        return Use("returned", parent)
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1:
        target = parent.targets[0]
        if isinstance(target, ast.Name):
            return Use("handle", parent, target.id)
    if isinstance(parent, ast.Attribute) and parent.attr == "wait":
        statement = parents[outer]
        if isinstance(outer, ast.Call) and not outer.args and isinstance(statement, ast.Expr):
            return Use("waited", statement)
    name = appended_to(parent) if isinstance(parent, ast.Call) else None
    if isinstance(outer, ast.Expr) and name is not None:
        return Use("appended", outer, name)
    if isinstance(parent, ast.ListComp) and isinstance(outer, ast.Assign):
        target = outer.targets[0]
        if isinstance(target, ast.Name) and len(outer.targets) == 1:
            return Use("listed", outer, target.id)
    return Use("expression", site.file.scopes.statement(site.call))


def appended_to(call: ast.Call) -> str | None:
    """Return the name of the list in `name.append(one)`."""
    function = call.func
    if isinstance(function, ast.Attribute) and function.attr == "append" and len(call.args) == 1:
        return function.value.id if isinstance(function.value, ast.Name) else None
    return None


def check_questions(site: Site) -> None:
    """Refuse handles and groups that are asked for more than MindSpore's can do."""
    use = use_of(site)
    is_group = site.rule.source.name == "new_group"
    is_handle = site.mode != "sync" or site.rule.source.name == "isend"
    if use.kind != "handle" or use.name is None or not (is_group or is_handle):
        return
    home = site.file.scopes.scope_of[site.call].find(use.name)
    for name in home.uses[use.name] if home else ():
        outer = site.file.scopes.parents[name]
        call = site.file.scopes.parents[outer]
        if not isinstance(outer, ast.Attribute):
            continue
        if is_group:
            text = f"MindSpore's groups are names, which have no {outer.attr}"
            raise Refused(text, "groups.object-or-name")
        if outer.attr != "wait":
            raise Refused(f"MindSpore's handles have no {outer.attr}", "groups.handles")
        if isinstance(call, ast.Call) and (call.args or call.keywords):
            raise Refused("MindSpore's handles wait without a timeout", "groups.handles")


def uses_of(site: Site, use: Use) -> list[ast.Name]:
    """Return the uses of a handle up to where its name gets another value."""
    scopes = site.file.scopes
    assert use.name is not None
    home = scopes.scope_of[site.call].find(use.name)
    if home is None or use.name in home.captured:
        raise Refused("the handle belongs to another function too")
    names = sorted(home.uses[use.name], key=position)
    here = next(n for n, name in enumerate(names) if name.lineno == use.statement.lineno)
    for loop in scopes.chain(use.statement):
        if isinstance(loop, ast.For | ast.AsyncFor | ast.While):
            inside = [name for name in names if loop in scopes.chain(name)]
            if isinstance(inside[0].ctx, ast.Load):
                raise Refused("the program waits above the call, in the next round of a loop")
    rest = names[here + 1 :]
    count = next(
        (n for n, name in enumerate(rest) if not isinstance(name.ctx, ast.Load)), len(rest)
    )
    return rest[:count]


def wait_for(site: Site, use: Use, target: str) -> ast.stmt:
    """Return the one statement that waits for a handle, if that is plain to see.

    It stands in the block of the call, or under a test in that block whether there is a handle; or
    both stand under tests that have the same answer.
    """
    scopes = site.file.scopes
    waits = []
    for name in uses_of(site, use):
        statement = scopes.statement(name)
        if isinstance(statement, ast.If | ast.Assert) and _asks_for(use, statement.test):
            continue
        if ast.unparse(statement) != f"{use.name}.wait()" or not _is_reached(site, use, statement):
            raise Refused(
                f"line {name.lineno} uses the handle in a way that hides when the result is "
                "there; mindspore:mint keeps the tensor in place"
            )
        waits.append(statement)
    if len(waits) != 1:
        raise Refused("it is not plain to see where the program waits for the result")
    if not is_alone(waits[0], scopes):
        raise Refused(f"line {waits[0].lineno} has the wait and something else; divide it")
    check_untouched(site, target, use.statement, waits[0])
    return waits[0]


def _asks_for(use: Use, test: ast.expr) -> bool:
    """Tell whether a test asks whether there is a handle."""
    return ast.unparse(test) in (use.name, f"{use.name} is not None")


def _is_reached(site: Site, use: Use, wait: ast.stmt) -> bool:
    """Tell whether the program waits whenever it has made the call, and not a second time."""
    scopes = site.file.scopes
    block = block_of(use.statement, scopes)
    if wait in block:
        return True
    guard = scopes.parents[wait]
    if not isinstance(guard, ast.If) or wait not in guard.body:
        return False
    if guard in block:
        flag = site.value("async")
        decides = site.mode == "open" and flag is not None and is_pure(flag)
        same = decides and flag is not None and ast.unparse(guard.test) == ast.unparse(flag)
        return same or _asks_for(use, guard.test)
    around = scopes.parents[use.statement]
    if not isinstance(around, ast.If) or use.statement not in around.body:
        return False
    block = block_of(around, scopes)
    if guard not in block or not _has_one_value(site, use):
        return False
    if _asks_for(use, guard.test):
        above = block[: block.index(around)]
        return any(ast.unparse(one) == f"{use.name} = None" for one in above)
    return _same_answer(around, guard, scopes)


def _has_one_value(site: Site, use: Use) -> bool:
    """Tell whether a handle's name gets only this handle, or None."""
    home = site.file.scopes.scope_of[site.call].find(use.name or "")
    bindings = home.bindings[use.name or ""] if home else []
    others = [one.value for one in bindings if one.node is not use.statement]
    return all(isinstance(value, ast.Constant) and value.value is None for value in others)


def _same_answer(first: ast.If, second: ast.If, scopes: Scopes) -> bool:
    """Tell whether two tests in one block have the same answer."""
    parts = list(ast.walk(first.test))
    if ast.unparse(first.test) != ast.unparse(second.test):
        return False
    if any(isinstance(part, ast.Call | ast.NamedExpr | ast.Await) for part in parts):
        return False
    words = {part.id for part in parts if isinstance(part, ast.Name)}
    words |= {part.attr for part in parts if isinstance(part, ast.Attribute)}
    block = block_of(first, scopes)
    between = block[block.index(first) : block.index(second)]
    for node in (node for statement in between for node in ast.walk(statement)):
        word = getattr(node, "id", None) or getattr(node, "attr", None)
        if word in words and isinstance(getattr(node, "ctx", None), ast.Store):
            return False
    return True


def check_untouched(
    site: Site, target: str, first: ast.stmt, last: ast.stmt, held: bool = False
) -> None:
    """Refuse if a tensor gets another value, or goes into another call, before the program waits.

    A tensor that is held beside its handle may lose its name.
    """
    scopes = site.file.scopes
    base = target.partition(".")[0].partition("[")[0]
    owner = scopes.scope_of[site.call].find(base)
    places = [binding.node for binding in owner.bindings[base]] if owner else []
    lines = [line for node in places if first.lineno < (line := getattr(node, "lineno", 0))]
    if not held and any(line <= last.lineno for line in lines):
        raise Refused(f"{base!r} gets another value before the program waits")
    for call in _calls_with(site, target):
        between = position(first) < position(call) < position(last)
        if between and not any(line <= call.lineno for line in lines):
            raise Refused(f"{target!r} goes into another call before the program waits")
        if position(call) < position(first) and _is_on_its_way(site, call, first):
            raise Refused(f"{target!r} is still on its way: line {call.lineno} has it too")


def _calls_with(site: Site, target: str) -> list[ast.Call]:
    """Return the other calls of the function that have an argument with the same text."""
    scopes = site.file.scopes
    home = scopes.scope_of[site.call]
    target = ast.unparse(ast.parse(target))  # quotes do not matter
    return [
        call
        for call in site.file.calls
        if isinstance(call, ast.Call)
        and call is not site.call
        and scopes.scope_of[call] is home
        and any(
            isinstance(node, ast.expr) and ast.unparse(node) == target for node in ast.walk(call)
        )
    ]


def _is_on_its_way(site: Site, call: ast.Call, last: ast.stmt) -> bool:
    """Tell whether a call returns at once, and nothing waits before another statement."""
    if not any(word.arg == "async_op" for word in call.keywords):
        return False
    return not any(
        isinstance(node, ast.Attribute)
        and node.attr == "wait"
        and position(call) <= position(node) < position(last)
        for node in ast.walk(site.file.scopes.scope_of[call].node)
    )


def is_quiet(site: Site, target: str, first: ast.stmt, last: ast.stmt) -> bool:
    """Tell whether what stands between two statements cannot change what an expression means.

    The expression is an attribute or an element.
    """
    words = {node.id for node in ast.walk(ast.parse(target)) if isinstance(node, ast.Name)}
    block = block_of(first, site.file.scopes)
    if last not in block:
        return False
    for statement in block[block.index(first) + 1 : block.index(last)]:
        for node in ast.walk(statement):
            called = isinstance(node, ast.Call) and node not in site.file.calls
            part = node.id in words if isinstance(node, ast.Name) else _is_place(node)
            if called or (part and not isinstance(getattr(node, "ctx", None), ast.Load)):
                return False
    return True


def _is_place(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute | ast.Subscript)
