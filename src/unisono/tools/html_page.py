"""HTML pages of commands: one file each, which needs no network and no other file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources

__all__ = ["fill_page", "page_part"]


def page_part(package: str, name: str) -> str:
    """Return a file of the folder `page_parts` of a package."""
    return (resources.files(package) / "page_parts" / name).read_text("utf-8")


def fill_page(package: str, values: Mapping[str, str]) -> str:
    """Return the package's page with a value in the place of each `{{name}}`: title, style, others.

    In one pass, so that nothing inside a value is taken for a place.
    """
    page = page_part("unisono.tools", "head.html") + page_part(package, "page.html")
    return re.sub(r"\{\{(\w+)\}\}", lambda place: values[place[1]], page)
