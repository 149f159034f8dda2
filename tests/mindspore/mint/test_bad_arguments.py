"""Bad arguments of `unisono.mindspore.mint.distributed`: each rank refuses, nothing is sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import unisono
from unisono.errors import ArgumentError
from unisono.mindspore.mint import distributed as dist

X = np.zeros(2, np.float32)
Y = np.zeros(4, np.float32)
WHOLE = np.zeros(2, np.float64)
BAD: dict[str, tuple[type[Exception], Any]] = {
    "not a tensor": (TypeError, lambda: dist.all_reduce([1.0])),
    "op is no string": (TypeError, lambda: dist.all_reduce(X, 1)),
    "op is unknown": (TypeError, lambda: dist.all_reduce(X, "SUM")),
    "op of reduce": (TypeError, lambda: dist.reduce(X, 0, "band")),
    "op of reduce_scatter": (TypeError, lambda: dist.reduce_scatter(X, [X, X], "mean")),
    "group is no name": (TypeError, lambda: dist.all_reduce(X, group=3)),
    "group is unknown": (RuntimeError, lambda: dist.all_reduce(X, group="nowhere")),
    "async_op is no bool": (TypeError, lambda: dist.all_reduce(X, async_op=1)),
    "async_op of barrier": (TypeError, lambda: dist.barrier(async_op="yes")),
    "src is no int": (TypeError, lambda: dist.broadcast(X, "0")),
    "src is no member": (RuntimeError, lambda: dist.broadcast(X, 2)),
    "dst is no int": (TypeError, lambda: dist.reduce(X, 0.0)),
    "stacked output": (ValueError, lambda: dist.all_gather_into_tensor(Y.reshape(2, 2), X)),
    "output too short": (ValueError, lambda: dist.all_gather_into_tensor(X, X)),
    "dtypes differ": (ValueError, lambda: dist.all_gather_into_tensor(np.zeros(4), X)),
    "input too short": (ValueError, lambda: dist.reduce_scatter_tensor(X, X)),
    "splits do not add up": (ValueError, lambda: dist.all_gather_into_tensor_uneven(Y, X, [1, 1])),
    "splits for others": (ValueError, lambda: dist.reduce_scatter_tensor_uneven(X, Y, [4])),
    "rows do not divide": (ValueError, lambda: dist.all_to_all_single(X, np.zeros(3, "f4"))),
    "dtypes of exchange": (ValueError, lambda: dist.all_to_all_single(X, WHOLE)),
    "dtypes of lists": (ValueError, lambda: dist.all_to_all([X, X], [WHOLE, WHOLE])),
    # MindSpore does not look at the length. No rank would fill the last two.
    "two outputs for each rank": (ValueError, lambda: dist.all_to_all([X] * 4, [X] * 2)),
    "mixed list": (TypeError, lambda: dist.all_to_all([X, X], [X, WHOLE])),
    "list of one": (TypeError, lambda: dist.all_gather([X], X)),
    "no list": (TypeError, lambda: dist.all_gather(X, X)),
    "entry is no tensor": (TypeError, lambda: dist.all_gather([X, 1], X)),
    "entry of another shape": (TypeError, lambda: dist.all_gather([Y, Y], X)),
    "gather without list": (TypeError, lambda: dist.gather(X, None)),
    "gather of two shapes": (TypeError, lambda: dist.gather(X, [X, Y])),
    "scatter without list": (TypeError, lambda: dist.scatter(X, None)),
    "scatter of two dtypes": (TypeError, lambda: dist.scatter(X, [X, WHOLE])),
    "send to oneself": (ValueError, lambda: dist.send(X, dist.get_rank())),
    "isend to oneself": (ValueError, lambda: dist.isend(X, dist.get_rank())),
    "objects to oneself": (ValueError, lambda: dist.send_object_list([1], dist.get_rank())),
    "recv from nobody": (KeyError, lambda: dist.recv(X, 9)),
    "empty batch": (TypeError, lambda: dist.batch_isend_irecv([])),
    "batch of others": (TypeError, lambda: dist.batch_isend_irecv([1])),
    "op of a batch": (TypeError, lambda: dist.P2POp("send", X, 0)),
    "function of a batch": (TypeError, lambda: dist.P2POp(dist.send, X, 0)),
    "shape in a batch": (TypeError, lambda: dist.P2POp("irecv", (2,), 0)),
    "peer of a batch": (TypeError, lambda: dist.P2POp("irecv", X, "0")),
    "tag of a batch": (NotImplementedError, lambda: dist.P2POp("irecv", X, 0, tag=1)),
    "two groups in a batch": (
        TypeError,
        lambda: dist.batch_isend_irecv([dist.P2POp("isend", X, 0), dist.P2POp("isend", X, 0, "g")]),
    ),
    "objects for others": (TypeError, lambda: dist.all_gather_object([None], 1)),
    "no objects": (TypeError, lambda: dist.broadcast_object_list([])),
    "objects in a tuple": (TypeError, lambda: dist.scatter_object_list((1,), [1, 2])),
    "ranks in a tuple": (TypeError, lambda: dist.new_group((0, 1))),
    "rank twice": (ValueError, lambda: dist.new_group([0, 0, 1])),
    "no ranks": (ValueError, lambda: dist.new_group([])),
    "rank of another world": (ValueError, lambda: dist.new_group([0, 1, 7])),
    "backend of a group": (TypeError, lambda: dist.new_group([0], backend="gloo")),
    "options of a group": (TypeError, lambda: dist.new_group([0], pg_options=1)),
    "rank asked by number": (TypeError, lambda: dist.get_rank(1)),
    "size asked by number": (TypeError, lambda: dist.get_world_size(1)),
    "global rank of text": (TypeError, lambda: dist.get_global_rank(None, "0")),
    "global rank too large": (RuntimeError, lambda: dist.get_global_rank(None, 2)),
    "group rank of nobody": (RuntimeError, lambda: dist.get_group_rank(None, 2)),
    "backend": (ValueError, lambda: dist.init_process_group("nosuch")),
    "backend that is an array": (
        ArgumentError,
        lambda: dist.init_process_group(np.zeros(4)),  # comparing it with a name has no one answer
    ),
    "two ways to join": (
        ValueError,
        lambda: dist.init_process_group(
            init_method="tcp://a:1", store=object.__new__(dist.TCPStore), world_size=2, rank=0
        ),
    ),
    "join without size": (ValueError, lambda: dist.init_process_group(init_method="tcp://a:1")),
    "join without rank": (
        ValueError,
        lambda: dist.init_process_group(init_method="tcp://a:1", world_size=2),
    ),
    "join by env": (
        RuntimeError,
        lambda: dist.init_process_group(init_method="env://", world_size=2, rank=0),
    ),
    "another world size": (ValueError, lambda: dist.init_process_group(world_size=3)),
    "timeout is a number": (TypeError, lambda: dist.init_process_group(timeout=3)),
    "store is a path": (TypeError, lambda: dist.init_process_group(store="a/path")),
}


def refused(case: str) -> bool:
    error, call = BAD[case]
    with pytest.raises(error):
        call()
    dist.barrier()  # nothing was left in progress
    return True


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments(case: str) -> None:
    assert unisono.spawn(refused, 2, case, timeout=30) == [True, True]
