"""The ordinary case of each hot call, whole in native code, before the general way through Python.

A function of a face first hands its arguments to one of these. `NotImplemented` means that nothing
was done, because something is not ordinary: the tensor (not NumPy's or torch's, not contiguous, on
a GPU), the operator, the group (not on engine `shm`), or an argument that is wrong. Then the face
goes the general way, through `dispatch`, where all errors are as well. The environment variable
`UNISONO_FAST_CALLS=0` leaves everything to the general way.

Functions ending in `_into` write into tensors of the caller, `_new` return a new one, and `_list`
take a list with a tensor for each rank. Their arguments are positional: see native/fast_call.hpp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

native: Any
try:
    from unisono._native import fast as native
except ImportError:  # without a compiler there are the other engines
    native = None

__all__ = [
    "all_gather_into",
    "all_gather_list",
    "all_gather_new",
    "all_reduce",
    "all_reduce_new",
    "all_to_all_into",
    "all_to_all_list",
    "barrier",
    "broadcast",
    "broadcast_new",
    "gather_list",
    "get_rank",
    "get_size",
    "irecv",
    "isend",
    "native",
    "recv",
    "reduce",
    "reduce_scatter_into",
    "reduce_scatter_new",
    "scatter_list",
    "send",
]


def _leave_to_python(*arguments: Any) -> Any:
    return NotImplemented


def _function(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(native, name, _leave_to_python)
    return found


all_reduce = _function("all_reduce")
reduce = _function("reduce")
broadcast = _function("broadcast")
all_gather_into = _function("all_gather_into")
reduce_scatter_into = _function("reduce_scatter_into")
all_to_all_into = _function("all_to_all_into")
barrier = _function("barrier")
all_gather_list = _function("all_gather_list")
all_to_all_list = _function("all_to_all_list")
gather_list = _function("gather_list")
scatter_list = _function("scatter_list")
all_reduce_new = _function("all_reduce_new")
all_gather_new = _function("all_gather_new")
reduce_scatter_new = _function("reduce_scatter_new")
broadcast_new = _function("broadcast_new")
send = _function("send")
recv = _function("recv")
isend = _function("isend")
irecv = _function("irecv")
get_rank = _function("get_rank")
get_size = _function("get_size")
