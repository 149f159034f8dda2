"""What MindSpore's compiler reads instead of the functions of the faces. Needs MindSpore.

The compiler translates the source of every function that a graph calls. Those of the faces check
arguments and move memory, which it cannot translate; these only make operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NoReturn

from mindspore import Tensor, ops
from mindspore.graph._parse.resources import convert_object_map
from mindspore.ops import constexpr

from unisono.errors import Unsupported
from unisono.mindspore._groups import HCCL_WORLD_COMM_GROUP as WORLD
from unisono.mindspore._groups import resolve_group
from unisono.mindspore.communication import comm_func, management
from unisono.mindspore.integration.graph import operator_class
from unisono.mindspore.mint import distributed
from unisono.mindspore.ops import (
    _collectives,
    _exchanges,
    _messages,
    _neighbors,
    _switches,
    communication,
)
from unisono.mindspore.ops._primitive import CommunicationPrimitive, CompositePrimitive

__all__ = [
    "all_gather_into_tensor",
    "all_reduce",
    "all_to_all_single_with_output_shape",
    "all_to_all_with_output_shape",
    "barrier",
    "broadcast",
    "exchange_with_neighbors",
    "gather_into_tensor",
    "install",
    "listed",
    "recv",
    "reduce",
    "reduce_scatter_tensor",
    "scatter_tensor",
    "send",
]

_AllReduce = operator_class(_collectives.AllReduce)
_AllGather = operator_class(_collectives.AllGather)
_ReduceScatter = operator_class(_collectives.ReduceScatter)
_Reduce = operator_class(_collectives.Reduce)
_Broadcast = operator_class(_collectives.TensorBroadcast)
_Scatter = operator_class(_collectives.CollectiveScatter)
_Gather = operator_class(_collectives.CollectiveGather)
_RowExchange = operator_class(_exchanges.RowExchange)
_BarrierPoint = operator_class(_collectives.BarrierPoint)
_Send = operator_class(_messages.Send)
_ReceivedTensor = operator_class(_messages.ReceivedTensor)
_FlatExchange = operator_class(_exchanges.FlatExchange)


@constexpr  # type: ignore[untyped-decorator]
def _size(shape: Any) -> int:
    """How many elements a tensor of this shape has."""
    return math.prod(shape)


@constexpr  # type: ignore[untyped-decorator]
def _sizes(shapes: Any) -> tuple[int, ...]:
    return tuple(map(math.prod, shapes))


@constexpr  # type: ignore[untyped-decorator]
def _no_handle(async_op: Any) -> None:
    """Refuse a handle: a graph has none to wait for."""
    if async_op:
        raise Unsupported(
            "async_op=True is not possible in a graph, which has no handle to wait for; "
            "use async_op=False"
        )


def all_reduce(tensor: Any, op: str = "sum", group: Any = WORLD, async_op: bool = False) -> Any:
    """Combine a tensor, on every rank."""
    return _AllReduce(op, group)(tensor), _no_handle(async_op)


def all_gather_into_tensor(tensor: Any, group: Any = WORLD, async_op: bool = False) -> Any:
    """Join every rank's tensor."""
    return _AllGather(group)(tensor), _no_handle(async_op)


def reduce_scatter_tensor(
    tensor: Any, op: str = "sum", group: Any = WORLD, async_op: bool = False
) -> Any:
    """Combine a tensor; each rank gets its rows."""
    return _ReduceScatter(op, group)(tensor), _no_handle(async_op)


def reduce(tensor: Any, dst: int, op: str = "sum", group: Any = WORLD) -> Any:
    """Combine a tensor, on one rank."""
    return _Reduce(dst, op, group)(tensor)


def broadcast(tensor: Any, src: int = 0, group: Any = WORLD) -> Any:
    """Copy the tensor of one rank."""
    return _Broadcast(src, group)(tensor)


def scatter_tensor(tensor: Any, src: int = 0, group: Any = WORLD) -> Any:
    """Distribute the rows of one rank's tensor."""
    return _Scatter(src, group)(tensor)


def gather_into_tensor(tensor: Any, dst: int = 0, group: Any = WORLD) -> Any:
    """Join every rank's tensor on one rank."""
    return _Gather(dst, group)(tensor)


def all_to_all_single_with_output_shape(
    output_shape: Any,
    tensor: Any,
    output_split_sizes: Any = None,
    input_split_sizes: Any = None,
    group: Any = None,
    async_op: bool = False,
) -> Any:
    """Exchange rows."""
    shape = output_shape.shape if isinstance(output_shape, Tensor) else output_shape
    exchange = _RowExchange(shape, output_split_sizes, input_split_sizes, group)
    return exchange(tensor), _no_handle(async_op)


def all_to_all_with_output_shape(
    output_shape_list: Any, input_tensor_list: Any, group: Any = None, async_op: bool = False
) -> Any:
    """Exchange lists of tensors."""
    # Operators that take lists have no backward in a graph, so the tensors travel as one.
    shapes: Any = ()
    for entry in output_shape_list:
        if isinstance(entry, Tensor):
            shapes += (entry.shape,)
        else:
            shapes += (entry,)
    sends: Any = ()
    flat: Any = ()
    for tensor in input_tensor_list:
        sends += (tensor.size,)
        flat += (tensor.reshape((-1,)),)
    received = _FlatExchange(sends, _sizes(shapes), 1, group)(ops.cat(flat))
    result: Any = ()
    start = 0
    for shape in shapes:
        count = _size(shape)
        result += (received[start : start + count].reshape(shape),)
        start += count
    return result, _no_handle(async_op)


def barrier(group: Any = WORLD) -> None:
    """Wait for every rank."""
    _BarrierPoint(group)()


def send(tensor: Any, dst: int = 0, group: Any = WORLD, tag: int = 0) -> None:
    """Send a tensor."""
    _Send(tag, dst, group)(tensor)


def recv(tensor: Any, src: int = 0, group: Any = WORLD, tag: int = 0) -> Any:
    """Receive a tensor."""
    return _ReceivedTensor(tag, src, tensor.shape, tensor.dtype, group)(tensor)


# ---- ops.communication, whose functions return new tensors where that is switched on -------------


def _all_reduce(tensor: Any, op: str = "sum", group: Any = None, async_op: bool = False) -> Any:
    _check_switched_off("all_reduce")
    return all_reduce(tensor, op, group, async_op)


def _all_gather(
    output_tensor: Any, input_tensor: Any, group: Any = None, async_op: bool = False
) -> Any:
    _check_switched_off("all_gather_into_tensor")
    return all_gather_into_tensor(input_tensor, group, async_op)


def _reduce_scatter(
    output: Any, input: Any, op: str = "sum", group: Any = None, async_op: bool = False
) -> Any:
    _check_switched_off("reduce_scatter_tensor")
    return reduce_scatter_tensor(input, op, group, async_op)


def _all_to_all(
    output_tensor_list: Any, input_tensor_list: Any, group: Any = None, async_op: bool = False
) -> Any:
    _check_switched_off("all_to_all")
    return all_to_all_with_output_shape(output_tensor_list, input_tensor_list, group, async_op)


def _all_to_all_single(
    output: Any,
    input: Any,
    output_split_sizes: Any = None,
    input_split_sizes: Any = None,
    group: Any = None,
    async_op: bool = False,
) -> Any:
    _check_switched_off("all_to_all_single")
    sizes = (output_split_sizes, input_split_sizes)
    return all_to_all_single_with_output_shape(input, input, *sizes, group, async_op)


def _recv(tensor: Any, src: int = 0, group: Any = None, tag: int = 0) -> Any:
    _check_switched_off("recv")
    return recv(tensor, src, group, tag)


@constexpr  # type: ignore[untyped-decorator]
def _check_switched_off(name: str) -> None:
    if not _switches.is_off(name):
        _refuse(name)


def _refused(name: str) -> Callable[..., Any]:
    """What the compiler reads instead of a function that a graph cannot have."""

    def refused(*args: Any, **kwargs: Any) -> Any:
        return _refuse_in_graph(name)

    return refused


@constexpr  # type: ignore[untyped-decorator]
def _refuse_in_graph(name: str) -> None:
    _refuse(name)


def _refuse(name: str) -> NoReturn:
    raise Unsupported(
        f"{name} is not possible in a graph: it writes in place, or returns a handle or objects, "
        "which a graph cannot see; use the primitives of ops, or functions of comm_func that "
        "return new tensors"
    )


# ---- neighbors -----------------------------------------------------------------------------------


def exchange_with_neighbors(
    tensors: Any,
    send_ranks: Any,
    receive_ranks: Any,
    receive_shapes: Any,
    send_shapes: Any,
    receive_dtype: Any,
    group: Any,
) -> Any:
    """Exchange tensors with some ranks, which travel as one in the order of ranks."""
    sends, order = _by_rank(send_ranks, send_shapes, group)
    receives, places = _by_rank(receive_ranks, receive_shapes, group)
    flat: Any = ()
    for index in order:
        flat += (tensors[index].reshape((-1,)),)
    received = _FlatExchange(sends, receives, 1, group)(ops.cat(flat))
    starts = _starts(places, receive_shapes)
    result: Any = ()
    for index in range(len(receive_shapes)):
        shape = receive_shapes[index]
        start = starts[index]
        result += (received[start : start + _size(shape)].reshape(shape),)
    return result


@constexpr  # type: ignore[untyped-decorator]
def _by_rank(ranks: Any, shapes: Any, group: Any) -> Any:
    """How many elements belong to each rank of the group, and the entries in the order of ranks."""
    counts = [0] * resolve_group(group).size()
    for rank, shape in zip(ranks, shapes, strict=True):
        counts[rank] = math.prod(shape)
    return tuple(counts), tuple(sorted(range(len(ranks)), key=lambda index: ranks[index]))


@constexpr  # type: ignore[untyped-decorator]
def _starts(places: Any, shapes: Any) -> Any:
    """Where each entry begins, if they stand in this order."""
    starts = [0] * len(places)
    start = 0
    for index in places:
        starts[index] = start
        start += math.prod(shapes[index])
    return tuple(starts)


def listed(tensors: Any) -> Any:
    """A list or tuple as it is; the compiler knows types."""
    return tensors


def install() -> None:
    """Tell MindSpore's compiler what to read instead of our functions and classes."""
    for function in (
        all_gather_into_tensor,
        all_reduce,
        all_to_all_single_with_output_shape,
        all_to_all_with_output_shape,
        barrier,
        broadcast,
        gather_into_tensor,
        recv,
        reduce,
        reduce_scatter_tensor,
        scatter_tensor,
        send,
    ):
        convert_object_map[getattr(comm_func, function.__name__)] = function
    convert_object_map[_messages.listed] = listed
    convert_object_map[_neighbors.exchange_with_neighbors] = exchange_with_neighbors
    for module in (_collectives, _exchanges, _messages, _neighbors):
        for name in module.__all__:
            kind: Any = getattr(module, name)
            primitive = isinstance(kind, type) and issubclass(kind, CommunicationPrimitive)
            if primitive and not issubclass(kind, CompositePrimitive):
                convert_object_map[kind] = operator_class(kind)
    for name in ("get_rank", "get_group_size", "get_local_rank", "get_local_rank_size"):
        convert_object_map[getattr(management, name)] = constexpr(getattr(management, name))
    for name, switched in (
        ("all_reduce", _all_reduce),
        ("all_gather_into_tensor", _all_gather),
        ("reduce_scatter_tensor", _reduce_scatter),
        ("all_to_all", _all_to_all),
        ("all_to_all_single", _all_to_all_single),
        ("recv", _recv),
    ):
        convert_object_map[getattr(communication, name)] = switched
    for module in (comm_func, communication, distributed):
        for name in module.__all__:
            thing = getattr(module, name)
            if callable(thing) and not isinstance(thing, type):
                convert_object_map.setdefault(thing, _refused(name))
