"""The texts of the derived pages, in both languages: texts.toml."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path
from typing import Any

__all__ = ["read", "texts"]


@functools.cache
def read() -> dict[str, Any]:
    """Return all texts, by section."""
    return tomllib.loads(Path(__file__).with_name("texts.toml").read_text(encoding="utf-8"))


def texts(section: str, language: str) -> dict[str, Any]:
    """Return one section in one language.

    >>> texts("picture", "en")["before"]
    'before'
    """
    found: Any = read()
    for key in section.split("."):
        found = found[key]
    return {key: text[language] for key, text in found.items()}
