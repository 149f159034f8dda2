"""The page that `unisono port --report` writes: decisions beside the lines, as text only."""

from __future__ import annotations

import html.parser
from pathlib import Path

import pytest

from tests.helpers.browser import Browser, why_no_browser
from tests.helpers.contrast import LEGIBLE, lowest_contrast
from unisono.cli import main

pytest.importorskip("libcst", reason="libcst is not installed")
in_a_browser = pytest.mark.skipif(bool(why_no_browser()), reason=why_no_browser() or "none")

TRAIN = """\
import torch
import torch.distributed as dist


def average(loss):
    dist.all_reduce(loss)  # </script><img src=x onerror=alert(1)>{{files}}&amp;\x1b[2J
    count = torch.ones(1)
    dist.all_reduce(count)
    return loss / count


def start(handles, x, y):
    handles.append(dist.all_reduce(x, async_op=True))
    handles.append(dist.all_reduce(y, async_op=True))
"""
OTHER = """\
from torch import distributed

print(distributed.get_rank())
"""
#: Elements that have no end tag.
VOID = {"meta", "input"}


def write_report(folder: Path) -> Path:
    """A program of two files, one that is no Python and one without a collective; its report."""
    program = folder / "program"
    program.mkdir()
    for name, text in {
        "<b>.py": OTHER,
        "train.py": TRAIN,
        "broken.py": "def f(:\n",
        "plain.py": "print(1)\n",
    }.items():
        (program / name).write_text(text)
    report = folder / "report.html"
    assert main(["port", "--to", "mindspore", "--report", str(report), str(program)]) == 1
    return report


class Markup(html.parser.HTMLParser):
    """Checks that elements end in the right order, and collects their text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.count: dict[str, int] = {}
        self.hunks: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        assert not set(given) & {"src", "onerror", "onload"}
        assert given.get("href", "#").startswith("#")
        self.count[tag] = self.count.get(tag, 0) + 1
        self.open += [] if tag in VOID else [tag]
        self.hunks += [""] if tag == "article" else []

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "article" in self.open:
            self.hunks[-1] += data


def test_what_comes_from_the_program_is_text(tmp_path: Path) -> None:
    text = write_report(tmp_path).read_text()
    page = Markup(text)
    assert (page.count["script"], page.count["b"]) == (1, 3 + 5)  # the filter, and the decisions
    assert "img" not in page.count and "\x1b" not in text
    (loss,) = [hunk for hunk in page.hunks if "'loss' is an argument" in hunk]
    assert loss.count("</script><img src=x onerror=alert(1)>{{files}}&amp;?[2J") == 2


def test_each_decision_stands_at_its_lines_before_and_after(tmp_path: Path) -> None:
    hunks = Markup(write_report(tmp_path).read_text()).hunks
    (count,) = [hunk for hunk in hunks if "line 8" in hunk]
    before, after = count.partition("before")[2].split("after")
    assert before.strip() == "dist.all_reduce(count)"
    assert after.strip() == "count, _ = comm_func.all_reduce(count)"
    left = [hunk for hunk in hunks if hunk.startswith("leave")]
    assert len(left) == 2  # though one line follows the other
    for hunk in left:
        before, after = hunk.partition("before")[2].split("after")
        assert after.count("# unisono port: left as it is: it is not plain to see where") == 1
        assert before.strip() in after
    assert sum(hunk.startswith("goes with the decisions") for hunk in hunks) == 2  # imports


def test_a_program_without_collectives(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("print(1)\n")
    report = tmp_path / "report.html"
    assert main(["port", "--to", "torch", "--report", str(report), str(tmp_path)]) == 0
    assert "0 uses in 0 files; 0 files to change; 0 left for a person" in report.read_text()
    Markup(report.read_text())


@in_a_browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_the_page_fits_the_screen_and_is_legible(tmp_path: Path, width: int, dark: bool) -> None:
    with Browser(tmp_path, width, 800, touch=width == 360, dark=dark) as browser:
        browser.open(write_report(tmp_path))
        text = browser.ask("document.body.innerText")
        assert "5 uses in 2 files; 2 files to change; 2 left for a person; 1 file not read" in text
        assert "broken.py:1: invalid syntax" in text
        assert browser.ask("document.documentElement.scrollWidth") <= width
        left, right = browser.ask(
            "[...document.querySelectorAll('.hunk .side')].slice(0, 2)"
            ".map(each => each.getBoundingClientRect().y)"
        )
        assert (left == right) == (width == 1280)
        contrast = lowest_contrast(browser, "body")
        assert contrast[0] >= LEGIBLE, contrast
        # Nothing is cut off: what is too long breaks.
        wide = (
            "[...document.querySelectorAll('.hunk *')].filter(e => e.scrollWidth > e.clientWidth)"
        )
        assert browser.ask(f"{wide}.filter(e => e.clientWidth).map(e => e.innerText)") == []
        assert browser.errors == []


@in_a_browser
def test_decisions_are_filtered_by_verdict(tmp_path: Path) -> None:
    visible = (
        "[...document.querySelectorAll('.hunk')].filter(each => each.offsetHeight)"
        ".map(each => each.querySelector('.verdict')?.innerText ?? 'import')"
    )
    every = ["import", "rewrite", "import", "copy back", "rewrite", "leave", "leave"]
    with Browser(tmp_path, 1280, 800) as browser:
        browser.open(write_report(tmp_path))
        assert browser.ask(visible) == every
        for kind in ("rewrite", "copy"):
            browser.ask(f"document.querySelector('#filter input[value={kind}]').click()")
        assert browser.ask(visible) == ["leave", "leave"]
        files = "[...document.querySelectorAll('.file')].map(each => each.offsetHeight > 0)"
        assert browser.ask(files) == [False, True]
        for kind in ("rewrite", "copy"):
            browser.ask(f"document.querySelector('#filter input[value={kind}]').click()")
        assert browser.ask(visible) == every
