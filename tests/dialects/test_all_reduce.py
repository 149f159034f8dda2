"""all_reduce in both dialects: each statement of MindSpore\'s documentation about them.

Where that documentation and MindSpore itself differ, the test says which of them holds here.
"""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import unisono.torch.distributed as dist
from tests.helpers.dialects import (
    EVERYONE,
    HCCL_WORLD_GROUP,
    MEMBERS,
    OUTSIDER,
    Facts,
    World,
    collect,
    given,
    keywords,
    outside,
    pair_groups,
    parameters,
)
from unisono.mindspore.communication import comm_func

SHAPE = (2, 3)
ALL = [given(rank, *SHAPE) for rank in EVERYONE]
SUM = np.add.reduce(ALL).tolist()
PAIR_SUM = (ALL[0] + ALL[2]).tolist()
RESULTS = {
    "SUM": SUM,
    "MAX": np.maximum.reduce(ALL).tolist(),
    "MIN": np.minimum.reduce(ALL).tolist(),
    "PROD": np.multiply.reduce(ALL).tolist(),
}


def measure() -> Facts:
    """Measure all that the documentation states, on this rank."""
    rank = dist.get_rank()
    found: Facts = {"rank": rank}

    x = given(rank, *SHAPE)
    found["torch sync"] = dist.all_reduce(x)
    found["torch tensor"] = x.tolist()

    x = given(rank, *SHAPE)
    work = dist.all_reduce(x, async_op=True)
    found["torch handle"] = [hasattr(work, name) for name in ("wait", "is_completed")]
    work.wait()
    found["torch async tensor"] = x.tolist()

    x = given(rank, *SHAPE)
    answer = comm_func.all_reduce(x)
    found["mindspore sync"] = (type(answer), len(answer), type(answer[0]), answer[1])
    found["mindspore result"] = answer[0].tolist()
    found["mindspore shape"] = answer[0].shape
    found["mindspore input"] = x.tolist()

    answer = comm_func.all_reduce(given(rank, *SHAPE), async_op=True)
    found["mindspore async"] = (type(answer), len(answer), type(answer[0]), type(answer[1]))
    answer[1].wait()
    found["mindspore async result"] = answer[0].tolist()

    for name in RESULTS:
        x = given(rank, *SHAPE)
        dist.all_reduce(x, getattr(dist.ReduceOp, "PRODUCT" if name == "PROD" else name))
        y, _ = comm_func.all_reduce(given(rank, *SHAPE), getattr(comm_func.ReduceOp, name))
        found[name] = {"torch": x.tolist(), "mindspore": y.tolist()}

    with pair_groups() as (pair, pair_name):
        x = given(rank, *SHAPE)
        if rank == OUTSIDER:
            found["outside"] = [
                outside(lambda: dist.all_reduce(x, group=pair)),
                outside(lambda: dist.all_reduce(x, group=pair, async_op=True)),
            ]
        else:
            dist.all_reduce(x, group=pair)
            y, _ = comm_func.all_reduce(given(rank, *SHAPE), group=pair_name)
            found["mindspore pair"] = y.tolist()
        found["torch pair"] = x.tolist()
    return found


@pytest.fixture(scope="module")
def facts(world: World) -> list[Facts]:
    """The facts of each rank."""
    return collect(world, measure)


# ---- signatures ----------------------------------------------------------------------------------


def test_all_reduce__torch_signature() -> None:
    assert parameters(dist.all_reduce) == ["tensor", "op", "group", "async_op"]
    assert keywords(dist.all_reduce) == {
        "op": dist.ReduceOp.SUM,
        "group": None,
        "async_op": False,
    }


def test_all_reduce__mindspore_signature() -> None:
    assert parameters(comm_func.all_reduce) == ["tensor", "op", "group", "async_op"]
    assert keywords(comm_func.all_reduce) == {
        "op": comm_func.ReduceOp.SUM,
        "group": HCCL_WORLD_GROUP,
        "async_op": False,
    }


def test_all_reduce__mindspore_is_found_below_communication() -> None:
    import unisono.mindspore.communication as comm

    assert comm.comm_func.all_reduce is comm_func.all_reduce
    assert inspect.isfunction(comm.comm_func.all_reduce)


# ---- the text about PyTorch ----------------------------------------------------------------------


def test_all_reduce__torch_writes_into_tensor(facts: list[Facts]) -> None:
    assert [found["torch tensor"] for found in facts] == [SUM] * 3


@pytest.mark.parametrize("op", RESULTS)
def test_all_reduce__torch_combines_as_op_says(facts: list[Facts], op: str) -> None:
    assert [found[op]["torch"] for found in facts] == [RESULTS[op]] * 3


def test_all_reduce__torch_async_returns_a_handle(facts: list[Facts]) -> None:
    assert [found["torch handle"] for found in facts] == [[True, True]] * 3
    assert [found["torch async tensor"] for found in facts] == [SUM] * 3


def test_all_reduce__torch_sync_returns_nothing(facts: list[Facts]) -> None:
    assert [found["torch sync"] for found in facts] == [None] * 3


# ---- the text about MindSpore --------------------------------------------------------------------


def test_all_reduce__mindspore_returns_the_result(facts: list[Facts]) -> None:
    assert [found["mindspore result"] for found in facts] == [SUM] * 3


@pytest.mark.parametrize("op", RESULTS)
def test_all_reduce__mindspore_combines_as_op_says(facts: list[Facts], op: str) -> None:
    assert [found[op]["mindspore"] for found in facts] == [RESULTS[op]] * 3


def test_all_reduce__mindspore_result_has_the_shape_of_the_input(facts: list[Facts]) -> None:
    assert [found["mindspore shape"] for found in facts] == [SHAPE] * 3


def test_all_reduce__mindspore_async_returns_a_handle(facts: list[Facts]) -> None:
    """The text reads as if only a handle were returned; the table and MindSpore have a pair."""
    assert [found["mindspore async"][3] for found in facts] == [comm_func.CommHandle] * 3
    assert [found["mindspore async result"] for found in facts] == [SUM] * 3


def test_all_reduce__mindspore_sync_returns_no_handle(facts: list[Facts]) -> None:
    """The text reads as if nothing were returned; the table and MindSpore have `(tensor, None)`."""
    assert [found["mindspore sync"][3] for found in facts] == [None] * 3
    assert [found["mindspore sync"][2] for found in facts] == [np.ndarray] * 3


# ---- the table -----------------------------------------------------------------------------------


def test_all_reduce__row_tensor_torch_has_it_and_writes_there(facts: list[Facts]) -> None:
    assert parameters(dist.all_reduce)[0] == "tensor"
    assert all(found["torch tensor"] != ALL[rank].tolist() for rank, found in enumerate(facts))


def test_all_reduce__row_tensor_mindspore_has_it_too(facts: list[Facts]) -> None:
    """The row says that MindSpore lacks this parameter; the signature and MindSpore itself have it.

    What the row means is true: the result is not written there.
    """
    assert parameters(comm_func.all_reduce)[0] == "tensor"
    assert [found["mindspore input"] for found in facts] == [whole.tolist() for whole in ALL]


@pytest.mark.parametrize("op", RESULTS)
def test_all_reduce__row_op_is_the_same(facts: list[Facts], op: str) -> None:
    assert all(found[op]["torch"] == found[op]["mindspore"] for found in facts)


def test_all_reduce__row_group_is_the_same(facts: list[Facts]) -> None:
    """Its meaning is the same, its type is not: an object in one dialect, a name in the other."""
    assert [facts[rank]["torch pair"] for rank in MEMBERS] == [PAIR_SUM] * 2
    assert [facts[rank]["mindspore pair"] for rank in MEMBERS] == [PAIR_SUM] * 2


def test_all_reduce__row_async_op_is_the_same(facts: list[Facts]) -> None:
    assert all(found["torch async tensor"] == found["mindspore async result"] for found in facts)


def test_all_reduce__returns_torch_none_outside_the_group(facts: list[Facts]) -> None:
    assert facts[OUTSIDER]["outside"] == [None, None]
    assert facts[OUTSIDER]["torch pair"] == ALL[OUTSIDER].tolist()


def test_all_reduce__returns_mindspore_a_tuple_of_tensor_and_handle(facts: list[Facts]) -> None:
    pair = (tuple, 2, np.ndarray, comm_func.CommHandle)
    assert [found["mindspore async"] for found in facts] == [pair] * 3


def test_all_reduce__returns_mindspore_none_as_handle_if_not_async(facts: list[Facts]) -> None:
    assert [found["mindspore sync"] for found in facts] == [(tuple, 2, np.ndarray, None)] * 3
