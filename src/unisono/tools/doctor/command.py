"""`unisono doctor`: which engines and frameworks run here, and why not.

With --network every rank of a job runs it, and it is about the job; see `doctor_network`.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import unisono
from unisono.core import environment, registry
from unisono.engines import gaps
from unisono.errors import LaunchError

__all__ = ["configure", "examine", "main"]

#: The engine that one host gets unless somebody asks for another.
_DEFAULT_ENGINE = "shm"

#: Frameworks, with the distributions that may bring each of them.
_FRAMEWORKS = {
    "numpy": ("numpy",),
    "ml_dtypes": ("ml_dtypes",),
    "torch": ("torch",),
    "mindspore": ("mindspore",),
    "jax": ("jax",),
    "cupy": ("cupy", "cupy-cuda12x", "cupy-cuda13x"),
    "mpi4py": ("mpi4py",),
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `unisono doctor`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--network",
        action="store_true",
        help="in a job, by every rank: latency and bandwidth between its hosts",
    )


def main(arguments: argparse.Namespace) -> int:
    """Print the findings; return 1 if the default engine does not run here."""
    if arguments.network:
        from unisono.tools.doctor import network

        return network.main(arguments)
    findings = examine()
    if arguments.json:
        print(json.dumps(findings, indent=2))
    else:
        _print_table(list(_rows(findings)))
    return 0 if findings["engines"].get(_DEFAULT_ENGINE, {}).get("runs") else 1


def examine() -> dict[str, Any]:
    """Everything that doctor knows, as plain data."""
    return {
        "unisono": unisono.__version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "engines": {
            name: {
                "runs": reason is None,
                "reason": reason,
                "gaps": [{"what": gap.what, "reason": gap.reason} for gap in gaps.of(name)],
            }
            for name, reason in registry.available().items()
        },
        "frameworks": {name: _version(names) for name, names in _FRAMEWORKS.items()},
        "host": _host(),
        "launcher": _launcher(),
    }


def _version(distributions: tuple[str, ...]) -> str | None:
    # Metadata only: to import torch or mindspore here would take seconds.
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _host() -> dict[str, Any]:
    shared = Path("/dev/shm")
    usage = shutil.disk_usage(shared) if shared.is_dir() else None
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)),
        "memory_available": _memory_available(),
        "memfd_create": _memfd_works(),
        "dev_shm_size": usage.total if usage else None,
        "dev_shm_free": usage.free if usage else None,
    }


def _memory_available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _memfd_works() -> bool:
    try:
        os.close(os.memfd_create("unisono-doctor"))
    except (AttributeError, OSError):
        return False
    return True


def _launcher() -> dict[str, Any]:
    try:
        launch = environment.find()
    except LaunchError as error:
        return {"source": None, "error": str(error)}
    return {"source": launch.source, "rank": launch.rank, "size": launch.size, "error": None}


# ---- for people ----------------------------------------------------------------------------------


def _rows(findings: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Kind, name and finding, line by line."""
    yield "version", "unisono", findings["unisono"]
    yield "version", "python", findings["python"]
    for name, answer in findings["engines"].items():
        default = " (default)" if name == _DEFAULT_ENGINE else ""
        yield "engine", name + default, "runs" if answer["runs"] else f"no: {answer['reason']}"
    for name, answer in findings["engines"].items():
        for gap in answer["gaps"]:
            yield "gap", name, gap["what"]
    for name, version in findings["frameworks"].items():
        yield "framework", name, version or "not installed"
    host = findings["host"]
    yield "host", "system", host["system"]
    yield "host", "cores", f"{host['cores']} in the affinity mask"
    yield "host", "memory", f"{_size(host['memory_available'])} available"
    yield "host", "memfd_create", "works" if host["memfd_create"] else "does not work"
    free, size = _size(host["dev_shm_free"]), _size(host["dev_shm_size"])
    yield "host", "/dev/shm", f"{free} free of {size}"
    launcher = findings["launcher"]
    place = launcher["error"] or (
        f"{launcher['source']}: rank {launcher['rank']} of {launcher['size']}"
    )
    yield "launcher", "variables", place


def _size(count: int | None) -> str:
    if count is None:
        return "unknown"
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def _print_table(rows: list[tuple[str, str, str]]) -> None:
    if sys.stdout.isatty():
        try:
            from rich.console import Console
            from rich.table import Table
        except ImportError:
            pass
        else:
            table = Table("", "what", "finding")
            for row in rows:
                table.add_row(*row)
            Console().print(table)
            return
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for kind, name, finding in rows:
        print(f"{kind:<{widths[0]}}  {name:<{widths[1]}}  {finding}")
