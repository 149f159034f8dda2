"""The MindSpore face, `mindspore.ops.communication`: the successor of `comm_func`.

In place, as in mint, until `set_comm_ops_inplace(False, [...])` makes a function return new
tensors, as `comm_func` does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from unisono.core.arguments import missing_name as _missing_name
from unisono.errors import ArgumentError, ArgumentTypeError
from unisono.mindspore import _in_place, _in_place_lists, _objects, _point_to_point
from unisono.mindspore._arguments import check_bool
from unisono.mindspore._point_to_point import P2POp
from unisono.mindspore._process_groups import (
    destroy_process_group,
    get_backend,
    get_global_rank,
    get_group_rank,
    get_process_group_ranks,
    get_rank,
    get_world_size,
    init_process_group,
    is_available,
    is_initialized,
    new_group,
)
from unisono.mindspore._store import TCPStore
from unisono.mindspore.communication import comm_func
from unisono.mindspore.ops._switches import is_off, switch

__all__ = [
    "P2POp",
    "TCPStore",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_into_tensor_uneven",
    "all_gather_object",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "all_to_all_v_c",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "broadcast_object_list",
    "destroy_process_group",
    "gather",
    "gather_into_tensor",
    "gather_object",
    "get_backend",
    "get_global_rank",
    "get_group_rank",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "init_process_group",
    "irecv",
    "is_available",
    "is_initialized",
    "isend",
    "new_group",
    "recv",
    "recv_object_list",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_uneven",
    "scatter",
    "scatter_object_list",
    "scatter_tensor",
    "send",
    "send_object_list",
    "set_comm_ops_inplace",
]

_P = ParamSpec("_P")
_R = TypeVar("_R")


def set_comm_ops_inplace(is_enable: bool, func_list: Sequence[str] | None = None) -> None:
    """Set whether functions write into their arguments; all of them, or those in the list.

    >>> communication.set_comm_ops_inplace(False, ["all_reduce"])
    >>> unisono.spawn(lambda: communication.all_reduce(np.ones(1))[0].tolist(), 2)
    [[2.0], [2.0]]
    >>> communication.set_comm_ops_inplace(True)
    """
    check_bool(is_enable, "is_enable")
    if func_list is not None and not isinstance(func_list, list | tuple):
        raise ArgumentTypeError(f"func_list must be a list of names or None, got {func_list!r}")
    chosen = _SWITCHES if func_list is None else func_list
    for name in chosen:
        if not isinstance(name, str) or name not in _SWITCHES:
            raise ArgumentError(f"there is no function {name!r} to switch; see {_SWITCHES}")
    switch(chosen, in_place=is_enable)


def _in_place_only(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Make a function fail while it is switched off, as no form of it returns new tensors."""
    name = function.__name__

    @functools.wraps(function)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if is_off(name):
            raise ArgumentError(
                f"{name} works in place only; call set_comm_ops_inplace(True, [{name!r}])"
            )
        return function(*args, **kwargs)

    return checked


# ---- in place, or as comm_func does it -----------------------------------------------------------


def all_reduce(
    tensor: Any, op: str = "sum", group: str | None = None, async_op: bool = False
) -> Any:
    """Combine `tensor` over the group so that every rank holds the result.

    >>> def total():
    ...     x = np.full(2, communication.get_rank())
    ...     communication.all_reduce(x)
    ...     return x.tolist()
    >>> unisono.spawn(total, 3)
    [[3, 3], [3, 3], [3, 3]]
    """
    if is_off("all_reduce"):
        return comm_func.all_reduce(tensor, op, group, async_op)
    return _in_place.all_reduce(tensor, op, group, async_op)


def all_gather_into_tensor(
    output_tensor: Any, input_tensor: Any, group: str | None = None, async_op: bool = False
) -> Any:
    """Join every rank's tensor along the first dimension, on every rank.

    >>> def joined():
    ...     x = np.empty(4, int)
    ...     communication.all_gather_into_tensor(x, np.full(2, communication.get_rank()))
    ...     return x.tolist()
    >>> unisono.spawn(joined, 2)
    [[0, 0, 1, 1], [0, 0, 1, 1]]
    """
    if is_off("all_gather_into_tensor"):
        return comm_func.all_gather_into_tensor(input_tensor, group, async_op)
    return _in_place.all_gather_into_tensor(output_tensor, input_tensor, group, async_op)


def reduce_scatter_tensor(
    output: Any, input: Any, op: str = "sum", group: str | None = None, async_op: bool = False
) -> Any:
    """Combine `input` over the group; each rank gets its part of the rows.

    >>> def part():
    ...     x = np.empty(1, int)
    ...     communication.reduce_scatter_tensor(x, np.array([10, 20]))
    ...     return x.tolist()
    >>> unisono.spawn(part, 2)
    [[20], [40]]
    """
    if is_off("reduce_scatter_tensor"):
        return comm_func.reduce_scatter_tensor(input, op, group, async_op)
    return _in_place.reduce_scatter_tensor(output, input, op, group, async_op)


def all_to_all(
    output_tensor_list: Sequence[Any],
    input_tensor_list: Sequence[Any],
    group: str | None = None,
    async_op: bool = False,
) -> Any:
    """Send entry j to rank j; new tensors have the shapes in the output list, or of its tensors.

    >>> def exchange():
    ...     mine = [np.array([10 * communication.get_rank() + i]) for i in range(2)]
    ...     found = [np.empty(1, int) for _ in range(2)]
    ...     communication.all_to_all(found, mine)
    ...     return np.concatenate(found).tolist()
    >>> unisono.spawn(exchange, 2)
    [[0, 10], [1, 11]]
    """
    if is_off("all_to_all"):
        return comm_func.all_to_all_with_output_shape(
            output_tensor_list, input_tensor_list, group, async_op
        )
    return _in_place_lists.all_to_all(output_tensor_list, input_tensor_list, group, async_op)


def all_to_all_single(
    output: Any,
    input: Any,
    output_split_sizes: Any = None,
    input_split_sizes: Any = None,
    group: str | None = None,
    async_op: bool = False,
) -> Any:
    """Send part j of the rows to rank j, and join the parts received.

    >>> def exchange():
    ...     x = np.empty(4, int)
    ...     communication.all_to_all_single(x, np.arange(4) + 10 * communication.get_rank())
    ...     return x.tolist()
    >>> unisono.spawn(exchange, 2)
    [[0, 1, 10, 11], [2, 3, 12, 13]]
    """
    sizes = (output_split_sizes, input_split_sizes)
    if is_off("all_to_all_single"):
        return comm_func.all_to_all_single_with_output_shape(input, input, *sizes, group, async_op)
    return _in_place.all_to_all_single(output, input, *sizes, group, async_op)


def recv(tensor: Any, src: int = 0, group: str | None = None, tag: int = 0) -> Any:
    """Receive from world rank `src` into `tensor` and return 0, or return a new tensor like it.

    >>> def message():
    ...     x = np.full(2, communication.get_rank())
    ...     communication.send(x, dst=1) if x[0] == 0 else communication.recv(x, src=0)
    ...     return x.tolist()
    >>> unisono.spawn(message, 2)
    [[0, 0], [0, 0]]
    """
    if is_off("recv"):
        return comm_func.recv(tensor, src, group, tag)
    return _point_to_point.recv(tensor, src, group, tag)


def irecv(tensor: Any, src: int = 0, group: str | None = None, tag: int = 0) -> Any:
    """Start to receive from world rank `src`; returns a handle, or a new tensor and a handle.

    >>> def message():
    ...     x = np.full(2, communication.get_rank())
    ...     communication.send(x, dst=1) if x[0] == 0 else communication.irecv(x, src=0).wait()
    ...     return x.tolist()
    >>> unisono.spawn(message, 2)
    [[0, 0], [0, 0]]
    """
    if is_off("irecv"):
        return comm_func.irecv(tensor, src, group, tag)
    return _point_to_point.irecv(tensor, src, group, tag)


# ---- in place only -------------------------------------------------------------------------------

all_gather = _in_place_only(_in_place_lists.all_gather)
all_gather_into_tensor_uneven = _in_place_only(_in_place.all_gather_into_tensor_uneven)
all_gather_object = _in_place_only(_objects.all_gather_object)
all_to_all_v_c = _in_place_only(comm_func.all_to_all_v_c)
barrier = _in_place_only(_in_place.barrier)
batch_isend_irecv = _in_place_only(_point_to_point.batch_isend_irecv)
broadcast = _in_place_only(_in_place.broadcast)
broadcast_object_list = _in_place_only(_objects.broadcast_object_list)
gather = _in_place_only(_in_place_lists.gather)
gather_into_tensor = _in_place_only(_in_place.gather_into_tensor)
gather_object = _in_place_only(_objects.gather_object)
isend = _in_place_only(_point_to_point.isend)
recv_object_list = _in_place_only(_objects.recv_object_list)
reduce = _in_place_only(_in_place.reduce)
reduce_scatter = _in_place_only(_in_place_lists.reduce_scatter)
reduce_scatter_tensor_uneven = _in_place_only(_in_place.reduce_scatter_tensor_uneven)
scatter = _in_place_only(_in_place_lists.scatter)
scatter_object_list = _in_place_only(_objects.scatter_object_list)
scatter_tensor = _in_place_only(_in_place.scatter_tensor)
send = _in_place_only(_point_to_point.send)
send_object_list = _in_place_only(_objects.send_object_list)

_POINT_TO_POINT = ("batch_isend_irecv", "irecv", "isend", "recv", "send")
#: Every function that moves data can be switched; init and queries cannot.
_SWITCHES = sorted(
    {
        *_in_place.__all__,
        *_in_place_lists.__all__,
        *_objects.__all__,
        *_POINT_TO_POINT,
        "all_to_all_v_c",
    }
)

__getattr__ = _missing_name(
    "mindspore.ops.communication",
    __all__,
    {
        "all_to_all_with_output_shape": "all_to_all",
        "all_to_all_single_with_output_shape": "all_to_all_single",
        "monitored_barrier": "barrier",
        "new_subgroups": "new_group",
        "split_group": "new_group",
        "ReduceOp": "unisono.mindspore.ops.ReduceOp",
    },
)
