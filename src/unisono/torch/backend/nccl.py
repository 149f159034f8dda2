"""CUDA tensors: nccl, on the same group.

torch does not combine a backend that is written in Python with another one. So where nccl is there,
our group has one of its own: each method passes CUDA tensors to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist

from unisono.core.groups import Group
from unisono.torch.backend.direct import native
from unisono.torch.backend.dynamo import skip
from unisono.torch.backend.forms import tell_modes
from unisono.torch.backend.process_group import UnisonoGroup

__all__ = ["GroupWithNccl", "is_usable"]

#: Methods of a group, with the names that a backend has for them.
_ROUTES = {
    "allreduce": "allreduce",
    "allreduce_coalesced": "allreduce_coalesced",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "allgather": "allgather",
    "all_gather_single": "_allgather_base",
    "_allgather_base": "_allgather_base",
    "allgather_coalesced": "allgather_coalesced",
    "gather": "gather",
    "scatter": "scatter",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_single": "_reduce_scatter_base",
    "_reduce_scatter_base": "_reduce_scatter_base",
    "alltoall": "alltoall",
    "all_to_all_single": "alltoall_base",
    "alltoall_base": "alltoall_base",
    "send": "send",
    "recv": "recv",
    "recv_anysource": "recv_anysource",
}
#: Methods that a backend does not show to Python, with the one that it shows for a single tensor.
_BATCHES = {
    "all_gather_single_coalesced": "_allgather_base",
    "allgather_into_tensor_coalesced": "_allgather_base",
    "reduce_scatter_single_coalesced": "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced": "_reduce_scatter_base",
}


def is_usable() -> bool:
    """Whether this torch has nccl and sees a GPU."""
    return bool(dist.is_nccl_available() and torch.cuda.is_available())


class GroupWithNccl(UnisonoGroup):
    """A group that serves CUDA tensors too; nccl connects at its first call."""

    def __init__(self, core: Group, store: Any, timeout: timedelta, options: Any) -> None:
        super().__init__(core, store, timeout, options)
        if not isinstance(options, dist.ProcessGroupNCCL.Options):
            options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        options.global_ranks_in_group = list(core.ranks)
        nccl_store = dist.PrefixStore("nccl/", store)
        self._nccl = dist.ProcessGroupNCCL(nccl_store, self.rank(), self.size(), options)
        self._nccl._set_sequence_number_for_group()
        # Registered as well, because DDP, FSDP and C++ ask which devices a group serves.
        self._register_backend(torch.device("cuda"), dist.ProcessGroup.BackendType.NCCL, self._nccl)

    def barrier(self, *given: Any, **named: Any) -> dist.Work:
        """Wait for every rank; on the GPU as well, if one is named."""
        for opts in (*given, *named.values()):
            if getattr(opts, "device_ids", None):
                return self._nccl.barrier(opts)
        return super().barrier(*given, **named)

    def shutdown(self) -> None:
        """Leave the group, both parts of it."""
        super().shutdown()
        self._nccl.shutdown()

    def abort(self) -> None:
        """Give both parts of the group up."""
        self._nccl.abort()
        super().shutdown()

    def _start_coalescing(self, device: torch.device | None = None) -> None:
        if device is None or device.type == "cpu":
            super()._start_coalescing(device)
        else:
            self._nccl._start_coalescing()

    def _end_coalescing(self, device: torch.device | None = None) -> dist.Work:
        if device is None or device.type == "cpu":
            return super()._end_coalescing(device)
        return self._nccl._end_coalescing()


def _route(name: str, theirs: str) -> Callable[..., Any]:
    ours = getattr(UnisonoGroup, name)
    ordinary = getattr(ours, "ordinary", None)  # in native code
    general = ours if ordinary is None else ours.__wrapped__

    @wraps(general)
    def method(self: GroupWithNccl, *arguments: Any, **named: Any) -> dist.Work:
        if _is_cuda((*arguments, *named.values())):
            tell_modes(general.__name__)
            return getattr(self._nccl, theirs)(*arguments, **named)
        return general(self, *arguments, **named)

    # Native code leaves CUDA tensors alone, so it can come first here too.
    return method if ordinary is None else native.method(ordinary, method)


def _batch(name: str, theirs: str) -> Callable[..., Any]:
    ours = getattr(UnisonoGroup, name)

    @wraps(ours)
    def method(
        self: GroupWithNccl, outputs: Sequence[Any], inputs: Sequence[Any], opts: Any = None
    ) -> dist.Work:
        if not _is_cuda(inputs):
            return ours(self, outputs, inputs, opts)
        tell_modes(ours.__name__)
        self._nccl._start_coalescing()
        for output, input in zip(outputs, inputs, strict=True):
            getattr(self._nccl, theirs)(output, input, *([] if opts is None else [opts]))
        return self._nccl._end_coalescing()

    return method


def _is_cuda(things: Iterable[Any]) -> bool:
    """Whether the first tensor among these, or in lists among these, is on a GPU."""
    for thing in things:
        if isinstance(thing, torch.Tensor):
            return bool(thing.is_cuda)
        if isinstance(thing, (list, tuple)) and thing:
            return _is_cuda(thing)
    return False


for _name, _theirs in _ROUTES.items():
    setattr(GroupWithNccl, _name, _route(_name, _theirs))
for _name, _theirs in _BATCHES.items():
    setattr(GroupWithNccl, _name, _batch(_name, _theirs))
skip(GroupWithNccl)
