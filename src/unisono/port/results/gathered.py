"""A list that is gathered only to be joined: one call returns the joined tensor.

`parts = [torch.empty_like(x) for _ in range(n)]`, `dist.all_gather(parts, x)` and a later
`torch.cat(parts)` are one `comm_func.all_gather_into_tensor(x)`. That holds if the list
1. belongs to the function, and no function inside uses it;
2. is made in the block of the call, of new tensors with the shape of what is gathered;
3. is read by the call, then by one `cat` or `stack` along the first dimension in the same block,
   and by nothing else.
Every other list is filled, piece by piece.
"""

from __future__ import annotations

import ast
import dataclasses
import re

from unisono.port.flow import is_framework, is_pure
from unisono.port.scopes import block_of, is_alone, loops_around, position
from unisono.port.site import Refused, Site

__all__ = ["Joined", "joined_later"]

_COMM = "«mindspore.communication»"
_LIKE = {"empty_like", "ones_like", "zeros_like"}
_SHAPED = {"empty", "ones", "zeros"}
_NEW_SHAPED = {"new_empty", "new_ones", "new_zeros"}
#: Methods that do not change the shape of a tensor.
_SAME_SHAPE = {"clone", "contiguous", "cuda", "detach"}
_JOIN = {"cat", "concat", "concatenate"}
_STACK = "stack"
#: A function with such a name answers a question; for a list that is gone nobody has to ask.
_QUESTION = re.compile(r"^(\w+_)?size$|^get_\w*group$")


@dataclasses.dataclass(frozen=True)
class Joined:
    """Where a list is made and joined, and what stands there instead."""

    name: str  # of the list
    made: ast.stmt  # the statement that makes the list: it goes
    joining: ast.Call  # the call that joins it
    text: str  # what replaces that call, if the list's name means the gathered tensor
    following: ast.stmt | None  # the next statement, if it only gives the joined tensor a name


def joined_later(site: Site, target: ast.expr, tensor: ast.expr) -> Joined | None:
    """Return how the list `target` is made and joined, or None if it has to be filled."""
    scopes = site.file.scopes
    if not isinstance(target, ast.Name):
        return None
    scope, name = scopes.scope_of[target], target.id
    own = scope.find(name) is scope and isinstance(scope.node, ast.FunctionDef)
    uses = scope.uses[name]
    if not own or name in scope.captured:
        return None
    found = _List(site, target, uses)
    made, joining = found.made(), found.joining()
    if made is None or joining is None:
        return None
    statement, values = made
    last = scopes.statement(joining)
    block = block_of(found.call, scopes)
    if any(one not in block or not is_alone(one, scopes) for one in (statement, found.call, last)):
        return None
    between = block[block.index(statement) + 1 : block.index(found.call)]
    if not _has_shape(site, values, tensor, between) or not found.only_read_by(joining, statement):
        return None
    text = name
    distance = block.index(last) - block.index(found.call)
    if isinstance(joining.func, ast.Attribute) and joining.func.attr == _STACK:
        count = _count(site, values)
        if between or distance != 1 or count is None:
            return None  # the shape might be another by then
        text = f"{name}.reshape({count}, *{ast.unparse(_base(tensor))}.shape)"
    deleted = [use for use in uses if isinstance(use.ctx, ast.Del)]
    if any(position(use) < position(last) for use in deleted):
        return None
    direct = distance == 1 and text == name and not deleted  # `del` needs the name
    following = last if direct and _only_names(last, joining) else None
    # What the statement that goes asks the dialect goes with it.
    site.consumed += filter(None, (site.file.by_node.get(node) for node in ast.walk(statement)))
    return Joined(name, statement, joining, text, following)


def _only_names(statement: ast.stmt, value: ast.expr) -> bool:
    """Tell whether a statement is `name = value`."""
    return (
        isinstance(statement, ast.Assign)
        and statement.value is value
        and len(statement.targets) == 1
        and isinstance(statement.targets[0], ast.Name)
    )


class _List:
    """A list of a function, and all uses of its name there."""

    def __init__(self, site: Site, target: ast.Name, uses: list[ast.Name]) -> None:
        self.scopes, self.target = site.file.scopes, target
        self.loads = [use for use in uses if isinstance(use.ctx, ast.Load)]
        self.stores = [use for use in uses if isinstance(use.ctx, ast.Store)]
        self.call = self.scopes.statement(target)

    def made(self) -> tuple[ast.stmt, ast.ListComp] | None:
        """Return the last statement above that gives the list its value, if it is plain."""
        earlier = [use for use in self.stores if position(use) < position(self.target)]
        if not earlier:
            return None
        statement = self.scopes.statement(max(earlier, key=position))
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            name = statement.targets[0]
        elif isinstance(statement, ast.AnnAssign):
            name = statement.target
        else:
            return None
        value = statement.value
        plain = isinstance(name, ast.Name) and isinstance(value, ast.ListComp)
        return (statement, value) if plain and isinstance(value, ast.ListComp) else None

    def joining(self) -> ast.Call | None:
        """Return the call that joins the list, if that is the next use of it."""
        later = [use for use in self.loads if position(use) > position(self.target)]
        if not later:
            return None
        use = min(later, key=position)
        call = self.scopes.parents[use]
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            return None
        named = call.func.attr in {*_JOIN, _STACK} and is_framework(call.func.value, self.scopes)
        rest = [*call.args[1:], *(word.value for word in call.keywords)]
        first = all(isinstance(value, ast.Constant) and value.value == 0 for value in rest)
        words = {word.arg for word in call.keywords}
        if not named or call.args[0] is not use or not first or not words <= {"dim", "axis"}:
            return None
        for outer in self.scopes.chain(call):
            # What runs several times, or later, must get a new tensor each time.
            if isinstance(outer, ast.While | ast.Lambda | ast.comprehension):
                return None
            if isinstance(outer, ast.stmt):
                break
        return call

    def only_read_by(self, joining: ast.Call, made: ast.stmt) -> bool:
        """Tell whether only the two calls can read the list."""
        others = [use for use in self.loads if use not in (self.target, joining.args[0])]
        last = self.scopes.statement(joining)
        return all(self._has_another_value(use, made, last) for use in others)

    def _has_another_value(self, use: ast.Name, made: ast.stmt, last: ast.stmt) -> bool:
        """Tell whether the name has got another value wherever a use reads it.

        That is so if a statement above it, in its own block or in one around it, gives the name a
        value, and the list cannot be made between the two.
        """
        chain = self.scopes.chain(use)
        shared = loops_around(use, self.scopes) & loops_around(made, self.scopes)
        for store in self.stores:
            statement = self.scopes.statement(store)
            block = block_of(statement, self.scopes)
            above = position(statement) < position(use) and any(one in chain for one in block)
            if statement is made or not isinstance(statement, ast.Assign) or not above:
                continue
            after = position(statement) >= position(last)
            before = position(use) < position(made)
            if after or (before and shared <= loops_around(statement, self.scopes)):
                return True
        return False


def _has_shape(site: Site, values: ast.ListComp, tensor: ast.expr, between: list[ast.stmt]) -> bool:
    """Tell whether a list has new tensors with the shape of what is gathered."""
    base = _base(tensor)
    if not is_pure(base) or len(values.generators) != 1:
        return False
    loop = values.generators[0]
    if loop.ifs or loop.is_async or not _is_count(loop.iter):
        return False
    own = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    if own & {node.id for node in ast.walk(values.elt) if isinstance(node, ast.Name)}:
        return False
    if not isinstance(base, ast.Name):
        return not between and _is_like(site, values.elt, ast.unparse(base))
    name = base.id
    return _is_like(site, values.elt, name) and all(_keeps_shape(one, name) for one in between)


def _keeps_shape(statement: ast.stmt, name: str) -> bool:
    """Tell whether a statement does not touch a tensor, or only as `x = x.contiguous()` does."""
    if isinstance(statement, ast.Assign) and ast.unparse(_base(statement.value)) == name:
        return True
    return not any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(statement))


def _base(node: ast.expr) -> ast.expr:
    """Return the tensor that `x.detach().contiguous()` has its shape from."""
    while (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _SAME_SHAPE
        and not node.args
        and not node.keywords
    ):
        node = node.func.value
    return node


def _is_like(site: Site, element: ast.expr, tensor: str) -> bool:
    """Tell whether an element is a new tensor with the shape of another."""
    if not isinstance(element, ast.Call) or not isinstance(element.func, ast.Attribute):
        return False
    owner, method = element.func.value, element.func.attr
    if not all(word.arg not in (None, "out", "size") for word in element.keywords):
        return False
    if not all(is_pure(word.value) for word in element.keywords):
        return False
    if method in ("cuda", "to") and all(map(is_pure, element.args)):
        return _is_like(site, owner, tensor)
    if len(element.args) != 1:
        return False
    argument = element.args[0]
    if isinstance(argument, ast.Starred):
        argument = argument.value
    is_shape = ast.unparse(argument) in (f"{tensor}.shape", f"{tensor}.size()")
    if is_framework(owner, site.file.scopes):
        same = ast.unparse(_base(argument)) == tensor
        return (method in _LIKE and same) or (method in _SHAPED and is_shape)
    return method in _NEW_SHAPED and is_shape and ast.unparse(owner) == tensor


def _is_count(node: ast.expr) -> bool:
    """Tell whether a loop goes over a range whose end need not be asked for."""
    if not isinstance(node, ast.Call) or ast.unparse(node.func) != "range" or len(node.args) != 1:
        return False
    return _is_question(node.args[0])


def _is_question(node: ast.expr) -> bool:
    if not isinstance(node, ast.Call):
        return is_pure(node)
    word = ast.unparse(node.func).rpartition(".")[2]
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    return bool(_QUESTION.search(word)) and all(map(_is_question, given))


def _count(site: Site, values: ast.ListComp) -> str | None:
    """Return the number of ranks as text: as the program has it, or asked for."""
    loop = values.generators[0].iter
    assert isinstance(loop, ast.Call)
    if is_pure(loop.args[0]):
        return ast.unparse(loop.args[0])
    try:
        return f"{_COMM}.get_group_size({site.group_text})"
    except Refused:
        return None
