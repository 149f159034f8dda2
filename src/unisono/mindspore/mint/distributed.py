"""The MindSpore face, `mindspore.mint.distributed`: PyTorch's shapes, in place, groups by name.

A call writes into the tensors that it is given and returns None, or a handle where `async_op` is
true. Every `src`, `dst` and `peer` is a rank of the world.
"""

from __future__ import annotations

import sys

from unisono.core.arguments import missing_name as _missing_name
from unisono.mindspore._in_place import (
    all_gather_into_tensor,
    all_gather_into_tensor_uneven,
    all_reduce,
    all_to_all_single,
    barrier,
    broadcast,
    reduce,
    reduce_scatter_tensor,
    reduce_scatter_tensor_uneven,
)

# Upstream's package does not offer these, but its module has them, and its examples import them.
from unisono.mindspore._in_place import gather_into_tensor as gather_into_tensor
from unisono.mindspore._in_place import scatter_tensor as scatter_tensor
from unisono.mindspore._in_place_lists import (
    all_gather,
    all_to_all,
    gather,
    reduce_scatter,
    scatter,
)
from unisono.mindspore._objects import (
    all_gather_object,
    broadcast_object_list,
    gather_object,
    recv_object_list,
    scatter_object_list,
    send_object_list,
)
from unisono.mindspore._point_to_point import (
    P2POp,
    batch_isend_irecv,
    irecv,
    isend,
    recv,
    send,
)
from unisono.mindspore._process_groups import (
    destroy_process_group,
    get_backend,
    get_global_rank,
    get_group_rank,
    get_process_group_ranks,
    get_rank,
    get_world_size,
    init_process_group,
    is_available,
    is_initialized,
    new_group,
)
from unisono.mindspore._store import TCPStore as TCPStore

__all__ = [
    "P2POp",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_into_tensor_uneven",
    "all_gather_object",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "broadcast_object_list",
    "destroy_process_group",
    "gather",
    "gather_object",
    "get_backend",
    "get_global_rank",
    "get_group_rank",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "init_process_group",
    "irecv",
    "is_available",
    "is_initialized",
    "isend",
    "new_group",
    "recv",
    "recv_object_list",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_uneven",
    "scatter",
    "scatter_object_list",
    "send",
    "send_object_list",
]

__getattr__ = _missing_name(
    "mindspore.mint.distributed",
    __all__,
    {
        "monitored_barrier": "barrier",
        "new_subgroups": "new_group",
        "split_group": "new_group",
        "all_reduce_coalesced": "all_reduce",
        "all_gather_coalesced": "all_gather",
        "ReduceOp": 'the strings "sum", "prod", "min", "max" and "avg"',
        "all_to_all_v_c": "all_to_all_single, or ops.communication.all_to_all_v_c",
    },
)

# Upstream's package has one module, of the same name, and programs import from both.
setattr(sys.modules[__name__], "distributed", sys.modules[__name__])  # noqa: B010
sys.modules.update({f"{__name__}.distributed": sys.modules[__name__]})
