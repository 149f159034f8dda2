"""The group that torch calls: each method of a process group, in terms of the core's verbs.

torch's functions, DDP's reducer and functional collectives all call these methods, some from C++.
Names and parameters are torch's; where a method has two names, torch has renamed it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from unisono.core import dispatch, packing
from unisono.core.arguments import check_length, check_one_dtype, split_counts
from unisono.core.buffers import view
from unisono.core.engine import AllOf, Work
from unisono.errors import CommTimeout
from unisono.torch.backend import sparse
from unisono.torch.backend.direct import first_natively
from unisono.torch.backend.dynamo import skip
from unisono.torch.backend.forms import in_all_forms
from unisono.torch.backend.group_base import ProcessGroupBase
from unisono.torch.backend.options import Mode, mode_of, only, operator_of, root_of, views
from unisono.torch.backend.works import FINISHED, CollectiveWork, MessageWork
from unisono.torch.distributed import arguments

__all__ = ["UnisonoGroup"]


@skip
class UnisonoGroup(ProcessGroupBase):
    """The calls of one rank in a group."""

    _batch: list[Work] | None = None  # what was started since _start_coalescing

    # ---- collectives ----

    @first_natively("all_reduce")
    @in_all_forms
    def allreduce(self, tensors: Sequence[Any], opts: Any = None) -> dist.Work:
        """Combine a tensor over the group, in place."""
        tensor, mode = only(tensors), mode_of(opts)
        group = self.group_for_this_thread()
        if tensor.layout is not torch.strided:
            started = sparse.all_reduce(group, tensor, operator_of(opts), mode.timeout)
            return self._handle_all([started], mode, [tensor])
        data = view(tensor)
        op = operator_of(opts, data)
        work = dispatch.all_reduce(
            group, data, data, op, blocking=mode.blocking, timeout=mode.timeout
        )
        return self._handle(work, mode, [tensor])

    @in_all_forms
    def allreduce_coalesced(self, tensors: Sequence[Any], opts: Any = None) -> dist.Work:
        """Combine each of several tensors over the group, in place."""
        parts, mode = views(tensors, "tensors"), mode_of(opts)
        group = self.group_for_this_thread()
        if len({part.dtype for part in parts}) == 1:
            op = operator_of(opts, parts[0])
            source, _ = packing.pack_buffers(parts)
            landing, _ = packing.unpack_buffers_on_completion(parts)
            work = dispatch.all_reduce(
                group, source, landing, op, blocking=mode.blocking, timeout=mode.timeout
            )
            return self._handle(work, mode, list(tensors))
        works = [
            dispatch.all_reduce(
                group, part, part, operator_of(opts, part), blocking=False, timeout=mode.timeout
            )
            for part in parts
        ]
        return self._handle_all(works, mode, list(tensors))

    @first_natively("broadcast")
    @in_all_forms
    def broadcast(self, tensors: Sequence[Any], opts: Any = None) -> dist.Work:
        """Copy the root's tensor into every rank's."""
        tensor, mode = only(tensors), mode_of(opts)
        group, data, root = self.group_for_this_thread(), view(tensor), root_of(opts)
        source = data if group.rank == root else None
        work = dispatch.broadcast(
            group, source, data, root, blocking=mode.blocking, timeout=mode.timeout
        )
        return self._handle(work, mode, [tensor])

    @first_natively("reduce")
    @in_all_forms
    def reduce(self, tensors: Sequence[Any], opts: Any = None) -> dist.Work:
        """Combine a tensor over the group into the root's."""
        tensor, mode = only(tensors), mode_of(opts)
        group, data, root = self.group_for_this_thread(), view(tensor), root_of(opts)
        target = data if group.rank == root else None
        op = operator_of(opts, data)
        work = dispatch.reduce(
            group, data, target, op, root, blocking=mode.blocking, timeout=mode.timeout
        )
        return self._handle(work, mode, [tensor])

    @first_natively("all_gather")
    @in_all_forms
    def allgather(
        self,
        output_tensors: Sequence[Sequence[Any]],
        input_tensors: Sequence[Any],
        opts: Any = None,
    ) -> dist.Work:
        """Collect every rank's tensor in a list."""
        tensors, mode = only(output_tensors), mode_of(opts)
        group, source = self.group_for_this_thread(), view(only(input_tensors))
        parts = views(tensors, "output_tensors")
        check_one_dtype([*parts, source])
        arguments.check_entries(group, parts, source, "output_tensors")
        landing, counts = packing.unpack_buffers_on_completion(parts)
        work = dispatch.all_gather(
            group, source, landing, counts, blocking=mode.blocking, timeout=mode.timeout
        )
        return self._handle(work, mode, list(tensors))

    @first_natively("all_gather_single")
    @in_all_forms
    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> dist.Work:
        """Collect every rank's tensor in one."""
        group, mode = self.group_for_this_thread(), mode_of(opts)
        work = dispatch.all_gather(
            group, view(input), view(output), blocking=mode.blocking, timeout=mode.timeout
        )
        return self._handle(work, mode, [output])

    @in_all_forms
    def all_gather_single_coalesced(
        self, outputs: Sequence[Any], inputs: Sequence[Any], opts: Any = None
    ) -> dist.Work:
        """Collect each of several tensors in one."""
        group, mode = self.group_for_this_thread(), mode_of(opts)
        works = [
            dispatch.all_gather(
                group, view(input), view(output), blocking=False, timeout=mode.timeout
            )
            for output, input in zip(outputs, inputs, strict=True)
        ]
        return self._handle_all(works, mode, list(outputs))

    @in_all_forms
    def allgather_coalesced(
        self, output_lists: Sequence[Sequence[Any]], input_list: Sequence[Any], opts: Any = None
    ) -> dist.Work:
        """Collect every rank's list of tensors; that of rank i goes into list i."""
        group, mode = self.group_for_this_thread(), mode_of(opts)
        parts = views(input_list, "input_list")
        check_length(output_lists, "parameter output_lists")
        rows = [views(row, "output_lists") for row in output_lists]
        flat = [part for row in rows for part in row]
        check_one_dtype([*parts, *flat])
        source, _ = packing.pack_buffers(parts)
        landing, _ = packing.unpack_buffers_on_completion(flat)
        counts = [sum(part.count for part in row) for row in rows]
        work = dispatch.all_gather(
            group, source, landing, counts, blocking=mode.blocking, timeout=mode.timeout
        )
        return self._handle(work, mode, [tensor for row in output_lists for tensor in row])

    @first_natively("gather")
    @in_all_forms
    def gather(
        self,
        output_tensors: Sequence[Sequence[Any]],
        input_tensors: Sequence[Any],
        opts: Any = None,
    ) -> dist.Work:
        """Collect every rank's tensor in a list of the root."""
        group, mode, root = self.group_for_this_thread(), mode_of(opts), root_of(opts)
        source = view(only(input_tensors))
        tensors = list(output_tensors[0]) if output_tensors else []
        arguments.check_given_on_root(group, root, tensors, "output_tensors")
        landing, counts = None, None
        if tensors:
            parts = views(tensors, "output_tensors")
            check_one_dtype([source, *parts])
            arguments.check_entries(group, parts, source, "output_tensors")
            landing, counts = packing.unpack_buffers_on_completion(parts)
        work = dispatch.gather(
            group, source, landing, root, counts, blocking=mode.blocking, timeout=mode.timeout
        )
        return self._handle(work, mode, tensors)

    @first_natively("scatter")
    @in_all_forms
    def scatter(
        self,
        output_tensors: Sequence[Any],
        input_tensors: Sequence[Sequence[Any]],
        opts: Any = None,
    ) -> dist.Work:
        """Distribute a list of the root's tensors."""
        group, mode, root = self.group_for_this_thread(), mode_of(opts), root_of(opts)
        output, tensors = only(output_tensors), input_tensors[0] if input_tensors else []
        arguments.check_given_on_root(group, root, tensors, "input_tensors")
        target, source, counts = view(output), None, None
        if tensors:
            parts = views(tensors, "input_tensors")
            check_one_dtype([target, *parts])
            arguments.check_entries(group, parts, target, "input_tensors")
            source, counts = packing.pack_buffers(parts)
        work = dispatch.scatter(
            group, source, target, root, counts, blocking=mode.blocking, timeout=mode.timeout
        )
        return self._handle(work, mode, [output])

    @first_natively("reduce_scatter")
    @in_all_forms
    def reduce_scatter(
        self,
        output_tensors: Sequence[Any],
        input_tensors: Sequence[Sequence[Any]],
        opts: Any = None,
    ) -> dist.Work:
        """Combine every rank's list and leave entry `rank` of the result here."""
        output, mode = only(output_tensors), mode_of(opts)
        group, target = self.group_for_this_thread(), view(output)
        parts = views(only(input_tensors), "input_tensors")
        check_one_dtype([target, *parts])
        arguments.check_entries(group, parts, target, "input_tensors")
        op = operator_of(opts, target)
        source, counts = packing.pack_buffers(parts)
        work = dispatch.reduce_scatter(
            group, source, target, op, counts, blocking=mode.blocking, timeout=mode.timeout
        )
        return self._handle(work, mode, [output])

    @first_natively("reduce_scatter_single")
    @in_all_forms
    def reduce_scatter_single(
        self,
        outputTensor: Any,  # noqa: N803 - torch's spelling, here and below
        inputTensor: Any,  # noqa: N803
        opts: Any = None,
    ) -> dist.Work:
        """Combine every rank's tensor and leave part `rank` of it here."""
        group, mode = self.group_for_this_thread(), mode_of(opts)
        source, target = view(inputTensor), view(outputTensor)
        op = operator_of(opts, source)
        work = dispatch.reduce_scatter(
            group, source, target, op, blocking=mode.blocking, timeout=mode.timeout
        )
        return self._handle(work, mode, [outputTensor])

    @in_all_forms
    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Any], inputs: Sequence[Any], opts: Any = None
    ) -> dist.Work:
        """Combine each of several tensors and leave part `rank` of each here."""
        group, mode = self.group_for_this_thread(), mode_of(opts)
        works = []
        for output, input in zip(outputs, inputs, strict=True):
            source, target = view(input), view(output)
            op = operator_of(opts, source)
            works.append(
                dispatch.reduce_scatter(
                    group, source, target, op, blocking=False, timeout=mode.timeout
                )
            )
        return self._handle_all(works, mode, list(outputs))

    @first_natively("all_to_all")
    @in_all_forms
    def alltoall(
        self, output_tensors: Sequence[Any], input_tensors: Sequence[Any], opts: Any = None
    ) -> dist.Work:
        """Send entry j of a list to rank j, and receive entry i of the other from rank i."""
        group, mode = self.group_for_this_thread(), mode_of(opts)
        targets = views(output_tensors, "output_tensors")
        sources = views(input_tensors, "input_tensors")
        check_one_dtype([*targets, *sources])
        source, sends = packing.pack_buffers(sources)
        landing, receives = packing.unpack_buffers_on_completion(targets)
        work = dispatch.all_to_all(
            group, source, landing, sends, receives, blocking=mode.blocking, timeout=mode.timeout
        )
        return self._handle(work, mode, list(output_tensors))

    @first_natively("all_to_all_single")
    @in_all_forms
    def all_to_all_single(
        self,
        output: Any,
        input: Any,
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: Any = None,
    ) -> dist.Work:
        """Send rows of a tensor to each rank and receive rows of the other."""
        group, mode = self.group_for_this_thread(), mode_of(opts)
        source, target, size = view(input), view(output), group.size
        check_one_dtype([target, source])
        sends = split_counts(
            source.shape, source.count, input_split_sizes, size, "input_split_sizes"
        )
        receives = split_counts(
            target.shape, target.count, output_split_sizes, size, "output_split_sizes"
        )
        work = dispatch.all_to_all(
            group, source, target, sends, receives, blocking=mode.blocking, timeout=mode.timeout
        )
        return self._handle(work, mode, [output])

    @first_natively("barrier")
    @in_all_forms
    def barrier(self, opts: Any = None) -> dist.Work:
        """Wait until every rank of the group has called this."""
        group, mode = self.group_for_this_thread(), mode_of(opts)
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
    def send(
        self,
        tensors: Sequence[Any],
        dstRank: int,  # noqa: N803
        tag: int = 0,
    ) -> dist.Work:
        """Start to send a tensor to a rank of the group."""
        tensor, group = only(tensors), self.group_for_this_thread()
        work = dispatch.send(group, view(tensor), dstRank, tag, blocking=False)
        return self._handle_message(work, dstRank, tensor)

    @first_natively("recv")
    def recv(
        self,
        tensors: Sequence[Any],
        srcRank: int,  # noqa: N803
        tag: int = 0,
    ) -> dist.Work:
        """Start to receive a tensor from a rank of the group."""
        tensor, group = only(tensors), self.group_for_this_thread()
        work = dispatch.recv(group, view(tensor), srcRank, tag, blocking=False)
        return self._handle_message(work, srcRank, tensor)

    def recv_anysource(self, tensors: Sequence[Any], tag: int = 0) -> dist.Work:
        """Start to receive a tensor from any rank of the group."""
        tensor, group = only(tensors), self.group_for_this_thread()
        work = dispatch.recv(group, view(tensor), None, tag, blocking=False)
        return self._handle_message(work, None, tensor)

    def _start_coalescing(self, device: torch.device | None = None) -> None:
        self._batch, self.direct = [], None

    def _end_coalescing(self, device: torch.device | None = None) -> dist.Work:
        works, self._batch = self._batch or [], None
        self.direct = self.direct_calls()
        tensors = [tensor for work in works for tensor in work.value or ()]
        return CollectiveWork(AllOf(works, tensors), self.run_in_order)

    # ---- what a call returns ----

    def _handle(self, work: Work, mode: Mode, tensors: list[Any]) -> dist.Work:
        """The one handle of a call whose result is these tensors."""
        if mode.blocking:
            return FINISHED
        work = work.with_value(tensors)
        if self._batch is not None:
            self._batch.append(work)
        return CollectiveWork(work, self.run_in_order)

    def _handle_all(self, works: Sequence[Work], mode: Mode, tensors: list[Any]) -> dist.Work:
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
