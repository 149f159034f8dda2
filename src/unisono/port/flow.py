"""Where a tensor comes from, and whether its name may get a new value instead of new contents.

The analysis is local and stated here in full. A name may be bound anew if
1. it belongs to the function (or to the module's own code) that makes the call, and no function
   inside uses it;
2. every value that the function gives it is new, and goes into this name alone: made by a function
   or an operator that always returns a new tensor;
3. nothing that runs before the call can have kept the tensor under another name: each use before
   the call, or in a loop around both, only reads it.
Everything else keeps its identity: the result is copied back into it.
"""

from __future__ import annotations

import ast

from unisono.port.program import SourceFile
from unisono.port.scopes import Binding, Scopes, loops_around

__all__ = [
    "MAKERS",
    "is_framework",
    "is_new",
    "is_pure",
    "is_unknown_to_autograd",
    "may_be_none",
    "why_not_rebind",
]

#: Functions of a framework that return new tensors without a gradient.
_CONSTANTS = {
    "arange", "empty", "empty_like", "eye", "full", "full_like", "linspace", "ones", "ones_like",
    "rand", "rand_like", "randint", "randn", "randn_like", "tensor", "zeros", "zeros_like",
}  # fmt: skip
#: Functions of a framework that return new tensors, whatever they are given.
MAKERS = _CONSTANTS | {"bmm", "cat", "concat", "concatenate", "matmul", "mm", "stack"}
_FRAMEWORKS = {"torch", "numpy", "mindspore"}
#: Methods that return a new tensor, whatever has them: other classes have no such methods.
_COPIES = {"clone", "new_empty", "new_full", "new_ones", "new_tensor", "new_zeros"}
#: Methods that return the tensor itself, or a copy on another device or of another dtype.
_MOVES = {"cuda", "float", "to"}
#: Methods of a tensor that return something new, never the tensor or a view of it.
_NEW = {
    "abs", "add", "all", "any", "argmax", "argmin", "clone", "copy", "cumsum", "dim", "div",
    "element_size", "eq", "exp", "is_contiguous", "item", "log", "matmul", "max", "mean", "min",
    "mul", "ndimension", "new_empty", "new_full", "new_ones", "new_tensor", "new_zeros", "norm",
    "numel", "pow", "prod", "repeat", "size", "sqrt", "std", "stride", "sub", "sum", "tolist",
    "var",
}  # fmt: skip
#: Attributes that say something about a tensor and do not hold it.
_FACTS = {"device", "dtype", "is_cuda", "itemsize", "nbytes", "ndim", "requires_grad", "shape"}
#: What ties a gradient or memory to a tensor, so that another cannot take its place.
_TIES = {"register_hook", "requires_grad_", "retain_grad", "set_", "share_memory_"}
#: Builtin functions that do not keep what they are given.
_READERS = {"bool", "float", "int", "isinstance", "len", "print", "repr", "str", "type"}


def is_pure(node: ast.expr) -> bool:
    """Tell whether an expression can be written twice: names, attributes, plain subscripts."""
    if isinstance(node, ast.Attribute):
        return is_pure(node.value)
    if isinstance(node, ast.Subscript):
        return is_pure(node.value) and is_pure(node.slice)
    if isinstance(node, ast.UnaryOp):
        return is_pure(node.operand)
    return isinstance(node, ast.Name | ast.Constant)


def may_be_none(node: ast.expr, scopes: Scopes) -> bool:
    """Tell whether an argument may be None: a literal, a default, one side of a condition."""
    if isinstance(node, ast.Constant):
        return node.value is None
    if isinstance(node, ast.IfExp):
        return may_be_none(node.body, scopes) or may_be_none(node.orelse, scopes)
    if isinstance(node, ast.Name):
        home = scopes.scope_of[node].find(node.id)
        bindings = home.bindings[node.id] if home else []
        return not bindings or any(
            binding.value is None or may_be_none(binding.value, scopes)
            if binding.kind != "parameter"
            else binding.value is not None and may_be_none(binding.value, scopes)
            for binding in bindings
        )
    return not isinstance(node, ast.List | ast.ListComp | ast.Tuple | ast.Call | ast.BinOp)


def why_not_rebind(node: ast.expr, call: ast.Call, file: SourceFile) -> str | None:
    """Return why the tensor must keep its identity, or None if its name may be bound anew."""
    scopes = file.scopes
    if not isinstance(node, ast.Name):
        kinds = {ast.Attribute: "an attribute", ast.Subscript: "an element of something"}
        return f"the tensor is {kinds.get(type(node), 'the value of an expression')}"
    scope, name = scopes.scope_of[node], node.id
    while scope.transparent and scope.parent:
        scope = scope.parent
    home = scope.find(name)
    if home is not scope:
        return f"{name!r} belongs to an outer scope"
    if isinstance(scope.node, ast.ClassDef):
        return f"{name!r} is an attribute of a class"
    if name in scope.captured:
        return f"{name!r} is also used by a function inside"
    if scope.uses.get("locals"):
        return "locals() may keep it"
    for binding in scope.bindings[name]:
        if reason := _why_not_new(binding, file):
            return reason
    loops = loops_around(call, scopes)
    for use in scope.uses[name]:
        if not isinstance(use.ctx, ast.Load) or use is node:
            continue
        earlier = (use.lineno, use.col_offset) < (call.lineno, call.col_offset)
        if (earlier or loops & loops_around(use, scopes)) and not _only_reads(use, file):
            return f"line {use.lineno} may keep {name!r} under another name"
    return None


def _why_not_new(binding: Binding, file: SourceFile) -> str | None:
    name = binding.name
    if binding.kind == "parameter":
        return f"{name!r} is an argument of the function"
    if binding.kind == "loop":
        return f"{name!r} is the variable of a loop"
    if binding.kind == "augmented":
        return None  # changes the contents, not the identity
    if isinstance(binding.node, ast.NamedExpr) or (
        isinstance(binding.node, ast.Assign) and len(binding.node.targets) > 1
    ):
        return f"the statement that gives {name!r} its value gives it to something else too"
    if isinstance(binding.node, ast.Assign) and _is_returned(binding.node.value, file):
        return None
    if binding.kind != "assignment" or binding.value is None:
        return f"{name!r} gets its value in an unpacking or in another way that is not followed"
    if is_new(binding.value, file.scopes):
        return None
    line = getattr(binding.node, "lineno", 0)
    return f"what line {line} gives {name!r} may be known under another name"


def _is_returned(node: ast.expr, file: SourceFile) -> bool:
    """Tell whether a collective has returned a value: such tensors are new."""
    if isinstance(node, ast.Subscript):
        node = node.value
    return node in file.functional_calls


def is_new(node: ast.expr, scopes: Scopes) -> bool:
    """Tell whether the value of an expression is always a new tensor."""
    if isinstance(node, ast.BinOp):
        return True
    if isinstance(node, ast.IfExp):
        return is_new(node.body, scopes) and is_new(node.orelse, scopes)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    owner, method = node.func.value, node.func.attr
    if any(word.arg in (None, "out") for word in node.keywords):
        return False  # the result may be in memory that somebody has
    if any(word.arg == "requires_grad" for word in node.keywords):
        return False  # its gradient belongs to this tensor, and to no other
    if is_framework(owner, scopes):
        return method in MAKERS
    return method in _COPIES or (is_new(owner, scopes) and method in _MOVES)


def is_unknown_to_autograd(node: ast.Name, file: SourceFile) -> bool:
    """Tell whether autograd cannot have kept a tensor that nobody else has.

    torch's collectives change a tensor without telling autograd. What it has kept of the tensor for
    a backward would then be the result, and the gradient silently wrong. That cannot be if all
    values are constants, and nothing but constants and collectives of the tensor change them.
    """
    scopes = file.scopes
    home = scopes.scope_of[node].find(node.id)
    return (
        home is not None
        and all(
            isinstance(binding.node, ast.Assign | ast.AnnAssign | ast.AugAssign)
            and binding.node.value is not None
            and _is_without_gradient(binding.node.value, node.id, file)
            for binding in home.bindings[node.id]
        )
        and not any(_is_filled(use, scopes) for use in home.uses[node.id])
    )


def _is_without_gradient(value: ast.expr, name: str, file: SourceFile) -> bool:
    if _is_returned(value, file):
        call = value.value if isinstance(value, ast.Subscript) else value
        return isinstance(call, ast.Call) and any(_is_name(one, name) for one in call.args[:1])
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        owner, method = value.func.value, value.func.attr
        if is_framework(owner, file.scopes):
            return method in _CONSTANTS
        return method in _MOVES and _is_without_gradient(owner, name, file)
    return isinstance(value, ast.Constant)


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_filled(use: ast.Name, scopes: Scopes) -> bool:
    """Tell whether a use puts values into a tensor: `t[0] = x`, `t.add_(x)`."""
    parent = scopes.parents[use]
    if isinstance(parent, ast.Subscript):
        return isinstance(parent.ctx, ast.Store)
    outer = scopes.parents[parent]
    return (
        isinstance(parent, ast.Attribute)
        and isinstance(outer, ast.Call)
        and outer.func is parent
        and isinstance(scopes.parents[outer], ast.Expr)
    )


def is_framework(node: ast.expr, scopes: Scopes) -> bool:
    """Tell whether a name is an imported framework, or a module of it."""
    if not isinstance(node, ast.Name):
        return False
    home = scopes.scope_of[node].find(node.id)
    return home is not None and all(
        binding.kind == "import" and (binding.path or "").partition(".")[0] in _FRAMEWORKS
        for binding in home.bindings[node.id]
    )


def _only_reads(use: ast.Name, file: SourceFile) -> bool:
    """Tell whether a use of a tensor cannot have kept it."""
    scopes = file.scopes
    parent = scopes.parents[use]
    outer = scopes.parents.get(parent)
    if isinstance(parent, ast.keyword):
        if parent.arg == "out":  # what is filled is returned too
            return False
        parent, outer = scopes.parents[parent], None
    if isinstance(parent, ast.BinOp | ast.Compare | ast.FormattedValue | ast.Delete):
        return True
    if isinstance(parent, ast.UnaryOp):
        return not isinstance(parent.op, ast.UAdd)  # torch's `+t` is `t`
    if isinstance(parent, ast.AugAssign):
        return not isinstance(parent.op, ast.Add)  # a list takes the rows of a tensor
    if isinstance(parent, ast.Subscript):
        stored = isinstance(parent.ctx, ast.Store)
        return stored if parent.value is use else not stored  # a dictionary keeps its keys
    if isinstance(parent, ast.Attribute):
        if parent.attr in _TIES or not isinstance(parent.ctx, ast.Load):
            return False
        if parent.attr in _FACTS:
            return True
        if not isinstance(outer, ast.Call) or outer.func is not parent:
            return False
        # A result that nobody keeps cannot be a view that somebody keeps.
        return parent.attr in _NEW or isinstance(scopes.parents[outer], ast.Expr)
    if isinstance(parent, ast.Call):
        if parent in file.calls:
            return parent in file.reading_calls
        function = parent.func
        if isinstance(function, ast.Name):
            return function.id in _READERS and scopes.scope_of[function].find(function.id) is None
        return (
            isinstance(function, ast.Attribute)
            and is_framework(function.value, scopes)
            and function.attr in MAKERS
        )
    return isinstance(parent, ast.Expr)
