"""torch's process groups as plain objects: make them, give them buffers, wait, translate errors.

torch is imported when an engine runs, not with this module.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

from unisono.core.buffers import Buffer, devices
from unisono.core.call import Call
from unisono.core.registry import install_command
from unisono.errors import (
    CommTimeout,
    LaunchError,
    MismatchError,
    PeerLost,
    UnisonoError,
)

__all__ = [
    "as_bytes",
    "bytes_of",
    "check_own_part",
    "default_group",
    "devices_of",
    "is_on_device",
    "make",
    "parts",
    "prefixed",
    "broadcast_options",
    "exchange_by_messages",
    "exchange_in_one_call",
    "in_stream_of_caller",
    "tensor_of",
    "unavailable",
    "translate_error",
    "wait",
]

_EXCHANGE_TAG = 1 << 30  # the tag of messages that are part of a call; users' own are below
_SPIN_SECONDS = 2e-4  # seconds of asking without a pause
_POLL_SECONDS = 1e-4  # seconds between two looks after that

#: What torch says when a peer is gone; it has no error class of its own for this.
_LOST = ("closed by peer", "connection reset", "broken pipe", "refused", "unreachable", "eof")


# ---- groups --------------------------------------------------------------------------------------


def unavailable(backend: str) -> str | None:
    """Say why a backend of torch cannot run here, and how to fix that."""
    if find_spec("torch") is None:
        return f"torch is not installed: {install_command('torch')}"
    if backend == "gloo":
        return None  # every torch has it, and importing torch to ask takes seconds
    import torch.distributed as dist

    if not dist.is_available():
        return "this torch was built without torch.distributed"
    if not dist.is_backend_available(backend):
        return f"this torch has no backend {backend!r}; it has {_present()}"
    return None


def devices_of(backend: str) -> list[str]:
    """Whose memory a backend reaches."""
    import torch.distributed as dist

    return list(dist.Backend.backend_capability.get(backend, ["cpu"]))


def _present() -> str:
    import torch.distributed as dist

    names = [name for name in dist.Backend.backend_list if name not in ("undefined", "fake")]
    return ", ".join(name for name in names if dist.is_backend_available(name))


def prefixed(prefix: str, store: Any) -> Any:
    """A store within a store."""
    import torch.distributed as dist

    return dist.PrefixStore(prefix, store)


def default_group(rank: int, size: int, backend: str | None) -> Any:
    """torch's default group, if there is one of this backend, or of any but ours if it is None."""
    import torch.distributed as dist

    # By its class, not by its name: torch may have been patched to take it for gloo's.
    if not dist.is_initialized() or type(dist.group.WORLD).__module__.startswith("unisono."):
        return None
    if backend not in (None, dist.get_backend()):
        return None
    if (dist.get_rank(), dist.get_world_size()) != (rank, size):
        raise LaunchError(
            f"torch.distributed is initialised with rank {dist.get_rank()} of "
            f"{dist.get_world_size()}, but this is rank {rank} of {size}"
        )
    return dist.group.WORLD


def make(backend: str, store: Any, rank: int, size: int, timeout: float, name: str) -> Any:
    """A group of its own, which torch's functions do not know of."""
    import torch.distributed as dist

    limit = timedelta(seconds=timeout)
    try:
        if backend == "gloo":
            return dist.ProcessGroupGloo(store, rank, size, limit)
        if backend == "nccl":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = limit
            return dist.ProcessGroupNCCL(store, rank, size, options)
        if backend == "mpi":
            return dist.ProcessGroupMPI.create([])
        if backend == "ucc":
            return dist.ProcessGroupUCC(store, rank, size, timeout=limit)
        return _third_party(backend, store, rank, size, limit, name)
    except RuntimeError as error:
        raise translate_error(error, name) from error


def _third_party(
    backend: str, store: Any, rank: int, size: int, timeout: timedelta, name: str
) -> Any:
    """A backend that registered itself, as torch_npu registers hccl."""
    import torch.distributed as dist

    plugin = dist.Backend._plugins[backend.upper()]
    if not plugin.extended_api:
        return plugin.creator_fn(store, rank, size, timeout)
    options = dist.distributed_c10d._DistributedBackendOptions()
    options.store, options.group_rank, options.group_size = store, rank, size
    options.timeout, options.group_id = timeout, name
    options.global_ranks_in_group = list(range(size))
    return plugin.creator_fn(options, None)


# ---- buffers as tensors --------------------------------------------------------------------------


def is_on_device(buffer: Buffer) -> bool:
    """Whether the memory is a GPU's."""
    return buffer.device != "cpu"


def tensor_of(buffer: Buffer) -> Any:
    """The same memory as a flat tensor; bytes for a dtype that torch does not know."""
    import torch

    if is_on_device(buffer):
        owner: Any = buffer.owner
        if not isinstance(owner, torch.Tensor):  # CuPy's
            owner = torch.from_dlpack(owner)
        return owner.detach().view(-1)
    dtype = getattr(torch, buffer.dtype.name)
    if buffer.count == 0:
        return torch.empty(0, dtype=dtype)
    memory = (ctypes.c_char * buffer.nbytes).from_address(buffer.address)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype)


def as_bytes(tensor: Any) -> Any:
    """The same memory as bytes: backends move those, whatever dtypes they lack."""
    return tensor.view(sys.modules["torch"].uint8)


def bytes_of(buffer: Buffer) -> Any:
    """The memory of a buffer as a tensor of bytes."""
    return as_bytes(tensor_of(buffer))


def parts(tensor: Any, counts: Sequence[int]) -> list[Any]:
    """A flat tensor, cut into one part for each rank."""
    return list(tensor.split(list(counts)))


# ---- calls ---------------------------------------------------------------------------------------


def in_stream_of_caller(call: Call, task: Callable[[], None], name: str) -> Callable[[], None]:
    """`task`, which another thread will run, in the stream that the caller works in now.

    That is for tensors on a GPU: what the caller has put into the stream comes first. It ends when
    the stream has got there, because whoever waits for it may use another one.
    """
    buffer = call.source or call.destination
    if buffer is None or buffer.device != "cuda":
        return task
    import torch

    stream = devices.torch_stream(devices.current_stream(buffer), devices.device_index(buffer))

    def run() -> None:
        with torch.cuda.stream(stream):
            task()
        _await(stream.record_event().query, call.timeout, name)

    return run


def broadcast_options(root: int | None) -> Any:
    """The options of a broadcast."""
    import torch.distributed as dist

    options = dist.BroadcastOptions()
    options.rootRank = root
    return options


def wait(work: Any, timeout: float, name: str) -> None:
    """Wait for a collective; lets Ctrl-C through, which torch's own wait does not."""
    _await(work.is_completed, timeout, name)
    try:
        work.wait()
    except RuntimeError as error:
        raise translate_error(error, name) from error


def _await(is_over: Callable[[], bool], timeout: float, name: str) -> None:
    began = time.monotonic()
    while not is_over():
        waited = time.monotonic() - began
        if waited > timeout:
            raise CommTimeout(
                f"{name} reached its timeout of {timeout:g} s; torch does not say which rank is "
                "missing"
            )
        if waited > _SPIN_SECONDS:
            time.sleep(_POLL_SECONDS)


def check_own_part(rank: int, outgoing: Sequence[Any], incoming: Sequence[Any]) -> None:
    """What a rank sends itself is what it receives from itself."""
    sent, room = outgoing[rank].numel(), incoming[rank].numel()
    if sent != room:
        text = f"rank {rank} sends itself {sent} elements, but receives {room}"
        raise MismatchError(text, (rank,))


def exchange_in_one_call(
    group: Any,
    rank: int,
    outgoing: Sequence[Any],
    incoming: Sequence[Any],
    finish: Callable[[Any], None],
) -> None:
    """Send and receive a part of bytes for each other rank, as one uneven all_to_all."""
    import torch

    others = [each for each in range(len(outgoing)) if each != rank]
    rows = [
        [0 if each == rank else part.numel() for each, part in enumerate(side)]
        for side in (incoming, outgoing)
    ]
    source = torch.cat([outgoing[each] for each in others] or [outgoing[rank][:0]])
    landing = source.new_empty(sum(rows[0]))
    finish(group.alltoall_base(landing, source, *rows))
    pieces = landing.split(rows[0])
    for each in others:
        incoming[each].copy_(pieces[each])


def exchange_by_messages(
    groups: tuple[Any, Any],
    rank: int,
    outgoing: Sequence[Any],
    incoming: Sequence[Any],
    timeout: float,
    name: str,
) -> None:
    """The same by messages: all at once, and those to lower ranks over the second group."""
    up, down = groups
    limit = timedelta(seconds=timeout)
    works = []
    needed = rank
    try:
        for needed in [peer for peer in range(len(outgoing)) if peer != rank]:
            if incoming[needed].numel():
                group = down if needed > rank else up
                works.append((needed, group.recv([incoming[needed]], needed, _EXCHANGE_TAG)))
            if outgoing[needed].numel():
                group = up if needed > rank else down
                works.append((needed, group.send([outgoing[needed]], needed, _EXCHANGE_TAG)))
        for needed, work in works:  # noqa: B007 - the error tells it
            work.wait(limit)
    except RuntimeError as error:
        raise translate_error(error, name, needed) from error


def translate_error(error: RuntimeError, name: str, peer: int | None = None) -> UnisonoError:
    """Our error for one of torch's, known by its text alone; `peer` is the rank that was needed."""
    if isinstance(error, UnisonoError):
        return error
    text = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
    low = text.lower()
    if "timed out" in low or "timeout" in low:
        who = "" if peer is None else f" waiting for rank {peer}"
        return CommTimeout(f"{name}{who}: {text}", () if peer is None else (peer,))
    if any(word in low for word in _LOST):
        who = "a rank" if peer is None else f"rank {peer}"
        return PeerLost(f"{name} lost {who}: {text}", () if peer is None else (peer,))
    return UnisonoError(f"{name}: {text}")
