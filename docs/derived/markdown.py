"""Small pieces of Markdown, as mkdocs-material reads it."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

__all__ = ["anchor", "code", "columns", "document", "indent", "inline", "table"]

#: What is code in a sentence: names with an underscore or a point inside, with what follows.
_NAME = r"[A-Za-z]\w*(?:[._][A-Za-z]\w*)+(?:=\w+|\([^()\s]*\)|\[[^\]\s]*\])?"
_PIECE = re.compile(rf"(`[^`]*`)|({_NAME})|([*_<>\[\]|])", re.ASCII)


def inline(text: str) -> str:
    """Turn a sentence of the mapping table into Markdown: names are code, marks are escaped.

    >>> inline("comm_func.all_reduce(x) gives (N*d0, ...)")
    '`comm_func.all_reduce(x)` gives (N\\\\*d0, ...)'
    """

    def replace(found: re.Match[str]) -> str:
        quoted, name, mark = found.groups()
        return quoted or (f"`{name}`" if name else f"\\{mark}" if mark not in "<>" else _html(mark))

    return _PIECE.sub(replace, text)


def _html(mark: str) -> str:
    return {"<": "&lt;", ">": "&gt;"}[mark]


def code(text: str, language: str = "python") -> str:
    """Return a block of code."""
    return f"```{language}\n{text}\n```"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table; the first row is its head."""
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


def columns(*texts: str, titles: Sequence[str] = ("PyTorch", "MindSpore")) -> str:
    """Put texts beside each other, or one below the other on a narrow screen."""
    cells = [
        f"<div markdown>\n\n**{title}**\n\n{text}\n\n</div>"
        for title, text in zip(titles, texts, strict=True)
    ]
    return '<div class="grid" markdown>\n\n' + "\n\n".join(cells) + "\n\n</div>"


def indent(text: str) -> str:
    """Move a block into the box above it."""
    return textwrap.indent(text, "    ")


def anchor(identity: str) -> str:
    """Return the anchor of a heading: names of differences have a point inside.

    >>> anchor("groups.new-tensor")
    'groups-new-tensor'
    """
    return identity.replace(".", "-")


def document(blocks: Iterable[str]) -> str:
    """Join blocks to a page."""
    return "\n\n".join(blocks) + "\n"
