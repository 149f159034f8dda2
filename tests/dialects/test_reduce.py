"""reduce in both dialects: each statement of MindSpore\'s documentation about them.

Where that documentation and MindSpore itself differ, the test says which of them holds here.
"""

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

#: Not the first, so that it differs from a default and from a rank of the group.
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
    """Measure all that the documentation states, on this rank."""
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
    """What happens if one rank passes a tensor of another size, in PyTorch's dialect."""
    rank = dist.get_rank()
    return {"error": error_of(lambda: dist.reduce(given(rank, 2 + (rank == 1)), DST))}


def measure_mindspore_shapes() -> Facts:
    """What happens if one rank passes a tensor of another size, in MindSpore's dialect."""
    rank = dist.get_rank()
    return {"error": error_of(lambda: comm_func.reduce(given(rank, 2 + (rank == 1)), DST))}


@pytest.fixture(scope="module")
def facts(world: World) -> list[Facts]:
    """The facts of each rank."""
    return collect(world, measure)


# ---- signatures ----------------------------------------------------------------------------------


def test_reduce__torch_signature() -> None:
    """Newer than the documentation: dst is optional, because group_dst may be given instead."""
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
    """Documented as None; the default of group in MindSpore itself is the world's name."""
    assert parameters(comm_func.reduce) == ["tensor", "dst", "op", "group"]
    assert keywords(comm_func.reduce) == {
        "op": comm_func.ReduceOp.SUM,
        "group": HCCL_WORLD_GROUP,
    }


def test_reduce__mindspore_takes_none_as_group(facts: list[Facts]) -> None:
    """MindSpore itself refuses None; here it means the world, as documented."""
    assert facts[DST]["mindspore group None"] == SUM


# ---- the text about PyTorch ----------------------------------------------------------------------


def test_reduce__torch_tensor_of_dst_holds_the_result(facts: list[Facts]) -> None:
    assert facts[DST]["torch tensor"] == SUM


@pytest.mark.needs("mismatch")
def test_reduce__torch_all_tensors_must_have_one_shape(world: World) -> None:
    for found in collect(world, measure_torch_shapes):
        assert "MismatchError" in found["error"]


def test_reduce__torch_other_ranks_keep_their_tensors(facts: list[Facts]) -> None:
    """Gloo overwrites them; here they stay, as documented."""
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


# ---- the text about MindSpore --------------------------------------------------------------------


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
    """MindSpore itself returns a meaningless tensor of shape (1,); documented zeros are safer."""
    zeros = np.zeros(SHAPE).tolist()
    assert [facts[rank]["mindspore result"] for rank in OTHERS] == [zeros] * 2


def test_reduce__mindspore_zeros_have_the_shape_of_the_input(facts: list[Facts]) -> None:
    """In MindSpore itself they have shape (1,)."""
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
    """In a group too it is a rank of the world; MindSpore itself confuses the two there."""
    assert parameters(dist.reduce)[1] == parameters(comm_func.reduce)[1] == "dst"
    assert facts[DST]["torch pair"] == facts[DST]["mindspore pair"] == PAIR_SUM


@pytest.mark.parametrize("op", RESULTS)
def test_reduce__row_op_is_the_same(facts: list[Facts], op: str) -> None:
    assert facts[DST][op] == {"torch": RESULTS[op], "mindspore": RESULTS[op]}


def test_reduce__row_group_is_the_same(facts: list[Facts]) -> None:
    """Its meaning is the same, its type is not: an object in one dialect, a name in the other."""
    assert [facts[rank]["mindspore pair"] for rank in MEMBERS] == [
        np.zeros(SHAPE).tolist(),
        PAIR_SUM,
    ]
    assert [facts[rank]["torch pair"] for rank in MEMBERS] == [ALL[0].tolist(), PAIR_SUM]


def test_reduce__row_async_op_is_in_torch_alone() -> None:
    assert "async_op" in parameters(dist.reduce)
    assert "async_op" not in parameters(comm_func.reduce)


def test_reduce__returns_torch_nothing_but_a_handle_if_asked(facts: list[Facts]) -> None:
    """The row says that torch returns nothing; the text and torch itself have a handle."""
    assert [found["torch sync"] for found in facts] == [None] * 3
    assert [found["torch handle"] for found in facts] == [[True, True]] * 3


def test_reduce__returns_torch_none_outside_the_group(facts: list[Facts]) -> None:
    """Not documented for this call, but for the others; torch does it for all."""
    assert facts[OUTSIDER]["outside"] == [None, None]
    assert facts[OUTSIDER]["torch pair"] == ALL[OUTSIDER].tolist()


def test_reduce__returns_mindspore_the_tensor_alone(facts: list[Facts]) -> None:
    assert [found["mindspore type"] for found in facts] == [np.ndarray] * 3
