"""Tensors of other devices: torch's own backend for them, on the same group.

torch does not put a backend that is written in Python together with another one, so ours brings the
other along: methods that are called with such tensors hand them to their `super()`, which finds the
backend that is registered for the device.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["serve_other_devices"]


def serve_other_devices(group: Any, timeout: timedelta, backend_options: Any) -> None:
    """Register nccl for CUDA tensors, where both are there; it connects at its first call."""
    if not (dist.is_nccl_available() and torch.cuda.is_available()):
        return
    options = backend_options
    if not isinstance(options, dist.ProcessGroupNCCL.Options):
        options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    store = dist.PrefixStore("nccl/", group.get_group_store())
    nccl = dist.ProcessGroupNCCL(store, group.rank(), group.size(), options)
    nccl._set_sequence_number_for_group()
    group._register_backend(torch.device("cuda"), dist.ProcessGroup.BackendType.NCCL, nccl)
