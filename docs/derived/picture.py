"""Draw what a collective moves: ranks are rows, before and after, as an SVG inside the page."""

from __future__ import annotations

from collections.abc import Iterator

from derived.movement import Movement, Row, source_of
from derived.running import RANKS
from derived.texts import texts

__all__ = ["draw", "draw_barrier"]

_CELL = 44
_ROW = 34
_LABEL = 84
_GAP = 126  # between before and after; a long name needs more
_TOP = 34


def draw(name: str, movement: Movement, language: str) -> str:
    """Return the picture, on one line: Markdown ends a block of HTML at an empty one.

    Colours are classes of style.css, so that the picture fits the light and the dark scheme.
    """
    text = texts("picture", language)
    columns = [max(len(row) for row in rows) for rows in (movement.before, movement.after)]
    left, right = _LABEL, _LABEL + columns[0] * _CELL + max(_GAP, 10 * len(name) + 8)
    width, height = right + columns[1] * _CELL + 8, _TOP + RANKS * _ROW + 6
    middle = _TOP + RANKS * _ROW / 2
    parts = [
        _begin(name, width, height),
        _word(left + columns[0] * _CELL / 2, 18, text["before"], "heading"),
        _word(right + columns[1] * _CELL / 2, 18, text["after"], "heading"),
        _word((left + columns[0] * _CELL + right) / 2, middle - 14, name, "call"),
        _arrow(left + columns[0] * _CELL + 14, right - 14, middle),
    ]
    for rank in range(RANKS):
        top = _TOP + rank * _ROW
        parts.append(_rank(rank, language))
        parts += _cells(left, top, movement.before[rank])
        parts += _cells(right, top, movement.after[rank])
    return "".join([*parts, "</svg>"])


def draw_barrier(language: str) -> str:
    """Return the picture of a barrier: ranks come at different times, and go on together."""
    arrivals, wall, end = (190, 90, 250, 140), 300, 420
    parts = [_begin("barrier", _LABEL + end + 8, _TOP + RANKS * _ROW + 6)]
    parts.append(_word(_LABEL + wall, 18, "barrier", "call"))
    for rank, arrival in enumerate(arrivals):
        top = _TOP + rank * _ROW
        parts.append(_rank(rank, language))
        for kind, start, stop in ((f"of-{rank}", 0, arrival), ("sum", arrival, wall),
                                  (f"of-{rank}", wall + 4, end)):  # fmt: skip
            parts.append(_box(kind, _LABEL + start, top, stop - start - 2))
    bottom = _TOP + RANKS * _ROW
    wall_line = f"M{_LABEL + wall + 1} 26V{bottom}"
    parts.append(f'<path class="arrow" d="{wall_line}" fill="none" stroke="currentColor"/>')
    return "".join([*parts, "</svg>"])


def _begin(name: str, width: float, height: float) -> str:
    size = f'viewBox="0 0 {width} {height}" width="{width}"'
    return f'<svg class="movement" role="img" {size}><title>{name}</title>'


def _rank(rank: int, language: str) -> str:
    words = texts("picture", language)["rank"].format(rank)
    return _word(_LABEL / 2 - 4, _TOP + rank * _ROW + 20, words, "rank")


def _box(kind: str, left: float, top: float, width: float) -> str:
    return f'<rect class="{kind}" x="{left}" y="{top}" width="{width}" height="{_ROW - 6}" rx="4"/>'


def _cells(left: float, top: float, row: Row) -> Iterator[str]:
    for index, number in enumerate(row):
        source = source_of(number)
        colour = "sum" if source is None else f"of-{source}"
        yield _box(colour, left + index * _CELL, top, _CELL - 4)
        yield _word(left + index * _CELL + (_CELL - 4) / 2, top + 19, str(number), "number")


def _word(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{text}</text>'


def _arrow(left: float, right: float, y: float) -> str:
    return (
        f'<path class="arrow" d="M{left:g} {y:g}H{right:g}'
        f'm-7 -5l7 5l-7 5" fill="none" stroke="currentColor"/>'
    )
