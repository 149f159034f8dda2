"""What the tables of `unisono bench` share in reading their arguments."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from unisono.errors import ArgumentError

__all__ = ["PEERS", "need_torch", "split_names"]

#: What unisono can be measured against; all of them need torch.
PEERS = ("gloo",)


def split_names(text: str, allowed: Sequence[str], kind: str) -> list[str]:
    """Split a comma-separated list, and refuse a name that is not `allowed`.

    >>> split_names("reduce,barrier", ("barrier", "reduce"), "collective")
    ['reduce', 'barrier']
    """
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in allowed:
            raise ArgumentError(f"no {kind} {name!r}; there are {', '.join(allowed)}")
    return names


def need_torch(what: str) -> None:
    """Refuse `what` where torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise ArgumentError(f"{what} needs torch: pip install 'unisono[bench]'")
