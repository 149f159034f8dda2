"""Handles that go into a list, and the loop that waits for all of them.

comm_func returns a result beside the handle. The list then holds the tensor, its result and the
handle together, and the loop that waits copies each result back. That is right if the list
1. belongs to the function, and no function inside uses it;
2. gets handles of one kind of call, each for another tensor;
3. is waited for in one place, which the program reaches after all calls, and each handle once.
"""

from __future__ import annotations

import ast
import dataclasses

from unisono.port.results.handles import Use, appended_to, check_untouched
from unisono.port.scopes import Scope, block_of, is_alone, loops_around, position
from unisono.port.site import Refused, Site

__all__ = ["Collected", "collected"]

_MINT = "mindspore:mint keeps the tensors in place"
_SAME = "each round of a loop may have the same tensor, and needs the result of the last"


@dataclasses.dataclass(frozen=True)
class Collected:
    """The calls whose handles are in one list, and where the program waits for them."""

    members: tuple[ast.Call, ...]
    variable: ast.Name  # the loop's variable, which is a handle
    wait: ast.stmt  # in a loop: what follows it runs for each handle
    statement: ast.stmt  # the whole loop; a comprehension has no other statement

    @property
    def is_comprehension(self) -> bool:
        """Tell whether a comprehension waits, so that a loop has to take its place."""
        return self.wait is self.statement


def collected(site: Site, use: Use, tensor: ast.expr) -> Collected:
    """Return what is known about the list that a handle goes into; or raise Refused."""
    scopes, name = site.file.scopes, use.name
    assert name is not None
    scope = scopes.scope_of[site.call]
    while scope.transparent and scope.parent:
        scope = scope.parent
    if scope.find(name) is not scope or name in scope.captured or name in scope.elsewhere:
        raise Refused(f"the list {name!r} belongs to another function too; {_MINT}")
    found = _List(site, scope, name)
    if len(found.waits) != 1:
        raise Refused(f"it is not plain to see where the program waits for {name!r}; {_MINT}")
    result = Collected(tuple(found.members), *found.waits[0])
    _check_kind(site, found.members)
    _check_order(site, found, result, use)
    _check_targets(site, use, tensor, result)
    return result


class _List:
    """A list of handles, and all uses of its name."""

    def __init__(self, site: Site, scope: Scope, name: str) -> None:
        self.site, self.scopes, self.name = site, site.file.scopes, name
        self.members: list[ast.Call] = []
        self.emptied: list[ast.stmt] = []
        self.waits: list[tuple[ast.Name, ast.stmt, ast.stmt]] = []
        for use in self._life(scope.uses[name]):
            if isinstance(use.ctx, ast.Store):
                known = self._is_made(use)
            else:
                known = self._is_filled(use) or self._is_asked(use) or self._is_waited(use)
            if not known:
                raise Refused(
                    f"line {use.lineno} uses the handles in {name!r} in a way that hides when the "
                    f"results are there; {_MINT}"
                )

    def _life(self, uses: list[ast.Name]) -> list[ast.Name]:
        """Return the uses of the list that the call fills; the name may have others after it."""
        uses = sorted(uses, key=position)
        stores = [use for use in uses if isinstance(use.ctx, ast.Store)]
        blocks = [block_of(self.scopes.statement(use), self.scopes) for use in stores]
        if uses[0] not in stores or any(block is not blocks[0] for block in blocks):
            return uses  # one list, which is emptied now and then
        here = position(self.scopes.statement(self.site.call))
        earlier = [use for use in stores if position(use) <= here]
        later = [use for use in stores if position(use) > here]
        first = uses.index(earlier[-1]) if earlier else 0
        return uses[first : uses.index(later[0]) if later else len(uses)]

    def _is_made(self, use: ast.Name) -> bool:
        statement = self.scopes.statement(use)
        if isinstance(statement, ast.Assign) and statement.targets == [use]:
            value: ast.expr | None = statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.target is use:
            value = statement.value
        else:
            return False
        self.emptied.append(statement)
        if isinstance(value, ast.ListComp) and isinstance(value.elt, ast.Call):
            self.members.append(value.elt)
            return value.elt in self.site.file.calls
        return value is not None and ast.unparse(value) in ("[]", "list()")

    def _is_filled(self, use: ast.Name) -> bool:
        """Tell whether a use appends one handle, or takes all of them out."""
        attribute = self.scopes.parents[use]
        call = self.scopes.parents[attribute]
        statement = self.scopes.parents[call]
        if not isinstance(call, ast.Call) or not isinstance(statement, ast.Expr):
            return False
        if ast.unparse(call) == f"{self.name}.clear()":
            self.emptied.append(statement)
            return True
        value = call.args[0] if appended_to(call) == self.name else None
        if isinstance(value, ast.Name):
            value = self._named(value, statement)
        if not isinstance(value, ast.Call) or value not in self.site.file.calls:
            return False
        self.members.append(value)
        return True

    def _named(self, handle: ast.Name, statement: ast.stmt) -> ast.expr | None:
        """Return the call whose handle has a name, if it is in the same block above."""
        block = block_of(statement, self.scopes)
        for one in reversed(block[: block.index(statement)]):
            if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == handle.id:
                return one.value
        return None

    def _is_asked(self, use: ast.Name) -> bool:
        """Tell whether a use only asks whether there are handles, and how many."""
        outer = self.scopes.parents[use]
        if isinstance(outer, ast.Call) and ast.unparse(outer) == f"len({self.name})":
            return True
        return isinstance(outer, ast.If) and outer.test is use

    def _is_waited(self, use: ast.Name) -> bool:
        loop = self.scopes.parents[use]
        if isinstance(loop, ast.comprehension):
            return self._is_comprehension(loop)
        if not isinstance(loop, ast.For) or loop.iter is not use or loop.orelse:
            return False
        if not isinstance(loop.target, ast.Name):
            return False
        variable = loop.target.id
        waits = [one for one in loop.body if ast.unparse(one) == f"{variable}.wait()"]
        uses = [
            node
            for one in loop.body
            for node in ast.walk(one)
            if isinstance(node, ast.Name) and node.id == variable
        ]
        if len(waits) != 1 or len(uses) != 1:
            return False
        self.waits.append((loop.target, waits[0], loop))
        return True

    def _is_comprehension(self, loop: ast.comprehension) -> bool:
        """Tell whether a loop is `[one.wait() for one in handles]` as a statement."""
        values = self.scopes.parents[loop]
        statement = self.scopes.parents[values]
        if not isinstance(values, ast.ListComp) or not isinstance(statement, ast.Expr):
            return False
        plain = isinstance(loop.target, ast.Name) and not loop.ifs and len(values.generators) == 1
        if not plain or not isinstance(loop.target, ast.Name):
            return False
        if ast.unparse(values.elt) != f"{loop.target.id}.wait()":
            return False
        self.waits.append((loop.target, statement, statement))
        return True


def _check_kind(site: Site, members: list[ast.Call]) -> None:
    paths = {found.call: found.path for found in site.file.references if found.call is not None}
    for other in members:
        if paths[other] != site.reference.path:
            raise Refused(
                f"line {other.lineno} puts a handle of another function into the list; {_MINT}"
            )


def _check_order(site: Site, found: _List, result: Collected, use: Use) -> None:
    """Refuse if some handles may be waited for never, or twice."""
    scopes = site.file.scopes
    block = block_of(result.statement, scopes)
    chain = scopes.chain(use.statement)
    above = any(one in chain for one in block)
    if not above or position(use.statement) > position(result.statement):
        raise Refused(f"the program may not reach the loop that waits for {found.name!r}")
    if not is_alone(result.statement, scopes):
        raise Refused(f"line {result.statement.lineno} has the wait and something else; divide it")
    chain = scopes.chain(result.statement)
    loops = loops_around(scopes.parents[result.statement], scopes)
    for statement in found.emptied:
        inside = any(one in chain for one in block_of(statement, scopes))
        if inside and loops <= loops_around(statement, scopes):
            return
    raise Refused(f"{found.name!r} is not emptied, so the program waits twice; {_MINT}")


def _check_targets(site: Site, use: Use, tensor: ast.expr, result: Collected) -> None:
    """Refuse if two of the calls may have the same tensor: the second needs the first's result."""
    scopes = site.file.scopes
    check_untouched(site, ast.unparse(tensor), use.statement, result.statement, held=True)
    involved = _names(tensor)
    rounds: list[tuple[ast.AST, ast.expr]] = []
    inner = loops_around(use.statement, scopes) - loops_around(result.statement, scopes)
    for outer in scopes.chain(site.call):
        if isinstance(outer, ast.ListComp):
            rounds += [(loop.target, loop.iter) for loop in reversed(outer.generators)]
        elif isinstance(outer, ast.While) and outer in inner:
            raise Refused(_SAME)
        elif isinstance(outer, ast.For) and outer in inner:
            involved |= _sources(outer, involved)
            rounds.append((outer.target, outer.iter))
    for names, values in rounds:
        if not _names(names) & involved:
            raise Refused(_SAME)
        involved |= _names(values)


def _sources(loop: ast.For, names: set[str]) -> set[str]:
    """Return the names in what a loop gives to names."""
    found: set[str] = set()
    for statement in ast.walk(loop):
        if isinstance(statement, ast.Assign) and names & _names(statement.targets[0]):
            found |= _names(statement.value)
    return found


def _names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
