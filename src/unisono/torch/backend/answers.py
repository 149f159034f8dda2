"""What torch and its tools may ask a backend: each question of a Gloo group has an answer."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch._C import _distributed_c10d as native_c10d

from unisono.errors import Unsupported
from unisono.torch.backend.dynamo import skip

__all__ = ["BackendAnswers"]


def _refuse(what: str, instead: str) -> Unsupported:
    return Unsupported(f"backend unisono does not support {what}; {instead}")


@skip
class BackendAnswers:
    """The part of a group that only answers questions, and refuses what it cannot do."""

    #: Whether calls can be batched; torch's groups do that whatever a backend says here.
    supports_coalescing = False
    #: As of Gloo; `split_group` of the group itself makes subgroups.
    supports_splitting = True
    #: Whether a call's time can be estimated before it is made.
    supports_time_estimate = False
    #: Memory that ranks share by symmetric memory is not for CPU tensors.
    use_pg_for_symm_mem_rendezvous = False

    @property
    def options(self) -> Any:
        """The backend's name and timeout, and the ranks of the world in this group."""
        core = self._core  # type: ignore[attr-defined]
        seconds = 0 if core.engine is None else core.engine.timeout
        made = native_c10d.Backend.Options("unisono", timedelta(seconds=seconds))
        made.global_ranks_in_group = list(core.ranks)
        made.group_name = self.getGroupName()  # type: ignore[attr-defined]
        return made

    def setUsePgForSymmMemRendezvous(self, value: bool) -> None:  # noqa: N802 - torch's spelling
        """Keep what the user wants, as Gloo does."""
        self.use_pg_for_symm_mem_rendezvous = value

    def eager_connect_single_device(self, device: torch.device) -> None:
        """Return immediately: a group is connected when it is made."""

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Whether the backend allocates tensors; it does not."""
        return False

    def allocate_tensor(self, size: int, *, dtype: torch.dtype, device: torch.device) -> Any:
        """Refuse."""
        raise _refuse("allocate_tensor", "use torch.empty")

    @property
    def mem_allocator(self) -> Any:
        """Refuse."""
        raise _refuse("mem_allocator", "tensors of any memory can be passed")

    def memory_stats(self) -> dict[str, int]:
        """Refuse."""
        raise _refuse("memory_stats", "use unisono top, or the tools of the operating system")

    def suspend(self) -> None:
        """Refuse."""
        raise _refuse("suspend", "leave the group with shutdown() and make a new one later")

    def resume(self) -> None:
        """Refuse."""
        raise _refuse("resume", "make a new group")

    def merge_remote_group(self, *given: Any, **named: Any) -> Any:
        """Refuse: C++ would return None for a group that is written in Python."""
        raise _refuse("merge_remote_group", "make one group of all ranks with new_group")

    def _has_hooks(self) -> bool:
        return False

    def _register_on_completion_hook(self, hook: Any) -> None:
        raise _refuse("hooks on completion", "use work.get_future().then(...)")

    def _wait_for_pending_works(self) -> None:
        raise _refuse("waiting for all works", "wait for each work, or call barrier()")

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self.set_timeout(timeout)  # type: ignore[attr-defined]
