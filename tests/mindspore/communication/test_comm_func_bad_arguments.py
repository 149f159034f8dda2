"""Bad arguments of comm_func: the errors that MindSpore raises, before anything is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import unisono
from unisono.core.groups import Group
from unisono.mindspore.communication import comm_func

X = np.zeros((4, 2), np.float32)
UNKNOWN = (KeyError, ValueError, RuntimeError)

# By name, because a lambda cannot be sent to another process.
BAD: dict[str, tuple[Callable[[], Any], tuple[type[Exception], ...]]] = {
    "all_reduce list": (lambda: comm_func.all_reduce([1.0]), (TypeError,)),
    "all_reduce op kind": (lambda: comm_func.all_reduce(X, 3), (TypeError,)),
    "all_reduce op case": (lambda: comm_func.all_reduce(X, "SUM"), (TypeError,)),
    "all_reduce op list": (lambda: comm_func.all_reduce(X, ["sum"]), (TypeError,)),
    "all_reduce group kind": (lambda: comm_func.all_reduce(X, group=3), (TypeError,)),
    "all_reduce group": (lambda: comm_func.all_reduce(X, group="no"), (RuntimeError,)),
    "all_reduce async_op": (lambda: comm_func.all_reduce(X, async_op=1), (TypeError,)),
    "all_gather tensor": (lambda: comm_func.all_gather_into_tensor(3), (TypeError,)),
    "all_gather bytes": (lambda: comm_func.all_gather_into_tensor(b"12"), (TypeError,)),
    "all_gather group kind": (lambda: comm_func.all_gather_into_tensor(X, 3), (TypeError,)),
    "all_gather group": (lambda: comm_func.all_gather_into_tensor(X, "no"), (RuntimeError,)),
    "all_gather async_op": (
        lambda: comm_func.all_gather_into_tensor(X, async_op=None),
        (TypeError,),
    ),
    "reduce_scatter tensor": (lambda: comm_func.reduce_scatter_tensor("x"), (TypeError,)),
    "reduce_scatter rows": (lambda: comm_func.reduce_scatter_tensor(X[:3]), (ValueError,)),
    "reduce_scatter 0-d": (lambda: comm_func.reduce_scatter_tensor(X[0, 0, ...]), (ValueError,)),
    "reduce_scatter op kind": (lambda: comm_func.reduce_scatter_tensor(X, 1), (TypeError,)),
    "reduce_scatter op": (lambda: comm_func.reduce_scatter_tensor(X, "mul"), (RuntimeError,)),
    "reduce_scatter group": (
        lambda: comm_func.reduce_scatter_tensor(X, group="no"),
        (RuntimeError,),
    ),
    "reduce_scatter async_op": (
        lambda: comm_func.reduce_scatter_tensor(X, async_op=0),
        (TypeError,),
    ),
    "reduce tensor": (lambda: comm_func.reduce(None, 0), (TypeError,)),
    "reduce dst kind": (lambda: comm_func.reduce(X, "0"), (TypeError,)),
    "reduce dst": (lambda: comm_func.reduce(X, 2), (RuntimeError,)),
    "reduce dst below 0": (lambda: comm_func.reduce(X, -1), (RuntimeError,)),
    "reduce op kind": (lambda: comm_func.reduce(X, 0, 3), (TypeError,)),
    "reduce group kind": (lambda: comm_func.reduce(X, 0, group=3), (TypeError,)),
    "broadcast tensor": (lambda: comm_func.broadcast([1]), (TypeError,)),
    "broadcast src kind": (lambda: comm_func.broadcast(X, 0.0), (TypeError,)),
    "broadcast src": (lambda: comm_func.broadcast(X, 2), (RuntimeError,)),
    "broadcast group": (lambda: comm_func.broadcast(X, 0, "no"), (RuntimeError,)),
    "scatter tensor": (lambda: comm_func.scatter_tensor(3), (TypeError,)),
    "scatter src kind": (lambda: comm_func.scatter_tensor(X, "0"), (TypeError,)),
    "scatter src": (lambda: comm_func.scatter_tensor(X, 5), (RuntimeError,)),
    "scatter rows": (lambda: comm_func.scatter_tensor(X[:3]), (ValueError,)),
    "scatter 0-d": (lambda: comm_func.scatter_tensor(X[0, 0, ...]), (ValueError,)),
    "gather tensor": (lambda: comm_func.gather_into_tensor({}), (TypeError,)),
    "gather dst kind": (lambda: comm_func.gather_into_tensor(X, None), (TypeError,)),
    "gather dst": (lambda: comm_func.gather_into_tensor(X, 2), (RuntimeError,)),
    "barrier group kind": (lambda: comm_func.barrier(3), (TypeError,)),
    "barrier group": (lambda: comm_func.barrier("no"), (RuntimeError,)),
    "send tensor": (lambda: comm_func.send(3), (TypeError,)),
    "send dst kind": (lambda: comm_func.send(X, "1"), (TypeError,)),
    "send dst": (lambda: comm_func.send(X, 99), UNKNOWN),
    "send group": (lambda: comm_func.send(X, 0, "no"), UNKNOWN),
    "send group kind": (lambda: comm_func.send(X, 0, 3), (TypeError,)),
    "recv tensor": (lambda: comm_func.recv((2, 2)), (TypeError,)),
    "recv src kind": (lambda: comm_func.recv(X, "1"), (TypeError,)),
    "recv src": (lambda: comm_func.recv(X, 99), UNKNOWN),
    "recv group": (lambda: comm_func.recv(X, 0, "no"), UNKNOWN),
    "isend tensor": (lambda: comm_func.isend(3), (TypeError,)),
    "isend dst kind": (lambda: comm_func.isend(X, None), (TypeError,)),
    "isend dst": (lambda: comm_func.isend(X, 99), UNKNOWN),
    "irecv tensor": (lambda: comm_func.irecv(3), (TypeError,)),
    "irecv src kind": (lambda: comm_func.irecv(X, 1.5), (TypeError,)),
    "irecv group": (lambda: comm_func.irecv(X, 0, "no"), UNKNOWN),
    "P2POp op kind": (lambda: comm_func.P2POp(3, X, 0), (TypeError,)),
    "P2POp op": (lambda: comm_func.P2POp("send", X, 0), (ValueError,)),
    "P2POp function": (lambda: comm_func.P2POp(comm_func.recv, X, 0), (ValueError,)),
    "P2POp tensor": (lambda: comm_func.P2POp("isend", [1], 0), (TypeError,)),
    "P2POp peer": (lambda: comm_func.P2POp("isend", X, "0"), (TypeError,)),
    "P2POp tag": (lambda: comm_func.P2POp("isend", X, 0, None, 1), (NotImplementedError,)),
    "P2POp dtype name": (
        lambda: comm_func.P2POp("irecv", (2,), 0, recv_dtype="float32"),
        (TypeError,),
    ),
    "P2POp dtype class": (lambda: comm_func.P2POp("irecv", (2,), 0, recv_dtype=int), (TypeError,)),
    "batch tuple": (
        lambda: comm_func.batch_isend_irecv((comm_func.P2POp("isend", X, 0),)),
        (TypeError,),
    ),
    "batch empty": (lambda: comm_func.batch_isend_irecv([]), (TypeError,)),
    "batch entry": (
        lambda: comm_func.batch_isend_irecv([comm_func.P2POp("isend", X, 0), 3]),
        (TypeError,),
    ),
    "batch without dtype": (
        lambda: comm_func.batch_isend_irecv([comm_func.P2POp("irecv", (2,), 0)]),
        (ValueError,),
    ),
    "batch sends a shape": (
        lambda: comm_func.batch_isend_irecv([comm_func.P2POp("isend", (2,), 0)]),
        (TypeError,),
    ),
    "batch half wrong": (
        lambda: comm_func.batch_isend_irecv(
            [comm_func.P2POp("isend", X, 0), comm_func.P2POp("isend", X, 7)]
        ),
        UNKNOWN,
    ),
    "all_to_all shapes": (lambda: comm_func.all_to_all_with_output_shape(4, [X, X]), (TypeError,)),
    "all_to_all shape": (
        lambda: comm_func.all_to_all_with_output_shape([(4, 2), 4], [X, X]),
        (TypeError,),
    ),
    "all_to_all tensors": (
        lambda: comm_func.all_to_all_with_output_shape([(4, 2)] * 2, X),
        (TypeError,),
    ),
    "all_to_all tensor": (
        lambda: comm_func.all_to_all_with_output_shape([(4, 2)] * 2, [X, 3]),
        (TypeError,),
    ),
    "all_to_all dtypes": (
        lambda: comm_func.all_to_all_with_output_shape([(4, 2)] * 2, [X, X.astype(int)]),
        (TypeError,),
    ),
    "all_to_all too few": (
        lambda: comm_func.all_to_all_with_output_shape([(4, 2)] * 2, [X]),
        (ValueError,),
    ),
    "all_to_all too many shapes": (
        lambda: comm_func.all_to_all_with_output_shape([(4, 2)] * 3, [X, X]),
        (ValueError,),
    ),
    "all_to_all group": (
        lambda: comm_func.all_to_all_with_output_shape([(4, 2)] * 2, [X, X], "no"),
        (RuntimeError,),
    ),
    "all_to_all async_op": (
        lambda: comm_func.all_to_all_with_output_shape([(4, 2)] * 2, [X, X], None, 1),
        (TypeError,),
    ),
    "single tensor": (
        lambda: comm_func.all_to_all_single_with_output_shape((4, 2), [X]),
        (TypeError,),
    ),
    "single shape": (lambda: comm_func.all_to_all_single_with_output_shape(4, X), (TypeError,)),
    "single input rows": (
        lambda: comm_func.all_to_all_single_with_output_shape((4, 2), X[:3]),
        (ValueError,),
    ),
    "single output rows": (
        lambda: comm_func.all_to_all_single_with_output_shape((3, 2), X),
        (ValueError,),
    ),
    "single splits": (
        lambda: comm_func.all_to_all_single_with_output_shape((4, 2), X, [2, 2], [1, 2]),
        (ValueError,),
    ),
    "single negative": (
        lambda: comm_func.all_to_all_single_with_output_shape((4, 2), X, [2, 2], [5, -1]),
        (ValueError,),
    ),
    "single number of splits": (
        lambda: comm_func.all_to_all_single_with_output_shape((4, 2), X, [4], None),
        (ValueError,),
    ),
    "v_c output": (lambda: comm_func.all_to_all_v_c(None, X, [1] * 4), (TypeError,)),
    "v_c input": (lambda: comm_func.all_to_all_v_c(X, [X], [1] * 4), (TypeError,)),
    "v_c matrix kind": (lambda: comm_func.all_to_all_v_c(X, X, (2,) * 4), (TypeError,)),
    "v_c matrix entries": (lambda: comm_func.all_to_all_v_c(X, X, [2.0] * 4), (TypeError,)),
    "v_c matrix size": (lambda: comm_func.all_to_all_v_c(X, X, [2] * 3), (TypeError,)),
    "v_c group kind": (lambda: comm_func.all_to_all_v_c(X, X, [2] * 4, 3), (TypeError,)),
    "v_c async_op": (lambda: comm_func.all_to_all_v_c(X, X, [2] * 4, None, 3), (TypeError,)),
    "v_c rows": (lambda: comm_func.all_to_all_v_c(X.copy(), X[:, :1], [2] * 4), (ValueError,)),
    "v_c too large": (lambda: comm_func.all_to_all_v_c(X.copy(), X[:2], [1] * 4), (RuntimeError,)),
}


def bad_call(world: Group, name: str) -> float:
    call, kinds = BAD[name]
    with pytest.raises(kinds) as caught:
        call()
    assert all(isinstance(caught.value, kind) for kind in kinds), repr(caught.value)
    # Nothing was sent: the next call of all ranks works.
    return float(comm_func.all_reduce(np.full(1, world.rank + 1.0))[0][0])


@pytest.mark.parametrize("name", BAD)
def test_bad_argument(world, name):
    assert world(2, bad_call, name) == [3.0, 3.0]


def test_every_function_has_bad_arguments():
    tested = {name.split()[0] for name in BAD}
    short = {
        "all_gather_into_tensor": "all_gather",
        "reduce_scatter_tensor": "reduce_scatter",
        "scatter_tensor": "scatter",
        "gather_into_tensor": "gather",
        "batch_isend_irecv": "batch",
        "all_to_all_with_output_shape": "all_to_all",
        "all_to_all_single_with_output_shape": "single",
        "all_to_all_v_c": "v_c",
    }
    assert {short.get(name, name) for name in comm_func.__all__} - {"CommHandle"} == tested


@pytest.mark.parametrize(
    "call",
    [
        lambda: comm_func.all_reduce(X),
        lambda: comm_func.broadcast(X),
        lambda: comm_func.send(X, 0),
        lambda: comm_func.barrier(),
        lambda: comm_func.all_to_all_v_c(X, X, [4]),
    ],
)
def test_before_init(call):
    with pytest.raises(RuntimeError, match="call init first"):
        call()


def test_an_unknown_group_is_named_without_quotes_around_the_text():
    def ask() -> None:
        with pytest.raises(KeyError) as caught:
            comm_func.send(X, 0, "tp")
        assert str(caught.value).startswith("there is no group 'tp'")

    unisono.spawn(ask, 1)
