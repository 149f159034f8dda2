"""What mkdocs calls before it builds: copy the documents, and add the pages that are derived.

The copy is needed because mkdocs-static-i18n takes pages from a folder only.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

from derived import api_page, collective_page, errors_page, sharp_edges_page
from mkdocs.utils import get_relative_url

from unisono import mapping

DOCS = Path(__file__).parent
TARGET = DOCS.parent / "build" / "site-source"
LANGUAGES = {"en": "", "zh": ".zh"}


def on_config(config: Any) -> Any:
    """Prepare the folder that the site is built from: once, for the builds of all languages."""
    if config.docs_dir != str(TARGET):
        os.environ["UNISONO_TRACE"] = "0"  # some examples fail on purpose
        prepare(TARGET)
        config.docs_dir = str(TARGET)
    return config


def on_serve(server: Any, config: Any, builder: Any) -> Any:
    """Watch what people edit, not the copy, which each build writes anew."""
    server.unwatch(str(TARGET))
    server.watch(str(DOCS))
    return server


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Correct what the theme and its languages make of a page.

    Material's script asks the server for a file at each `alternate` link, and expects one for each
    language; ours are those of the page, where there is none. On the first page the language switch
    leads to the root of the host, where the site need not be.
    """
    output = re.sub(r'<link rel="alternate"[^>]*>', "", output)
    return re.sub(
        r'href="/((?:zh/)?)" hreflang',
        lambda found: f'href="{get_relative_url(found[1] or ".", page.url)}" hreflang',
        output,
    )


def prepare(target: Path) -> None:
    """Write all pages into a folder."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(DOCS, target, ignore=shutil.ignore_patterns("*.py", "derived", "__pycache__"))
    for page in target.glob("*.md"):
        page.write_text(_other_language(page), encoding="utf-8")
    for path, text in derived_pages().items():
        (target / path).parent.mkdir(exist_ok=True)
        (target / path).write_text(text, encoding="utf-8")


def derived_pages() -> dict[str, str]:
    """Return the text of each derived page by its path."""
    pages = {}
    for language, suffix in LANGUAGES.items():
        pages[f"collectives/index{suffix}.md"] = collective_page.index_page(language)
        for name in mapping.load():
            pages[f"collectives/{name}{suffix}.md"] = collective_page.page(name, language)
        pages[f"api/index{suffix}.md"] = api_page.index_page(language)
        for name in api_page.modules():
            pages[f"api/{api_page.path(name)}{suffix}.md"] = api_page.page(name, language)
        pages[f"errors{suffix}.md"] = errors_page.page(language)
        pages[f"sharp-edges{suffix}.md"] = sharp_edges_page.page(language)
    return pages


def _other_language(page: Path) -> str:
    """Point links between a page and its translation to where mkdocs puts them.

    Within one language mkdocs takes both names for the same page.
    """
    text = page.read_text(encoding="utf-8")
    name = page.name.partition(".")[0]
    if page.name == f"{name}.zh.md":
        return re.sub(rf"\]\({name}\.md\)", f"](../../{name}/)", text)
    return re.sub(r"\]\(([\w-]+)\.zh\.md\)", r"](../zh/\1/)", text)
