"""The known gaps of engines: what one does not do that others do, and why. One shipped list."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

__all__ = ["Gap", "has", "of"]


@dataclass(frozen=True)
class Gap:
    """One thing that an engine does not do; `kind` is one word or two for programs."""

    engine: str
    kind: str
    what: str
    reason: str


def of(engine: str) -> list[Gap]:
    """The gaps of an engine; those of `torch` are also those of `torch:gloo`.

    >>> of("shm")
    []
    """
    base = engine.partition(":")[0]
    return [gap for gap in _all() if gap.engine == base]


def has(engine: str, kind: str) -> bool:
    """Whether an engine has a gap of this kind; an unknown kind is an error.

    >>> has("hybrid:torch", "rank order")
    True
    """
    if kind not in {gap.kind for gap in _all()}:
        raise LookupError(f"no engine has a gap of the kind {kind!r}")
    return any(gap.kind == kind for gap in of(engine))


@cache
def _all() -> tuple[Gap, ...]:
    text = files("unisono.engines").joinpath("gaps.toml").read_text(encoding="utf-8")
    return tuple(Gap(**entry) for entry in tomllib.loads(text)["gap"])
