"""Calls of every function of both faces, drawn by hypothesis: right, nearly right and wrong.

A call is text: values are Python expressions, which each rank evaluates for itself (rank.py).
So both ranks of a world get the same call, and a report shows what can be pasted into a shell.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from tests.long.fuzz.values import (
    ANYTHING,
    BACKENDS,
    FLAGS,
    FUNCTION_NAMES,
    GROUPS,
    HOSTS,
    MESSAGES,
    NAMES,
    NUMBERS,
    OBJECTS,
    OPERATORS,
    P2P_OPERATORS,
    PORTS,
    RANK_LISTS,
    RANK_LISTS_LISTS,
    RANKS,
    TAGS,
    TIMEOUTS,
    TYPES,
    URLS,
    Theme,
    counts,
    lists,
    matrices,
    shapes,
    tensors,
    themes,
)

__all__ = ["MODULES", "Call", "calls", "functions", "pairs"]

#: The modules of both faces, by the short names that expressions use.
MODULES = {
    "dist": "unisono.torch.distributed",
    "comm": "unisono.mindspore.communication",
    "management": "unisono.mindspore.communication.management",
    "comm_func": "unisono.mindspore.communication.comm_func",
    "ops": "unisono.mindspore.ops",
    "communication": "unisono.mindspore.ops.communication",
    "mint": "unisono.mindspore.mint.distributed",
}


@dataclass
class Call:
    """One call as text; `then` holds the arguments of a call of what came back."""

    path: str
    arguments: list[str] = field(default_factory=list)
    then: list[str] | None = None

    def __str__(self) -> str:
        text = f"{self.path}({', '.join(self.arguments)})"
        return text if self.then is None else f"{text}({', '.join(self.then)})"


def functions() -> dict[str, Callable[..., Any]]:
    """Every function, and every class that faces define themselves, by its path.

    Not `breakpoint`, which waits for a person without a deadline.
    """
    found = {}
    for short, name in MODULES.items():
        module = importlib.import_module(name)
        for public in module.__all__:
            thing = getattr(module, public)
            own = getattr(thing, "__module__", "").startswith(
                ("unisono.torch", "unisono.mindspore")
            )
            if callable(thing) and (own or inspect.isfunction(thing)):
                found[f"{short}.{public}"] = thing
    del found["dist.breakpoint"]
    return found


#: By the name of the parameter: the first pattern that fits.
_BY_NAME: list[tuple[str, Callable[[Theme], st.SearchStrategy[str]]]] = [
    (r"output_tensor_lists", lambda theme: lists(lists(tensors(theme)))),
    (r"p2p_op_list", lambda theme: lists(MESSAGES)),
    (r"ranks_per_subgroup_list|split_ranks", lambda theme: RANK_LISTS_LISTS),
    (r"output_shape_list|receive_shapes", lambda theme: lists(shapes(theme))),
    (r"receive_dtypes", lambda theme: lists(TYPES)),
    (r"op_types", lambda theme: lists(P2P_OPERATORS)),
    (r"remote_ranks", lambda theme: lists(RANKS)),
    (r"func_list", lambda theme: FUNCTION_NAMES),
    (r".*object.*_list", lambda theme: lists(OBJECTS)),
    (r"obj", lambda theme: OBJECTS),
    (r".*split_sizes|.*numel_list", counts),
    (r"send_count_matrix", matrices),
    (r".*shape", shapes),
    (r".*_list|tensors", lambda theme: lists(tensors(theme))),
    (r"ranks|_ranks|rank_ids|device_ids", lambda theme: RANK_LISTS),
    (r"(.*_)?(tensor|input|output)|input_x", tensors),
    (r"op", lambda theme: st.one_of(OPERATORS, OPERATORS, P2P_OPERATORS)),
    (r"group(_back)?|parent_pg", lambda theme: GROUPS),
    (r"timeout", lambda theme: TIMEOUTS),
    (r".*tag", lambda theme: TAGS),
    (r".*rank(_id)?|src|dst|group_(src|dst)|(group_)?peer", lambda theme: RANKS),
    (r".*(size|count|dim)", lambda theme: NUMBERS),
    (r"backend(_name)?", lambda theme: BACKENDS),
    (r"init_method", lambda theme: URLS),
    (r"host_name", lambda theme: HOSTS),
    (r"port|master_listen_fd", lambda theme: PORTS),
    (r"dtype|recv_dtype", lambda theme: TYPES),
    (r"(async|is|use|wait|sort|multi)_.*", lambda theme: FLAGS),
    (r"group_(name|desc)", lambda theme: NAMES),
]


def _value(name: str, theme: Theme) -> st.SearchStrategy[str]:
    for pattern, strategy in _BY_NAME:
        if re.fullmatch(pattern, name):
            return strategy(theme)
    return ANYTHING


# ---- calls ---------------------------------------------------------------------------------------

_FUNCTIONS = functions()


@st.composite
def _arguments(draw: Any, parameters: list[inspect.Parameter], theme: Theme) -> list[str]:
    """Arguments by position and by name; sometimes one is missing, doubled or too many."""
    given, named = [], False
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        optional = parameter.default is not parameter.empty
        must = parameter.name == "timeout" and optional and parameter.default is not None
        if not must and draw(st.integers(0, 9)) < (5 if optional else 0):
            named = True
            continue
        if not optional and draw(st.integers(0, 49)) == 0:
            continue
        wild = draw(st.integers(0, 14)) == 0
        text = draw(ANYTHING if wild and not must else _value(parameter.name, theme))
        named = named or parameter.kind is parameter.KEYWORD_ONLY or draw(st.integers(0, 4)) == 0
        given.append(f"{parameter.name}={text}" if named else text)
    if draw(st.integers(0, 39)) == 0:
        given.append(f"surplus={draw(ANYTHING)}")
    return given


@st.composite
def calls(draw: Any, path: str | None = None, theme: Theme | None = None) -> Call:
    """Any call of any function."""
    theme = theme or draw(themes())
    path = path or draw(st.sampled_from(sorted(_FUNCTIONS)))
    thing = _FUNCTIONS[path]
    call = Call(path, draw(_arguments(list(inspect.signature(thing).parameters.values()), theme)))
    if isinstance(thing, type) and "__call__" in vars(thing):
        then = list(inspect.signature(vars(thing)["__call__"]).parameters.values())[1:]
        call.then = draw(_arguments(then, theme))
    return call


@st.composite
def pairs(draw: Any) -> tuple[Call, Call]:
    """Two calls for two ranks: often of one function, or with tensors that would fit."""
    theme = draw(themes())
    first = draw(calls(theme=theme))
    path = first.path if draw(st.booleans()) else None
    return first, draw(calls(path, theme if draw(st.booleans()) else None))
