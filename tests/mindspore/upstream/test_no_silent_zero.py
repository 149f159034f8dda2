"""No public name gives a gradient that is silently zero: it is right, or there is an error.

Each name of the MindSpore faces stands in one of these tables; a name without an entry fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

mindspore = pytest.importorskip("mindspore")

from mindspore import Tensor  # noqa: E402  (after the check for MindSpore)

from tests.helpers import worlds  # noqa: E402
from tests.helpers.mindspore_cases import CASES, place_of  # noqa: E402
from unisono.core.groups import Group  # noqa: E402
from unisono.mindspore import ops  # noqa: E402
from unisono.mindspore.communication import comm_func  # noqa: E402
from unisono.mindspore.mint import distributed as mint  # noqa: E402
from unisono.mindspore.ops import communication  # noqa: E402

#: Takes no tensor, or only numbers of another kind: objects, handles, groups, stores, modules.
NO_TENSORS = {
    "Barrier",
    "CommHandle",
    "P2POp",
    "ReduceOp",
    "TCPStore",
    "all_gather_object",
    "barrier",
    "broadcast_object_list",
    "communication",
    "destroy_process_group",
    "gather_object",
    "get_backend",
    "get_global_rank",
    "get_group_rank",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "init_process_group",
    "is_available",
    "is_initialized",
    "new_group",
    "recv_object_list",
    "scatter_object_list",
    "send_object_list",
    "set_comm_ops_inplace",
}

#: In test_gradients.py, where each gradient is compared with finite differences in each mode.
DIFFERENTIATED = {
    "ops": {
        "AllGather": "AllGather",
        "AllGatherV": "AllGatherV",
        "AllReduce": "AllReduce sum",
        "AlltoAll": "AlltoAll 0 1",
        "AlltoAllV": "AlltoAllV",
        "AlltoAllVC": "AlltoAllVC",
        "Broadcast": "Broadcast",
        "CollectiveGather": "CollectiveGather",
        "CollectiveScatter": "CollectiveScatter",
        "Receive": "Send and Receive",
        "Reduce": "Reduce sum",
        "ReduceScatter": "ReduceScatter sum",
        "ReduceScatterV": "ReduceScatterV sum",
        "Send": "Send and Receive",
    },
    "comm_func": {
        "all_gather_into_tensor": "all_gather_into_tensor",
        "all_reduce": "all_reduce",
        "all_to_all_single_with_output_shape": "all_to_all_single_with_output_shape",
        "all_to_all_with_output_shape": "all_to_all_with_output_shape",
        "broadcast": "broadcast",
        "gather_into_tensor": "gather_into_tensor",
        "reduce": "reduce",
        "reduce_scatter_tensor": "reduce_scatter_tensor",
        "scatter_tensor": "scatter_tensor",
    },
}

#: Not decided yet: what writes into its argument, or sends. Move each to a table above or below.
TO_DO = {
    "ops": {"NeighborExchange", "NeighborExchangeV2"},
    "comm_func": {"all_to_all_v_c", "batch_isend_irecv", "irecv", "isend", "recv", "send"},
    "ops.communication": {
        "all_gather",
        "all_gather_into_tensor",
        "all_gather_into_tensor_uneven",
        "all_reduce",
        "all_to_all",
        "all_to_all_single",
        "all_to_all_v_c",
        "batch_isend_irecv",
        "broadcast",
        "gather",
        "gather_into_tensor",
        "irecv",
        "isend",
        "recv",
        "reduce",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "reduce_scatter_tensor_uneven",
        "scatter",
        "scatter_tensor",
        "send",
    },
}
TO_DO["mint.distributed"] = TO_DO["ops.communication"]

MODULES = {
    "comm_func": comm_func,
    "ops": ops,
    "ops.communication": communication,
    "mint.distributed": mint,
}


def _batch(x: Any) -> Any:
    rank, size = mint.get_rank(), mint.get_world_size()
    primitive = ops.BatchISendIRecv(
        ["isend", "irecv"], [(rank + 1) % size, (rank - 1) % size], [x.shape], [x.dtype]
    )
    return primitive((x,))[1]


#: Have no backward: Unsupported where they are differentiated.
REFUSED: dict[str, dict[str, Callable[[Any], Any]]] = {
    "ops": {
        "BatchISendIRecv": _batch,
        "ReduceScatterV": lambda x: ops.ReduceScatterV("max")(x.reshape((-1,)), [2, 2, 2]),
    },
}


@pytest.mark.parametrize("module", MODULES)
def test_every_name_has_an_entry(module: str) -> None:
    tables = (NO_TENSORS, DIFFERENTIATED.get(module, {}), TO_DO.get(module, {}))
    entries = {name for table in (*tables, REFUSED.get(module, {})) for name in table}
    assert set(MODULES[module].__all__) <= entries


def test_every_differentiated_name_has_a_case() -> None:
    for cases in DIFFERENTIATED.values():
        assert set(cases.values()) <= set(CASES)


#: The functions of ops.communication that return new tensors when they are switched.
SWITCHED: dict[str, Callable[[Any], Any]] = {
    "all_reduce": lambda x: communication.all_reduce(x)[0],
    "all_gather_into_tensor": lambda x: communication.all_gather_into_tensor(None, x)[0],
    "reduce_scatter_tensor": lambda x: communication.reduce_scatter_tensor(None, x)[0],
    "all_to_all_single": lambda x: communication.all_to_all_single(None, x)[0],
    "all_to_all": lambda x: mindspore.ops.cat(
        communication.all_to_all([x[:1].shape] * 3, [x[:1], x[1:2], x[2:]])[0]
    ),
}


def switched(world: Group) -> dict[str, Any]:
    """Gradients of the switched functions, where each rank's loss has its number as a factor."""
    place = place_of(world)
    assert place is not None
    x = Tensor(np.arange(6.0).reshape(3, 2) + place.position)
    factor = place.position + 1
    found = {}
    communication.set_comm_ops_inplace(False)
    try:
        for name, call in SWITCHED.items():

            def loss(x: Any, call: Any = call) -> Any:
                return (call(x * x) * factor).sum()

            found[name] = mindspore.grad(loss)(x).asnumpy() / (2 * np.maximum(x.asnumpy(), 1e-30))
    finally:
        communication.set_comm_ops_inplace(True)
    return found


def test_switched_functions_are_differentiated(all_worlds: worlds.Worlds) -> None:
    each = np.array([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])  # row j goes to rank j
    for rank, found in enumerate(all_worlds.run("shm", 3, switched)):
        assert sorted(found) == sorted(SWITCHED)
        for name, gradient in found.items():
            expected = 6 + 0 * each if name in ("all_reduce", "all_gather_into_tensor") else each
            where = slice(1 if rank == 0 else 0, None)  # rank 0 has a 0 in its first row
            np.testing.assert_allclose(gradient[where], expected[where], err_msg=name)


def refused(world: Group, module: str, name: str) -> tuple[str, str]:
    """What the gradient of a name without a backward raises."""
    place_of(world)
    call = REFUSED[module][name]

    def loss(x: Any) -> Any:
        return call(x * x).sum()

    try:
        gradient = mindspore.grad(loss)(Tensor(np.arange(6.0).reshape(3, 2)))
        return "gradient", str(gradient.asnumpy())
    except Exception as error:
        return type(error).__name__, str(error)


#: Silently zero so far: take each away from here when it raises.
STILL_ZERO = {("ops", "BatchISendIRecv")}


@pytest.mark.parametrize(
    ("module", "name"),
    [
        pytest.param(
            module,
            name,
            marks=[pytest.mark.xfail(strict=True)] if (module, name) in STILL_ZERO else [],
        )
        for module, calls in REFUSED.items()
        for name in calls
    ],
)
def test_names_without_a_backward_say_so(all_worlds: worlds.Worlds, module: str, name: str) -> None:
    for kind, text in all_worlds.run("shm", 3, refused, module, name):
        assert kind == "Unsupported" and "has no backward" in text, (kind, text)
