"""What a group is for torch, apart from its calls: its threads, names, subgroups and end."""

from __future__ import annotations

import atexit
import sys
import warnings
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Self

import torch
import torch.distributed as dist

from unisono.core import environment
from unisono.core.debugging.debugger import hold
from unisono.core.engine import DRAIN_SECONDS, Engine
from unisono.core.groups import Group
from unisono.errors import NotReady
from unisono.torch.backend.answers import BackendAnswers
from unisono.torch.backend.direct import DirectCalls
from unisono.torch.backend.dynamo import skip
from unisono.torch.backend.futures import CallbackThread, current_callback_thread, keep_interrupts
from unisono.torch.backend.tables import replace_group

__all__ = ["ProcessGroupBase"]

_alive: weakref.WeakSet[ProcessGroupBase] = weakref.WeakSet()


@skip
class ProcessGroupBase(BackendAnswers, dist.ProcessGroup):  # type: ignore[misc]
    """One rank's membership in a group, for torch."""

    #: What programs are told; a patched torch has groups that they take for gloo's.
    backend_name = "unisono"
    _before: ProcessGroupBase | None = None  # the group that this one was shrunk from

    def __init__(self, core: Group, store: Any, timeout: timedelta, options: Any) -> None:
        dist.ProcessGroup.__init__(self, core.rank(), core.size())
        self._core = core
        self._store = store
        self._for_callbacks: dict[str, Group] = {}
        self._callback_thread: CallbackThread | None = None
        self._name = ""
        self._description = ""
        #: For native code, which makes the ordinary calls; None where the general way makes all.
        self.direct = self.direct_calls()
        _alive.add(self)

    # ---- threads ----

    def group_for_this_thread(self) -> Group:
        """The core's group for calls from this thread.

        Callbacks have another one, with the same ranks: whether the thread that trains starts its
        next call before or after theirs may differ between ranks, but each thread makes its calls
        in the same order on every rank. The callbacks of all other groups share one more, because
        the names of those groups may differ between ranks, as in the rows of a mesh.
        """
        thread = current_callback_thread()
        if thread is None:
            return self._core
        whose = "its callbacks" if thread is self._callback_thread else "callbacks of other groups"
        if whose not in self._for_callbacks:
            core, name = self._core, f"{self._core.name} in {whose}"
            # Not by core.split: it counts, and another thread may split at the same time.
            engine = self._engine().split(range(core.size), name)
            self._for_callbacks[whose] = Group(name, core.ranks, engine, core.rank)
        return self._for_callbacks[whose]

    def run_in_order(self, job: Callable[[], None], ready: bool) -> None:
        """Run a job of a future in the callback thread, which exists from the first one on."""
        if self._callback_thread is None:
            self._callback_thread = CallbackThread(f"callbacks of group {self._core.name}")
        self._callback_thread.run(job, ready)

    def direct_calls(self) -> Any:
        """What native code makes the ordinary calls of this group with; None if it cannot."""
        engine = self._core.engine
        if engine is not None and engine.communicator is not None:
            keep_interrupts(engine.communicator)
        return DirectCalls.of(self._core)

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
        limit = timeout or timedelta(seconds=self._engine().timeout)
        store = dist.PrefixStore(f"{name}/", self._store)
        child = type(self)(self.split_core(ranks, name, limit), store, limit, opts)
        child.backend_name = self.backend_name
        child.setGroupName(name)
        child.setGroupDesc(group_desc or "")
        return child

    # ---- after a loss ----

    def shrink(self, ranks_to_exclude: Sequence[int] = ()) -> Self:
        """A group of the ranks that are alive and not excluded; they all call it.

        Ranks that have ended need not be named. This group cannot be used any more. If it is
        torch's default group, the new one takes its place, with new rank numbers, and all other
        groups are closed; that is what `torch.distributed.shrink_group` does for nccl.

            except unisono.PeerLost:
                group = dist.group.WORLD.shrink()
        """
        limit = timedelta(seconds=self._engine().timeout)
        core = self._core.shrink(ranks_to_exclude, world=dist.group.WORLD is self)
        made = type(self)(core, self._store, limit, None)
        made.backend_name = self.backend_name
        replace_group(self, made, core.ranks)
        if self._core.engine is None:
            self.shutdown()
        else:  # a world next to another backend's: its memory serves the new group
            made._before = self
        return made

    @property
    def supports_shrinking(self) -> bool:
        """False: torch's `shrink_group` asks this, and can only go on with backends in C++."""
        warnings.warn(
            "torch.distributed.shrink_group works with backends that are written in C++ only; "
            "call group.shrink() instead, as in torch.distributed.group.WORLD.shrink()",
            stacklevel=5,
        )
        return False

    # ---- debugging ----

    def breakpoint(self, rank: int = 0) -> None:
        """Stop in a debugger on one rank of the group; the others wait, without a deadline.

        `torch.distributed.breakpoint` reads standard input, so it needs `unisono run --tty RANK`,
        and the others wait as long as any call may.
        """
        hold(self._core, rank, sys._getframe(1))

    # ---- the end ----

    def shutdown(self) -> None:
        """Leave the group; doing so twice is allowed."""
        _alive.discard(self)
        self.direct = None
        self._core.close()
        for group in self._for_callbacks.values():
            group.close()
        if self._callback_thread is not None:
            self._callback_thread.close(DRAIN_SECONDS)
        if self._before is not None:
            self._before.shutdown()

    def abort(self) -> None:
        """Leave the group; the other ranks get an error at once."""
        self.shutdown()

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long calls from now on wait for other ranks."""
        self._engine().timeout = environment.timeout(timeout.total_seconds())

    # ---- what torch asks, partly from C++ ----

    def getBackendName(self) -> str:  # noqa: N802 - upstream's spelling, here and below
        """Return the name that the backend is registered with; C++ casts groups of other names."""
        return "unisono"

    def name(self) -> str:
        """Return the name of the backend that the program has asked for."""
        return self.backend_name

    _get_backend_name = name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Keep torch's name; functional collectives find the group by it."""
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802
        """Return torch's name."""
        return self._name

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        """Keep the user's description."""
        self._description = description

    def getGroupDesc(self) -> str:  # noqa: N802
        """Return the user's description."""
        return self._description

    def get_group_store(self) -> Any:
        """Return the store of its rendezvous."""
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
    """Leave all groups in a process that ends without destroy_process_group."""
    for group in list(_alive):
        if group._core.engine is not None:
            group._core.engine.exit()
    for group in list(_alive):
        group.shutdown()
