"""What a group is for torch, apart from its calls: its names, its subgroups, its end."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Self

import torch
import torch.distributed as dist
from unisono.core import environment
from unisono.core.engine import Engine
from unisono.core.groups import Group
from unisono.errors import NotReady
from unisono.torch.backend.dynamo import leave_alone
from unisono.torch.backend.futures import Line, current_line

__all__ = ["Membership"]

_DRAIN = 2.0  # seconds that callbacks have to end when the group is closed

_alive: weakref.WeakSet[Membership] = weakref.WeakSet()


@leave_alone
class Membership(dist.ProcessGroup):  # type: ignore[misc]
    """One rank's place in a group, for torch."""

    def __init__(self, core: Group, store: Any, timeout: timedelta, options: Any) -> None:
        super().__init__(core.rank(), core.size())
        self._core = core
        self._store = store
        self._for_callbacks: dict[str, Group] = {}
        self._line: Line | None = None
        self._names = ["", ""]
        _alive.add(self)

    # ---- threads ----

    def here(self) -> Group:
        """The core's group for calls from this thread.

        Callbacks have one of their own, with the same ranks: whether the thread that trains starts
        its next call before or after theirs may differ from rank to rank, but each thread does what
        it does in the same order everywhere. So do the callbacks of other groups, whose names may
        differ from rank to rank, as those of the rows of a mesh do: they share one.
        """
        line = current_line()
        if line is None:
            return self._core
        whose = "its callbacks" if line is self._line else "callbacks of other groups"
        if whose not in self._for_callbacks:
            core, name = self._core, f"{self._core.name} in {whose}"
            # Not by core.split: it counts, and another thread may split at the same time.
            engine = self._engine().split(range(core.size), name)
            self._for_callbacks[whose] = Group(name, core.ranks, engine, core.rank)
        return self._for_callbacks[whose]

    def line(self) -> Line:
        """The thread for futures and callbacks; it exists from the first of them on."""
        if self._line is None:
            self._line = Line(f"callbacks of group {self._core.name}")
        return self._line

    # ---- subgroups ----

    def split_core(self, ranks: Sequence[int], name: str, timeout: timedelta) -> Group:
        """The core's group of some ranks of this one; called by its members only."""
        core = self._core.split(ranks, name)
        if core.engine is not None:
            core.engine.timeout = environment.timeout(timeout.total_seconds())
        return core

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Sequence[torch.device] | None = None,
    ) -> Self | None:
        """A group of some ranks of this one; None for the others."""
        if self._core.rank not in ranks:
            return None
        name = group_name or f"{self._core.name}:{','.join(map(str, ranks))}"
        patience = timeout or timedelta(seconds=self._engine().timeout)
        store = dist.PrefixStore(f"{name}/", self._store)
        child = type(self)(self.split_core(ranks, name, patience), store, patience, opts)
        child.setGroupName(name)
        child.setGroupDesc(group_desc or "")
        return child

    # ---- the end ----

    def shutdown(self) -> None:
        """Leave the group; doing so twice is allowed."""
        _alive.discard(self)
        self._core.close()
        for group in self._for_callbacks.values():
            group.close()
        if self._line is not None:
            self._line.close(_DRAIN)

    def abort(self) -> None:
        """Leave the group; others hear of it at once."""
        self.shutdown()

    def set_timeout(self, timeout: timedelta) -> None:
        """Let calls from now on wait so long for others."""
        self._engine().timeout = environment.timeout(timeout.total_seconds())

    # ---- what torch asks, partly from C++ ----

    def getBackendName(self) -> str:  # noqa: N802 - upstream's spelling, here and below
        """Return the name that the backend is registered with."""
        return "unisono"

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Keep torch's name; functional collectives find the group by it."""
        self._names[0] = name

    def getGroupName(self) -> str:  # noqa: N802
        """Return torch's name."""
        return self._names[0]

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        """Keep the user's description."""
        self._names[1] = description

    def getGroupDesc(self) -> str:  # noqa: N802
        """Return the user's description."""
        return self._names[1]

    def get_group_store(self) -> Any:
        """Return the store that its ranks met in."""
        return self._store

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu"), *super()._device_types]

    def _get_backend(self, device: torch.device) -> Any:
        return self if device.type == "cpu" else super()._get_backend(device)

    def _set_sequence_number_for_group(self) -> None:
        return None  # calls are counted from the beginning

    def _get_sequence_number_for_group(self) -> int:
        return self._core.calls

    def _engine(self) -> Engine:
        if self._core.engine is None:
            raise NotReady(f"group {self._core.name!r} is closed; make a new one")
        return self._core.engine


@atexit.register
def _leave() -> None:
    """A process that ends without destroy_process_group leaves its groups all the same."""
    for group in list(_alive):
        if group._core.engine is not None:
            group._core.engine.exit()
    for group in list(_alive):
        group.shutdown()
