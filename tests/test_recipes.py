"""The programs of docs/recipes.md, with the libraries that they are for: `make test-recipes`."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PAGE = (Path(__file__).parent.parent / "docs/recipes.md").read_text()
#: A program, and the command that starts it.
RECIPES = re.findall(
    r"\n```python\n# (\w+)\.py\n(.*?)```\n\n```console\n\$ unisono (.*?)\n```\n", PAGE, re.DOTALL
)
#: DeepSpeed compiles when it starts for the first time.
DEADLINE = 600


def run(folder: Path, name: str, program: str, command: str) -> None:
    """Run a program as the page says, and see that unisono has kept its ranks together."""
    for module in re.findall(r"^(?:import|from) (\w+)", program, re.MULTILINE):
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed; see the group recipes in pyproject.toml")
    (folder / f"{name}.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-m", "unisono", *shlex.split(command)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # The models begin with other weights on each rank, and get other data.
    weights = re.findall(r"^\[\d\] UnisonoGroup (\[\[.*\]\])$", done.stdout, re.MULTILINE)
    assert len(weights) == 2 and weights[0] == weights[1], done.stdout


def test_the_page_has_a_program_for_each_library() -> None:
    sections = re.findall(r"^## ", PAGE, re.MULTILINE)
    assert len(RECIPES) == len(sections) == PAGE.count("```python") == 5


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "program", "command"), RECIPES, ids=[row[0] for row in RECIPES])
def test_a_recipe(name: str, program: str, command: str, tmp_path: Path) -> None:
    run(tmp_path, name, program, command)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "program"),
    [row[:2] for row in RECIPES if "--patch" not in row[2]],
    ids=[row[0] for row in RECIPES if "--patch" not in row[2]],
)
def test_the_same_program_for_gloo(name: str, program: str, tmp_path: Path) -> None:
    """As it would be without unisono, and with a patch."""
    unchanged = re.sub(
        r'^dist\.init_process_group\("unisono"\).*\n', "", program, flags=re.MULTILINE
    )
    unchanged = unchanged.replace('"unisono"', '"gloo"')
    assert unchanged != program and "unisono" not in unchanged
    run(tmp_path, name, unchanged, f"run -n 2 --patch torch {name}.py")
