"""The programs of the tutorial and of the guides run, and print what the pages show."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import hosts
from tests.helpers.paths import mindspore_python
from tests.helpers.thorough import essential

DOCS = Path(__file__).parents[2] / "docs"
DEADLINE = 100
FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
PAGES = ("torch-to-mindspore", "tutorial", "ascend-on-a-laptop")
#: Installing; torchrun runs below on two hosts, and `unisono patch` in tests/mindspore/upstream.
NOT_RUN = ("pip ", "torchrun ", "unisono patch ")


def blocks(page: str) -> list[tuple[str, str, str]]:
    """Language, title and text of each block of a page."""
    return FENCE.findall((DOCS / page).read_text(encoding="utf-8"))


def commands(text: str) -> list[tuple[str, list[str]]]:
    """Each command of a block, and the lines that the block shows after it."""
    pieces = [piece.splitlines() for piece in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]]
    return [(command, shown) for command, *shown in pieces]


@pytest.mark.parametrize("page", essential(1, PAGES))
def test_programs_print_what_the_page_shows(page: str, tmp_path: Path) -> None:
    ran = 0
    for language, title, text in blocks(f"{page}.md"):
        if title:
            (tmp_path / title).write_text(text, encoding="utf-8")
        elif language == "console":
            for command, shown in commands(text):
                if not command.startswith(NOT_RUN):
                    check(command, shown, tmp_path)
                    ran += 1
    assert ran >= 2


def test_the_tutorial_has_ten_steps_and_each_is_run() -> None:
    page = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    steps = re.split(r"^## \d+\. ", page, flags=re.MULTILINE)[1:]
    assert len(steps) == 10
    for step in steps:
        found = [each for each in FENCE.findall(step) if each[0] == "console"]
        ran = [command for each in found for command, _ in commands(each[2])]
        assert [command for command in ran if not command.startswith("pip ")], step


@pytest.mark.thorough
@pytest.mark.skipif(hosts.why_not() is not None, reason=str(hosts.why_not()))
def test_the_last_step_of_the_tutorial_runs_on_two_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="torchrun comes with torch")
    monkeypatch.chdir(tmp_path)
    found = blocks("tutorial.md")
    (program,) = [text for _, title, text in found if title == "total.py"]
    (tmp_path / "total.py").write_text(program, encoding="utf-8")
    steps = [
        step
        for language, _, text in found
        if language == "console"
        for step in commands(text)
        if step[0].startswith("torchrun ")
    ]
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # has torchrun
    variables = {"PATH": beside, "UNISONO_TRACE": "0"}
    with hosts.Hosts(2, names=("first-host", "second-host")) as cluster:
        started = [
            cluster.popen(host, ["sh", "-c", command], variables)
            for host, (command, _) in enumerate(steps)
        ]
        codes = [each.wait(DEADLINE) for each in started]
        assert codes == [0, 0], [each.err for each in started]
        # torchrun's ranks do not buffer: one may write between the other's line and its end.
        assert [each.out.replace("\n", "") for each in started] == [
            "".join(shown) for _, shown in steps
        ]


def check(command: str, shown: list[str], folder: Path) -> None:
    """Run a command; its lines may come in any order, and "..." stands for others."""
    words = shlex.split(command)
    environment = {**os.environ, "UNISONO_TRACE": "0"}
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    python = mindspore_python() if "mindspore" in words else sys.executable
    start = [python, "-m", "unisono"] if words[0] == "unisono" else [python]
    done = subprocess.run(
        [*start, *words[1:]], cwd=folder, env=environment, capture_output=True, text=True,
        timeout=DEADLINE, check=False,
    )  # fmt: skip
    lines = sorted((done.stdout + done.stderr).splitlines())
    fails = "wrong" in command
    assert (done.returncode != 0) == fails, lines
    wanted = [line for line in shown if line != "..."]
    if wanted == shown and "mindspore" not in words:  # MindSpore warns of this and that
        assert lines == sorted(wanted)
    assert set(wanted) <= set(lines), lines
