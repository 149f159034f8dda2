"""The MindSpore face, `mindspore.ops.operations.comm_ops`: the primitives of `ops`."""

from __future__ import annotations

from unisono.core.arguments import missing_name as _missing_name
from unisono.mindspore.ops import (
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
]

# Nothing is MindSpore's own here: all that upstream has in this module communicates.
__getattr__ = _missing_name("mindspore.ops.operations.comm_ops", __all__)
