"""The group that torch calls: each method of a process group, in terms of the PyTorch face.

torch's functions, DDP's reducer and functional collectives all come here, some from C++. Names and
parameters are theirs; where a method has two names, torch has renamed it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from unisono.core import buffers, dispatch
from unisono.core.engine import ReduceOp, Work
from unisono.errors import ArgumentError
from unisono.torch.backend import sparse
from unisono.torch.backend.dynamo import leave_alone
from unisono.torch.backend.group_base import Membership
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


@leave_alone
class UnisonoGroup(Membership):
    """The calls of one rank in a group."""

    _batch: list[Work] | None = None  # what was started since _start_coalescing

    # ---- collectives ----

    def allreduce(self, tensors: Sequence[Any], opts: Any = None) -> dist.Work:
        """Combine a tensor over the group, in place."""
        tensor = _only(tensors)
        operator = _operator(opts)
        if tensor.layout is not torch.strided:
            return self._run(opts, sparse.all_reduce, tensor, operator)
        if opts is None or opts.asyncOp or opts.timeout > _UNSET:
            return self._run(opts, collectives.all_reduce, tensor, operator)
        # The shortest way: this call is the one that is timed at 8 bytes.
        data = buffers.view(tensor)
        dispatch.all_reduce(self.here(), data, data, operator)
        return FINISHED

    def allreduce_coalesced(self, tensors: Sequence[Any], opts: Any = None) -> dist.Work:
        """Combine each of several tensors over the group, in place."""
        operator = _operator(opts)
        if len({tensor.dtype for tensor in tensors}) == 1:
            return self._run(opts, collectives.all_reduce_coalesced, list(tensors), operator)
        calls = [(tensor, operator) for tensor in tensors]
        return self._run_each(opts, collectives.all_reduce, calls)

    def broadcast(self, tensors: Sequence[Any], opts: Any = None) -> dist.Work:
        """Copy the root's tensor into everyone's."""
        tensor = _only(tensors)
        return self._run(opts, collectives.broadcast, tensor, group_src=_root(opts))

    def reduce(self, tensors: Sequence[Any], opts: Any = None) -> dist.Work:
        """Combine a tensor over the group into the root's."""
        tensor = _only(tensors)
        operator = _operator(opts)
        return self._run(opts, collectives.reduce, tensor, op=operator, group_dst=_root(opts))

    def allgather(
        self, outputs: Sequence[Sequence[Any]], inputs: Sequence[Any], opts: Any = None
    ) -> dist.Work:
        """Collect everyone's tensor in a list."""
        tensor = _only(inputs)
        return self._run(opts, collectives.all_gather, list(_only(outputs)), tensor)

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> dist.Work:
        """Collect everyone's tensor in one."""
        return self._run(opts, collectives.all_gather_single, output, input)

    def all_gather_single_coalesced(
        self, outputs: Sequence[Any], inputs: Sequence[Any], opts: Any = None
    ) -> dist.Work:
        """Collect each of several tensors in one."""
        calls = zip(outputs, inputs, strict=True)
        return self._run_each(opts, collectives.all_gather_single, calls)

    def allgather_coalesced(
        self, outputs: Sequence[Sequence[Any]], inputs: Sequence[Any], opts: Any = None
    ) -> dist.Work:
        """Collect everyone's list of tensors; that of rank i goes into list i."""
        rows = [list(row) for row in outputs]
        return self._run(opts, collectives.all_gather_coalesced, rows, list(inputs))

    def gather(
        self, outputs: Sequence[Sequence[Any]], inputs: Sequence[Any], opts: Any = None
    ) -> dist.Work:
        """Collect everyone's tensor in a list of the root."""
        tensor = _only(inputs)
        into = list(outputs[0]) if outputs else None
        return self._run(opts, collectives.gather, tensor, into, group_dst=_root(opts))

    def scatter(
        self, outputs: Sequence[Any], inputs: Sequence[Sequence[Any]], opts: Any = None
    ) -> dist.Work:
        """Deal a list of the root's tensors out."""
        tensor = _only(outputs)
        out_of = list(inputs[0]) if inputs else None
        return self._run(opts, collectives.scatter, tensor, out_of, group_src=_root(opts))

    def reduce_scatter(
        self, outputs: Sequence[Any], inputs: Sequence[Sequence[Any]], opts: Any = None
    ) -> dist.Work:
        """Combine everyone's list and leave entry `rank` of the result here."""
        tensor = _only(outputs)
        operator = _operator(opts)
        entries = list(_only(inputs))
        return self._run(opts, collectives.reduce_scatter, tensor, entries, operator)

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> dist.Work:
        """Combine everyone's tensor and leave part `rank` of it here."""
        return self._run(opts, collectives.reduce_scatter_single, output, input, _operator(opts))

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Any], inputs: Sequence[Any], opts: Any = None
    ) -> dist.Work:
        """Combine each of several tensors and leave part `rank` of each here."""
        operator = _operator(opts)
        calls = [(*pair, operator) for pair in zip(outputs, inputs, strict=True)]
        return self._run_each(opts, collectives.reduce_scatter_single, calls)

    def alltoall(
        self, outputs: Sequence[Any], inputs: Sequence[Any], opts: Any = None
    ) -> dist.Work:
        """Send entry j of a list to rank j, and receive entry i of the other from rank i."""
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
        splits = output_splits, input_splits
        return self._run(opts, collectives.all_to_all_single, output, input, *splits)

    def barrier(self, opts: Any = None) -> dist.Work:
        """Wait until every rank of the group has come here."""
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
        return self._message(point_to_point.isend(tensor, None, self.here(), tag, dst), dst)

    def recv(self, tensors: Sequence[Any], src: int, tag: int = 0) -> dist.Work:
        """Start to receive a tensor from a rank of the group."""
        tensor = _only(tensors)
        return self._message(point_to_point.irecv(tensor, None, self.here(), tag, src), src)

    def recv_anysource(self, tensors: Sequence[Any], tag: int = 0) -> dist.Work:
        """Start to receive a tensor from any rank of the group."""
        tensor = _only(tensors)
        return self._message(point_to_point.irecv(tensor, None, self.here(), tag), None)

    def _start_coalescing(self, device: torch.device) -> None:
        self._batch = []

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        works, self._batch = self._batch or [], None
        return Pending(Together(works), self.line, for_python=True)

    # ---- calls ----

    def _run(
        self, opts: Any, function: Callable[..., Work | None], *arguments: Any, **more: Any
    ) -> dist.Work:
        """Call a function of the face, and make what torch expects of what it returns."""
        blocking = opts is not None and not opts.asyncOp
        with self._deadline(opts):
            work = function(*arguments, group=self.here(), async_op=not blocking, **more)
        return FINISHED if work is None else self._hand_out(work)

    def _run_each(
        self, opts: Any, function: Callable[..., Work | None], calls: Iterable[Sequence[Any]]
    ) -> dist.Work:
        """Call a function of the face several times, and hand out the works as one."""
        with self._deadline(opts):
            works = [function(*call, group=self.here(), async_op=True) for call in calls]
        together = Together([work for work in works if work is not None])
        if opts is None or opts.asyncOp:
            return self._hand_out(together)
        together.wait()
        return FINISHED

    def _hand_out(self, work: Work) -> dist.Work:
        if self._batch is not None:
            self._batch.append(work)
        return Pending(work, self.line, _called_by_python())

    def _message(self, work: Work | None, peer: int | None) -> dist.Work:
        assert work is not None  # this rank is a member
        if self._batch is not None:
            self._batch.append(work)
        return Message(work, peer)

    def _deadline(self, opts: Any) -> AbstractContextManager[None]:
        if opts is None or opts.timeout <= _UNSET:
            return nullcontext()
        return nullcontext()


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


def _called_by_python() -> bool:
    """Whether Python called a method here, be it torch's own functions or the user, and not C++.

    C++ has no frame, so that the nearest one is whatever called C++: it does not name our method.
    """
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__package__") == __package__:
        frame = frame.f_back
    return frame is not None and not _METHODS.isdisjoint(frame.f_code.co_names)


_METHODS = frozenset(
    name for name in vars(UnisonoGroup) if hasattr(dist.ProcessGroup, name) and name[:2] != "__"
)
