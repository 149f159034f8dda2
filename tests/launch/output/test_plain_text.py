"""Every command on a terminal without UTF-8: readable, and never an error of an encoding."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.launcher import UNISONO
from tests.helpers.processes import DEADLINE
from tests.helpers.thorough import essential, essential_rows

ENCODINGS = ["ascii", "latin-1"]


def call(encoding: str, *arguments: str, **options: str) -> subprocess.CompletedProcess[bytes]:
    variables = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": encoding, **options}
    return subprocess.run(
        [*UNISONO, *arguments],
        capture_output=True,
        timeout=4 * DEADLINE,
        env={**os.environ, **variables},
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    essential_rows(
        3,
        [
            ("bench --sizes 8,64K --rounds 2 --seconds 0.01", "us ~"),
            ("diff all_reduce --lang zh", "Combine the tensors of all ranks"),
            ("diff --lang zh", "Combine the tensors of all ranks"),
            ("bench faces --rounds 2 --seconds 0.01", "us per call"),
            ("demo", "all_reduce"),
            ("doctor --gaps", "fine: "),
            ("top", ""),
            ("--help", "start a script"),
        ],
    ),
)
def test_a_command(arguments: str, expected: str) -> None:
    done = call("ascii", *arguments.split())
    assert expected in done.stdout.decode("ascii"), done.stderr
    assert b"Unicode" not in done.stderr
    if "zh" in arguments:
        assert b"cannot show Chinese (its encoding is ascii)" in done.stderr
        assert done.returncode == 0


def test_an_encoding_that_has_some_of_it() -> None:
    done = call("latin-1", "bench", "--sizes", "8,64K", "--rounds", "2", "--seconds", "0.01")
    assert "µs ±" in done.stdout.decode("latin-1"), done.stderr


@pytest.mark.parametrize("encoding", essential(1, ENCODINGS))
def test_json_keeps_every_character(encoding: str) -> None:
    plain = call(encoding, "diff", "all_reduce", "--json")
    found = json.loads(plain.stdout.decode("ascii"))
    assert found == json.loads(call("utf-8", "diff", "all_reduce", "--json").stdout)
    assert not str(found).isascii()


@pytest.mark.parametrize("encoding", essential(1, ENCODINGS))
def test_lines_of_ranks_pass_through_as_they_are(encoding: str, tmp_path: Path) -> None:
    script = tmp_path / "größe.py"
    script.write_text(
        "import os\nos.write(1, 'µ → 参数 ✓\\n'.encode())\nos.write(1, b'\\xff\\n')\n"
        "raise ValueError('größe µ 参')\n",
        encoding="utf-8",
    )
    done = call(encoding, "run", "-n", "1", str(script))
    lines = done.stdout.splitlines()
    assert lines == ["[0] µ → 参数 ✓".encode(), b"[0] \xff"]
    assert b"ValueError: gr" in done.stderr
    assert b"Unicode" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(b"unisono: rank 0 of 1 failed")
    assert done.returncode == 1


def test_a_file_name_that_is_no_text() -> None:
    """Python keeps its bytes as characters that no encoding has."""
    program = (
        "import os; from unisono.launch.output.plain_text import use_plain_text; use_plain_text()\n"
        "print('name: ' + os.fsdecode(b'\\xff.py'))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=DEADLINE)
    assert done.stdout == b"name: \xff.py\n", done.stderr
