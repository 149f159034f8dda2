"""What ranks write is printed whole and labelled, while they run."""

from __future__ import annotations

import io
import sys
import threading
import time

import pytest

import unisono
from unisono.core import groups

KINDS = ["threads", "shm"]


def write(times: int) -> None:
    """Write lines in pieces, to both streams."""
    for _ in range(times):
        print("one", "two", sep=" - ", flush=True)
        sys.stderr.write("th")
        sys.stderr.write("ree\n")
    print("rest ü", end="")


@pytest.mark.parametrize("kind", KINDS)
def test_lines_are_whole_and_labelled(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout, sys.stderr
    with unisono.ranks(3, engine=kind) as ranks:
        ranks(write, 20)
        print("not a rank")
    assert (sys.stdout, sys.stderr) == before
    found = capsys.readouterr()
    out = found.out.splitlines()
    assert out.pop() == "not a rank"
    for rank in range(3):
        mine = [line for line in out if line.startswith(f"[{rank}] ")]
        assert mine == [f"[{rank}] one - two"] * 20 + [f"[{rank}] rest ü"]
        assert found.err.splitlines().count(f"[{rank}] three") == 20
    assert len(out) == 3 * 21


class _Watched(io.StringIO):
    """A stream that says when a text has been written to it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.seen = threading.Event()

    def write(self, text: str) -> int:
        count = super().write(text)
        if self.text in self.getvalue():
            self.seen.set()
        return count


def test_a_line_without_an_end_is_shown_while_the_rank_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = _Watched("[0] 10%")
    monkeypatch.setattr(sys, "stdout", stream)

    def work() -> bool:
        print("10%", end="")
        return stream.seen.wait(20)

    with unisono.ranks(1) as ranks:
        assert ranks(work) == [True]
    assert stream.getvalue() == "[0] 10%\n"


def test_lines_that_grow_are_not_repeated_all_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        for _ in range(8):
            print("x", end="")
            time.sleep(0.1)

    with unisono.ranks(2) as ranks:
        ranks(work)
    lines = capsys.readouterr().out.splitlines()
    assert {"[0] xxxxxxxx", "[1] xxxxxxxx"} <= set(lines)
    assert len(lines) < 8


def test_output_of_processes_is_live(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    stream = _Watched("[1] first")
    monkeypatch.setattr(sys, "stdout", stream)
    flag = f"{tmp_path}/flag"
    thread = threading.Thread(target=lambda: stream.seen.wait(20) and open(flag, "w").close())
    thread.start()
    source = "import os, time\nprint('first')\nend = time.monotonic() + 20\n"
    source += f"while not os.path.exists({flag!r}) and time.monotonic() < end: time.sleep(0.01)\n"
    source += f"os.path.exists({flag!r})"
    with unisono.ranks(2, engine="shm") as ranks:
        assert ranks.execute(source) == [True, True]
    thread.join()


def test_other_threads_print_as_before(capsys: pytest.CaptureFixture[str]) -> None:
    def in_another_thread() -> None:
        if groups.world().rank == 0:
            thread = threading.Thread(target=lambda: print("plain"))
            thread.start()
            thread.join()

    with unisono.ranks(2) as ranks:
        ranks(in_another_thread)
    assert capsys.readouterr().out == "plain\n"


def test_a_stream_that_cannot_show_a_character(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    with unisono.ranks(1) as ranks:
        ranks(print, "ü")
    assert raw.getvalue() == b"[0] \\xfc\n"


def test_ranks_that_write_faster_than_we_print(capsys: pytest.CaptureFixture[str]) -> None:
    def flood() -> None:
        for _ in range(20_000):
            sys.stdout.write("x\n")
        time.sleep(0)

    with unisono.ranks(2) as ranks:
        ranks(flood)
    assert capsys.readouterr().out.count("x\n") == 40_000
