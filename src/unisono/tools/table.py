"""Text in columns of a terminal, where a Chinese character takes two."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence

__all__ = ["pad", "table", "width", "wrap"]

#: Kinds of marks, in Unicode's words, that do not begin a line, and that do not end one.
_CLOSING = {"Pe", "Pf", "Po"}
_OPENING = {"Ps", "Pi"}
#: A word that is longer than a line is divided after one of these, if it has any: the first best.
_SEAMS = (".", "_,/(")


def width(text: str) -> int:
    """Count the columns that a text takes."""
    return sum(_width_of(letter) for letter in text)


def _width_of(letter: str) -> int:
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def pad(text: str, columns: int) -> str:
    """Fill a text up with spaces."""
    return text + " " * (columns - width(text))


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
    """What may not be broken, and whether a space stood before it."""
    for word in text.split():
        space, unit = True, ""
        for letter in word:
            joined = (
                not unit
                or unicodedata.category(letter) in _CLOSING
                or unicodedata.category(unit[-1]) in _OPENING
                or (_width_of(letter) < 2 and _width_of(unit[-1]) < 2)
            )
            if not joined:
                yield space, unit
                space, unit = False, ""
            unit += letter
        yield space, unit


def _pieces(unit: str, columns: int) -> Iterator[str]:
    while width(unit) > columns:
        count = fitting = 0
        while fitting + _width_of(unit[count]) <= max(columns, 2):
            fitting += _width_of(unit[count])
            count += 1
        seams = [max(unit.rfind(mark, 1, count) for mark in marks) + 1 for marks in _SEAMS]
        count = next((seam for seam in seams if seam > count // 3), count)
        yield unit[:count]
        unit = unit[count:]
    yield unit


def table(
    rows: Sequence[Sequence[str]], columns: int, *, between: str = "  ", indent: str = "  "
) -> list[str]:
    """Lay rows out side by side within `columns`, and break the cells that are too long."""
    count = max(len(row) for row in rows)
    room = columns - len(indent) - len(between) * (count - 1)
    wanted = [max(width(line) for row in rows for line in row[n].split("\n")) for n in range(count)]
    sizes = _share(wanted, room)
    lines = []
    for row in rows:
        cells = [_cell(text, size) for text, size in zip(row, sizes, strict=True)]
        for n in range(max(map(len, cells))):
            parts = [
                pad(cell[n] if n < len(cell) else "", size)
                for cell, size in zip(cells, sizes, strict=True)
            ]
            lines.append((indent + between.join(parts)).rstrip())
    return lines


def _cell(text: str, columns: int) -> list[str]:
    lines = []
    for line in text.split("\n"):
        inset = len(line) - len(line.lstrip())
        lines += [" " * inset + part for part in wrap(line, max(columns - inset, 2))]
    return lines


def _share(wanted: list[int], room: int) -> list[int]:
    """Give narrow columns what they want and divide the rest among the wide ones."""
    sizes: dict[int, int] = {}
    for done, n in enumerate(sorted(range(len(wanted)), key=wanted.__getitem__)):
        fair = (room - sum(sizes.values())) // (len(wanted) - done)
        sizes[n] = max(min(wanted[n], fair), 4)
    return [sizes[n] for n in range(len(wanted))]
