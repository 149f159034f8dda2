"""The examples in docstrings run, and give what they show."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import numpy as np
import pytest

import unisono
import unisono.torch.distributed as dist
from unisono import mapping
from unisono.mindspore import ops
from unisono.mindspore.communication import comm_func
from unisono.mindspore.mint import distributed as mint
from unisono.mindspore.ops import communication

#: These need MindSpore, and have no examples.
LEFT_OUT = "unisono.mindspore.integration."

MODULES = sorted(
    found.name
    for found in pkgutil.walk_packages(unisono.__path__, "unisono.")
    if not found.name.endswith(("__main__", "_native")) and not found.name.startswith(LEFT_OUT)
)


#: These need a framework, IPython or a host that is short of memory; or they are no function.
NO_EXAMPLE = {
    "__version__",
    "LaunchError",
    "OutOfSharedMemory",
    "RankFailed",
    "load_ipython_extension",
    "patch",
    "unload_ipython_extension",
}
#: The names that examples take as imported; the page of the API says so.
NAMES = {
    "np": np,
    "unisono": unisono,
    "dist": dist,
    "comm_func": comm_func,
    "communication": communication,
    "mint": mint,
    "ops": ops,
}


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNISONO_TRACE", "0")  # some examples fail, as they should
    assert doctest.testmod(importlib.import_module(name), extraglobs=NAMES).failed == 0


COLLECTIVES = [
    call.path
    for name, entry in mapping.load().items()
    if name != "groups"
    for call in entry.calls
    if call.name not in ("breakpoint", "P2POp")  # a debugger; batch_isend_irecv shows the other
]


@pytest.mark.parametrize("path", COLLECTIVES)
def test_every_collective_has_an_example(path: str) -> None:
    module, _, name = mapping.face_path(path).rpartition(".")
    assert ">>> " in getattr(importlib.import_module(module), name).__doc__


@pytest.mark.parametrize("name", [name for name in unisono.__all__ if name not in NO_EXAMPLE])
def test_every_name_of_the_package_has_an_example(name: str) -> None:
    assert ">>> " in getattr(unisono, name).__doc__
