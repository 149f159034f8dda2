"""`unisono doctor`: tell which engines and frameworks run here, and why others do not.

An engine runs if a job of two ranks does, here and now (`probe.py`). With --network every rank of a
job runs it, and it measures the network of the job (`network.py`).
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
from unisono.tools.doctor import gpus, system_calls
from unisono.tools.doctor.probe import ProbeOutcome, probe
from unisono.tools.formatting import byte_size
from unisono.tools.table import table, terminal_columns, wrap

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
        "--gaps", action="store_true", help="also show what each engine cannot do anywhere"
    )
    parser.add_argument(
        "--network",
        action="store_true",
        help="run by every rank of a job: measure latency and bandwidth between its hosts",
    )


def main(arguments: argparse.Namespace) -> int:
    """Print the findings; return 1 if an engine that should run here does not."""
    if arguments.network:
        from unisono.tools.doctor import network

        return network.main(arguments)
    findings = examine()
    if arguments.json:
        print(json.dumps(findings, indent=2))
    else:
        # Without a terminal every finding stays on one line, so that `grep` finds it whole.
        columns = terminal_columns(piped=_NO_LIMIT, widest=_NO_LIMIT)
        rows = [*_rows(findings), *(_gap_rows(findings) if arguments.gaps else ())]
        print("\n".join([*wrap(findings["verdict"], columns), *table(rows, columns)]))
    return 0 if findings["fine"] else 1


def examine() -> dict[str, Any]:
    """Return all findings as plain data; takes a few seconds."""
    refused = system_calls.refused()
    engines = dict(_engines())
    return {
        **_verdict(engines, refused),
        "unisono": unisono.__version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "engines": engines,
        "frameworks": {name: _version(names) for name, names in _FRAMEWORKS.items()},
        "host": {**_host(), "memfd_create": "memfd_create" not in refused, "refused": refused},
        "gpus": gpus.examine(),
        "launcher": _launcher(),
    }


def _engines() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each engine with whether it runs, after a job on all that may."""
    available = registry.available()
    outcomes = probe(name for name, reason in available.items() if reason is None)
    for name, missing in available.items():
        outcome = outcomes.get(name, ProbeOutcome(missing, None))
        yield (
            name,
            {
                "runs": outcome.reason is None,
                "reason": outcome.reason,
                "seconds": outcome.seconds,
                "gaps": [{"what": gap.what, "reason": gap.reason} for gap in gaps.of(name)],
            },
        )


def _verdict(engines: dict[str, Any], refused: dict[str, str]) -> dict[str, Any]:
    """Sum it up in one line; an engine that is not installed is no problem, but for the default."""
    failed = {
        name: answer["reason"]
        for name, answer in engines.items()
        if not answer["runs"] and (answer["seconds"] is not None or name == _DEFAULT_ENGINE)
    }
    if failed:
        causes: dict[str, list[str]] = {}
        for name, reason in failed.items():
            causes.setdefault(reason, []).append(name)
        reasons = "; ".join(f"engine {', '.join(own)}: {cause}" for cause, own in causes.items())
        calls = f" (the kernel refuses {', '.join(refused)})" if refused else ""
        return {"verdict": f"not fine: {reasons}{calls}", "fine": False}
    ran = ", ".join(name for name, answer in engines.items() if answer["runs"])
    text = f"fine: two ranks ran on each of the engines {ran}"
    if refused:
        text += f"; the kernel refuses {', '.join(refused)}, and unisono does without"
    return {"verdict": text, "fine": True}


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
    for name, version in findings["frameworks"].items():
        yield "framework", name, version or "not installed"
    host = findings["host"]
    yield "host", "system", host["system"]
    yield "host", "cores", f"{host['cores']} that this process may use"
    yield "host", "memory", f"{byte_size(host['memory_available'])} available"
    for name, without in system_calls.WITHOUT.items():
        if name in host["refused"]:
            yield "host", name, f"refused ({host['refused'][name]}): {without}"
    free, size = byte_size(host["dev_shm_free"]), byte_size(host["dev_shm_size"])
    yield "host", "/dev/shm", f"{free} free of {size}"
    yield from gpus.rows(findings["gpus"])
    launcher = findings["launcher"]
    yield "launcher", "variables", launcher["error"] or _launch_text(launcher)


def _gap_rows(findings: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for name, answer in findings["engines"].items():
        for gap in answer["gaps"]:
            yield "gap", name, gap["what"]


def _launch_text(launcher: dict[str, Any]) -> str:
    return f"{launcher['source']}: rank {launcher['rank']} of {launcher['size']}"
