"""Finds engines by entry point and picks one; the core imports none of them by name.

It also says how to install what an engine, or another part, would need.
"""

from __future__ import annotations

import os
import re
import shlex
from importlib.metadata import EntryPoint, entry_points, requires

from unisono.core.engine import Engine
from unisono.core.environment import Launch
from unisono.errors import ArgumentError, LaunchError

__all__ = ["available", "choose", "companion", "install_command", "load", "names"]


def names() -> list[str]:
    """The engines that are installed, whether or not they run here."""
    return sorted(_points())


def load(name: str) -> type[Engine]:
    """Import the engine called `name`; what follows a colon is one of its kinds.

    >>> load("threads").name
    'threads'
    """
    points = _points()
    base, colon, detail = name.partition(":")
    if base not in points:
        raise ArgumentError(f"no engine {name!r}; installed: {', '.join(sorted(points))}")
    try:
        engine: type[Engine] = points[base].load()
    except (ImportError, AttributeError) as error:
        raise LaunchError(f"engine {name!r} cannot be imported: {error}") from error
    return engine.variant(detail) if colon else engine


def available() -> dict[str, str | None]:
    """Each installed engine with the reason why it cannot run here, or None."""
    reasons: dict[str, str | None] = {}
    for name in names():
        try:
            reasons[name] = load(name).unavailable()
        except LaunchError as error:
            reasons[name] = str(error)
    return reasons


def choose(name: str | None, launch: Launch) -> type[Engine]:
    """Pick the engine: by `name`, by UNISONO_ENGINE, or by where the ranks are."""
    name = name or os.environ.get("UNISONO_ENGINE") or None
    picked = name or ("shm" if launch.one_host else "hybrid")
    if picked.partition(":")[0] not in _points() and name is None:
        raise LaunchError(
            f"the {launch.size} ranks are on several hosts and engine {picked!r} is not installed; "
            "start them on one host, or name an engine with UNISONO_ENGINE"
        )
    engine = load(picked)
    reason = engine.unavailable()
    if reason is not None:
        raise LaunchError(f"engine {picked!r} cannot run here: {reason}")
    return engine


def companion(engine: Engine, device: str, apart: str | None = None) -> Engine | None:
    """Make the engine that reaches the memory of `device` for the ranks of another one.

    None if there is no such engine, or none that runs here. `apart`: see `Engine.beside`.
    """
    for name in names():
        found = load(name)
        if found.stands_on == engine.name and device in found.devices:
            return found.beside(engine, apart) if found.unavailable() is None else None
    return None


def install_command(*packages: str) -> str:
    """What to type to install packages that unisono can use, in the versions that it can use.

    It names them and no extra of unisono's: that would work only where an index has unisono.

    >>> install_command("mpi4py", "mpich")
    "pip install 'mpi4py>=4' mpich"
    """
    versions: dict[str, str] = {}
    for requirement in requires("unisono") or ():
        match = re.match(r"([\w.-]+)([^;\s]*)", requirement)
        assert match is not None
        versions.setdefault(match[1], match[2])
    return shlex.join(["pip", "install", *(name + versions.get(name, "") for name in packages)])


def _points() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group="unisono.engines")}
