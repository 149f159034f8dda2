"""The example of docs/jax.md runs, and prints what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax", reason="JAX is not installed")

import unisono.jax as collectives

PAGE = (Path(__file__).parent.parent.parent / "docs/jax.md").read_text()


@pytest.mark.thorough
def test_the_example(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0])
    command = [sys.executable, "-m", "unisono", "run", "-n", "2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] 2.000", "[1] 2.000"]


def test_the_page_names_every_function():
    assert [name for name in collectives.__all__ if name not in PAGE] == []
