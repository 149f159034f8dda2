"""`unisono doctor`: tell which engines and frameworks run here, and why others do not.

With --network every rank of a job runs it, and it measures the network of the job (`network.py`).
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
from unisono.tools.formatting import byte_size
from unisono.tools.table import table, terminal_columns

__all__ = ["configure", "examine", "main"]

#: The engine of a job on one host, unless another is chosen.
_DEFAULT_ENGINE = "shm"
_NO_LIMIT = 10_000  # columns

#: Frameworks, and the distributions that may provide each of them.
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
        help="run by every rank of a job: measure latency and bandwidth between its hosts",
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
        # Without a terminal every finding stays on one line, so that `grep` finds it whole.
        columns = terminal_columns(piped=_NO_LIMIT, widest=_NO_LIMIT)
        print("\n".join(table(list(_rows(findings)), columns)))
    return 0 if findings["engines"].get(_DEFAULT_ENGINE, {}).get("runs") else 1


def examine() -> dict[str, Any]:
    """Return all findings as plain data."""
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
    # Only metadata, because importing torch or mindspore takes seconds.
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


# ---- the table -----------------------------------------------------------------------------------


def _rows(findings: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield kind, name and finding."""
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
    yield "host", "cores", f"{host['cores']} that this process may use"
    yield "host", "memory", f"{byte_size(host['memory_available'])} available"
    yield "host", "memfd_create", "works" if host["memfd_create"] else "does not work"
    free, size = byte_size(host["dev_shm_free"]), byte_size(host["dev_shm_size"])
    yield "host", "/dev/shm", f"{free} free of {size}"
    launcher = findings["launcher"]
    yield "launcher", "variables", launcher["error"] or _launch_text(launcher)


def _launch_text(launcher: dict[str, Any]) -> str:
    return f"{launcher['source']}: rank {launcher['rank']} of {launcher['size']}"
