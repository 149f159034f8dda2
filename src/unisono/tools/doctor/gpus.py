"""The GPUs of this host, the processes that share each, and whether NVIDIA's MPS runs.

nvidia-smi tells the first two: it is there wherever the driver is. MPS reads a named pipe.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from unisono.tools.formatting import byte_size

__all__ = ["examine", "rows"]

_DEADLINE = 20.0  # seconds; the first question after a start of the host takes some
_MPS_FOLDER = "/tmp/nvidia-mps"  # unless CUDA_MPS_PIPE_DIRECTORY names another


def examine() -> dict[str, Any]:
    """Return the findings as plain data; `reason` says why there are no GPUs."""
    try:
        devices = _devices()
    except (OSError, subprocess.SubprocessError) as error:
        return {"devices": [], "mps": False, "reason": _why(error)}
    return {"devices": devices, "mps": _mps_runs(), "reason": None}


def rows(findings: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield kind, name and finding, as for the table of `unisono doctor`."""
    if findings["reason"] is not None:
        yield "GPU", "none", findings["reason"]
        return
    for index, device in enumerate(findings["devices"]):
        free, total = device["free"], device["memory"]
        memory = "" if None in (free, total) else f", {byte_size(free)} free of {byte_size(total)}"
        users = ", ".join(map(str, device["processes"]))
        used = f"processes there: {users}" if users else "no process is there"
        yield "GPU", str(index), f"{device['name']}{memory}; {used}"
    yield "GPU", "MPS", _MPS_TEXTS[findings["mps"]]


_MPS_TEXTS = {
    True: "runs: ranks that share a GPU compute there at the same time",
    False: "does not run: ranks that share a GPU take turns to compute there, and each turn costs "
    "100 us or more; collectives need none. `nvidia-cuda-mps-control -d` starts it",
}


def _devices() -> list[dict[str, Any]]:
    gpus = _ask("--query-gpu=uuid,name,memory.total,memory.free")
    users = _ask("--query-compute-apps=gpu_uuid,pid")
    return [
        {
            "uuid": uuid,
            "name": name,
            "memory": _bytes(total),
            "free": _bytes(free),
            "processes": sorted(int(process) for gpu, process in users if gpu == uuid),
        }
        for uuid, name, total, free in gpus
    ]


def _bytes(mebibytes: str) -> int | None:
    """None for "[N/A]": such a GPU works in the memory of the host."""
    return int(mebibytes) << 20 if mebibytes.isdigit() else None


def _ask(question: str) -> list[Sequence[str]]:
    """The lines of an answer of nvidia-smi, which has memory in MiB."""
    program = shutil.which("nvidia-smi")
    if program is None:
        raise FileNotFoundError("nvidia-smi, which comes with the driver of NVIDIA, is not there")
    done = subprocess.run(
        [program, question, "--format=csv,noheader,nounits"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_DEADLINE,
        check=True,
    )
    return [line.split(", ") for line in done.stdout.splitlines() if line]


def _why(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        said = (error.stdout + error.stderr).strip().splitlines() or [f"code {error.returncode}"]
        return f"nvidia-smi failed: {said[0]}"
    return str(error)


def _mps_runs() -> bool:
    """Whether a daemon of MPS reads its pipe: one that has ended leaves the pipe behind."""
    folder = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or _MPS_FOLDER)
    try:
        os.close(os.open(folder / "control", os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True
