"""Output that survives a terminal without UTF-8: a readable replacement for what it cannot show."""

from __future__ import annotations

import codecs
import io
import sys
import unicodedata

__all__ = ["can_show", "use_plain_text"]

_HANDLER = "unisono.plain"
#: As wide as what they replace where they stand in tables.
_REPLACEMENTS = {
    "\N{MICRO SIGN}": "u",
    "\N{GREEK SMALL LETTER MU}": "u",
    "\N{MULTIPLICATION SIGN}": "x",
    "\N{PLUS-MINUS SIGN}": "~",
    "\N{RIGHTWARDS ARROW}": "->",
    "\N{LEFTWARDS ARROW}": "<-",
    "\N{CHECK MARK}": "+",
    "\N{BALLOT X}": "x",
    "\N{BULLET}": "*",
    "\N{MIDDLE DOT}": ".",
    "\N{HORIZONTAL ELLIPSIS}": "...",
    "\N{EN DASH}": "-",
    "\N{EM DASH}": "-",
    "\N{LEFT SINGLE QUOTATION MARK}": "'",
    "\N{RIGHT SINGLE QUOTATION MARK}": "'",
    "\N{LEFT DOUBLE QUOTATION MARK}": '"',
    "\N{RIGHT DOUBLE QUOTATION MARK}": '"',
}
_BOX_DRAWING, _BLOCKS = range(0x2500, 0x2580), range(0x2580, 0x25A0)
_LINES = {"─": "-", "━": "-", "═": "-", "│": "|", "┃": "|", "║": "|"}
_ESCAPED_BYTES = range(0xDC80, 0xDD00)  # how Python keeps bytes of a file name that is not UTF-8


def use_plain_text() -> None:
    """Let standard output and error replace what their encoding does not have, and never fail."""
    codecs.register_error(_HANDLER, _replace)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a test may have put something else there
            stream.reconfigure(errors=_HANDLER)


def can_show(text: str) -> bool:
    """Tell whether the encoding of standard output has all characters of a text."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _replace(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    part = error.object[error.start : error.end]
    if ord(part[0]) in _ESCAPED_BYTES:
        return bytes([ord(part[0]) - 0xDC00]), error.start + 1
    return "".join(map(_plain, part)), error.end


def _plain(character: str) -> str:
    """Give ASCII for one character.

    >>> "".join(map(_plain, "41 µs ±3%, Größe, ├─┤, 参"))
    '41 us ~3%, Gro?e, +-+, ?'
    """
    if character.isascii():
        return character
    if character in _REPLACEMENTS:
        return _REPLACEMENTS[character]
    if ord(character) in _BOX_DRAWING:
        return _LINES.get(character, "+")
    if ord(character) in _BLOCKS:
        return "#"
    # A letter without its accents.
    base = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return base or "?"
