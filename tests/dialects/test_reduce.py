"""The page that compares torch.distributed.reduce with comm_func.reduce, by statement."""

from __future__ import annotations

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
    error_of,
    given,
    keywords,
    outside,
    pair_groups,
    parameters,
)
from unisono.mindspore.communication import comm_func

#: Not the first, so that a default or a rank of a group cannot pass for it.
DST = 2
OTHERS = (0, 1)
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
    """Everything that the page speaks of, on this rank."""
    rank = dist.get_rank()
    found: Facts = {"rank": rank}

    x = given(rank, *SHAPE)
    found["torch sync"] = dist.reduce(x, DST)
    found["torch tensor"] = x.tolist()

    x = given(rank, *SHAPE)
    work = dist.reduce(x, DST, async_op=True)
    found["torch handle"] = [hasattr(work, name) for name in ("wait", "is_completed")]
    work.wait()
    found["torch async tensor"] = x.tolist()

    x = given(rank, *SHAPE).astype(np.float32)
    y = comm_func.reduce(x, DST)
    found["mindspore type"] = type(y)
    found["mindspore result"] = y.tolist()
    found["mindspore shape and dtype"] = (y.shape, y.dtype.name)
    found["mindspore input"] = x.tolist()
    found["mindspore group None"] = outside(
        lambda: comm_func.reduce(given(rank, *SHAPE), DST, group=None).tolist()
    )
    found["mindspore async_op"] = error_of(
        lambda: comm_func.reduce(given(rank, *SHAPE), DST, async_op=True)
    )

    for name in RESULTS:
        x = given(rank, *SHAPE)
        dist.reduce(x, DST, getattr(dist.ReduceOp, "PRODUCT" if name == "PROD" else name))
        y = comm_func.reduce(given(rank, *SHAPE), DST, getattr(comm_func.ReduceOp, name))
        found[name] = {"torch": x.tolist(), "mindspore": y.tolist()}

    with pair_groups() as (pair, pair_name):
        x = given(rank, *SHAPE)
        if rank == OUTSIDER:
            found["outside"] = [
                outside(lambda: dist.reduce(x, DST, group=pair)),
                outside(lambda: dist.reduce(x, DST, group=pair, async_op=True)),
            ]
        else:
            dist.reduce(x, DST, group=pair)
            y = comm_func.reduce(given(rank, *SHAPE), DST, group=pair_name)
            found["mindspore pair"] = y.tolist()
        found["torch pair"] = x.tolist()
    return found


def measure_torch_shapes() -> Facts:
    """What happens if one rank brings a tensor of another size, in PyTorch's words."""
    rank = dist.get_rank()
    return {"error": error_of(lambda: dist.reduce(given(rank, 2 + (rank == 1)), DST))}


def measure_mindspore_shapes() -> Facts:
    """What happens if one rank brings a tensor of another size, in MindSpore's words."""
    rank = dist.get_rank()
    return {"error": error_of(lambda: comm_func.reduce(given(rank, 2 + (rank == 1)), DST))}


@pytest.fixture(scope="module")
def facts(world: World) -> list[Facts]:
    """The facts of each rank."""
    return collect(world, measure)


# ---- signatures ----------------------------------------------------------------------------------


def test_reduce__torch_signature() -> None:
    """Since the page was written dst may be left out in favour of a new last one, group_dst."""
    expected = ["tensor", "dst", "op", "group", "async_op", "group_dst"]
    assert parameters(dist.reduce) == expected
    assert keywords(dist.reduce) == {
        "dst": None,
        "op": dist.ReduceOp.SUM,
        "group": None,
        "async_op": False,
        "group_dst": None,
    }


def test_reduce__mindspore_signature() -> None:
    """The page prints None as the default of group; the software has the name of the world."""
    assert parameters(comm_func.reduce) == ["tensor", "dst", "op", "group"]
    assert keywords(comm_func.reduce) == {
        "op": comm_func.ReduceOp.SUM,
        "group": HCCL_WORLD_GROUP,
    }


def test_reduce__mindspore_takes_none_as_group(facts: list[Facts]) -> None:
    """The software refuses the page's default; here it means the world, as the page suggests."""
    assert facts[DST]["mindspore group None"] == SUM


# ---- the paragraph on PyTorch --------------------------------------------------------------------


def test_reduce__torch_tensor_of_dst_holds_the_result(facts: list[Facts]) -> None:
    assert facts[DST]["torch tensor"] == SUM


@pytest.mark.needs("mismatch")
def test_reduce__torch_all_tensors_must_have_one_shape(world: World) -> None:
    for found in collect(world, measure_torch_shapes):
        assert "MismatchError" in found["error"]


def test_reduce__torch_other_ranks_keep_their_tensors(facts: list[Facts]) -> None:
    """Gloo overwrites them; the page's promise is kept here."""
    assert [facts[r]["torch tensor"] for r in OTHERS] == [ALL[r].tolist() for r in OTHERS]


def test_reduce__torch_group_says_who_takes_part(facts: list[Facts]) -> None:
    assert facts[DST]["torch pair"] == PAIR_SUM
    assert facts[0]["torch pair"] == ALL[0].tolist()


def test_reduce__torch_async_returns_a_handle(facts: list[Facts]) -> None:
    assert [found["torch handle"] for found in facts] == [[True, True]] * 3
    assert [found["torch async tensor"] for found in facts] == [
        ALL[0].tolist(),
        ALL[1].tolist(),
        SUM,
    ]


def test_reduce__torch_sync_returns_none(facts: list[Facts]) -> None:
    assert [found["torch sync"] for found in facts] == [None] * 3


# ---- the paragraph on MindSpore ------------------------------------------------------------------


def test_reduce__mindspore_has_four_inputs() -> None:
    assert len(parameters(comm_func.reduce)) == 4


@pytest.mark.needs("mismatch")
def test_reduce__mindspore_all_tensors_must_have_one_shape(world: World) -> None:
    for found in collect(world, measure_mindspore_shapes):
        assert "MismatchError" in found["error"]


def test_reduce__mindspore_input_does_not_hold_the_result(facts: list[Facts]) -> None:
    assert [found["mindspore input"] for found in facts] == [whole.tolist() for whole in ALL]


def test_reduce__mindspore_does_not_take_async_op(facts: list[Facts]) -> None:
    assert all("TypeError" in found["mindspore async_op"] for found in facts)


def test_reduce__mindspore_returns_the_result_on_dst(facts: list[Facts]) -> None:
    assert facts[DST]["mindspore result"] == SUM


def test_reduce__mindspore_other_ranks_get_zeros(facts: list[Facts]) -> None:
    """The software returns something of shape (1,) without meaning; the page's promise is safer."""
    zeros = np.zeros(SHAPE).tolist()
    assert [facts[rank]["mindspore result"] for rank in OTHERS] == [zeros] * 2


def test_reduce__mindspore_zeros_have_the_shape_of_the_input(facts: list[Facts]) -> None:
    """The software has shape (1,) there."""
    shapes = [found["mindspore shape and dtype"] for found in facts]
    assert shapes == [(SHAPE, "float32")] * 3


# ---- the table -----------------------------------------------------------------------------------


def test_reduce__row_tensor_torch_stores_the_result_there(facts: list[Facts]) -> None:
    assert parameters(dist.reduce)[0] == "tensor"
    assert facts[DST]["torch tensor"] == SUM


def test_reduce__row_tensor_mindspore_does_not(facts: list[Facts]) -> None:
    assert parameters(comm_func.reduce)[0] == "tensor"
    assert facts[DST]["mindspore input"] == ALL[DST].tolist()


def test_reduce__row_dst_is_the_same(facts: list[Facts]) -> None:
    """In a group too it is a rank of the world; the software mixes the two up there."""
    assert parameters(dist.reduce)[1] == parameters(comm_func.reduce)[1] == "dst"
    assert facts[DST]["torch pair"] == facts[DST]["mindspore pair"] == PAIR_SUM


@pytest.mark.parametrize("op", RESULTS)
def test_reduce__row_op_is_the_same(facts: list[Facts], op: str) -> None:
    assert facts[DST][op] == {"torch": RESULTS[op], "mindspore": RESULTS[op]}


def test_reduce__row_group_is_the_same(facts: list[Facts]) -> None:
    """The data is; the type is not: an object in one dialect, a name in the other."""
    assert [facts[rank]["mindspore pair"] for rank in MEMBERS] == [
        np.zeros(SHAPE).tolist(),
        PAIR_SUM,
    ]
    assert [facts[rank]["torch pair"] for rank in MEMBERS] == [ALL[0].tolist(), PAIR_SUM]


def test_reduce__row_async_op_is_in_torch_alone() -> None:
    assert "async_op" in parameters(dist.reduce)
    assert "async_op" not in parameters(comm_func.reduce)


def test_reduce__returns_torch_nothing_but_a_handle_if_asked(facts: list[Facts]) -> None:
    """The row says that torch returns nothing; the page's prose and torch have a handle."""
    assert [found["torch sync"] for found in facts] == [None] * 3
    assert [found["torch handle"] for found in facts] == [[True, True]] * 3


def test_reduce__returns_torch_none_outside_the_group(facts: list[Facts]) -> None:
    """This page leaves it out; the others say so of their calls, and torch does it for all."""
    assert facts[OUTSIDER]["outside"] == [None, None]
    assert facts[OUTSIDER]["torch pair"] == ALL[OUTSIDER].tolist()


def test_reduce__returns_mindspore_the_tensor_alone(facts: list[Facts]) -> None:
    assert [found["mindspore type"] for found in facts] == [np.ndarray] * 3
