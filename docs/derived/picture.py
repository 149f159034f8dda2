"""Draw what a collective moves: ranks are rows, before and after, as an SVG inside the page."""

from __future__ import annotations

from collections.abc import Iterator

from derived.movement import Movement, Row, source_of
from derived.running import RANKS

__all__ = ["draw"]

_CELL = 44
_ROW = 34
_LABEL = 84
_GAP = 92
_TOP = 34
_TEXTS = {
    "en": {"before": "before", "after": "after", "rank": "rank {}"},
    "zh": {"before": "调用前", "after": "调用后", "rank": "进程 {}"},
}


def draw(name: str, movement: Movement, language: str) -> str:
    """Return the picture, on one line: Markdown ends a block of HTML at an empty one.

    Colours are classes of style.css, so that the picture fits the light and the dark scheme.
    """
    text = _TEXTS[language]
    columns = [max(len(row) for row in rows) for rows in (movement.before, movement.after)]
    left, right = _LABEL, _LABEL + columns[0] * _CELL + _GAP
    width, height = right + columns[1] * _CELL + 8, _TOP + RANKS * _ROW + 6
    middle = _TOP + RANKS * _ROW / 2
    parts = [
        f'<svg class="movement" role="img" viewBox="0 0 {width} {height}" width="{width}">',
        f"<title>{name}</title>",
        _word(left + columns[0] * _CELL / 2, 18, text["before"], "heading"),
        _word(right + columns[1] * _CELL / 2, 18, text["after"], "heading"),
        _word((left + columns[0] * _CELL + right) / 2, middle - 14, name, "call"),
        _arrow(left + columns[0] * _CELL + 14, right - 14, middle),
    ]
    for rank in range(RANKS):
        top = _TOP + rank * _ROW
        parts.append(_word(_LABEL / 2 - 4, top + 20, text["rank"].format(rank), "rank"))
        parts += _cells(left, top, movement.before[rank])
        parts += _cells(right, top, movement.after[rank])
    return "".join([*parts, "</svg>"])


def _cells(left: float, top: float, row: Row) -> Iterator[str]:
    for index, number in enumerate(row):
        source = source_of(number)
        colour = "sum" if source is None else f"of-{source}"
        yield (
            f'<rect class="{colour}" x="{left + index * _CELL}" y="{top}" '
            f'width="{_CELL - 4}" height="{_ROW - 6}" rx="4"/>'
        )
        yield _word(left + index * _CELL + (_CELL - 4) / 2, top + 19, str(number), "number")


def _word(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{text}</text>'


def _arrow(left: float, right: float, y: float) -> str:
    return (
        f'<path class="arrow" d="M{left:g} {y:g}H{right:g}'
        f'm-7 -5l7 5l-7 5" fill="none" stroke="currentColor"/>'
    )
