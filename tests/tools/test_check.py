"""`unisono check`: the table, JSON, SARIF, exit codes, and its speed."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from unisono.cli import main

PROGRAM = """\
import torch
import torch.distributed as dist

def step(loss, group):
    dist.all_reduce(loss, group=group)
    total = torch.zeros(2)
    dist.all_reduce(total)
    handles.append(dist.all_reduce(total, async_op=True))
    if dist.get_rank() == 0:
        dist.barrier()
"""
UTIL = """\
import torch.distributed as dist

def wait():
    dist.barrier()

def save(model):
    wait()
"""
MAIN = """\
import torch.distributed as dist
from util import save

def run(model, verbose):
    if dist.get_rank() == 0:
        save(model)
    if dist.get_rank() == 0 and verbose:
        save(model)
"""
CLEAN = "import torch.distributed as dist\nprint(dist.get_rank())\n"
DEADLINE = 60  # seconds, for 100,000 lines on a busy machine


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    main(["check", "--json", *arguments])
    return json.loads(capsys.readouterr().out)


def test_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "broken.py").write_text("def f(:\n")
    assert main(["check", str(tmp_path)]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "comm_func.all_reduce; port rewrites it, with a copy: the result is copied back" in out
    assert "'loss' is an argument of the function" in out
    assert "needs a person: the list 'handles' belongs to another function too" in out
    assert "hangs: only ranks with `dist.get_rank() == 0` (line 9) reach it" in out
    assert "broken.py:1: cannot be read: invalid syntax" in out
    assert "groups.new-tensor torch writes the result into an argument." in out
    assert "5 uses in 1 file: 3 to rewrite, 1 with a copy back, 1 for a person" in out


def test_nothing_to_worry_about(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "clean.py").write_text(CLEAN)
    assert main(["check", str(tmp_path)]) == 0
    assert "1 use in 1 file" in capsys.readouterr().out


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    found = answer(capsys, str(tmp_path))
    verdicts = [(use["line"], use["verdict"]) for use in found["uses"]]
    assert verdicts == [
        (5, "copy back"), (7, "rewrite"), (8, "leave"), (9, "rewrite"), (10, "rewrite")
    ]  # fmt: skip
    assert found["uses"][0]["column"] == 5
    assert found["uses"][-1]["some_ranks"].startswith("only ranks")
    assert set(found["uses"][0]["differences"]) <= set(found["differences"])
    found = answer(capsys, "--to", "mindspore:mint", str(tmp_path))
    assert {use["verdict"] for use in found["uses"]} == {"rewrite"}


def test_sarif(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "broken.py").write_text("def f(:\n")
    main(["check", "--sarif", str(tmp_path / "out.sarif"), str(tmp_path)])
    log = json.loads((tmp_path / "out.sarif").read_text())
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    known = {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    results = [
        (one["ruleId"], one["locations"][0]["physicalLocation"]["region"]["startLine"])
        for one in run["results"]
    ]
    assert {rule for rule, _ in results} <= known
    assert sorted(results) == [
        ("copy-back", 5), ("needs-a-person", 8), ("some-ranks", 10), ("unreadable", 1)
    ]  # fmt: skip


@pytest.fixture
def two_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "util.py").write_text(UTIL)
    (tmp_path / "main.py").write_text(MAIN)


@pytest.mark.usefixtures("two_files")
def test_a_collective_behind_calls_in_the_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["check", "main.py", "util.py"]) == 1
    out = capsys.readouterr().out
    assert all(len(line) <= 80 for line in out.splitlines())
    text = " ".join(out.split())
    assert (
        "6 save hangs: only ranks with `dist.get_rank() == 0` (line 5) reach it: "
        "save -> wait -> dist.barrier (util.py:4)"
    ) in text
    assert "2 collectives that some ranks may not reach" in text


@pytest.mark.usefixtures("two_files")
def test_a_collective_behind_calls_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = answer(capsys, "main.py", "util.py")["some_ranks"]
    assert first == {
        "file": "main.py",
        "line": 6,
        "column": 9,
        "name": "save",
        "reason": "only ranks with `dist.get_rank() == 0` (line 5) reach it",
        "certain": True,
        "collective": {
            "name": "torch.distributed.barrier",
            "file": "util.py",
            "line": 4,
            "column": 5,
        },
        "way": [
            {"function": "save", "file": "util.py", "line": 6},
            {"function": "wait", "file": "util.py", "line": 3},
        ],
    }
    assert (second["line"], second["certain"]) == (8, False)


@pytest.mark.usefixtures("two_files")
def test_a_collective_behind_calls_in_sarif() -> None:
    main(["check", "--sarif", "out.sarif", "main.py", "util.py"])
    (run,) = json.loads(Path("out.sarif").read_text())["runs"]
    results = [one for one in run["results"] if one["ruleId"] == "some-ranks"]
    assert [one["level"] for one in results] == ["error", "warning"]
    related = results[0]["relatedLocations"]
    places = [
        (
            one["id"],
            one["message"]["text"],
            one["physicalLocation"]["artifactLocation"]["uri"],
            one["physicalLocation"]["region"]["startLine"],
        )
        for one in related
    ]
    assert places == [
        (1, "save", "util.py", 6),
        (2, "wait", "util.py", 3),
        (3, "torch.distributed.barrier", "util.py", 4),
    ]


def test_sarif_has_what_the_standard_requires(tmp_path: Path) -> None:
    (tmp_path / "a file.py").write_text(PROGRAM)
    (tmp_path / "broken.py").write_text("def f(:\n")
    main(["check", "--sarif", str(tmp_path / "out.sarif"), str(tmp_path)])
    log = json.loads((tmp_path / "out.sarif").read_text())
    assert log["version"] == "2.1.0" and log["$schema"].endswith("sarif-2.1.0.json")
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] and isinstance(driver["version"], str)
    identifiers = [rule["id"] for rule in driver["rules"]]
    assert identifiers == ["some-ranks", "needs-a-person", "copy-back", "unreadable"]
    for one in run["results"]:
        assert one["ruleId"] in identifiers and one["message"]["text"]
        assert one["level"] in ("error", "warning", "note")
        for location in (*one["locations"], *one.get("relatedLocations", [])):
            place = location["physicalLocation"]
            assert " " not in place["artifactLocation"]["uri"]
            assert place["region"]["startLine"] >= 1 and place["region"]["startColumn"] >= 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["check", "nowhere"], "there is no file or folder nowhere"),
        (["check", "--to", "jax", "."], "no target 'jax'"),
        (["check", "--to", "mindspore", "--mindspore-version", "1.0", "."], "it has 2.3, 2.4"),
        (["check", "--mindspore-version", "1.0", "."], "it has 2.3, 2.4"),
        (["check", "--to", "unisono", "."], "see `unisono port --to unisono`"),
    ],
)
def test_wrong_usage(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert text in capsys.readouterr().err


def test_an_old_mindspore(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "send.py").write_text("import torch.distributed as d\nd.send(x, dst=1)\n")
    for target in (["--to", "mindspore"], []):
        old = answer(capsys, *target, "--mindspore-version", "2.3", str(tmp_path))
        assert old["uses"][0]["reason"] == (
            "mindspore.communication.comm_func.send exists since MindSpore 2.4, not in 2.3"
        )


def test_a_pipe_in_a_folder_is_no_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    assert main(["check", str(tmp_path)]) == 0
    assert "0 uses in 0 files" in capsys.readouterr().out


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other side is closed
        return b""


@pytest.mark.thorough
def test_a_hundred_thousand_lines(tmp_path: Path) -> None:
    """With a progress bar on a terminal, and in less than a minute."""
    body = PROGRAM.partition("\n\n")[2].replace("def step", "def step_{}")
    body += "    if group.rank() == 0:\n        step_{}(loss, group)\n"
    source = PROGRAM.partition("\n\n")[0] + "\n"
    source += "".join(body.format(n, max(n - 1, 0)) + "\n" for n in range(60))
    lines = source.count("\n")
    for number in range(100_000 // lines + 1):
        (tmp_path / f"module_{number}.py").write_text(source)
    ours, theirs = pty.openpty()
    with open(tmp_path / "answer.json", "w+") as answer:
        command = [sys.executable, "-m", "unisono", "check", "--json", str(tmp_path)]
        with subprocess.Popen(command, stdout=answer, stderr=theirs) as process:
            os.close(theirs)
            shown = b"".join(iter(lambda: _read(ours), b""))
            assert process.wait(DEADLINE) == 1
        answer.seek(0)
        found = json.load(answer)
    os.close(ours)
    assert found["lines"] >= 100_000 and found["leave"] == 60 * found["files"]
    assert b"[####" in shown
