"""What the page about moving code shows is what becomes of it."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("libcst")

from unisono.port.port import port_source

PAGE = (Path(__file__).parents[2] / "docs/port.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
HEAD = "import torch\nimport torch.distributed as dist\ndef function(x, n, params):\n"


def ported(block: str) -> str:
    text = port_source(HEAD + textwrap.indent(block, "    "), "mindspore:comm_func")
    return textwrap.dedent(text.partition("params):\n")[2])


def test_a_list_that_is_only_joined() -> None:
    assert ported(BLOCKS[0]).startswith("out, _ = comm_func.all_gather_into_tensor(x)")


def test_handles_in_a_list() -> None:
    assert ported(BLOCKS[1]) == BLOCKS[2]
    assert len(BLOCKS) == 3
