"""The MindSpore face, `mindspore.ops`: collectives as primitives, built once and called later.

Ranks in arguments are ranks of the world; results are new tensors of the same kind as the input.
"""

from __future__ import annotations

from unisono.mindspore._arguments import ReduceOp
from unisono.mindspore._names import or_mindspore as _or_mindspore
from unisono.mindspore.ops import communication
from unisono.mindspore.ops._collectives import (
    AllGather,
    AllReduce,
    Barrier,
    Broadcast,
    CollectiveGather,
    CollectiveScatter,
    Reduce,
    ReduceScatter,
)
from unisono.mindspore.ops._exchanges import (
    AllGatherV,
    AlltoAll,
    AlltoAllV,
    AlltoAllVC,
    ReduceScatterV,
)
from unisono.mindspore.ops._messages import BatchISendIRecv, Receive, Send
from unisono.mindspore.ops._neighbors import NeighborExchange, NeighborExchangeV2

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
    "communication",
]

__getattr__, __dir__ = _or_mindspore(
    "mindspore.ops",
    __all__,
    modules=["operations"],
    # Upstream's ops has these too, except where it has an operator of that name.
    borrowed={
        name: communication.__name__
        for name in communication.__all__
        if name not in ("gather", "scatter")
    },
)
