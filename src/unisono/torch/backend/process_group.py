"""The group that torch calls: each method of a process group, in terms of the PyTorch face.

torch's functions, DDP's reducer and functional collectives all come here, some from C++. Names and
parameters are theirs; where a method has two names, torch has renamed it. A method that is called
with tensors of another device hands them on: its `super()` finds the backend of that device.
"""

from __future__ import annotations

import atexit
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from unisono.core import buffers, dispatch, rendezvous
from unisono.core.engine import ReduceOp, Work
from unisono.core.groups import Group
from unisono.errors import ArgumentError, NotReady
from unisono.torch.backend import beside, sparse
from unisono.torch.backend.futures import Line
from unisono.torch.backend.works import FINISHED, Message, Pending, Together
from unisono.torch.distributed import collectives, point_to_point

__all__ = ["UnisonoGroup"]

#: Our operators by the numbers of torch's; premul_sum is not here, for each has its own factor.
_OPERATORS = {
    getattr(dist.ReduceOp.RedOpType, op.name.upper()).value: op
    for op in ReduceOp.ALL
    if op.name != "premul_sum"
}
_UNSET = timedelta(0)  # timeouts up to it are not set
_DRAIN = 2.0  # seconds that callbacks have to end when the group is closed
_CPU = torch.device("cpu")

_alive: weakref.WeakSet[UnisonoGroup] = weakref.WeakSet()


class UnisonoGroup(dist.ProcessGroup):  # type: ignore[misc]
    """One rank's place in a group, for torch."""

    def __init__(self, core: Group, store: Any) -> None:
        super().__init__(core.rank(), core.size())
        self._core = core
        self._store = store
        self._for_callbacks: Group | None = None
        self._line: Line | None = None
        self._batch: list[Work] | None = None
        self._names = ["", ""]
        _alive.add(self)

    # ---- collectives ----

    def allreduce(self, tensors: Sequence[Any], opts: Any = None) -> dist.Work:
        """Combine a tensor over the group, in place."""
        tensor = _only(tensors)
        if not tensor.is_cpu:
            return super().allreduce(tensors, opts or dist.AllreduceOptions())
        operator = _operator(opts)
        if tensor.layout is not torch.strided:
            return self._run(opts, _sparse_all_reduce, tensor, operator)
        if opts is None or opts.asyncOp or opts.timeout > _UNSET:
            return self._run(opts, collectives.all_reduce, tensor, operator)
        # The shortest way: this call is the one that is timed at 8 bytes.
        data = buffers.view(tensor)
        dispatch.start("all_reduce", self.here(), True, data, data, operator)
        return FINISHED

    def allreduce_coalesced(self, tensors: Sequence[Any], opts: Any = None) -> dist.Work:
        """Combine each of several tensors over the group, in place."""
        if not tensors[0].is_cpu:
            return super().allreduce_coalesced(tensors, opts or dist.AllreduceCoalescedOptions())
        operator = _operator(opts)
        if len({tensor.dtype for tensor in tensors}) == 1:
            return self._run(opts, collectives.all_reduce_coalesced, list(tensors), operator)
        calls = [(tensor, operator) for tensor in tensors]
        return self._run_each(opts, collectives.all_reduce, calls)

    def broadcast(self, tensors: Sequence[Any], opts: Any = None) -> dist.Work:
        """Copy the root's tensor into everyone's."""
        tensor = _only(tensors)
        if not tensor.is_cpu:
            return super().broadcast(tensors, opts or dist.BroadcastOptions())
        return self._run(opts, collectives.broadcast, tensor, group_src=_root(opts))

    def reduce(self, tensors: Sequence[Any], opts: Any = None) -> dist.Work:
        """Combine a tensor over the group into the root's."""
        tensor = _only(tensors)
        if not tensor.is_cpu:
            return super().reduce(tensors, opts or dist.ReduceOptions())
        operator = _operator(opts)
        return self._run(opts, collectives.reduce, tensor, op=operator, group_dst=_root(opts))

    def allgather(
        self, outputs: Sequence[Sequence[Any]], inputs: Sequence[Any], opts: Any = None
    ) -> dist.Work:
        """Collect everyone's tensor in a list."""
        tensor = _only(inputs)
        if not tensor.is_cpu:
            return super().allgather(outputs, inputs, opts or dist.AllgatherOptions())
        return self._run(opts, collectives.all_gather, list(_only(outputs)), tensor)

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> dist.Work:
        """Collect everyone's tensor in one."""
        if not input.is_cpu:
            return super().all_gather_single(output, input, opts or dist.AllgatherOptions())
        return self._run(opts, collectives.all_gather_single, output, input)

    def all_gather_single_coalesced(
        self, outputs: Sequence[Any], inputs: Sequence[Any], opts: Any = None
    ) -> dist.Work:
        """Collect each of several tensors in one."""
        if not inputs[0].is_cpu:
            options = opts or dist.AllgatherOptions()
            return super().all_gather_single_coalesced(outputs, inputs, options)
        calls = zip(outputs, inputs, strict=True)
        return self._run_each(opts, collectives.all_gather_single, calls)

    def allgather_coalesced(
        self, outputs: Sequence[Sequence[Any]], inputs: Sequence[Any], opts: Any = None
    ) -> dist.Work:
        """Collect everyone's list of tensors; that of rank i goes into list i."""
        if not inputs[0].is_cpu:
            return super().allgather_coalesced(outputs, inputs, opts or dist.AllgatherOptions())
        rows = [list(row) for row in outputs]
        return self._run(opts, collectives.all_gather_coalesced, rows, list(inputs))

    def gather(
        self, outputs: Sequence[Sequence[Any]], inputs: Sequence[Any], opts: Any = None
    ) -> dist.Work:
        """Collect everyone's tensor in a list of the root."""
        tensor = _only(inputs)
        if not tensor.is_cpu:
            return super().gather(outputs, inputs, opts or dist.GatherOptions())
        into = list(outputs[0]) if outputs else None
        return self._run(opts, collectives.gather, tensor, into, group_dst=_root(opts))

    def scatter(
        self, outputs: Sequence[Any], inputs: Sequence[Sequence[Any]], opts: Any = None
    ) -> dist.Work:
        """Deal a list of the root's tensors out."""
        tensor = _only(outputs)
        if not tensor.is_cpu:
            return super().scatter(outputs, inputs, opts or dist.ScatterOptions())
        out_of = list(inputs[0]) if inputs else None
        return self._run(opts, collectives.scatter, tensor, out_of, group_src=_root(opts))

    def reduce_scatter(
        self, outputs: Sequence[Any], inputs: Sequence[Sequence[Any]], opts: Any = None
    ) -> dist.Work:
        """Combine everyone's list and leave entry `rank` of the result here."""
        tensor = _only(outputs)
        if not tensor.is_cpu:
            return super().reduce_scatter(outputs, inputs, opts or dist.ReduceScatterOptions())
        operator = _operator(opts)
        entries = list(_only(inputs))
        return self._run(opts, collectives.reduce_scatter, tensor, entries, operator)

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> dist.Work:
        """Combine everyone's tensor and leave part `rank` of it here."""
        if not input.is_cpu:
            return super().reduce_scatter_single(output, input, opts or dist.ReduceScatterOptions())
        return self._run(opts, collectives.reduce_scatter_single, output, input, _operator(opts))

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Any], inputs: Sequence[Any], opts: Any = None
    ) -> dist.Work:
        """Combine each of several tensors and leave part `rank` of each here."""
        if not inputs[0].is_cpu:
            options = opts or dist.ReduceScatterOptions()
            return super().reduce_scatter_single_coalesced(outputs, inputs, options)
        operator = _operator(opts)
        calls = [(*pair, operator) for pair in zip(outputs, inputs, strict=True)]
        return self._run_each(opts, collectives.reduce_scatter_single, calls)

    def alltoall(
        self, outputs: Sequence[Any], inputs: Sequence[Any], opts: Any = None
    ) -> dist.Work:
        """Send entry j of a list to rank j, and receive entry i of the other from rank i."""
        if not inputs[0].is_cpu:
            return super().alltoall(outputs, inputs, opts or dist.AllToAllOptions())
        return self._run(opts, collectives.all_to_all, list(outputs), list(inputs))

    def all_to_all_single(
        self,
        output: Any,
        input: Any,
        output_splits: Sequence[int] = (),
        input_splits: Sequence[int] = (),
        opts: Any = None,
    ) -> dist.Work:
        """Send rows of a tensor to each rank and receive rows of the other."""
        if not input.is_cpu:
            options = opts or dist.AllToAllOptions()
            return super().all_to_all_single(output, input, output_splits, input_splits, options)
        splits = output_splits, input_splits
        return self._run(opts, collectives.all_to_all_single, output, input, *splits)

    def barrier(self, opts: Any = None) -> dist.Work:
        """Wait until every rank of the group has come here."""
        if opts is not None and opts.device_ids:
            return super().barrier(opts)
        return self._run(opts, collectives.barrier)

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Wait for every rank of the group, and name those that did not come in time."""
        collectives.monitored_barrier(self.here(), timeout, wait_all_ranks)

    # Names before torch 2.13; C++ asks for some of them still.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # ---- messages ----

    def send(self, tensors: Sequence[Any], dst: int, tag: int = 0) -> dist.Work:
        """Start to send a tensor to a rank of the group."""
        tensor = _only(tensors)
        if not tensor.is_cpu:
            return super().send(tensors, dst, tag)
        return self._message(point_to_point.isend(tensor, None, self.here(), tag, dst), dst)

    def recv(self, tensors: Sequence[Any], src: int, tag: int = 0) -> dist.Work:
        """Start to receive a tensor from a rank of the group."""
        tensor = _only(tensors)
        if not tensor.is_cpu:
            return super().recv(tensors, src, tag)
        return self._message(point_to_point.irecv(tensor, None, self.here(), tag, src), src)

    def recv_anysource(self, tensors: Sequence[Any], tag: int = 0) -> dist.Work:
        """Start to receive a tensor from any rank of the group."""
        tensor = _only(tensors)
        if not tensor.is_cpu:
            return super().recv_anysource(tensors, tag)
        return self._message(point_to_point.irecv(tensor, None, self.here(), tag), None)

    def _start_coalescing(self, device: torch.device) -> None:
        if device.type != "cpu":
            super()._start_coalescing(device)
        else:
            self._batch = []

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        if device.type != "cpu":
            return super()._end_coalescing(device)
        works, self._batch = self._batch or [], None
        return Pending(Together(works), self.line, for_python=True)

    # ---- groups ----

    def split_core(self, ranks: Sequence[int], name: str, timeout: float) -> Group:
        """The core's group of some ranks of this one; called by its members only."""
        core = self._core.split(ranks, name)
        assert core.engine is not None
        core.engine.timeout = timeout
        return core

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Sequence[torch.device] | None = None,
    ) -> UnisonoGroup | None:
        """A group of some ranks of this one; None for the others."""
        if self._core.rank not in ranks:
            return None
        if self._core.engine is None:
            raise NotReady(f"group {self._core.name!r} is closed; make a new one")
        name = group_name or f"{self._core.name}:{','.join(map(str, ranks))}"
        patience = timeout or timedelta(seconds=self._core.engine.timeout)
        core = self.split_core(ranks, name, patience.total_seconds())
        child = UnisonoGroup(core, dist.PrefixStore(f"{name}/", self._store))
        beside.serve_other_devices(child, patience, opts)
        child.setGroupName(name)
        child.setGroupDesc(group_desc or "")
        return child

    def shutdown(self) -> None:
        """Leave the group; doing so twice is allowed."""
        _alive.discard(self)
        self._core.close()
        if self._for_callbacks is not None:
            self._for_callbacks.close()
        if self._line is not None:
            self._line.close(_DRAIN)
        for device in super()._device_types:
            super()._get_backend(device).shutdown()

    def abort(self) -> None:
        """Leave the group; others hear of it at once."""
        self.shutdown()

    def set_timeout(self, timeout: timedelta) -> None:
        """Let calls from now on wait so long for others."""
        if self._core.engine is not None:
            self._core.engine.timeout = rendezvous.timeout(timeout.total_seconds())

    # ---- what torch asks about a group ----

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
        return [_CPU, *super()._device_types]

    def _get_backend(self, device: torch.device) -> Any:
        return self if device.type == "cpu" else super()._get_backend(device)

    def _set_sequence_number_for_group(self) -> None:
        return None  # calls are counted from the beginning

    def _get_sequence_number_for_group(self) -> int:
        return self._core.calls

    # ---- calls ----

    def here(self) -> Group:
        """The core's group for calls from this thread.

        Callbacks have one of their own, with the same ranks: whether the thread that trains starts
        its next call before or after theirs may differ from rank to rank, but each of the two
        threads does what it does in the same order everywhere.
        """
        if self._line is None or not self._line.is_current():
            return self._core
        if self._for_callbacks is None:
            core = self._core
            if core.engine is None:
                raise NotReady(f"group {core.name!r} is closed; make a new one")
            # Not by core.split: it counts, and the thread that trains may split at the same time.
            engine = core.engine.split(range(core.size), f"{core.name} for callbacks")
            name = f"{core.name}, from callbacks"
            self._for_callbacks = Group(name, core.ranks, engine, core.rank)
        return self._for_callbacks

    def line(self) -> Line:
        """The thread for futures and callbacks."""
        if self._line is None:
            self._line = Line(f"unisono callbacks of group {self._core.name}")
        return self._line

    def _run(
        self, opts: Any, function: Callable[..., Work | None], *arguments: Any, **more: Any
    ) -> dist.Work:
        """Call a function of the face, and make what torch expects of what it returns."""
        blocking = opts is not None and not opts.asyncOp
        with self._deadline(opts):
            work = function(*arguments, group=self.here(), async_op=not blocking, **more)
        return self._hand_out(work, blocking, sys._getframe(2).f_globals)

    def _run_each(
        self, opts: Any, function: Callable[..., Work | None], calls: Iterable[Sequence[Any]]
    ) -> dist.Work:
        """Call a function of the face several times, and hand out the works as one."""
        with self._deadline(opts):
            works = [function(*call, group=self.here(), async_op=True) for call in calls]
        together = Together([work for work in works if work is not None])
        blocking = opts is not None and not opts.asyncOp
        return self._hand_out(together, blocking, sys._getframe(2).f_globals)

    def _hand_out(self, work: Work | None, blocking: bool, caller: dict[str, Any]) -> dist.Work:
        if work is None:
            return FINISHED
        if blocking:
            work.wait()
            return FINISHED
        if self._batch is not None:
            self._batch.append(work)
        # torch's Python functions are called by Python code, and all others by C++.
        return Pending(work, self.line, caller is vars(distributed_c10d))

    def _message(self, work: Work | None, peer: int | None) -> dist.Work:
        assert work is not None  # this rank is a member
        if self._batch is not None:
            self._batch.append(work)
        return Message(work, peer)

    def _deadline(self, opts: Any) -> AbstractContextManager[None]:
        if opts is None or opts.timeout <= _UNSET:
            return nullcontext()
        return dispatch.deadline(self.here(), opts.timeout.total_seconds())


def _sparse_all_reduce(tensor: Any, op: ReduceOp, group: Group, async_op: bool) -> Work:
    return sparse.all_reduce(tensor, op, group)


def _only(tensors: Sequence[Any]) -> Any:
    """The one tensor of a list: torch's methods could take one for each of several devices."""
    if len(tensors) != 1:
        raise ArgumentError(f"expected one tensor for this rank, got {len(tensors)}")
    return tensors[0]


def _operator(opts: Any) -> ReduceOp:
    if opts is None:
        return ReduceOp.SUM
    op = opts.reduceOp
    return _OPERATORS.get(op.op.value) or ReduceOp.premul_sum(op.factor)


def _root(opts: Any) -> int:
    root: int = 0 if opts is None else opts.rootRank
    return root


@atexit.register
def _leave() -> None:
    """A process that ends without destroy_process_group leaves its groups all the same."""
    for group in list(_alive):
        group.shutdown()
