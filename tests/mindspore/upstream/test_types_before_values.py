"""Both MindSpore and we refuse wrong types before wrong values, and before there is a world."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

mindspore = pytest.importorskip("mindspore")

from mindspore.mint.distributed import distributed as theirs  # noqa: E402  (after the check)

from tests.helpers.wrong_types import each_wrong  # noqa: E402
from unisono.mindspore.ops import communication as ours  # noqa: E402

X = mindspore.Tensor(np.zeros(2, np.float32))
ODD = mindspore.Tensor(np.zeros(3, np.int64))
#: Left to an operator upstream, which needs a world first, or found in another way.
LATE = {
    ("all_gather_into_tensor_uneven", "output"),
    ("all_gather_into_tensor_uneven", "input"),
    ("all_gather_into_tensor_uneven", "output_split_sizes"),
    ("reduce_scatter_tensor_uneven", "output"),
    ("reduce_scatter_tensor_uneven", "input"),
    ("reduce_scatter_tensor_uneven", "input_split_sizes"),
    ("all_to_all_single", "output_split_sizes"),
    ("all_to_all_single", "input_split_sizes"),
    ("all_gather_object", "object_list"),
    *((name, "tag") for name in ("send", "isend", "recv", "irecv")),
}
CASES = list(each_wrong(X, ODD))


@pytest.mark.parametrize(
    ("function", "name", "arguments"), CASES, ids=[f"{case[0]} {case[1]}" for case in CASES]
)
def test_a_wrong_type_is_a_type_error(function: str, name: str, arguments: dict[str, Any]) -> None:
    if (function, name) not in LATE:
        with pytest.raises(TypeError):
            getattr(theirs, function)(**arguments)
    with pytest.raises(TypeError, match=name):
        getattr(ours, function)(**arguments)
