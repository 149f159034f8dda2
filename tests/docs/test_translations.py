"""Each page that people write is there in both languages, with the same parts.

The programs of pages are run from the English ones only (tests/test_docs.py, test_programs.py and
others), because the Chinese pages show the same. Derived pages have both languages from one source.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NAVIGATION = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
NAMED = re.findall(r" ([\w-]+)\.md$", NAVIGATION, re.MULTILINE)
PAGES = [name for name in NAMED if (DOCS / f"{name}.md").exists()]
FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)


def parts(path: Path) -> dict[str, Any]:
    """What a page and its translation have in common."""
    text = path.read_text(encoding="utf-8")
    prose = FENCE.sub("(code)", text)
    return {
        "code blocks": [block[0] for block in FENCE.finditer(text)],
        "levels of headings": re.findall(r"^#+(?= )", prose, re.MULTILINE),
        "paragraphs": len(re.findall(r"\n\n+", prose.strip())),
        "rows of tables": len(re.findall(r"^\|", prose, re.MULTILINE)),
        "items of lists": len(re.findall(r"^ *(?:-|\d+\.) ", prose, re.MULTILINE)),
        # Headings that links lead to have the same anchor in both languages: `## 调优 { #tuning }`.
        "links": sorted(re.findall(r"\]\(([^)]+)\)", prose.replace(".zh.md)", ".md)"))),
    }


def test_every_written_page_is_in_the_navigation() -> None:
    assert set(PAGES) == {path.name.partition(".")[0] for path in DOCS.glob("*.md")}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_the_same_parts_in_both_languages(page: str) -> None:
    chinese = DOCS / f"{page}.zh.md"
    assert chinese.exists(), f"no Chinese version of {page}.md"
    assert parts(chinese) == parts(DOCS / f"{page}.md")
