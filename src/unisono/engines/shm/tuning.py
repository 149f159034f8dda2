"""What `unisono bench --tune` has measured on this machine: a file in the cache folder.

It says for which shares ranks should read each other's memory (one copy) instead of staging through
the segment (two copies), by verb and number of ranks. A share is what one rank gives or gets: the
whole message of all_reduce, reduce and broadcast, one n-th of the larger buffer elsewhere.

    {"schema": 1, "machine": {"cpu": "...", "cores": 16},
     "single_copy": {"all_gather": {"2": {"from": 32768, "below": null}}}}

Rank 0 reads it when a job starts, and tells the others, so that all ranks go the same way.
"""

from __future__ import annotations

import json
import os
import platform
import re
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from unisono.core import environment

__all__ = ["CopyRange", "file", "for_ranks", "machine", "read", "setting", "write"]

_SCHEMA = 1

#: A verb and a number of ranks, with the shares for which one copy is faster.
_Ranges = dict[tuple[str, int], "CopyRange"]


class CopyRange(NamedTuple):
    """Bytes of a share for which one copy is faster: from `first` (None: never), below `below`."""

    first: int | None
    below: int | None = None

    def __contains__(self, share: object) -> bool:
        return (
            isinstance(share, int)
            and self.first is not None
            and share >= self.first
            and (self.below is None or share < self.below)
        )


def machine() -> dict[str, Any]:
    """Tell which machine this is: figures that were measured on another one mean nothing here."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    model = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", text, re.MULTILINE)
    return {"cpu": model[1].strip() if model else platform.machine(), "cores": os.cpu_count()}


def file(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the file."""
    return environment.cache_folder(environ) / "tuning.json"


def read(path: Path | None = None) -> _Ranges:
    """Return what was measured on this machine; nothing if nobody has, or on another one only."""
    path = file() if path is None else path
    try:
        found = json.loads(path.read_text())
        if (found["schema"], found["machine"]) != (_SCHEMA, machine()):
            return {}
        return {
            (str(verb), int(ranks)): CopyRange(_size(given["from"]), _size(given["below"]))
            for verb, by_ranks in found["single_copy"].items()
            for ranks, given in by_ranks.items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        # A job can run without it, so it is no error.
        warnings.warn(
            f"{path} is ignored, because it cannot be read ({type(error).__name__}: {error}); "
            "run `unisono bench --tune` again, or delete it",
            RuntimeWarning,
            stacklevel=2,
        )
        return {}


def write(ranges: Mapping[tuple[str, int], CopyRange], path: Path | None = None) -> Path:
    """Store what was measured on this machine, as a whole or not at all, and return the path."""
    path = file() if path is None else path
    single_copy: dict[str, dict[str, Any]] = {}
    for (verb, ranks), (first, below) in sorted(ranges.items()):
        single_copy.setdefault(verb, {})[str(ranks)] = {"from": first, "below": below}
    text = json.dumps(
        {"schema": _SCHEMA, "machine": machine(), "single_copy": single_copy}, indent=2
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as written:
        written.write(text + "\n")
    Path(written.name).replace(path)
    return path


def for_ranks(
    ranges: Mapping[tuple[str, int], CopyRange], verb: str, ranks: int
) -> CopyRange | None:
    """Return the range of a verb as measured with this many ranks, or with the next larger number.

    >>> measured = {("broadcast", 2): CopyRange(65536), ("broadcast", 8): CopyRange(131072)}
    >>> for_ranks(measured, "broadcast", 5)
    CopyRange(first=131072, below=None)
    """
    larger = [n for name, n in ranges if name == verb and n >= ranks]
    return ranges[verb, min(larger)] if larger else None


def setting(ranges: Mapping[tuple[str, int], CopyRange], ranks: int) -> str:
    """What was measured for this many ranks, as a value of UNISONO_SINGLE_COPY; "" for nothing.

    >>> setting({("broadcast", 2): CopyRange(131072)}, 2)
    'broadcast/2=131072,broadcast/slow=131072,broadcast/shared=131072'
    """
    largest = next((str(most) for most in (2, 4, 8, 16) if ranks <= most), "more")
    entries = []
    for verb in sorted({verb for verb, _ in ranges}):
        found = for_ranks(ranges, verb, ranks)
        if found is not None:
            below = "" if found.below is None or not found.first else f"-{found.below}"
            # Slow kernels and shared cores have defaults of their own, but this was measured.
            names = (largest, "slow", "shared")
            entries += [f"{verb}/{name}={found.first or 0}{below}" for name in names]
    return ",".join(entries)


def _size(value: object) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    raise ValueError(f"{value!r} is not a number of bytes")
