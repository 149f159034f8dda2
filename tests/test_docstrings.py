"""The examples in docstrings run, and give what they show."""

from __future__ import annotations

import doctest
import functools
import importlib
import pkgutil
import subprocess
import sys

import numpy as np
import pytest
from derived import api_page

import unisono
import unisono.torch.distributed as dist
from unisono.mindspore import communication as comm
from unisono.mindspore import ops
from unisono.mindspore.communication import comm_func
from unisono.mindspore.mint import distributed as mint
from unisono.mindspore.ops import communication
from unisono.torch.distributed.nn import functional

#: These need MindSpore, and have no examples.
LEFT_OUT = "unisono.mindspore.integration."

MODULES = sorted(
    found.name
    for found in pkgutil.walk_packages(unisono.__path__, "unisono.")
    if not found.name.endswith(("__main__", "_native")) and not found.name.startswith(LEFT_OUT)
)


#: IPython calls these; the page on notebooks is run as one, with `%load_ext unisono`.
NO_EXAMPLE = {"load_ipython_extension", "unload_ipython_extension"}
#: The examples of these need torch.
WITH_TORCH = {"unisono.launch.patch", "unisono.torch.distributed.nn.functional"}
#: The pages of the API have the names of these modules.
PUBLIC = api_page.modules()
#: The names that examples take as imported; the page of the API says so.
NAMES = {
    "np": np,
    "unisono": unisono,
    "dist": dist,
    "functional": functional,
    "comm": comm,
    "comm_func": comm_func,
    "communication": communication,
    "mint": mint,
    "ops": ops,
}


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in WITH_TORCH:
        pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setenv("UNISONO_TRACE", "0")  # some examples fail, as they should
    if name == "unisono.launch.patch":
        run_apart(name)
    else:
        assert doctest.testmod(importlib.import_module(name), extraglobs=NAMES).failed == 0


def run_apart(name: str) -> None:
    """Run examples in a process of their own, because they change what other modules import."""
    program = (
        f"import doctest, unisono, {name}; print(doctest.testmod({name}, extraglobs=globals()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.startswith("TestResults(failed=0, attempted="), done.stdout + done.stderr


def documented(module: str) -> list[str]:
    """Functions and classes of a public module."""
    found = importlib.import_module(module)
    return [name for name in found.__all__ if callable(getattr(found, name))]


@functools.cache
def examples(module: str) -> dict[str, int]:
    """How many examples `test_examples` runs, by the name of what they are of."""
    found = doctest.DocTestFinder().find(importlib.import_module(module), extraglobs=NAMES)
    return {each.name: len(each.examples) for each in found}


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module in PUBLIC for name in documented(module)]
)
def test_every_public_name_has_an_example_that_is_run(module: str, name: str) -> None:
    value = getattr(importlib.import_module(module), name)
    home = value.__module__
    assert home in MODULES
    assert examples(home)[f"{home}.{value.__qualname__}"] > 0 or name in NO_EXAMPLE
