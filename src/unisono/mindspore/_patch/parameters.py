"""The parameters of rank 0 for all ranks, for MindSpore's option `parameter_broadcast`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unisono.mindspore.communication import comm_func

__all__ = ["broadcast_parameters"]


def broadcast_parameters(parameters: Mapping[str, Any] | None, phase: str) -> None:
    """Give each parameter its value on rank 0; `phase` would name the graph that upstream builds.

    Upstream compiles a graph of one broadcast of a tuple. Nothing here needs a graph.
    """
    for parameter in (parameters or {}).values():
        parameter.set_data(comm_func.broadcast(parameter.value(), 0))
