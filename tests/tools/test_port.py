"""`unisono port`: the diff, `--write`, and what it says."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("libcst")

from unisono.cli import main

BEFORE = (
    "import torch\nimport torch.distributed as dist\n\n"
    "x = torch.ones(2)\ndist.all_reduce(x)  # sum\n"
)
AFTER = (
    "import torch\nfrom mindspore.communication import comm_func\n\n"
    "x = torch.ones(2)\nx, _ = comm_func.all_reduce(x)  # sum\n"
)
LEFT = "import torch.distributed as dist\ndist.monitored_barrier()\n"


def test_a_diff_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.py"
    path.write_text(BEFORE)
    assert main(["port", "--to", "mindspore", str(path)]) == 0
    out, error = capsys.readouterr()
    assert "-dist.all_reduce(x)  # sum\n+x, _ = comm_func.all_reduce(x)  # sum\n" in out
    assert error.startswith(
        "unisono: 1 file to change; 1 use rewritten, 0 with a copy back, 0 left"
    )
    assert path.read_text() == BEFORE


def test_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(b"\xef\xbb\xbf" + BEFORE.replace("\n", "\r\n").encode())
    path.chmod(0o755)
    assert main(["port", "--to", "mindspore", "--write", str(path)]) == 0
    assert path.read_bytes() == b"\xef\xbb\xbf" + AFTER.replace("\n", "\r\n").encode()
    assert path.stat().st_mode & 0o777 == 0o755
    assert main(["port", "--to", "mindspore", "--write", str(path)]) == 0
    assert "0 files changed" in capsys.readouterr().err


def test_what_stays_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "left.py").write_text(LEFT)
    (tmp_path / "broken.py").write_text("def f(:\n")
    assert main(["port", "--to", "mindspore", "--json", str(tmp_path)]) == 1
    out, error = capsys.readouterr()
    found = json.loads(out)
    assert found["files"][0]["uses"][0]["verdict"] == "leave"
    assert found["unreadable"][0]["line"] == 1
    assert "broken.py:1: skipped: invalid syntax" in error and "1 left" in error


@pytest.mark.parametrize(
    ("target", "text"),
    [("mindspore:nn", "mindspore:ops and unisono"), ("jax", "no target 'jax'; there are torch,")],
)
def test_wrong_targets(target: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["port", "--to", target, "."]) == 2
    assert text in capsys.readouterr().err


def test_files_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text(BEFORE)
    page = tmp_path / "nowhere/report.html"
    assert main(["port", "--to", "mindspore", "--report", str(page), str(tmp_path)]) == 2
    assert f"unisono: cannot write {page}: No such file or directory" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_stays_as_it_was(tmp_path: Path) -> None:
    long = BEFORE + 100 * "# a comment\n"
    for name, text in (("a.py", BEFORE), ("b.py", long), ("c.py", BEFORE)):
        (tmp_path / name).write_text(text)
    (tmp_path / "a.py").rename(tmp_path / "real.txt")
    (tmp_path / "a.py").symlink_to(tmp_path / "real.txt")
    command = [sys.executable, "-m", "unisono", "port", "--to", "mindspore", "--write", "."]
    done = subprocess.run(  # no file may have more than 1 KiB
        ["bash", "-c", 'ulimit -f 1; exec "$@"', "bash", *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.endswith(
        f"unisono: cannot write {tmp_path}/b.py: File too large; changed before it: a.py; "
        "no file after it\n"
    )
    assert (tmp_path / "real.txt").read_text() == AFTER and (tmp_path / "a.py").is_symlink()
    assert (tmp_path / "b.py").read_text() == long
    assert (tmp_path / "c.py").read_text() == BEFORE
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.py", "b.py", "c.py", "real.txt"]


def test_without_libcst(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["port", "--to", "torch", str(tmp_path)]) == 2
    assert "needs LibCST: pip install " in capsys.readouterr().err


def test_names_that_others_import_stay(tmp_path: Path) -> None:
    (tmp_path / "backend.py").write_text(
        "import torch.distributed as dist\n\ndef rank():\n    return dist.get_rank()\n"
    )
    (tmp_path / "train.py").write_text("from backend import dist\nprint(dist.get_world_size())\n")
    assert main(["port", "--to", "mindspore", "--write", str(tmp_path)]) == 0
    assert "import torch.distributed as dist\n" in (tmp_path / "backend.py").read_text()
    assert "return comm.get_rank()" in (tmp_path / "backend.py").read_text()
    assert (tmp_path / "train.py").read_text() == (
        "import mindspore.communication as comm\nprint(comm.get_group_size())\n"
    )


def test_a_terminal_gets_colour(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BEFORE)
    ours, theirs = pty.openpty()
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    subprocess.run(
        [sys.executable, "-m", "unisono", "port", "--to", "mindspore", str(tmp_path)],
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        env=environment,
        timeout=60,
        check=True,
    )
    os.close(theirs)
    assert "\x1b[32m+x, _ = comm_func.all_reduce(x)  # sum\x1b[0m" in os.read(ours, 65536).decode()
    os.close(ours)


def test_the_example_of_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (Path(__file__).parents[2] / "docs/port.md").read_text()
    shown = text.partition("$ cat train.py\n")[2].partition("\n```")[0]
    source, _, expected = shown.partition("$ unisono port --to mindspore train.py\n")
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(source)
    assert main(["port", "--to", "mindspore", "train.py"]) == 0
    assert "".join(capsys.readouterr()) == f"{expected}\n"


def test_what_is_nested_too_deeply_is_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(BEFORE)
    (tmp_path / "chain.py").write_text(BEFORE + "y = a" + ".b(1)" * 400 + "\n")
    (tmp_path / "sum.py").write_text(BEFORE + "dist.all_reduce(" + " + ".join("a" * 600) + ")\n")
    assert main(["port", "--to", "mindspore", "--write", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.count("skipped: an expression is nested too deeply") == 2
    assert (tmp_path / "train.py").read_text() == AFTER
    assert main(["check", str(tmp_path)]) == 1
    assert "sum.py:1: cannot be read: an expression is nested" in capsys.readouterr().out


def test_folders_and_paths_that_are_no_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder.py").mkdir()
    assert main(["check", str(tmp_path)]) == 0
    with pytest.raises(SystemExit, match="2"):
        main(["check", ""])
    assert "argument PATH: it is empty" in capsys.readouterr().err


def test_nothing_is_written_without_the_report(tmp_path: Path) -> None:
    path, report = tmp_path / "train.py", str(tmp_path / "no/report.html")
    path.write_text(BEFORE)
    assert main(["port", "--to", "mindspore", "--write", "--report", report, str(path)]) == 2
    assert path.read_text() == BEFORE
