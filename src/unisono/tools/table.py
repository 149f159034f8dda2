"""Tables and wrapped text for a terminal, where a Chinese character takes two columns."""

from __future__ import annotations

import re
import shutil
import unicodedata
from collections.abc import Iterator, Sequence

__all__ = ["cut", "line", "pad", "table", "terminal_columns", "width", "wrap"]

#: Unicode categories of the punctuation that must not begin a line, and that must not end one.
_CLOSING = {"Pe", "Pf", "Po"}
_OPENING = {"Ps", "Pi"}
#: A word that is longer than a line is divided after one of these, if it has any; dots first.
_BREAKS = (".", "_,/(")
_BREAKS_PATTERN = re.escape("".join(_BREAKS))
#: A column of a table is never narrower than this.
_NARROWEST_COLUMN = 4


def terminal_columns(narrowest: int = 48, widest: int = 160, piped: int = 120) -> int:
    """Return the width to write for: that of the terminal within limits, `piped` without one.

    The variable COLUMNS overrides both.
    """
    return min(max(shutil.get_terminal_size((piped, 24)).columns, narrowest), widest)


def width(text: str) -> int:
    """Return how many columns a text takes.

    >>> width("rank"), width("参数")
    (4, 4)
    """
    return sum(_character_width(character) for character in text)


def _character_width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def pad(text: str, columns: int, align: str = "<") -> str:
    """Fill a text up with spaces, on its right, or on its left if `align` is ">"."""
    spaces = " " * (columns - width(text))
    return spaces + text if align == ">" else text + spaces


def cut(text: str, columns: int) -> str:
    """Shorten a text that does not fit, and show that by dots.

    >>> cut("0, 2, 4-7, 9", 12), cut("0, 2, 4-7, 9", 9), cut("waiting", 2)
    ('0, 2, 4-7, 9', '0, 2, ...', '..')
    """
    if width(text) <= columns:
        return text
    dots = "..."[:columns]
    while text and width(text) + len(dots) > columns:
        text = text[:-1]
    return text + dots


def line(cells: Sequence[str], widths: Sequence[int], align: str = "", between: str = "  ") -> str:
    """Lay out one row of a table whose column widths are known.

    `align` has a "<" or a ">" for each column, or is empty if all are aligned on the left.

    >>> line(("8 B", "4.5 µs"), (5, 8), ">>")
    '  8 B    4.5 µs'
    """
    marks = align or "<" * len(widths)
    return between.join(map(pad, cells, widths, marks)).rstrip()


def table(
    rows: Sequence[Sequence[str]],
    columns: int | None,
    *,
    align: str = "",
    between: str = "  ",
    indent: str = "",
) -> list[str]:
    """Lay rows out side by side, and break the cells that do not fit into `columns` (None: all do).

    >>> table([("rank", "state"), ("0", "waiting")], 40)
    ['rank  state', '0     waiting']
    """
    count = max(len(row) for row in rows)
    sizes = [max(width(part) for row in rows for part in row[n].split("\n")) for n in range(count)]
    if columns is not None:
        least = [max(_longest_word(row[n]) for row in rows) for n in range(count)]
        room = columns - len(indent)
        if sum(least) + len(between) * (count - 1) > room:
            between = between.strip() or " "  # narrow gaps rather than broken words
        sizes = _shrink(sizes, least, room - len(between) * (count - 1))
    lines = []
    for row in rows:
        cells = [_cell(text, size) for text, size in zip(row, sizes, strict=True)]
        for n in range(max(map(len, cells))):
            parts = [cell[n] if n < len(cell) else "" for cell in cells]
            lines.append((indent + line(parts, sizes, align, between)).rstrip())
    return lines


def _cell(text: str, columns: int) -> list[str]:
    lines = []
    for part in text.split("\n"):
        inset = len(part) - len(part.lstrip())
        lines += [" " * inset + piece for piece in wrap(part, max(columns - inset, 2))]
    return lines


def _longest_word(text: str) -> int:
    """Return the width of the widest part of a cell that is better not divided."""
    parts = [
        piece for _, unit in _units(text) for piece in re.split(rf"(?<=[{_BREAKS_PATTERN}])", unit)
    ]
    return max(map(width, parts), default=0)


def _shrink(wanted: list[int], least: list[int], room: int) -> list[int]:
    """Give every column the width of its longest word, and divide the rest of the room."""
    if sum(least) > room:
        return _divide(room, least, _NARROWEST_COLUMN)
    more = [full - word for full, word in zip(wanted, least, strict=True)]
    return [word + size for word, size in zip(least, _divide(room - sum(least), more), strict=True)]


def _divide(room: int, wanted: list[int], minimum: int = 0) -> list[int]:
    """Give those that want little what they want, and divide the rest equally.

    >>> _divide(12, [8, 2, 7])
    [5, 2, 5]
    """
    sizes: dict[int, int] = {}
    for done, n in enumerate(sorted(range(len(wanted)), key=wanted.__getitem__)):
        fair = (room - sum(sizes.values())) // (len(wanted) - done)
        sizes[n] = max(min(wanted[n], fair), minimum)
    return [sizes[n] for n in range(len(wanted))]


# ---- wrapping ------------------------------------------------------------------------------------


def wrap(text: str, columns: int) -> list[str]:
    """Break a text into lines of at most `columns`: English between words, Chinese anywhere."""
    lines = [""]
    for space, unit in _units(text):
        for piece in _pieces(unit, columns):
            gap = " " if space and lines[-1] else ""
            if lines[-1] and width(lines[-1]) + len(gap) + width(piece) > columns:
                lines.append(piece)
            else:
                lines[-1] += gap + piece
            space = False
    return lines


def _units(text: str) -> Iterator[tuple[bool, str]]:
    """Yield the parts that must stay whole, and for each whether a space precedes it."""
    for word in text.split():
        space, unit = True, ""
        for character in word:
            joined = (
                not unit
                or unicodedata.category(character) in _CLOSING
                or unicodedata.category(unit[-1]) in _OPENING
                or (_character_width(character) < 2 and _character_width(unit[-1]) < 2)
            )
            if not joined:
                yield space, unit
                space, unit = False, ""
            unit += character
        yield space, unit


def _pieces(unit: str, columns: int) -> Iterator[str]:
    """Divide a unit that is longer than a line."""
    while width(unit) > columns:
        count = fitting = 0
        while fitting + _character_width(unit[count]) <= max(columns, 2):
            fitting += _character_width(unit[count])
            count += 1
        breaks = [max(unit.rfind(mark, 1, count) for mark in marks) + 1 for marks in _BREAKS]
        count = next((found for found in breaks if found > count // 3), count)
        yield unit[:count]
        unit = unit[count:]
    yield unit
