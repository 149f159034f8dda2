"""The page that `unisono trace` writes: only data gets into it, and a real browser shows it."""

from __future__ import annotations

import html.parser
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.browser import Browser, why_no_browser
from tests.helpers.traces import trace_data
from unisono import cli

MILLISECOND = 1_000_000

in_a_browser = pytest.mark.skipif(bool(why_no_browser()), reason=why_no_browser() or "none")


def write_page(folder: Path, data: dict[str, Any]) -> Path:
    """Make the page of a trace."""
    path = folder / "trace.json"
    path.write_text(json.dumps(data))
    cli.main(["trace", str(path)])
    return path.with_suffix(".html")


def steps(ranks: int, failure: str | None = None) -> dict[str, Any]:
    """A trace of 200 steps of 1 ms; the last but one rank comes last; a timeout ends the run.

    Every other call is in a group of its own, the first half of the ranks or the second. The last
    rank does not come to the call that fails.
    """
    data = trace_data()
    fields = data["fields"]
    template = data["ranks"][0]["calls"][0]
    data["ranks"] = []
    for rank in range(ranks):
        calls = []
        for step in range(1, 201):
            call = dict(zip(fields, template, strict=True))
            late = 500_000 if rank == ranks - 2 else 0
            group = 0 if step % 2 else 1 + 2 * rank // ranks
            call.update(sequence=step, call=step, group=group, began=step * MILLISECOND + late)
            call.update(ended=step * MILLISECOND + 600_000, call_site=f"train.py:{step}")
            calls.append(call)
        if failure and rank < ranks - 1:
            began = 201 * MILLISECOND
            calls.append({**calls[0], "sequence": 201, "call": 201, "began": began})
            calls[-1].update(ended=began + 10 * MILLISECOND, state=failure, verb="barrier")
        rows = [list(call.values()) for call in calls]
        data["ranks"].append({"rank": rank, "pid": 10 + rank, "state": "running", "calls": rows})
    data.update(size=ranks, clock=220 * MILLISECOND, reason="CommTimeout: it has not come")
    return data


# ---- data and markup -----------------------------------------------------------------------------

EVIL = "</script><img src=x onerror=alert(1)><!--{{data}}&amp;\u2028\x1b[2J\udc80"


class Tags(html.parser.HTMLParser):
    """The tags of a page, and what its first script holds."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not {name for name, _ in attrs} & {"src", "href", "onerror"}, attrs

    def handle_data(self, text: str) -> None:
        if self.tags and self.tags[-1] == "script":
            self.scripts.append(text)


def evil(text: str) -> dict[str, Any]:
    """A trace in which every text tries to become markup."""
    data = trace_data()
    data["job"] = data["script"] = data["reason"] = data["written"] = text
    for rank in data["ranks"]:
        rank["state"] = text
        for name in ("verb", "dtype", "op", "call_site", "state"):
            rank["calls"][0][data["fields"].index(name)] = text
    return data


def test_nothing_of_the_file_is_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_page(tmp_path, evil(EVIL))
    shown = capsys.readouterr()
    assert shown.err == "" and "\x1b" not in shown.out
    page = Tags(path.read_text("utf-8"))
    assert "img" not in page.tags and page.tags.count("script") == 2
    held = json.loads(page.scripts[0])
    assert held["reason"] == EVIL and EVIL in held["texts"]


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    text = write_page(tmp_path, steps(3)).read_text("utf-8")
    assert "default-src 'none'" in text
    assert not re.search(r"https?://|//[a-z]+\.|@import|url\(", text)


@in_a_browser
def test_a_browser_shows_evil_texts_as_texts(tmp_path: Path) -> None:
    with Browser(tmp_path, 1000, 700) as browser:
        # A browser shows an unpaired surrogate, but cannot hand it out.
        browser.open(write_page(tmp_path, evil(EVIL[:-1])))
        assert "</script><img src=x" in browser.ask("document.body.innerText")
        assert browser.ask("document.querySelectorAll('img').length") == 0
        assert browser.errors == []


# ---- with a mouse and a keyboard -----------------------------------------------------------------


def window(browser: Browser) -> tuple[float, float]:
    """The part of the time that is shown, in milliseconds since the first call."""
    begin, end = browser.ask("[from, until]")
    return begin / MILLISECOND, end / MILLISECOND


def middle_of(browser: Browser, part: str, time: float, row: int | None = None) -> list[float]:
    """Where a time is on the page: on the map, or in a row."""
    place = f"{part}.getBoundingClientRect()"
    across = f"{'mapX' if part == 'map' else 'x'}({time * MILLISECOND})"
    down = "mapHeight / 2" if row is None else f"rows[{row}].top + rows[{row}].height / 2"
    return browser.ask(f"[{place}.left + {across}, {place}.top + {down}]")


def pixel(browser: Browser, canvas: str, across: str, down: str) -> list[int]:
    """The colour of a point."""
    point = f"Math.round({across}), Math.round({down}), 1, 1"
    return browser.ask(f"[...{canvas}.getContext('2d').getImageData({point}).data]")[:3]


def rgb(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)][:3]


@in_a_browser
def test_the_page_opens_at_the_failure(tmp_path: Path) -> None:
    with Browser(tmp_path, 1200, 800) as browser:
        browser.open(write_page(tmp_path, steps(4, "timeout")))
        assert browser.ask("document.title").startswith("train.py, 20")
        # The call that failed ran from 200 to 210 ms, and is more than half of what is shown.
        begin, end = window(browser)
        assert 180 < begin < 200 and 210 < end < 220
        bad = rgb(browser.ask("getComputedStyle(document.querySelector('td.bad')).color"))
        at = f"mapX({210 * MILLISECOND})"
        assert pixel(browser, "map", at, "mapHeight / 2") == pytest.approx(bad, abs=3)
        elsewhere = pixel(browser, "map", f"mapX({100 * MILLISECOND})", "mapHeight / 2")
        assert elsewhere != pytest.approx(bad, abs=30)

        # On the map the window can be dragged, and an edge of it.
        start = middle_of(browser, "map", (begin + end) / 2)
        browser.drag(start, middle_of(browser, "map", 100))
        moved = window(browser)
        assert sum(moved) / 2 == pytest.approx(100, abs=2)
        assert moved[1] - moved[0] == pytest.approx(end - begin)
        browser.drag(middle_of(browser, "map", moved[0]), middle_of(browser, "map", 50))
        assert window(browser) == pytest.approx((50, moved[1]), abs=2)
        # A click beside the window moves it there.
        browser.drag(*[middle_of(browser, "map", 20)] * 2)
        assert window(browser)[0] < 20 < window(browser)[1]

        # The keys, the wheel, and a call that is clicked.
        browser.key("0")
        assert window(browser)[0] < 0 and window(browser)[1] > 210
        browser.key("+")
        browser.key("ArrowLeft")
        begin, end = window(browser)
        assert end - begin < 120
        browser.key("f")
        assert 180 < window(browser)[0] < 200
        before = window(browser)
        place = middle_of(browser, "canvas", 205, 0)
        browser.mouse("mouseWheel", place, deltaX=0, deltaY=-300)
        browser.drawn()
        assert window(browser)[1] - window(browser)[0] < before[1] - before[0]
        browser.mouse("mouseMoved", place)
        assert "train.py:1" in browser.ask("tip.innerText")
        browser.drag(place, place)
        begin, end = window(browser)
        assert begin == pytest.approx(198.5, abs=0.1) and end == pytest.approx(211.5, abs=0.1)
        assert browser.errors == []


@in_a_browser
def test_waiting_and_subgroups(tmp_path: Path) -> None:
    with Browser(tmp_path, 1200, 800) as browser:
        browser.open(write_page(tmp_path, steps(4)))
        # Nothing failed: it opens at the last calls.
        begin, end = window(browser)
        assert 150 < begin < 190 and end > 199
        text = browser.ask("document.body.innerText")
        # Of 219 ms, three of the ranks wait 0.5 ms in each call of theirs with the third one.
        assert re.search(r"\n2\t0%\t.*\t200 of 200\t100 ms\t500 µs\n", text)
        assert re.search(r"\n3\t46%\t", text) and re.search(r"\n0\t23%\t", text)
        for group, ranks in ((1, "0, 1"), (2, "2, 3")):
            assert f"group {group}: ranks {ranks}" in text
        borders = "[...document.querySelectorAll('i.group')].map(getComputedStyle)"
        colours = [rgb(one) for one in browser.ask(f"{borders}.map(one => one.borderBottomColor)")]
        assert colours[0] != colours[1]
        browser.ask("look(194e6, 197e6)")
        browser.drawn()
        for rank in range(4):
            call = f"rows[{rank}].rank.calls[195]"
            assert browser.ask(f"read({call}, 'group')") == 1 + rank // 2
            place = f"box(rows[{rank}], {call})"
            found = pixel(
                browser, "canvas", f"{place}.right - 3", f"{place}.top + {place}.height - 2"
            )
            assert found == pytest.approx(colours[rank // 2], abs=3)
        assert browser.errors == []


# ---- with fingers --------------------------------------------------------------------------------


@pytest.mark.thorough
@in_a_browser
def test_fingers(tmp_path: Path) -> None:
    with Browser(tmp_path, 390, 700, touch=True) as browser:
        browser.open(write_page(tmp_path, steps(40, "timeout")))
        # It opens where the rank is that did not come, though that is far down.
        top = browser.ask("canvas.getBoundingClientRect().top + rows[39].top")
        assert 0 < top < 700 and browser.ask("scrollY") > 0
        assert browser.ask("document.documentElement.scrollWidth") <= 390

        # Up and down, a finger scrolls the page.
        seen = browser.ask("scrollY"), window(browser)
        browser.fingers(*([(250, 300 + 20 * step)] for step in range(12)))
        wait_for(browser, lambda: browser.ask("scrollY") < seen[0] - 50)
        assert window(browser) == seen[1]
        # Sideways, it moves the window.
        browser.fingers(*([(200 + 10 * step, 400)] for step in range(10)))
        begin, end = window(browser)
        assert begin < seen[1][0] and end - begin == pytest.approx(seen[1][1] - seen[1][0])
        # Two fingers that part zoom in, and what is under them stays there.
        under = [
            browser.ask(f"timeAt({x} - canvas.getBoundingClientRect().left)") for x in (200, 260)
        ]
        browser.fingers(*([(200 - 5 * step, 400), (260 + 5 * step, 420)] for step in range(13)))
        after = [
            browser.ask(f"timeAt({x} - canvas.getBoundingClientRect().left)") for x in (140, 320)
        ]
        assert after == pytest.approx(under, rel=1e-3)
        assert browser.ask("window.visualViewport.scale") == 1
        # A tap shows a call, and a second one zooms to it.
        browser.ask("look(200 * 1e6, 220 * 1e6)")
        browser.drawn()
        row = browser.ask("rows.findIndex(r => r.top + canvas.getBoundingClientRect().top > 300)")
        place = middle_of(browser, "canvas", 205, row)
        browser.fingers([place])
        assert not browser.ask("tip.hidden") and "barrier" in browser.ask("tip.innerText")
        before = window(browser)
        browser.fingers([place])
        assert window(browser) != before and window(browser)[0] == pytest.approx(198.5, abs=0.2)
        assert browser.errors == []


def wait_for(browser: Browser, condition: Callable[[], bool]) -> None:
    """Let the page draw until a condition is true."""
    for _ in range(200):
        if condition():
            return
        browser.drawn()
    raise AssertionError("it did not happen")
