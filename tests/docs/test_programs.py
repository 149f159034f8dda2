"""The programs of the tutorial and of the guides run, and print what the pages show."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.paths import mindspore_python
from tests.helpers.thorough import essential

DOCS = Path(__file__).parents[2] / "docs"
DEADLINE = 100
FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
PAGES = ("torch-to-mindspore", "tutorial", "ascend-on-a-laptop")
#: What these tests cannot run: installing, and launchers of clusters.
NOT_RUN = ("pip ", "unisono doctor", "torchrun ", "unisono patch ")


def blocks(page: str) -> list[tuple[str, str, str]]:
    """Language, title and text of each block of a page."""
    return FENCE.findall((DOCS / page).read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", essential(1, PAGES))
def test_programs_print_what_the_page_shows(page: str, tmp_path: Path) -> None:
    ran = 0
    for language, title, text in blocks(f"{page}.md"):
        if title:
            (tmp_path / title).write_text(text, encoding="utf-8")
        elif language == "console":
            command, *shown = text.splitlines()
            if not command.removeprefix("$ ").startswith(NOT_RUN):
                check(command.removeprefix("$ "), shown, tmp_path)
                ran += 1
    assert ran >= 2


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
