"""Calls of `mint.distributed` in which every value is wrong, and one argument's type besides.

Types come first upstream: whatever the values are, and even without a world, it is a TypeError.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

#: What no argument of these functions can be.
WRONG = object()


def calls(x: Any, odd: Any) -> dict[str, dict[str, Any]]:
    """Arguments of right types and wrong values; `odd` has another dtype and 3 rows."""
    tensors = {"output_tensor": odd, "input_tensor": x}
    pair = {"output": odd, "input": x}
    nowhere = {"group": "nowhere"}
    common = {**nowhere, "async_op": False}
    lists = {"output_tensor_list": [odd] * 3, "input_tensor_list": [x] * 5}
    return {
        "all_reduce": {"tensor": x, "op": "sum", **common},
        "broadcast": {"tensor": x, "src": 77, **common},
        "reduce": {"tensor": x, "dst": 77, "op": "sum", **common},
        "barrier": common,
        "all_gather_into_tensor": {**tensors, **common},
        "all_gather_into_tensor_uneven": {**pair, "output_split_sizes": [9], **common},
        "reduce_scatter_tensor": {**pair, "op": "sum", **common},
        "reduce_scatter_tensor_uneven": {**pair, "input_split_sizes": [9], "op": "sum", **common},
        "gather_into_tensor": {**tensors, "dst": 77, **common},
        "scatter_tensor": {**tensors, "src": 77, **common},
        "all_to_all_single": {
            **pair,
            "output_split_sizes": [9],
            "input_split_sizes": [-1],
            **common,
        },
        "all_gather": {"tensor_list": [odd] * 3, "tensor": x, **common},
        "reduce_scatter": {"output": x, "input_list": [odd] * 3, "op": "sum", **common},
        "gather": {"tensor": x, "gather_list": [odd] * 3, "dst": 77, **common},
        "scatter": {"tensor": x, "scatter_list": [odd] * 3, "src": 77, **common},
        "all_to_all": {**lists, **common},
        "send": {"tensor": x, "dst": 77, **nowhere, "tag": 1 << 70},
        "isend": {"tensor": x, "dst": 77, **nowhere, "tag": 1 << 70},
        "recv": {"tensor": x, "src": 77, **nowhere, "tag": 1 << 70},
        "irecv": {"tensor": x, "src": 77, **nowhere, "tag": 1 << 70},
        "P2POp": {"op": "isend", "tensor": x, "peer": 77},
        "batch_isend_irecv": {"p2p_op_list": []},
        "all_gather_object": {"object_list": [None] * 5, **nowhere},
        "broadcast_object_list": {"object_list": [None], "src": 77, **nowhere},
        "gather_object": {"dst": 77, **nowhere},
        "scatter_object_list": {"scatter_object_output_list": [1], "src": 77, **nowhere},
        "send_object_list": {"object_list": [1], "dst": 77, **nowhere},
        "recv_object_list": {"object_list": [1], "src": 77, **nowhere},
        "new_group": {"ranks": [77, 77], "backend": "hccl", "pg_options": None},
        "get_rank": nowhere,
        "get_world_size": nowhere,
        "get_backend": nowhere,
        "get_global_rank": {**nowhere, "group_rank": 77},
        "get_group_rank": {**nowhere, "global_rank": 77},
        "get_process_group_ranks": nowhere,
        "init_process_group": {
            "init_method": "nowhere",
            "timeout": None,
            "world_size": -7,
            "rank": -7,
            "store": None,
            "group_name": "",
        },
    }


#: Arguments that a call needs besides, and that may have any type.
BESIDES: dict[str, dict[str, Any]] = {
    "all_gather_object": {"obj": 1},
    "gather_object": {"obj": 1},
    "scatter_object_list": {"scatter_object_input_list": None},
}


def each_wrong(x: Any, odd: Any) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every function, every argument of it, and a call in which that one has a wrong type."""
    for function, given in calls(x, odd).items():
        for name in given:
            yield function, name, {**given, **BESIDES.get(function, {}), name: WRONG}
