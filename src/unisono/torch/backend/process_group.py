"""The group that torch calls: each method of a process group, in terms of the core's verbs.

torch's functions, DDP's reducer and functional collectives all call these methods, some from C++.
Names and parameters are torch's; where a method has two names, torch has renamed it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from unisono.core import dispatch, environment, packing
from unisono.core.arguments import check_length, check_one_dtype, split_counts
from unisono.core.buffers import Buffer, view
from unisono.core.engine import AllOf, ReduceOp, Work
from unisono.errors import ArgumentError, CommTimeout
from unisono.torch.backend import sparse
from unisono.torch.backend.direct import OPERATORS, first_natively
from unisono.torch.backend.dynamo import skip
from unisono.torch.backend.group_base import ProcessGroupBase
from unisono.torch.backend.works import FINISHED, CollectiveWork, MessageWork
from unisono.torch.distributed import arguments

__all__ = ["UnisonoGroup"]


@skip
class UnisonoGroup(ProcessGroupBase):
    """The calls of one rank in a group."""

    _batch: list[Work] | None = None  # what was started since _start_coalescing

    # ---- collectives ----

    @first_natively("all_reduce")
    def allreduce(self, tensors: Sequence[Any], opts: Any = None) -> dist.Work:
        """Combine a tensor over the group, in place."""
        tensor, mode = _only(tensors), _mode(opts)
        group = self.group_for_this_thread()
        if tensor.layout is not torch.strided:
            started = sparse.all_reduce(group, tensor, _operator(opts), mode.timeout)
            return self._handle_all([started], mode, [tensor])
        data = view(tensor)
        op = _operator(opts, data)
        work = dispatch.all_reduce(
            group, data, data, op, blocking=mode.blocking, timeout=mode.timeout
        )
        return self._handle(work, mode, [tensor])

    def allreduce_coalesced(self, tensors: Sequence[Any], opts: Any = None) -> dist.Work:
        """Combine each of several tensors over the group, in place."""
        parts, mode = _views(tensors, "tensors"), _mode(opts)
        group = self.group_for_this_thread()
        if len({part.dtype for part in parts}) == 1:
            op = _operator(opts, parts[0])
            source, _ = packing.pack_buffers(parts)
            landing, _ = packing.unpack_buffers_on_completion(parts)
            work = dispatch.all_reduce(
                group, source, landing, op, blocking=mode.blocking, timeout=mode.timeout
            )
            return self._handle(work, mode, list(tensors))
        works = [
            dispatch.all_reduce(
                group, part, part, _operator(opts, part), blocking=False, timeout=mode.timeout
            )
            for part in parts
        ]
        return self._handle_all(works, mode, list(tensors))

    @first_natively("broadcast")
    def broadcast(self, tensors: Sequence[Any], opts: Any = None) -> dist.Work:
        """Copy the root's tensor into every rank's."""
        tensor, mode = _only(tensors), _mode(opts)
        group, data, root = self.group_for_this_thread(), view(tensor), _root(opts)
        source = data if group.rank == root else None
        work = dispatch.broadcast(
            group, source, data, root, blocking=mode.blocking, timeout=mode.timeout
        )
        return self._handle(work, mode, [tensor])

    @first_natively("reduce")
    def reduce(self, tensors: Sequence[Any], opts: Any = None) -> dist.Work:
        """Combine a tensor over the group into the root's."""
        tensor, mode = _only(tensors), _mode(opts)
        group, data, root = self.group_for_this_thread(), view(tensor), _root(opts)
        target = data if group.rank == root else None
        op = _operator(opts, data)
        work = dispatch.reduce(
            group, data, target, op, root, blocking=mode.blocking, timeout=mode.timeout
        )
        return self._handle(work, mode, [tensor])

    @first_natively("all_gather")
    def allgather(
        self, outputs: Sequence[Sequence[Any]], inputs: Sequence[Any], opts: Any = None
    ) -> dist.Work:
        """Collect every rank's tensor in a list."""
        tensors, mode = _only(outputs), _mode(opts)
        group, source = self.group_for_this_thread(), view(_only(inputs))
        parts = _views(tensors, "outputs")
        check_one_dtype([*parts, source])
        arguments.check_entries(group, parts, source, "outputs")
        landing, counts = packing.unpack_buffers_on_completion(parts)
        work = dispatch.all_gather(
            group, source, landing, counts, blocking=mode.blocking, timeout=mode.timeout
        )
        return self._handle(work, mode, list(tensors))

    @first_natively("all_gather_single")
    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> dist.Work:
        """Collect every rank's tensor in one."""
        group, mode = self.group_for_this_thread(), _mode(opts)
        work = dispatch.all_gather(
            group, view(input), view(output), blocking=mode.blocking, timeout=mode.timeout
        )
        return self._handle(work, mode, [output])

    def all_gather_single_coalesced(
        self, outputs: Sequence[Any], inputs: Sequence[Any], opts: Any = None
    ) -> dist.Work:
        """Collect each of several tensors in one."""
        group, mode = self.group_for_this_thread(), _mode(opts)
        works = [
            dispatch.all_gather(
                group, view(input), view(output), blocking=False, timeout=mode.timeout
            )
            for output, input in zip(outputs, inputs, strict=True)
        ]
        return self._handle_all(works, mode, list(outputs))

    def allgather_coalesced(
        self, outputs: Sequence[Sequence[Any]], inputs: Sequence[Any], opts: Any = None
    ) -> dist.Work:
        """Collect every rank's list of tensors; that of rank i goes into list i."""
        group, mode = self.group_for_this_thread(), _mode(opts)
        parts = _views(inputs, "inputs")
        check_length(outputs, "parameter outputs")
        rows = [_views(row, "outputs") for row in outputs]
        flat = [part for row in rows for part in row]
        check_one_dtype([*parts, *flat])
        source, _ = packing.pack_buffers(parts)
        landing, _ = packing.unpack_buffers_on_completion(flat)
        counts = [sum(part.count for part in row) for row in rows]
        work = dispatch.all_gather(
            group, source, landing, counts, blocking=mode.blocking, timeout=mode.timeout
        )
        return self._handle(work, mode, [tensor for row in outputs for tensor in row])

    @first_natively("gather")
    def gather(
        self, outputs: Sequence[Sequence[Any]], inputs: Sequence[Any], opts: Any = None
    ) -> dist.Work:
        """Collect every rank's tensor in a list of the root."""
        group, mode, root = self.group_for_this_thread(), _mode(opts), _root(opts)
        source, tensors = view(_only(inputs)), list(outputs[0]) if outputs else []
        arguments.check_given_on_root(group, root, tensors, "outputs")
        landing, counts = None, None
        if tensors:
            parts = _views(tensors, "outputs")
            check_one_dtype([source, *parts])
            arguments.check_entries(group, parts, source, "outputs")
            landing, counts = packing.unpack_buffers_on_completion(parts)
        work = dispatch.gather(
            group, source, landing, root, counts, blocking=mode.blocking, timeout=mode.timeout
        )
        return self._handle(work, mode, tensors)

    @first_natively("scatter")
    def scatter(
        self, outputs: Sequence[Any], inputs: Sequence[Sequence[Any]], opts: Any = None
    ) -> dist.Work:
        """Distribute a list of the root's tensors."""
        group, mode, root = self.group_for_this_thread(), _mode(opts), _root(opts)
        output, tensors = _only(outputs), inputs[0] if inputs else []
        arguments.check_given_on_root(group, root, tensors, "inputs")
        target, source, counts = view(output), None, None
        if tensors:
            parts = _views(tensors, "inputs")
            check_one_dtype([target, *parts])
            arguments.check_entries(group, parts, target, "inputs")
            source, counts = packing.pack_buffers(parts)
        work = dispatch.scatter(
            group, source, target, root, counts, blocking=mode.blocking, timeout=mode.timeout
        )
        return self._handle(work, mode, [output])

    @first_natively("reduce_scatter")
    def reduce_scatter(
        self, outputs: Sequence[Any], inputs: Sequence[Sequence[Any]], opts: Any = None
    ) -> dist.Work:
        """Combine every rank's list and leave entry `rank` of the result here."""
        output, mode = _only(outputs), _mode(opts)
        group, target = self.group_for_this_thread(), view(output)
        parts = _views(_only(inputs), "inputs")
        check_one_dtype([target, *parts])
        arguments.check_entries(group, parts, target, "inputs")
        op = _operator(opts, target)
        source, counts = packing.pack_buffers(parts)
        work = dispatch.reduce_scatter(
            group, source, target, op, counts, blocking=mode.blocking, timeout=mode.timeout
        )
        return self._handle(work, mode, [output])

    @first_natively("reduce_scatter_single")
    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> dist.Work:
        """Combine every rank's tensor and leave part `rank` of it here."""
        group, mode = self.group_for_this_thread(), _mode(opts)
        source, target = view(input), view(output)
        op = _operator(opts, source)
        work = dispatch.reduce_scatter(
            group, source, target, op, blocking=mode.blocking, timeout=mode.timeout
        )
        return self._handle(work, mode, [output])

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Any], inputs: Sequence[Any], opts: Any = None
    ) -> dist.Work:
        """Combine each of several tensors and leave part `rank` of each here."""
        group, mode = self.group_for_this_thread(), _mode(opts)
        works = []
        for output, input in zip(outputs, inputs, strict=True):
            source, target = view(input), view(output)
            op = _operator(opts, source)
            works.append(
                dispatch.reduce_scatter(
                    group, source, target, op, blocking=False, timeout=mode.timeout
                )
            )
        return self._handle_all(works, mode, list(outputs))

    @first_natively("all_to_all")
    def alltoall(
        self, outputs: Sequence[Any], inputs: Sequence[Any], opts: Any = None
    ) -> dist.Work:
        """Send entry j of a list to rank j, and receive entry i of the other from rank i."""
        group, mode = self.group_for_this_thread(), _mode(opts)
        targets, sources = _views(outputs, "outputs"), _views(inputs, "inputs")
        check_one_dtype([*targets, *sources])
        source, sends = packing.pack_buffers(sources)
        landing, receives = packing.unpack_buffers_on_completion(targets)
        work = dispatch.all_to_all(
            group, source, landing, sends, receives, blocking=mode.blocking, timeout=mode.timeout
        )
        return self._handle(work, mode, list(outputs))

    @first_natively("all_to_all_single")
    def all_to_all_single(
        self,
        output: Any,
        input: Any,
        output_splits: Sequence[int] = (),
        input_splits: Sequence[int] = (),
        opts: Any = None,
    ) -> dist.Work:
        """Send rows of a tensor to each rank and receive rows of the other."""
        group, mode = self.group_for_this_thread(), _mode(opts)
        source, target, size = view(input), view(output), group.size
        check_one_dtype([target, source])
        sends = split_counts(source.shape, source.count, input_splits, size, "input_splits")
        receives = split_counts(target.shape, target.count, output_splits, size, "output_splits")
        work = dispatch.all_to_all(
            group, source, target, sends, receives, blocking=mode.blocking, timeout=mode.timeout
        )
        return self._handle(work, mode, [output])

    @first_natively("barrier")
    def barrier(self, opts: Any = None) -> dist.Work:
        """Wait until every rank of the group has called this."""
        group, mode = self.group_for_this_thread(), _mode(opts)
        work = dispatch.barrier(group, blocking=mode.blocking, timeout=mode.timeout)
        return self._handle(work, mode, [])

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Wait for every rank of the group, and name those that did not come in time."""
        group, seconds = self.group_for_this_thread(), arguments.seconds(timeout)
        try:
            dispatch.barrier(group, timeout=seconds)
        except CommTimeout as error:
            raise arguments.timeout_of_world(error, group, seconds) from None

    # Names before torch 2.13; C++ still asks for some of them.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # ---- messages ----

    @first_natively("send")
    def send(self, tensors: Sequence[Any], dst: int, tag: int = 0) -> dist.Work:
        """Start to send a tensor to a rank of the group."""
        tensor, group = _only(tensors), self.group_for_this_thread()
        work = dispatch.send(group, view(tensor), dst, tag, blocking=False)
        return self._handle_message(work, dst, tensor)

    @first_natively("recv")
    def recv(self, tensors: Sequence[Any], src: int, tag: int = 0) -> dist.Work:
        """Start to receive a tensor from a rank of the group."""
        tensor, group = _only(tensors), self.group_for_this_thread()
        work = dispatch.recv(group, view(tensor), src, tag, blocking=False)
        return self._handle_message(work, src, tensor)

    def recv_anysource(self, tensors: Sequence[Any], tag: int = 0) -> dist.Work:
        """Start to receive a tensor from any rank of the group."""
        tensor, group = _only(tensors), self.group_for_this_thread()
        work = dispatch.recv(group, view(tensor), None, tag, blocking=False)
        return self._handle_message(work, None, tensor)

    def _start_coalescing(self, device: torch.device) -> None:
        self._batch, self.direct = [], None

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        works, self._batch = self._batch or [], None
        self.direct = self.direct_calls()
        tensors = [tensor for work in works for tensor in work.value or ()]
        return CollectiveWork(AllOf(works, tensors), self.run_in_order)

    # ---- what a call returns ----

    def _handle(self, work: Work, mode: _Mode, tensors: list[Any]) -> dist.Work:
        """The one handle of a call whose result is these tensors."""
        if mode.blocking:
            return FINISHED
        work = work.with_value(tensors)
        if self._batch is not None:
            self._batch.append(work)
        return CollectiveWork(work, self.run_in_order)

    def _handle_all(self, works: Sequence[Work], mode: _Mode, tensors: list[Any]) -> dist.Work:
        """The one handle of several calls, none of which has blocked."""
        work = AllOf(works)
        if mode.blocking:
            work.wait()
        return self._handle(work, mode, tensors)

    def _handle_message(self, work: Work, peer: int | None, tensor: Any) -> dist.Work:
        work = work.with_value([tensor])
        if self._batch is not None:
            self._batch.append(work)
        return MessageWork(work, peer)


class _Mode(NamedTuple):
    """How torch wants a call: whether it blocks, and for how long (None: as the group does)."""

    blocking: bool
    timeout: float | None


_ASYNCHRONOUS = _Mode(False, None)
_BLOCKING = _Mode(True, None)
_UNSET = timedelta(0)  # timeouts up to it are not set


def _mode(opts: Any) -> _Mode:
    if opts is None:
        return _ASYNCHRONOUS
    timeout = opts.timeout
    if timeout > _UNSET:
        return _Mode(not opts.asyncOp, environment.timeout(timeout.total_seconds()))
    return _ASYNCHRONOUS if opts.asyncOp else _BLOCKING


def _only(tensors: Sequence[Any]) -> Any:
    """The one tensor of a list: torch's methods could take one for each of several devices."""
    if len(tensors) != 1:
        raise ArgumentError(f"expected one tensor for this rank, got {len(tensors)}")
    return tensors[0]


def _views(tensors: Sequence[Any], name: str) -> list[Buffer]:
    check_length(tensors, f"parameter {name}")
    return [view(tensor) for tensor in tensors]


def _operator(opts: Any, data: Buffer | None = None) -> ReduceOp:
    """The operator; with `data`, only if its numbers can be combined with it."""
    if opts is None:
        return ReduceOp.SUM
    given = opts.reduceOp
    op = OPERATORS.get(given.op.value) or ReduceOp.premul_sum(given.factor)
    if data is not None:
        arguments.check_operator(op, data)
    return op


def _root(opts: Any) -> int:
    root: int = 0 if opts is None else opts.rootRank
    return root
