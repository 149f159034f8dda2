"""CUDA tensors of ranks that share a GPU: engine `cuda`, on the same group. nccl refuses these.

As with gloo and nccl in one group, calls on the CPU and on the GPU are in no order: a thread may
save a checkpoint over the group while another one trains.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from unisono.core.buffers import view
from unisono.core.call import Call
from unisono.core.groups import Group
from unisono.engines.common.inner_calls import inner_caller
from unisono.torch.backend.dynamo import skip
from unisono.torch.backend.process_group import UnisonoGroup

__all__ = ["GroupOnSharedGpu", "count_gpus"]

_MOST_GPUS = 32  # of one host
_IDENTITY_BYTES = 32


def count_gpus(core: Group) -> int:
    """How many GPUs the ranks of a group see together; 0 unless engine `cuda` runs on every rank.

    Every rank of the group asks, and all get the same answer.
    """
    engine, on_gpu = core.engine, core.engine_for("cuda")
    assert engine is not None
    gpus = [] if on_gpu is None else on_gpu.visible_gpus()
    text = "".join(gpus[:_MOST_GPUS]).encode()
    own = np.zeros(_MOST_GPUS * _IDENTITY_BYTES, np.uint8)
    own[: len(text)] = np.frombuffer(text, np.uint8)
    every = np.empty((core.size, own.size), np.uint8)
    call = Call.all_gather(inner_caller(engine), view(own), view(every.reshape(-1)))
    engine.all_gather(call).wait()
    found = [_identities(row) for row in every]
    return len(set().union(*found)) if all(found) else 0


def _identities(row: np.ndarray[Any, Any]) -> set[bytes]:
    text = row.tobytes().rstrip(b"\0")
    return {text[at : at + _IDENTITY_BYTES] for at in range(0, len(text), _IDENTITY_BYTES)}


@skip
class GroupOnSharedGpu(UnisonoGroup):
    """A group that serves CUDA tensors as it serves those of the CPU."""

    def __init__(self, core: Group, store: Any, timeout: timedelta, options: Any) -> None:
        core.order_apart("cuda")
        super().__init__(core, store, timeout, options)
        self.set_timeout(timeout)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long calls from now on wait for other ranks, on either memory."""
        super().set_timeout(timeout)
        on_gpu = self._core.engine_for("cuda")
        assert on_gpu is not None
        on_gpu.timeout = self._engine().timeout

    def barrier(self, *given: Any, **named: Any) -> dist.Work:
        """Wait for every rank, and for what each has begun on the GPU, as nccl's does."""
        if torch.cuda.is_initialized():
            torch.cuda.current_stream().synchronize()
        return super().barrier(*given, **named)

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu"), torch.device("cuda")]

    def _get_backend(self, device: torch.device) -> Any:
        return self if device.type == "cuda" else super()._get_backend(device)
