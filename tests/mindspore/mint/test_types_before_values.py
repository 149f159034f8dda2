"""Types of arguments are checked before any value, and every error names its argument."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import unisono
from tests.helpers.wrong_types import BESIDES, calls, each_wrong
from unisono.mindspore.mint import distributed as dist
from unisono.mindspore.ops import communication as ops

X = np.zeros(2, np.float32)
ODD = np.zeros(3, np.int64)
CASES = list(each_wrong(X, ODD))
#: Accepted and not read, or named by what they mean.
UNREAD = {"device", "device_ids", "timeout", "use_local_synchronization", "group_desc"}
UNREAD |= {"pg_options", "device_id", "backend", "tag", "obj", "object_gather_list"}


def test_every_function_and_argument_is_here() -> None:
    given = calls(X, ODD)
    functions = set(dist.__all__) - {"is_available", "is_initialized", "destroy_process_group"}
    assert set(given) == functions | {"gather_into_tensor", "scatter_tensor"}
    for name, arguments in given.items():
        signature = inspect.signature(getattr(ops, name))
        rest = set(signature.parameters) - set(arguments) - set(BESIDES.get(name, {})) - UNREAD
        assert rest <= ({"group"} if name == "P2POp" else set()), name


@pytest.mark.parametrize(
    ("function", "name", "arguments"), CASES, ids=[f"{case[0]} {case[1]}" for case in CASES]
)
def test_a_wrong_type_is_a_type_error(function: str, name: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=name):
        getattr(ops, function)(**arguments)


SPLITS = {"output_split_sizes": [1, 1], "input_split_sizes": [1, 1]}
WRONG_VALUES: dict[str, tuple[str, dict[str, Any]]] = {
    "list for others": (
        "input_tensor_list has 3 entries; it needs 2, one for each rank",
        {"function": "all_to_all", "output_tensor_list": [X] * 2, "input_tensor_list": [X] * 3},
    ),
    "output list for others": (
        "output_tensor_list has 1 entry; it needs 2",
        {"function": "all_to_all", "output_tensor_list": [X], "input_tensor_list": [X] * 2},
    ),
    "list of another dtype": (
        "input_tensor_list and output_tensor_list must have one dtype",
        {"function": "all_to_all", "output_tensor_list": [ODD] * 2, "input_tensor_list": [X] * 2},
    ),
    "splits of an exchange": (
        "input_split_sizes is",
        {"function": "all_to_all_single", "output": X, "input": ODD.astype("f4"), **SPLITS},
    ),
    "too long an input": (
        "input has 3 elements where 1 are needed",
        {
            "function": "all_gather_into_tensor_uneven",
            "output": X,
            "input": np.zeros(3, "f4"),
            "output_split_sizes": [1, 1],
        },
    ),
    "too long an output": (
        "output has 2 elements where 1 are needed",
        {
            "function": "reduce_scatter_tensor_uneven",
            "output": X,
            "input": X.copy(),
            "input_split_sizes": [1, 1],
        },
    ),
    "dtype of a gathered tensor": (
        "tensor and tensor_list must have one dtype",
        {"function": "all_gather", "tensor_list": [ODD, ODD], "tensor": X},
    ),
    "overlap": (
        "output_tensor and input_tensor overlap",
        {"function": "all_gather_into_tensor", "output_tensor": ODD[:2], "input_tensor": ODD[1:2]},
    ),
    "operator and dtype": (
        "tensor is bool, which cannot be reduced with avg",
        {"function": "all_reduce", "tensor": np.zeros(2, bool), "op": "avg"},
    ),
    "read-only tensor": (
        "tensor cannot be written",
        {"function": "all_reduce", "tensor": np.broadcast_to(np.zeros(1), 2)},
    ),
    "read-only list": (
        "a tensor of tensor_list cannot be written",
        {"function": "all_gather", "tensor_list": [np.broadcast_to(X[:1], 2)] * 2, "tensor": X},
    ),
    "src": ("src 5 is not in group", {"function": "broadcast", "tensor": X, "src": 5}),
    "global_rank": (
        "global_rank 5 is not in group",
        {"function": "get_group_rank", "group": None, "global_rank": 5},
    ),
    "group_rank": (
        "group_rank 5 is out of range",
        {"function": "get_global_rank", "group": None, "group_rank": 5},
    ),
}


def refused() -> int:
    for case, (text, arguments) in WRONG_VALUES.items():
        if case == "overlap" and dist.get_rank() == 1:
            continue  # there its input is the part that it should be
        rest = dict(arguments)
        function = getattr(ops, rest.pop("function"))
        with pytest.raises(unisono.UnisonoError, match=text):
            function(**rest)
    dist.barrier()  # nothing was left in progress
    return len(WRONG_VALUES)


def test_errors_about_values_name_the_argument() -> None:
    assert unisono.spawn(refused, 2, timeout=30) == [len(WRONG_VALUES)] * 2
