"""What the tables of `unisono bench` share in reading their arguments and writing their figures."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unisono.core.registry import install_command
from unisono.errors import ArgumentError

__all__ = ["STDOUT", "need_torch", "one_number", "parse_size", "split_names", "write_json"]

#: The file of `--json` without a file: print the object and nothing else.
STDOUT = "-"


def split_names(text: str, allowed: Sequence[str], kind: str) -> list[str]:
    """Split a comma-separated list, and refuse a name that is not `allowed`.

    >>> split_names("reduce,barrier", ("barrier", "reduce"), "collective")
    ['reduce', 'barrier']
    """
    names = list(dict.fromkeys(name for name in text.split(",") if name))
    for name in names:
        if name not in allowed:
            raise ArgumentError(f"no {kind} {name!r}; there are {', '.join(allowed)}")
    return names


def parse_size(text: str) -> int:
    """Read a number of bytes.

    >>> parse_size("64K")
    65536
    """
    match = re.fullmatch(r"(\d+)([KMG]?)", text.strip().upper())
    size: int = int(match[1]) << 10 * " KMG".index(match[2] or " ") if match else 0
    if size < 4:
        raise ArgumentError(f"{text!r} is not a size of 4 bytes or more; write 8, 64K, 1M")
    return size


def one_number(ranks: Sequence[int], table: str) -> int:
    """Return the number of ranks of a table that has only one."""
    if len(ranks) != 1:
        raise ArgumentError(f"`bench {table}` has one number of ranks; give -n {ranks[0]}")
    return ranks[0]


def need_torch(what: str) -> None:
    """Refuse `what` where torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise ArgumentError(f"{what} needs torch: {install_command('torch')}")


def write_json(found: dict[str, Any], file: str) -> None:
    """Write the figures to a file, or print them."""
    text = json.dumps(found, indent=2)
    if file == STDOUT:
        print(text)
        return
    try:
        Path(file).write_text(text + "\n")
    except OSError as error:
        raise ArgumentError(f"--json {file} cannot be written: {error}") from error
