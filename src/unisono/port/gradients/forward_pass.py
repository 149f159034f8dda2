"""Where a gradient has to pass, and which calls of the two dialects let it through alike.

MindSpore's calls that return a tensor have a gradient. In torch only the functions of
torch.distributed.nn.functional have one; for a call that writes into a tensor, the gradient is
that of a program without the call. On the way to torch,

1. a primitive becomes such a function wherever it is called, because layers are made of primitives;
2. a function of comm_func becomes one in a method `construct` or `forward`: the forward pass;
3. a function of comm_func elsewhere becomes a call that writes in place, with a note on gradients.

A broadcast always becomes the call that writes in place. Its gradient is what MindSpore gives: that
of each rank, unchanged. Torch's function would add the gradients up at the root.
"""

from __future__ import annotations

import ast
import itertools

from unisono.port.rules import Rule, with_gradient
from unisono.port.site import Refused, Site

__all__ = ["check_message", "function_with_gradient", "gradient_difference", "operator_of"]

_FORWARD = ("construct", "forward")
_IN_PLACE = "all_reduce.gradient-in-place"
_OPERATORS = "groups.gradients"
#: Gradients of the table that are none, or that are the same as without the call.
_AS_WITHOUT = (None, "no_result", "refused", "unseen", "unchanged")
#: The operators whose gradient is right in torch; the others are made of what is right.
_RIGHT = {"all_reduce": ("sum", "avg", "max", "min", "prod")}
_RIGHT_ELSEWHERE = ("sum",)


def _is_forward(node: ast.AST, site: Site) -> bool:
    """Tell whether a node stands in the forward pass: `construct` or `forward` of a class."""
    chain = site.file.scopes.chain(node)
    return any(
        isinstance(outer, ast.ClassDef) and getattr(inner, "name", None) in _FORWARD
        for inner, outer in itertools.pairwise(chain)
    )


def operator_of(site: Site) -> str:
    """Return the operator of a call of MindSpore as a string; "" if a variable has it."""
    value = site.value("op")
    if value is None:
        return "sum"
    found = site.reference_at(value)
    if found is not None:
        return found.rest.lower()
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""


def function_with_gradient(site: Site) -> Rule | None:
    """Return the rule for torch's function with the gradient of a call; None if in place is right.

    Where neither is right, Refused is raised.
    """
    source = site.rule.source
    primitive = site.reference.building is not None
    if source.style not in ("functional", "built") or source.gradient in _AS_WITHOUT:
        return None
    if not primitive and not _is_forward(site.call, site):
        return None
    rule = with_gradient(site.rule)
    if rule is None or source.gradient == "scatter":
        return None
    operator = operator_of(site)
    if operator and operator not in _RIGHT.get(rule.target.name, _RIGHT_ELSEWHERE):
        if rule.target.name == "reduce_scatter":
            return None  # in MindSpore itself, its backward is an error
        raise Refused(f"torch's gradient of {rule.target.name} is wrong for {operator}", _OPERATORS)
    if site.mode != "sync":
        raise Refused("torch's functions with a gradient return no handle", _IN_PLACE)
    return rule


def check_message(site: Site) -> None:
    """Refuse messages in the forward pass: torch's have no gradient."""
    if site.rule.source.gradient == "message" and _is_forward(site.call, site):
        raise Refused("torch has no message with a gradient", _IN_PLACE)


def gradient_difference(site: Site) -> list[str]:
    """Return what has to be known about the gradient at a call."""
    source, target = site.rule.source, site.rule.target
    torch, other = (source, target) if source.dialect == "torch" else (target, source)
    if other.gradient in _AS_WITHOUT:
        return []
    if torch.style == "functional":
        named = site.value("op") is not None and operator_of(site) != "sum"
        return [_OPERATORS] if named else []
    return [_IN_PLACE]
