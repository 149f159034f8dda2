"""Rank, size and job of this process, read from the environment of any launcher."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import json
import numbers
import os
import re
import secrets
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from unisono.errors import ArgumentError, LaunchError

__all__ = [
    "DEFAULT_TIMEOUT",
    "Launch",
    "cache_folder",
    "find",
    "from_file",
    "given_secret",
    "tell_supervisor",
    "timeout",
]

#: Seconds that a call may wait for others, unless the caller or UNISONO_TIMEOUT says otherwise.
DEFAULT_TIMEOUT = 1800.0

#: From here on Slurm numbers steps that are shells (batch, interactive), not tasks of srun.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0


@dataclass(frozen=True)
class Launch:
    """One rank of a job, as its launcher described it.

    `job` names the job, the same on all its ranks; `secret` is known to them alone. A job that is
    known only by an address and a port is not `is_named`, because another may have the same. All
    ranks can read and write `store` (set, get and add, as torch's stores have them), and `hosts`
    names each rank's host (an identity and a name), where these are known.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    job: str
    source: str
    secret: bytes = field(default=b"", repr=False)
    store: Any = field(default=None, repr=False, compare=False)
    hosts: tuple[str, ...] = ()
    is_named: bool = True

    @property
    def one_host(self) -> bool:
        """Whether all ranks run on this host."""
        return self.local_size == self.size


def find(environ: Mapping[str, str] = os.environ) -> Launch:
    """Read the variables of unisono, torchrun, msrun, Open MPI, PMI/PMIx or Slurm, in this order.

    >>> find({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}).rank
    1
    """
    for read in (_unisono, _torchrun, _msrun, _open_mpi, _pmi, _slurm):
        launch = read(environ)
        if launch is not None:
            return launch if launch.source == "unisono" else _with_ours(launch, environ)
    # Slurm scripts export WORLD_SIZE alone and rely on srun, so it counts only after the others.
    if environ.get("WORLD_SIZE"):
        raise _half_set(environ, "WORLD_SIZE", "RANK")
    if environ.get("PMIX_RANK"):
        raise LaunchError(
            f"PMIX_RANK is {environ['PMIX_RANK']!r}, but PMIx gives no size; start with mpirun or "
            "srun, or set UNISONO_RANK, UNISONO_SIZE and UNISONO_JOB"
        )
    return Launch(0, 1, 0, 1, secrets.token_hex(16), "alone", secrets.token_bytes(32))


def from_file(path: str | Path, rank: int, size: int) -> Launch:
    """Find each other through a file that all ranks of this host can open: it holds a secret name.

    The first rank writes it, into a new file or an empty one. Remove the file when all have
    joined, because a later job must not find the name of this one.
    """
    file_path = Path(path)
    try:
        descriptor = os.open(file_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise LaunchError(f"cannot open {str(file_path)!r}: {error.strerror}") from error
    with open(descriptor, "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        text = file.read(200)
        if not text:
            os.fchmod(descriptor, 0o600)  # an empty file of the user's may be open to others
            text = f"unisono {secrets.token_hex(16)} {secrets.token_hex(32)}"
            file.write(text)
    match = re.fullmatch(r"unisono ([0-9a-f]{32}) ([0-9a-f]{64})", text)
    if match is None:
        raise LaunchError(
            f"{str(file_path)!r} is not empty, and another program wrote it; name a file "
            "that does not exist yet"
        )
    job = _join("file", [match[1]])
    return Launch(rank, size, rank, size, job, "file", bytes.fromhex(match[2]))


def timeout(seconds: float | None = None, environ: Mapping[str, str] = os.environ) -> float:
    """The deadline for waits: the argument, else UNISONO_TIMEOUT, else 30 minutes.

    >>> timeout(5), timeout(None, {"UNISONO_TIMEOUT": "2.5"}), timeout(None, {})
    (5.0, 2.5, 1800.0)
    """
    given: object = seconds
    what = "timeout"
    if seconds is None:
        given = environ.get("UNISONO_TIMEOUT") or DEFAULT_TIMEOUT
        what = "UNISONO_TIMEOUT"
    value = 0.0
    # Text is a number only where it comes from the environment, and a bool is never one.
    kinds = (numbers.Real, str) if seconds is None else (numbers.Real,)
    if not isinstance(given, bool) and isinstance(given, kinds):
        with contextlib.suppress(ValueError):
            value = float(given)
    # Written so that NaN fails it; Python cannot wait longer than TIMEOUT_MAX.
    if not 0 < value <= threading.TIMEOUT_MAX:
        raise ArgumentError(f"{what} is {given!r}; give seconds as a number above 0")
    return value


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder for what can be made again: UNISONO_CACHE, else one in the user's cache.

    >>> cache_folder({"XDG_CACHE_HOME": "/var/cache"})
    PosixPath('/var/cache/unisono')
    """
    if environ.get("UNISONO_CACHE"):
        return Path(environ["UNISONO_CACHE"]).absolute()
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "unisono"


def given_secret(environ: Mapping[str, str] = os.environ) -> bytes:
    """The job's secret, if UNISONO_SECRET is set; else nothing.

    >>> given_secret({"UNISONO_SECRET": "00ff"})
    b'\\x00\\xff'
    """
    try:
        return bytes.fromhex(environ.get("UNISONO_SECRET", ""))
    except ValueError:
        # The value stays out of the text, because errors end up in logs.
        raise LaunchError(
            "UNISONO_SECRET is not hexadecimal; leave it to `unisono run`, or unset it"
        ) from None


def tell_supervisor(report: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> None:
    """Add a line of JSON to what our supervisor knows of this rank, if it has a file for that.

    UNISONO_REPORT is the path of a file of the supervisor, and the name that the kernel shows for
    it. In a container the same path may be another file, so the name must be right.
    """
    path, _, name = environ.get("UNISONO_REPORT", "").partition(" ")
    with contextlib.suppress(OSError):
        if path and str(Path(path).readlink()) == name:
            with open(path, "ab") as file:
                file.write(json.dumps(report).encode() + b"\n")


def _with_ours(launch: Launch, environ: Mapping[str, str]) -> Launch:
    """A name and a secret that the user adds to what another launcher tells."""
    name = environ.get("UNISONO_JOB", "")
    return replace(
        launch,
        job=_join(launch.job, [name]),
        secret=given_secret(environ),
        is_named=launch.is_named or bool(name),
    )


# ---- one reader for each launcher: a Launch, or None where its variables are not there -----------


def _unisono(environ: Mapping[str, str]) -> Launch | None:
    if not (environ.get("UNISONO_RANK") or environ.get("UNISONO_SIZE")):
        return None
    rank, size = _counted(environ, "UNISONO_RANK", "UNISONO_SIZE")
    local = _local(environ, rank, size, "UNISONO_LOCAL_RANK", "UNISONO_LOCAL_SIZE", known=size)
    job = environ.get("UNISONO_JOB", "")
    if not job and size > 1:
        raise _half_set(environ, "UNISONO_RANK", "UNISONO_JOB")
    name = job or secrets.token_hex(16)
    return Launch(rank, size, *local, name, "unisono", given_secret(environ))


def _torchrun(environ: Mapping[str, str]) -> Launch | None:
    if not environ.get("RANK"):
        return None
    rank, size = _counted(environ, "RANK", "WORLD_SIZE")
    address = environ.get("MASTER_ADDR", "")
    port = environ.get("MASTER_PORT", "")
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if size > 1 and not environ.get(name):
            raise _half_set(environ, "RANK", name)
    given = bool(environ.get("LOCAL_WORLD_SIZE"))
    known = size if not given and _is_here(address) else None
    local = _local(environ, rank, size, "LOCAL_RANK", "LOCAL_WORLD_SIZE", known)
    parts = [address, port]
    source = "environment"
    if environ.get("TORCHELASTIC_RUN_ID"):
        source = "torchrun"
        restarts = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        parts += [environ["TORCHELASTIC_RUN_ID"], restarts]
        parts += _launcher_of_one_host("RANK", size, local)
    named = source == "torchrun"
    return Launch(rank, size, *local, _join("torchrun", parts), source, is_named=named)


def _msrun(environ: Mapping[str, str]) -> Launch | None:
    role = environ.get("MS_ROLE")
    if not role:
        return None
    if role == "MS_SCHED":
        # msrun runs the script once more as its scheduler, which we do not need: let it end.
        raise SystemExit(0)
    if role != "MS_WORKER":
        raise LaunchError(f"MS_ROLE is {role!r}, and only an MS_WORKER is a rank; start with msrun")
    if not environ.get("MS_NODE_ID"):
        raise LaunchError(
            f"MS_ROLE is {role!r}, but MS_NODE_ID is not set, so the rank is unknown; "
            "start msrun with --node_rank"
        )
    rank, size = _counted(environ, "MS_NODE_ID", "MS_WORKER_NUM")
    host = environ.get("MS_SCHED_HOST", "")
    if not host and size > 1:
        raise _half_set(environ, "MS_ROLE", "MS_SCHED_HOST")
    # msrun does not say how many ranks are local, and DEVICE_ID may be any device on one host.
    given = bool(environ.get("UNISONO_LOCAL_SIZE"))
    known = size if not given and _is_here(host) else None
    local_rank = "DEVICE_ID" if given else "UNISONO_LOCAL_RANK"
    local = _local(environ, rank, size, local_rank, "UNISONO_LOCAL_SIZE", known)
    # Without --join msrun ends before its workers, so their parent says nothing.
    job = _join("msrun", [host, environ.get("MS_SCHED_PORT", "")])
    return Launch(rank, size, *local, job, "msrun", is_named=False)


def _open_mpi(environ: Mapping[str, str]) -> Launch | None:
    if not environ.get("OMPI_COMM_WORLD_RANK"):
        return None
    rank, size = _counted(environ, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    local = _local(environ, rank, size, "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
    name = environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid")
    parts = [name] if name else _launcher_of_one_host("OMPI_COMM_WORLD_RANK", size, local)
    return Launch(rank, size, *local, _join("openmpi", parts), "Open MPI")


def _pmi(environ: Mapping[str, str]) -> Launch | None:
    # srun sets some of these as well, and its own variables say more.
    if not environ.get("PMI_RANK") or _is_slurm_task(environ):
        return None
    rank, size = _counted(environ, "PMI_RANK", "PMI_SIZE")
    local = _local(environ, rank, size, "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
    parts = [environ.get("PMI_JOBID", "")]
    parts += _launcher_of_one_host("PMI_RANK", size, local)
    return Launch(rank, size, *local, _join("pmi", parts), "PMI")


def _slurm(environ: Mapping[str, str]) -> Launch | None:
    if not _is_slurm_task(environ):
        return None
    tasks = "SLURM_STEP_NUM_TASKS" if environ.get("SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS"
    rank, size = _counted(environ, "SLURM_PROCID", tasks)
    here = size
    if (environ.get("SLURM_STEP_NUM_NODES") or environ.get("SLURM_NNODES")) != "1":
        layout = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE", "")
        per_node = _tasks_per_node(layout)
        node = _number(environ, "SLURM_NODEID") if environ.get("SLURM_NODEID") else 0
        if node >= len(per_node):
            raise LaunchError(
                f"SLURM_NODEID is {node}, but SLURM_STEP_TASKS_PER_NODE is {layout!r}; "
                "start ranks with `srun python script.py`"
            )
        here = per_node[node]
    local = _local(environ, rank, size, "SLURM_LOCALID", "UNISONO_LOCAL_SIZE", known=here)
    job = _join("slurm", [environ.get("SLURM_JOB_ID", ""), environ["SLURM_STEP_ID"]])
    return Launch(rank, size, *local, job, "Slurm")


# ---- numbers and hosts ---------------------------------------------------------------------------


def _half_set(environ: Mapping[str, str], present: str, missing: str) -> LaunchError:
    return LaunchError(
        f"{present} is {environ.get(present)!r}, but {missing} is not set; set both, "
        f"or unset {present} to run alone"
    )


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ[name]
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise LaunchError(f"{name} is {text!r}; it must be a whole number, 0 or more, or unset")
    return int(text)


def _counted(environ: Mapping[str, str], rank_name: str, size_name: str) -> tuple[int, int]:
    """Rank and size, both there and one below the other."""
    for present, missing in ((rank_name, size_name), (size_name, rank_name)):
        if not environ.get(missing):
            raise _half_set(environ, present, missing)
    rank, size = _number(environ, rank_name), _number(environ, size_name)
    if rank >= size:
        raise LaunchError(
            f"{rank_name} is {rank}, but {size_name} is {size}; ranks must be below the size"
        )
    return rank, size


def _local(
    environ: Mapping[str, str],
    rank: int,
    size: int,
    rank_name: str,
    size_name: str,
    known: int | None = None,
) -> tuple[int, int]:
    """Rank and size on this host; `known` is that size where no variable gives it."""
    if environ.get(size_name):
        local_size = _number(environ, size_name)
    elif known is not None or size == 1:
        local_size = known or size
    else:
        raise LaunchError(
            f"{size_name} is not set, so how many of the {size} ranks are on this host is unknown; "
            f"set {size_name} and {rank_name}"
        )
    if environ.get(rank_name):
        local_rank = _number(environ, rank_name)
    elif local_size == size:
        local_rank = rank
    else:
        raise _half_set(environ, size_name, rank_name)
    if not local_rank < local_size <= size:
        raise LaunchError(
            f"{rank_name} is {local_rank} and {size_name} is {local_size} in a job of {size}; "
            f"{rank_name} must be below {size_name}, and that at most {size}"
        )
    return local_rank, local_size


def _is_here(host: str) -> bool:
    """Whether an address or a name means this host: no other host's address can be bound."""
    if not host or host == "localhost":
        return True
    try:
        addresses = {entry[4][0] for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    for address in addresses:
        bare = ipaddress.ip_address(str(address).partition("%")[0])
        family = socket.AF_INET if bare.version == 4 else socket.AF_INET6
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.bind((str(address), 0))
                return True
        except OSError:
            continue
    return False


def _is_slurm_task(environ: Mapping[str, str]) -> bool:
    """Whether srun started us; the shells of sbatch and salloc have a SLURM_PROCID too."""
    step = environ.get("SLURM_STEP_ID", "")
    if not environ.get("SLURM_PROCID") or not step:
        return False
    return not step.isdigit() or int(step) < _FIRST_SPECIAL_STEP


def _tasks_per_node(layout: str) -> list[int]:
    """Unfold Slurm's short form, for example "2(x3),1" into [2, 2, 2, 1]."""
    counts: list[int] = []
    for entry in layout.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", entry)
        if match is None:
            raise LaunchError(
                f"SLURM_STEP_TASKS_PER_NODE is {layout!r}, which is not a list of counts; "
                "start ranks with `srun python script.py`"
            )
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


# ---- the name of the job -------------------------------------------------------------------------


def _join(kind: str, parts: list[str]) -> str:
    return "-".join([kind, *(part for part in parts if part)])


def _launcher_of_one_host(variable: str, size: int, local: tuple[int, int]) -> list[str]:
    """The launcher's process, which tells two jobs apart, if one launcher started all ranks."""
    return [str(_launcher(variable))] if local[1] == size else []


def _launcher(variable: str) -> int:
    """The nearest ancestor without `variable`: between it and us there may be a shell per rank."""
    pid = os.getppid()
    try:
        while pid > 1:
            process = Path("/proc") / str(pid)
            lines = (process / "environ").read_bytes().split(b"\0")
            if not any(line.startswith(f"{variable}=".encode()) for line in lines):
                break
            # The name in brackets may hold anything; the parent is the second word after it.
            pid = int((process / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except OSError:
        pass
    return pid
