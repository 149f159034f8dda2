"""Tells torch's `CommDebugMode` of our calls, which it counts.

It sees the operators of torch's dispatcher, such as `c10d.allreduce_`, which call the methods of a
backend in C++. A group that is written in Python is called without them.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

__all__ = ["tell"]

#: The operators that torch's C++ has for methods of a group, where they have other names.
_OPERATORS = {
    "all_gather_single": "_allgather_base_",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced_",
    "reduce_scatter_single": "_reduce_scatter_base_",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced_",
    "all_to_all_single": "alltoall_base_",
}


class _Operator:
    """Stands for an operator of the dispatcher whose call is made elsewhere."""

    def __init__(self, packet: Any) -> None:
        self._overloadpacket = packet

    def __call__(self) -> None:
        return None

    def __str__(self) -> str:
        return f"{self._overloadpacket}.default"


def tell(method: str) -> None:
    """Let the modes that count collectives count a call of this method by this thread."""
    if not torch._C._len_torch_dispatch_stack():
        return
    theirs = sys.modules.get("torch.distributed.tensor.debug._comm_mode")
    if theirs is None:
        return  # nobody can have made one
    packet = getattr(torch.ops.c10d, _OPERATORS.get(method, f"{method}_"), None)
    for mode in torch.utils._python_dispatch._get_current_dispatch_mode_stack():
        if packet is not None and isinstance(mode, theirs.CommDebugMode):
            mode.__torch_dispatch__(_Operator(packet), ())
