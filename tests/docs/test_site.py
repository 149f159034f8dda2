"""The site, as it is built: links, no other hosts, and what a real browser shows."""

from __future__ import annotations

import functools
import html.parser
import http.server
import importlib.util
import os
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.browser import Browser, why_no_browser
from tests.helpers.contrast import LEGIBLE, lowest_contrast

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        importlib.util.find_spec("mkdocs") is None,
        reason="mkdocs is not installed; `make test-docs` runs this with .venv-docs",
    ),
]
in_a_browser = pytest.mark.skipif(bool(why_no_browser()), reason=why_no_browser() or "none")

ROOT = Path(__file__).parents[2]
DEADLINE = 300
PHONE = (360, 780)
DESKTOP = (1280, 900)
#: Tables, code and pictures that are wider than the screen, and in nothing that scrolls.
OUTSIDE = """
[...document.querySelectorAll('article :is(table, pre, svg, img)')].filter(each => {
  if (each.getBoundingClientRect().right <= innerWidth) return false;
  for (let box = each; box.tagName != 'ARTICLE'; box = box.parentElement)
    if (['auto', 'scroll'].includes(getComputedStyle(box).overflowX)) return false;
  return each.querySelector('code') === null }).map(each => each.outerHTML.slice(0, 80))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site; a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True,
        timeout=DEADLINE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Where a browser finds the site."""
    handler = functools.partial(_Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def pages(site: Path) -> list[Path]:
    found = sorted(site.rglob("index.html"))
    assert len(found) > 80
    return found


# ---- links ---------------------------------------------------------------------------------------


class _Page(html.parser.HTMLParser):
    """What a page refers to, what it loads, and its anchors."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.languages: dict[str, str] = {}  # the links of the language switch
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
            if "hreflang" in given:
                self.languages[given["hreflang"]] = given["href"]
        elif tag in ("img", "script") and "src" in given:
            self.loads.append(given["src"])
        elif tag == "link" and given.get("rel") in ("stylesheet", "icon", "preload"):
            self.loads.append(given["href"])


def test_no_link_is_broken(site: Path) -> None:
    parsed = {path: _Page(path) for path in pages(site)}
    broken = []
    for path, page in parsed.items():
        for link in [*page.links, *page.loads]:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme:
                continue
            # Not from the root of the host: the site may be in a folder of it.
            target = (path.parent / urllib.parse.unquote(parts.path)).resolve()
            target = target / "index.html" if target.is_dir() else target
            anchor = urllib.parse.unquote(parts.fragment)
            # Material's own script makes the anchors that begin with two underscores.
            known = target not in parsed or not anchor or anchor in parsed[target].anchors
            if not target.exists() or not (known or anchor.startswith("__")):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert broken == []


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for path in pages(site):
        for load in _Page(path).loads:
            assert not urllib.parse.urlsplit(load).netloc, f"{path}: {load}"
    for style in site.rglob("*.css"):
        assert "url(http" not in style.read_text(encoding="utf-8")


def test_every_page_is_there_in_both_languages(site: Path) -> None:
    every = {path.relative_to(site).as_posix() for path in pages(site)}
    chinese = {path.removeprefix("zh/") for path in every if path.startswith("zh/")}
    assert chinese == {path for path in every if not path.startswith("zh/")}


def test_the_language_switch_of_every_page_leads_to_the_same_page(site: Path) -> None:
    for path in pages(site):
        name = path.relative_to(site).as_posix().removeprefix("zh/")
        found = {
            language: (path.parent / target / "index.html").resolve()
            for language, target in _Page(path).languages.items()
        }
        assert found == {"en": site / name, "zh": site / "zh" / name}, path


# ---- in a browser --------------------------------------------------------------------------------


@in_a_browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_pages_load_fit_the_screen_and_are_legible(
    site: Path, address: str, size: tuple[int, int], dark: bool, tmp_path: Path
) -> None:
    with Browser(tmp_path, *size, touch=size == PHONE, dark=dark) as browser:
        # A phone shows all pages; what goes wrong only on a wide screen, goes wrong on many.
        for path in pages(site)[:: 1 if size == PHONE else 6]:
            name = path.parent.relative_to(site).as_posix().removeprefix(".")
            browser.open(f"{address}{urllib.parse.quote(name)}{'/' if name else ''}")
            assert browser.ask("document.querySelector('h1').innerText.length") > 1, name
            assert browser.ask("document.documentElement.scrollWidth") <= size[0], name
            assert browser.ask("document.querySelector('article').innerText.length") > 100, name
            assert browser.ask(OUTSIDE) == [], name
            contrast = lowest_contrast(browser, "article")
            assert contrast[0] >= LEGIBLE, (name, contrast)
        assert browser.errors == []


@in_a_browser
def test_small_words_of_pictures_are_legible_on_a_phone(address: str, tmp_path: Path) -> None:
    heights = (
        "[...document.querySelectorAll('svg.movement text')]"
        ".map(each => each.getBoundingClientRect().height)"
    )
    with Browser(tmp_path, *PHONE, touch=True) as browser:
        for name in ("all_reduce", "all_to_all", "barrier"):
            browser.open(f"{address}collectives/{name}/")
            assert min(browser.ask(heights)) >= 10, name
        for name in ("architecture", "bench"):  # these scroll
            browser.open(f"{address}{name}/")
            picture = "document.querySelector('article img')"
            assert browser.ask(f"{picture}.naturalWidth") > 0
            assert browser.ask(f"{picture}.getBoundingClientRect().width") >= 600


@in_a_browser
@pytest.mark.parametrize(
    ("language", "word", "found"),
    [
        ("", "all_to_all", "collectives/all_to_all/"),
        ("zh/", "all_to_all", "zh/collectives/all_to_all/"),
        ("zh/", "通信组", "zh/tutorial/"),
    ],
)
def test_the_search_finds_words_of_both_languages(
    address: str, language: str, word: str, found: str, tmp_path: Path
) -> None:
    with Browser(tmp_path, *DESKTOP) as browser:
        browser.open(f"{address}{language}")
        browser.ask(
            "(() => { const box = document.querySelector('.md-search__input'); box.focus();"
            f"box.value = '{word}';"
            "box.dispatchEvent(new Event('input', {bubbles: true}));"
            "box.dispatchEvent(new Event('keyup', {bubbles: true})); })()"
        )
        links = "[...document.querySelectorAll('.md-search-result__link')].map(each => each.href)"
        browser.until(f"{links}.some(each => each.startsWith('{address}{found}'))")
        assert browser.errors == []


@in_a_browser
def test_the_language_switch_keeps_the_page(address: str, tmp_path: Path) -> None:
    with Browser(tmp_path, *DESKTOP) as browser:
        browser.open(f"{address}collectives/reduce/")
        for language, path, word in (("zh", "zh/", "进程"), ("en", "", "rank")):
            browser.ask(f"document.querySelector('.md-select a[hreflang={language}]').click()")
            browser.until(
                f"document.readyState + location.href == "
                f"'complete{address}{path}collectives/reduce/'"
            )
            assert word in browser.ask("document.querySelector('article').innerText")


@in_a_browser
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_two_dialects_are_side_by_side_where_there_is_room(
    address: str, size: tuple[int, int], tmp_path: Path
) -> None:
    with Browser(tmp_path, *size, touch=size == PHONE) as browser:
        browser.open(f"{address}collectives/all_gather/")
        left, right = browser.ask(
            "[...document.querySelector('.grid').children]"
            ".map(each => { const box = each.getBoundingClientRect(); return [box.x, box.y] })"
        )
        assert (left[1] == right[1]) == (size == DESKTOP)
        picture = browser.ask(
            "(() => { const box = document.querySelector('svg.movement').getBoundingClientRect();"
            "return [box.left, box.right, box.height] })()"
        )
        assert picture[0] >= 0 and picture[1] <= size[0] and picture[2] > 50
