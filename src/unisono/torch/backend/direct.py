"""Collectives of the ordinary kind, each in one call of the native module.

Ordinary means: the group is in shared memory; tensors are torch's own, on the CPU, contiguous, of a
dtype that has the operator, without a gradient; counts fit, and memory does not overlap. A method
here returns None, with nothing done, unless all of that is so. The general way in
`process_group.py` then makes the call, or explains what is wrong with it. Both describe a call
alike, so that ranks may take different ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from unisono.core import dispatch, dtypes, environment
from unisono.core.dtypes import DType, ReduceOp
from unisono.core.engine import Engine, Work
from unisono.core.groups import Group
from unisono.errors import UnisonoError
from unisono.torch.backend.futures import Run, current_callback_thread
from unisono.torch.backend.works import FINISHED, NativeWork

__all__ = ["OPERATORS", "VERBS", "DirectCalls"]

#: Our operators by the numbers of torch's; premul_sum is not here, because each has its own factor.
OPERATORS = {
    getattr(dist.ReduceOp.RedOpType, op.name.upper()).value: op
    for op in ReduceOp.ALL
    if op.name != "premul_sum"
}
#: Codes of native/types.hpp; a test compares them with the module's own table.
VERBS = {
    "broadcast": 1,
    "reduce": 2,
    "all_reduce": 3,
    "reduce_scatter": 4,
    "all_gather": 6,
    "all_to_all": 8,
    "barrier": 9,
}
_NO_OPERATOR = ReduceOp("none", 9)

#: Classes of tensors that have their memory to themselves; a subclass may be anything.
_KINDS = frozenset([torch.Tensor, torch.nn.Parameter])
_DTYPES = {
    getattr(torch, dtype.name): dtype
    for dtype in dtypes.DTYPES
    if hasattr(torch, dtype.name) and dtype.kind != "complex"  # these may be conjugated lazily
}
_UNSET = timedelta(0)  # timeouts up to it are not set

#: Address, number of elements, dtype.
_Memory = tuple[int, int, DType]


class DirectCalls:
    """The collectives of one rank in one group."""

    def __init__(self, group: Group, engine: Engine, run: Run) -> None:
        self.group = group
        self.engine = engine
        self.run = run
        self._collective = engine.communicator.collective
        self._collective_uneven = engine.communicator.collective_uneven
        self._start = engine.communicator.start
        self.finish = engine.communicator.finish

    def all_reduce(self, tensors: Sequence[Any], opts: Any) -> dist.Work | None:
        """Combine a tensor over the group, in place."""
        if len(tensors) != 1 or (memory := _memory(tensors[0])) is None:
            return None
        op = _operator(opts, memory[2])
        if op is None:
            return None
        address = memory[0]
        return self._call(
            "all_reduce", address, address, memory[1], memory[2], op, -1, opts, tensors
        )

    def broadcast(self, tensors: Sequence[Any], opts: Any) -> dist.Work | None:
        """Copy the root's tensor into every rank's."""
        if opts is None or len(tensors) != 1 or (memory := _memory(tensors[0])) is None:
            return None
        root = opts.rootRank
        if not 0 <= root < self.group.size:
            return None
        address, count, dtype = memory
        source = address if root == self.group.rank else 0
        return self._call(
            "broadcast", source, address, count, dtype, _NO_OPERATOR, root, opts, tensors
        )

    def reduce(self, tensors: Sequence[Any], opts: Any) -> dist.Work | None:
        """Combine a tensor over the group into the root's."""
        if opts is None or len(tensors) != 1 or (memory := _memory(tensors[0])) is None:
            return None
        root, op = opts.rootRank, _operator(opts, memory[2])
        if op is None or not 0 <= root < self.group.size:
            return None
        address, count, dtype = memory
        target = address if root == self.group.rank else 0
        return self._call("reduce", address, target, count, dtype, op, root, opts, tensors)

    def all_gather(self, output: Any, input: Any, opts: Any) -> dist.Work | None:
        """Collect every rank's tensor in one."""
        source, target = _memory(input), _memory(output)
        if source is None or target is None or not self._is_part(source, target):
            return None
        address, count, dtype = source
        return self._call(
            "all_gather", address, target[0], count, dtype, _NO_OPERATOR, -1, opts, [output], input
        )

    def reduce_scatter(self, output: Any, input: Any, opts: Any) -> dist.Work | None:
        """Combine every rank's tensor and leave part `rank` of it here."""
        source, target = _memory(input), _memory(output)
        if source is None or target is None or not self._is_part(target, source):
            return None
        address, count, dtype = target
        op = _operator(opts, dtype)
        if op is None:
            return None
        return self._call(
            "reduce_scatter", source[0], address, count, dtype, op, -1, opts, [output], input
        )

    def all_to_all(self, output: Any, input: Any, opts: Any) -> dist.Work | None:
        """Send equal parts of a tensor to each rank and receive those of the other."""
        source, target = _memory(input), _memory(output)
        if source is None or target is None or source[1:] != target[1:]:
            return None
        address, count, dtype = source
        size = self.group.size
        if not _has_equal_rows(input, size) or not _has_equal_rows(output, size):
            return None
        if not _are_apart(source, target):
            return None
        # Some ranks may give sizes of their parts, so this call is one with sizes too.
        counts = [count // size] * size
        return self._call(
            "all_to_all", address, target[0], 0, dtype, _NO_OPERATOR, -1, opts, [output], input,
            counts,
        )  # fmt: skip

    def barrier(self, opts: Any) -> dist.Work | None:
        """Wait until every rank of the group has called this."""
        return self._call("barrier", 0, 0, 0, _NOTHING, _NO_OPERATOR, -1, opts, [])

    def work_of(self, handle: Any, verb: str, number: int, tensors: list[Any]) -> Work:
        """The core's work of a call, for all that a handle of the native module cannot tell."""
        work = self.engine.work_of(handle).with_value(tensors)
        work.note(lambda: dispatch.where(verb, self.group, number))
        return work

    def _is_part(self, part: _Memory, whole: _Memory) -> bool:
        """Tell whether `part` is as long as this rank's part of `whole`, and where it may be."""
        if part[2] is not whole[2] or part[1] * self.group.size != whole[1]:
            return False
        own = whole[0] + self.group.rank * part[1] * part[2].itemsize
        return part[0] == own or _are_apart(part, whole)

    def _call(
        self,
        verb: str,
        source: int,
        target: int,
        count: int,
        dtype: DType,
        op: ReduceOp,
        root: int,
        opts: Any,
        tensors: Any,
        other: Any = None,
        counts: Sequence[int] = (),
    ) -> dist.Work | None:
        """Run or start a collective whose result is `tensors`; it reads `other` too."""
        if current_callback_thread() is not None:
            return None  # callbacks have a group of their own
        group, seconds, blocking = self.group, self.engine.timeout, False
        if opts is not None:
            timeout = opts.timeout
            if timeout > _UNSET:
                seconds = environment.timeout(timeout.total_seconds())
            blocking = not opts.asyncOp
        number = group.count_call()
        code, item, by = dtype.code, dtype.itemsize, op.code
        try:
            if not blocking:
                handle = self._start(
                    VERBS[verb], source, target, count, code, item, by, 1.0, root, seconds,
                    (tensors, other), counts, counts,
                )  # fmt: skip
            elif counts:
                self._collective_uneven(
                    VERBS[verb], source, target, count, code, item, by, 1.0, root, seconds, True,
                    False, counts, counts,
                )  # fmt: skip
            else:
                self._collective(
                    VERBS[verb], source, target, count, code, item, by, 1.0, root, seconds, True,
                    False,
                )  # fmt: skip
        except UnisonoError as error:
            self.engine.explain(error)
            error.add_note(dispatch.where(verb, group, number))
            raise
        return FINISHED if blocking else NativeWork(handle, self, verb, number, tensors)


class _Nothing(DType):
    """The dtype of a barrier, which moves nothing."""

    def __init__(self) -> None:
        self.code = 0
        self.itemsize = 1


_NOTHING = _Nothing()


def _memory(tensor: Any) -> _Memory | None:
    """Where the elements of a tensor are; None if that is not all there is to know."""
    dtype = _DTYPES.get(tensor.dtype)
    if (
        dtype is None
        or type(tensor) not in _KINDS
        or not tensor.is_cpu
        or tensor.layout is not torch.strided
        or not tensor.is_contiguous()
        or tensor.requires_grad
        or tensor.is_neg()
    ):
        return None
    address = tensor.data_ptr()
    return (address, tensor.numel(), dtype) if address else None


def _has_equal_rows(tensor: Any, size: int) -> bool:
    """Tell whether the rows of a tensor can be shared equally."""
    return bool(tensor.dim() > 0 and tensor.shape[0] % size == 0)


def _operator(opts: Any, dtype: DType) -> ReduceOp | None:
    """The operator, if it needs no factor and the dtype has it."""
    if opts is None:
        op: ReduceOp | None = ReduceOp.SUM
    else:
        op = OPERATORS.get(opts.reduceOp.op.value)
    return op if op is not None and op.name in dtype.operators else None


def _are_apart(first: _Memory, second: _Memory) -> bool:
    """Tell whether two tensors of one dtype share no memory."""
    itemsize = first[2].itemsize
    return (
        first[0] + first[1] * itemsize <= second[0] or second[0] + second[1] * itemsize <= first[0]
    )
