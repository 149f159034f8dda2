"""The PyTorch face: the functions of `torch.distributed`, for any tensor, on any engine.

Results are written into tensors that you pass. A call returns None, or a work if `async_op` is
true. A name that torch has and this module lacks is an AttributeError that says what to use.
"""

from __future__ import annotations

from unisono.core.arguments import missing_name as _missing_name
from unisono.core.engine import ReduceOp, Work
from unisono.core.groups import Group as ProcessGroup
from unisono.torch.distributed import nn as nn
from unisono.torch.distributed.barriers import barrier, monitored_barrier
from unisono.torch.distributed.debugging import breakpoint
from unisono.torch.distributed.groups import (
    GroupMember,
    get_backend,
    get_global_rank,
    get_group_rank,
    get_node_local_rank,
    get_process_group_ranks,
    get_rank,
    get_world_size,
    group,
    new_group,
    new_subgroups,
    new_subgroups_by_enumeration,
    shrink_group,
    split_group,
)
from unisono.torch.distributed.movement import _all_gather_base as _all_gather_base
from unisono.torch.distributed.movement import (
    all_gather,
    all_gather_coalesced,
    all_gather_into_tensor,
    all_gather_single,
    all_to_all,
    all_to_all_single,
    broadcast,
    gather,
    scatter,
)
from unisono.torch.distributed.objects import (
    all_gather_object,
    broadcast_object_list,
    gather_object,
    recv_object_list,
    scatter_object_list,
    send_object_list,
)
from unisono.torch.distributed.point_to_point import (
    P2POp,
    batch_isend_irecv,
    irecv,
    isend,
    recv,
    send,
)
from unisono.torch.distributed.reductions import _reduce_scatter_base as _reduce_scatter_base
from unisono.torch.distributed.reductions import (
    all_reduce,
    all_reduce_coalesced,
    reduce,
    reduce_scatter,
    reduce_scatter_single,
    reduce_scatter_tensor,
)
from unisono.torch.distributed.startup import (
    destroy_process_group,
    init_process_group,
    is_available,
    is_backend_available,
    is_gloo_available,
    is_initialized,
    is_mpi_available,
    is_nccl_available,
    is_torchelastic_launched,
    is_ucc_available,
    is_xccl_available,
)

__all__ = [
    "GroupMember",
    "P2POp",
    "ProcessGroup",
    "ReduceOp",
    "Work",
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_gather_single",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "breakpoint",
    "broadcast",
    "broadcast_object_list",
    "destroy_process_group",
    "gather",
    "gather_object",
    "get_backend",
    "get_global_rank",
    "get_group_rank",
    "get_node_local_rank",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "group",
    "init_process_group",
    "irecv",
    "is_available",
    "is_backend_available",
    "is_gloo_available",
    "is_initialized",
    "is_mpi_available",
    "is_nccl_available",
    "is_torchelastic_launched",
    "is_ucc_available",
    "is_xccl_available",
    "isend",
    "monitored_barrier",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "recv",
    "recv_object_list",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
    "send",
    "send_object_list",
    "shrink_group",
    "split_group",
]

#: What torch.distributed has and this module lacks, with what to use instead.
_NEAREST = {
    "Backend": "the plain name of an engine, such as 'shm'",
    "BackendConfig": "get_backend()",
    "DeviceMesh": "new_group() or new_subgroups()",
    "DistBackendError": "unisono.UnisonoError",
    "DistError": "unisono.UnisonoError",
    "DistNetworkError": "unisono.PeerLost",
    "DistStoreError": "unisono.LaunchError",
    "FileStore": "init_process_group(init_method='file://PATH')",
    "HashStore": "unisono.spawn()",
    "PrefixStore": "broadcast_object_list()",
    "ProcessGroupGloo": "new_group()",
    "Store": "broadcast_object_list()",
    "TCPStore": "init_process_group(init_method='tcp://HOST:PORT')",
    "default_pg_timeout": "the environment variable UNISONO_TIMEOUT",
    "get_backend_config": "get_backend()",
    "get_default_backend_for_device": "get_backend()",
    "get_pg_count": "new_group()",
    "init_device_mesh": "new_group() or new_subgroups()",
    "reduce_op": "ReduceOp",
    "rpc": "send_object_list()",
    "supports_complex": "all_reduce(), which raises an error where it does not",
}


def _make_nccl_premul_sum(factor: float) -> ReduceOp:
    """Make torch's operator that multiplies by `factor` before it sums."""
    return ReduceOp.premul_sum(factor)


__getattr__ = _missing_name("torch.distributed", (), _NEAREST)
