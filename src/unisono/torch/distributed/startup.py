"""Joining the world and leaving it: backends, and the rendezvous of the ranks."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from unisono.core import environment, groups, registry
from unisono.core.arguments import as_int
from unisono.core.environment import Launch
from unisono.core.groups import Group
from unisono.errors import ArgumentError, ArgumentTypeError, LaunchError, Unsupported
from unisono.torch.distributed import arguments

__all__ = [
    "check_backend",
    "destroy_process_group",
    "init_process_group",
    "is_available",
    "is_backend_available",
    "is_gloo_available",
    "is_initialized",
    "is_mpi_available",
    "is_nccl_available",
    "is_torchelastic_launched",
    "is_ucc_available",
    "is_xccl_available",
]

#: Names that mean the default engine: ours, and those of torch that name no engine here.
_ANY_ENGINE = frozenset(["unisono", "undefined", "gloo", "nccl", "mpi", "ucc", "xccl"])


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: timedelta | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: Any = None,
    group_name: str = "",
    pg_options: Any = None,
    device_id: Any = None,
    _ranks: list[int] | None = None,
) -> None:
    """Join the world; `backend` is an engine's name, "unisono" or one of torch's.

    Ranks find each other by their launcher's variables, or as `init_method` says: env://,
    file://PATH and tcp://HOST:PORT take `rank` and `world_size`. `store` is refused; the other
    parameters are accepted and change nothing.

    >>> dist.init_process_group(rank=0, world_size=1)  # a launcher gives them as variables
    >>> dist.get_rank(), dist.get_world_size()
    (0, 1)
    >>> dist.destroy_process_group()
    """
    engine = check_backend(backend)
    seconds = arguments.seconds(timeout)
    rank, world_size = as_int(rank, "rank"), as_int(world_size, "world_size")
    if store is not None:
        raise Unsupported(
            "store is not supported; use init_method='env://' or 'file://PATH' for the rendezvous"
        )
    if groups.is_initialized():
        _check_given(groups.world(), rank, world_size)
        world = groups.init(engine, seconds)  # a world that spawn made, or an error
        if seconds is not None and world.engine is not None:
            world.engine.timeout = seconds
        return
    launch = _launch("env://" if init_method is None else init_method, rank, world_size)
    try:
        groups.init(engine, seconds, launch=launch)
    finally:
        # Every rank has read it by now, and a later job must not find the name of this one.
        if launch.source == "file":
            Path(urlsplit(str(init_method)).path).unlink(missing_ok=True)


def destroy_process_group(group: Any = None) -> None:
    """Leave a group, or the world and all its groups.

    >>> def leave():
    ...     dist.destroy_process_group()
    ...     return dist.is_initialized()
    >>> unisono.spawn(leave, 2)
    [False, False]
    """
    if group is None:
        groups.close()
    elif arguments.is_member(group):
        members = arguments.group_of(group)
        if members is groups.world():
            groups.close()  # it forgets the world as well
        else:
            members.close()


def is_initialized() -> bool:
    """Tell whether this rank has joined the world.

    >>> dist.is_initialized(), unisono.spawn(dist.is_initialized, 2)
    (False, [True, True])
    """
    return groups.is_initialized()


def is_available() -> bool:
    """Tell whether there are collectives: always, here.

    >>> dist.is_available()
    True
    """
    return True


def is_gloo_available() -> bool:
    """Tell whether tensors in host memory can be sent: always, here.

    >>> dist.is_gloo_available()
    True
    """
    return True


def is_mpi_available() -> bool:
    """Tell whether the engine `mpi` runs here.

    >>> dist.is_mpi_available() == dist.is_backend_available("mpi")
    True
    """
    return is_backend_available("mpi")


def is_nccl_available() -> bool:
    """Tell whether the engine `torch:nccl` runs here, which sends tensors of NVIDIA GPUs.

    >>> dist.is_nccl_available() == dist.is_backend_available("nccl")
    True
    """
    return is_backend_available("nccl")


def is_ucc_available() -> bool:
    """Tell whether the engine `torch:ucc` runs here.

    >>> dist.is_ucc_available() == dist.is_backend_available("ucc")
    True
    """
    return is_backend_available("ucc")


def is_xccl_available() -> bool:
    """Tell whether the engine `torch:xccl` runs here, which sends tensors of Intel GPUs.

    >>> dist.is_xccl_available() == dist.is_backend_available("xccl")
    True
    """
    return is_backend_available("xccl")


def is_backend_available(backend: str) -> bool:
    """Tell whether an engine of this name runs here; "gloo" and "unisono" always do.

    >>> dist.is_backend_available("unisono"), dist.is_backend_available("no such")
    (True, False)
    """
    if not isinstance(backend, str):
        raise ArgumentTypeError(f"backend must be a name, got {backend!r}")
    names = [part.rpartition(":")[2] for part in backend.lower().split(",")]
    return all(name in ("gloo", "unisono") or _runs(name) for name in names)


#: Backends of torch that one engine runs on, as a variant of it.
_VARIANTS = {name: f"torch:{name}" for name in ("nccl", "ucc", "xccl")}


def _runs(name: str) -> bool:
    engine = _VARIANTS.get(name, name)
    base = engine.partition(":")[0]
    try:
        # A variant can only be asked where its base runs: it imports torch.
        return all(registry.load(each).unavailable() is None for each in (base, engine))
    except (ArgumentError, LaunchError):
        return False


def is_torchelastic_launched() -> bool:
    """Tell whether torchrun started this rank.

    >>> dist.is_torchelastic_launched()
    False
    """
    return os.environ.get("TORCHELASTIC_RUN_ID") is not None


def check_backend(backend: Any) -> str | None:
    """The engine that a backend's name means; None for the default engine."""
    if backend is None:
        return None
    if not isinstance(backend, str):
        raise ArgumentError(f"backend must be a name, got {backend!r}")
    name = backend.lower()
    installed = registry.names()
    if name.partition(":")[0] in installed:
        return name
    pairs = _by_device(name) if ":" in name else {"cpu": name}
    for wanted in pairs.values():
        if wanted not in _ANY_ENGINE and wanted not in installed:
            known = ", ".join(sorted(_ANY_ENGINE.union(installed)))
            raise ArgumentError(f"there is no backend {wanted!r}; there are {known}")
    chosen = pairs.get("cpu")
    return chosen if chosen in installed else None


def _by_device(text: str) -> dict[str, str]:
    """Read "cpu:gloo,cuda:nccl"."""
    pairs: dict[str, str] = {}
    for part in text.split(","):
        device, colon, name = part.partition(":")
        if not (device and colon and name) or ":" in name or device in pairs:
            raise ArgumentError(
                f"backend {text!r} is not like 'cpu:gloo,cuda:nccl', each device once"
            )
        pairs[device] = name
    return pairs


def _check_given(world: Group, rank: int, size: int) -> None:
    """In a rank that spawn or a test started, refuse other numbers than it has already."""
    if rank not in (-1, world.rank) or size not in (-1, world.size):
        raise ArgumentError(
            f"this is rank {world.rank} of {world.size} already, and not rank {rank} of {size}"
        )


def _launch(method: str, rank: int, size: int) -> Launch:
    """How this rank was launched, as `init_method`, `rank` and `world_size` say."""
    if not isinstance(method, str):
        raise ArgumentTypeError(f"init_method must be a URL, got {method!r}")
    try:
        url = urlsplit(method)
        port = url.port
    except ValueError as error:
        raise ArgumentError(f"init_method {method!r} is not a URL: {error}") from None
    if url.scheme == "env":
        return _from_variables(rank, size)
    if url.scheme not in ("file", "tcp"):
        raise ArgumentError(
            f"init_method {method!r} is not known; use env://, file://PATH or tcp://HOST:PORT"
        )
    if rank < 0 or size < 0:
        raise ArgumentError(f"init_method {method!r} needs rank and world_size")
    _check_numbers(rank, size)
    if url.scheme == "file":
        if not url.path:
            raise ArgumentError(f"init_method {method!r} has no path")
        return environment.from_file(url.path, rank, size)
    if port is None or not url.hostname:
        raise ArgumentError(f"init_method {method!r} needs a host and a port")
    return _from_address(url.hostname, str(port), rank, size)


def _from_variables(rank: int, size: int) -> Launch:
    """The launcher's variables; `rank` and `size` replace them where they are given."""
    if rank < 0 and size < 0:
        return environment.find()
    given = dict(os.environ)
    if rank >= 0:
        given["RANK"] = str(rank)
    if size >= 0:
        given["WORLD_SIZE"] = str(size)
    for name in ("RANK", "WORLD_SIZE"):
        if not given.get(name):
            raise ArgumentError(f"init_method 'env://' needs {name.lower()}, or {name} to be set")
    _check_numbers(int(given["RANK"]), int(given["WORLD_SIZE"]))
    if os.environ.get("UNISONO_RANK"):
        launch = environment.find()
        if (str(launch.rank), str(launch.size)) == (given["RANK"], given["WORLD_SIZE"]):
            return launch
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if given["WORLD_SIZE"] != "1" and not given.get(name):
            raise ArgumentError(f"init_method 'env://' needs {name} to be set")
    return environment.find(_without_ours(given))


def _from_address(host: str, port: str, rank: int, size: int) -> Launch:
    variables = {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
    }
    return environment.find({**_without_ours(dict(os.environ)), **variables})


def _without_ours(variables: dict[str, str]) -> dict[str, str]:
    """Without those of `unisono run`: numbers in a call override them."""
    return {
        name: value
        for name, value in variables.items()
        if name not in ("UNISONO_RANK", "UNISONO_SIZE")
    }


def _check_numbers(rank: int, size: int) -> None:
    if not 0 <= rank < size:
        raise ArgumentError(f"rank {rank} is not below world_size {size}")
