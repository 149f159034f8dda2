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
from unisono import mapping  # noqa: E402
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
        "NeighborExchange": "NeighborExchange",
        "NeighborExchangeV2": "NeighborExchangeV2",
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

#: Return nothing that a gradient could come back through: the loss of this rank does not depend on
#: what they do, as in torch.
NO_RESULT = {"isend", "send"}

MODULES = {
    "comm_func": comm_func,
    "ops": ops,
    "ops.communication": communication,
    "mint.distributed": mint,
}


def _neighbors() -> tuple[int, int]:
    rank, size = mint.get_rank(), mint.get_world_size()
    return (rank + 1) % size, (rank - 1) % size


def _batch(x: Any) -> Any:
    after, before = _neighbors()
    primitive = ops.BatchISendIRecv(["isend", "irecv"], [after, before], [x.shape], [x.dtype])
    return primitive((x,))[1]


def _entries(x: Any) -> Any:
    after, before = _neighbors()
    sent, received = comm_func.P2POp("isend", x, after), comm_func.P2POp("irecv", x, before)
    return comm_func.batch_isend_irecv([sent, received])[1]


def _received(x: Any) -> Any:
    after, before = _neighbors()
    handle = comm_func.isend(x, after)
    result = comm_func.recv(x, before)
    handle.wait()
    return result


def _received_later(x: Any) -> Any:
    after, before = _neighbors()
    sending = comm_func.isend(x, after)
    result, receiving = comm_func.irecv(x, before)
    sending.wait()
    receiving.wait()
    return result


def _zeros(*shape: int) -> Any:
    return Tensor(np.zeros(shape))


def _written(call: Callable[[Any, Any], Any], *shape: int) -> Callable[[Any], Any]:
    """A function that gives its argument to `call` with a new tensor, and returns that tensor."""

    def function(x: Any) -> Any:
        out = _zeros(*shape)
        call(out, x)
        return out

    return function


def _written_list(call: Callable[[list[Any], Any], Any], *shape: int) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        outs = [_zeros(*shape) for _ in range(3)]
        call(outs, x)
        return outs[0]

    return function


def _rows(x: Any) -> list[Any]:
    return [x[:1], x[1:2], x[2:]]


_COUNTED = _written(lambda out, x: comm_func.all_to_all_v_c(out, x, [1] * 9), 3, 2)


def _in_place(module: Any) -> dict[str, Callable[[Any], Any]]:
    """The functions that write into another tensor, each as one that returns that tensor."""
    calls: dict[str, Callable[[Any], Any]] = {
        "all_gather": _written_list(module.all_gather, 3, 2),
        "all_gather_into_tensor": _written(module.all_gather_into_tensor, 9, 2),
        "all_gather_into_tensor_uneven": _written(
            lambda out, x: module.all_gather_into_tensor_uneven(out, x, [3, 3, 3]), 9, 2
        ),
        "all_to_all": _written_list(lambda outs, x: module.all_to_all(outs, _rows(x)), 1, 2),
        "all_to_all_single": _written(module.all_to_all_single, 3, 2),
        "gather": _written_list(lambda outs, x: module.gather(x, outs), 3, 2),
        "reduce_scatter": _written(lambda out, x: module.reduce_scatter(out, _rows(x)), 1, 2),
        "reduce_scatter_tensor": _written(module.reduce_scatter_tensor, 1, 2),
        "reduce_scatter_tensor_uneven": _written(
            lambda out, x: module.reduce_scatter_tensor_uneven(out, x, [1, 1, 1]), 1, 2
        ),
        "scatter": _written(lambda out, x: module.scatter(out, _rows(x)), 1, 2),
    }
    if module is communication:
        calls["all_to_all_v_c"] = _written(
            lambda out, x: module.all_to_all_v_c(out, x, [1] * 9), 3, 2
        )
        calls["gather_into_tensor"] = _written(module.gather_into_tensor, 9, 2)
        calls["scatter_tensor"] = _written(module.scatter_tensor, 1, 2)
    return calls


#: Have no backward: Unsupported where they are differentiated.
REFUSED: dict[str, dict[str, Callable[[Any], Any]]] = {
    "ops": {"BatchISendIRecv": _batch},
    "comm_func": {
        "all_to_all_v_c": _COUNTED,
        "batch_isend_irecv": _entries,
        "irecv": _received_later,
        "recv": _received,
    },
    "ops.communication": _in_place(communication),
    "mint.distributed": _in_place(mint),
}

#: Write into the tensor that they read, which keeps its history: the gradient passes as upstream.
PASSING = {"all_reduce", "broadcast", "reduce"}
#: Write into a tensor what another rank sent; of what it was before, nothing is left to depend on.
OVERWRITING = {"batch_isend_irecv", "irecv", "recv"}
IN_PLACE = ("ops.communication", "mint.distributed")


@pytest.mark.parametrize("module", MODULES)
def test_every_name_has_an_entry(module: str) -> None:
    tables = [NO_TENSORS, NO_RESULT, DIFFERENTIATED.get(module, {}), REFUSED[module]]
    if module in IN_PLACE:
        tables += [PASSING, OVERWRITING]
    assert set(MODULES[module].__all__) <= {name for table in tables for name in table}


@pytest.mark.parametrize("module", MODULES)
def test_the_mapping_table_says_the_same(module: str) -> None:
    """What is tested here of each name is what the table says of its backward."""
    prefix = "mindspore.communication." if module == "comm_func" else "mindspore."
    for name in set(MODULES[module].__all__) - NO_TENSORS:
        told = mapping.calls()[f"{prefix}{module}.{name}"].gradient
        if name in NO_RESULT:
            assert told == "no_result", name
        elif name in REFUSED[module]:
            assert told == "refused", name
        elif module in IN_PLACE:
            assert told == "unseen", name
        else:
            assert told not in (None, "no_result", "refused", "unseen"), name


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


@pytest.mark.parametrize("module", REFUSED)
def test_names_without_a_backward_say_so(all_worlds: worlds.Worlds, module: str) -> None:
    for name in REFUSED[module]:
        for kind, text in all_worlds.run("shm", 3, refused, module, name):
            assert kind == "Unsupported", (name, kind, text)
            assert "no gradient passes through it" in text, (name, text)


def passing(world: Group, module: str) -> dict[str, Any]:
    """Gradients through the functions that write into the tensor that they read."""
    place_of(world)
    functions = MODULES[module]
    calls = {
        "all_reduce": functions.all_reduce,
        "broadcast": lambda x: functions.broadcast(x, 0),
        "reduce": lambda x: functions.reduce(x, 0),
    }
    found = {}
    for name, call in calls.items():

        def loss(x: Any, call: Any = call) -> Any:
            y = x * 3
            call(y)
            return (y * 2).sum()

        found[name] = mindspore.grad(loss)(Tensor(np.arange(6.0))).asnumpy()
    return found


@pytest.mark.parametrize("module", IN_PLACE)
def test_gradients_pass_through_a_tensor_that_was_overwritten(
    all_worlds: worlds.Worlds, module: str
) -> None:
    for found in all_worlds.run("shm", 3, passing, module):
        assert set(found) == PASSING
        for name, gradient in found.items():
            np.testing.assert_array_equal(gradient, 6.0, err_msg=name)
