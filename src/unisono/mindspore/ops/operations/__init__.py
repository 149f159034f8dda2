"""The MindSpore face, `mindspore.ops.operations`: primitives that communicate are unisono's."""

from __future__ import annotations

from unisono.mindspore._names import or_mindspore as _or_mindspore
from unisono.mindspore.ops.operations import comm_ops
from unisono.mindspore.ops.operations.comm_ops import (
    AllGather,
    AllGatherV,
    AllReduce,
    AlltoAll,
    AlltoAllV,
    AlltoAllVC,
    Barrier,
    BatchISendIRecv,
    Broadcast,
    CollectiveGather,
    CollectiveScatter,
    NeighborExchange,
    NeighborExchangeV2,
    Receive,
    Reduce,
    ReduceOp,
    ReduceScatter,
    ReduceScatterV,
    Send,
)

__all__ = [
    "AllGather",
    "AllGatherV",
    "AllReduce",
    "AlltoAll",
    "AlltoAllV",
    "AlltoAllVC",
    "Barrier",
    "BatchISendIRecv",
    "Broadcast",
    "CollectiveGather",
    "CollectiveScatter",
    "NeighborExchange",
    "NeighborExchangeV2",
    "Receive",
    "Reduce",
    "ReduceOp",
    "ReduceScatter",
    "ReduceScatterV",
    "Send",
    "comm_ops",
]

__getattr__, __dir__ = _or_mindspore("mindspore.ops.operations", __all__)
