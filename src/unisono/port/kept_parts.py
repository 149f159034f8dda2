"""What stays of imports and of calls, as LibCST has them, with its lines and comments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import libcst as cst
from libcst.matchers import Comment, findall

from unisono.port.imports.changes import Part

__all__ = ["comments_in", "last_argument", "part_of"]


def part_of(statement: cst.Import | cst.ImportFrom, part: Part) -> cst.Import | cst.ImportFrom:
    """Return a part of an import, with its comments and its lines."""
    if isinstance(statement, cst.ImportFrom) and part.prefix and statement.module is not None:
        module = part.prefix + cst.Module([]).code_for_node(statement.module)
        statement = statement.with_changes(module=cst.parse_expression(module))
    if isinstance(statement.names, cst.ImportStar):
        return statement
    names = [alias for alias in statement.names if _bound(alias, statement) in part.names]
    if len(names) < len(statement.names):
        statement = _with_names(statement, names)
    if isinstance(statement, cst.Import) and part.prefix:
        names = [
            alias.with_changes(name=cst.parse_expression(part.prefix + alias.evaluated_name))
            for alias in statement.names
        ]
        statement = statement.with_changes(names=names)
    return statement


def _with_names(statement: Any, names: Sequence[Any]) -> Any:
    """Leave names of an import out: each that stays keeps comments above and behind it."""
    every = list(statement.names)
    brackets = getattr(statement, "lpar", None)
    #: What stands between two names: the end of the line belongs to the first one.
    spaces = [alias.comma.whitespace_after if _has_comma(alias) else None for alias in every]
    before = dict(zip(every[1:], spaces, strict=False))
    if brackets and names[0] is not every[0]:
        space = _divided(brackets.whitespace_after, before[names[0]])
        statement = statement.with_changes(lpar=brackets.with_changes(whitespace_after=space))
    found = []
    for alias, following in zip(names, [*names[1:], None], strict=True):
        own = spaces[every.index(alias)]
        if following is not None:
            comma = alias.comma.with_changes(whitespace_after=_divided(own, before[following]))
        elif alias is every[-1] or _has_comma(every[-1]):
            comma = every[-1].comma
            if alias is not every[-1]:
                comma = comma.with_changes(whitespace_after=_divided(own, spaces[-1], last=True))
        else:
            comma = cst.MaybeSentinel.DEFAULT
            if brackets:
                space = _divided(own, statement.rpar.whitespace_before, last=True)
                rpar = statement.rpar.with_changes(whitespace_before=space)
                statement = statement.with_changes(rpar=rpar)
        found.append(alias.with_changes(comma=comma))
    return statement.with_changes(names=found)


def _has_comma(alias: cst.ImportAlias) -> bool:
    return isinstance(alias.comma, cst.Comma)


def _divided(own: Any, following: Any, last: bool = False) -> Any:
    """Join the end of a line behind one name and the lines above another one."""
    lines = cst.ParenthesizedWhitespace
    if isinstance(own, lines) and isinstance(following, lines):
        return following.with_changes(first_line=own.first_line)
    comment = isinstance(own, lines) and own.first_line.comment
    return following if last and not comment and not isinstance(following, lines) else own


def _bound(alias: cst.ImportAlias, statement: cst.Import | cst.ImportFrom) -> str:
    name = alias.evaluated_alias or alias.evaluated_name
    return name.partition(".")[0] if isinstance(statement, cst.Import) else name


def last_argument(argument: cst.Arg, call: cst.Call) -> cst.Arg:
    """Return an argument that comes last now, with the bracket on the line where it was."""
    own, last = argument.comma, call.args[-1] if call.args else argument
    if isinstance(own, cst.MaybeSentinel):
        return argument
    if isinstance(last.comma, cst.Comma):
        space = _divided(own.whitespace_after, last.comma.whitespace_after, last=True)
        return argument.with_changes(comma=own.with_changes(whitespace_after=space))
    space = _divided(own.whitespace_after, last.whitespace_after_arg, last=True)
    return argument.with_changes(comma=cst.MaybeSentinel.DEFAULT, whitespace_after_arg=space)


def comments_in(nodes: Sequence[cst.CSTNode], mark: str) -> Counter[str]:
    """Count the comments in nodes and above them, but for those that begin with a mark."""
    found = (cast(cst.Comment, one).value for node in nodes for one in findall(node, Comment()))
    return Counter(text for text in found if not text.startswith(mark))
