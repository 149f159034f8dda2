"""Collectives that autograd knows, as in `torch.distributed.nn`; see `functional`."""

from __future__ import annotations

from unisono.core.arguments import missing_name as _missing_name
from unisono.torch.distributed.nn import functional as functional
from unisono.torch.distributed.nn.functional import (
    all_gather,
    all_reduce,
    all_to_all,
    all_to_all_single,
    broadcast,
    gather,
    reduce,
    reduce_scatter,
    scatter,
)

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "scatter",
]

#: What torch.distributed.nn has and this module lacks, with what to use instead.
_NEAREST = {"RemoteModule": "send_object_list() of unisono.torch.distributed"}

__getattr__ = _missing_name("torch.distributed.nn", (), _NEAREST)
