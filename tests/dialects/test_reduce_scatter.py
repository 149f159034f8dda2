"""reduce_scatter in both dialects: each statement of MindSpore\'s documentation about them.

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

#: Six rows: they can be split for the world of three and for the group of two.
SHAPE = (6, 2)
ALL = [given(rank, *SHAPE) for rank in EVERYONE]
OPERATORS = {"SUM": np.add, "MAX": np.maximum, "MIN": np.minimum, "PROD": np.multiply}


def shares(operator: np.ufunc, members: tuple[int, ...]) -> list[list[list[float]]]:
    """What each member gets: its share of the rows of the combination."""
    whole = operator.reduce([ALL[rank] for rank in members])
    return [part.tolist() for part in np.split(whole, len(members))]


RESULTS = {name: shares(operator, (0, 1, 2)) for name, operator in OPERATORS.items()}
PAIR_RESULTS = shares(np.add, MEMBERS)


def measure() -> Facts:
    """Measure all that the documentation states, on this rank."""
    rank = dist.get_rank()
    found: Facts = {"rank": rank}

    def pieces(count: int) -> list[np.ndarray]:
        return [part.copy() for part in np.split(given(rank, *SHAPE), count)]

    output, entries = np.full((2, 2), -1.0), pieces(3)
    found["torch sync"] = dist.reduce_scatter(output, entries)
    found["torch output"] = output.tolist()
    found["torch inputs"] = np.concatenate(entries).tolist()

    output = np.full((2, 2), -1.0)
    work = dist.reduce_scatter(output, pieces(3), async_op=True)
    found["torch handle"] = [hasattr(work, name) for name in ("wait", "is_completed")]
    work.wait()
    found["torch async output"] = output.tolist()
    found["torch too few"] = error_of(lambda: dist.reduce_scatter(np.empty((2, 2)), pieces(3)[:2]))

    x = given(rank, *SHAPE)
    answer = comm_func.reduce_scatter_tensor(x)
    found["mindspore sync"] = (type(answer), len(answer), type(answer[0]), answer[1])
    found["mindspore result"] = answer[0].tolist()
    found["mindspore shape"] = answer[0].shape
    found["mindspore input"] = x.tolist()
    found["mindspore deep shape"] = comm_func.reduce_scatter_tensor(given(rank, 3, 4, 5))[0].shape
    found["mindspore indivisible"] = error_of(
        lambda: comm_func.reduce_scatter_tensor(given(rank, 4, 3))
    )

    answer = comm_func.reduce_scatter_tensor(given(rank, *SHAPE), async_op=True)
    found["mindspore async"] = (type(answer), len(answer), type(answer[0]), type(answer[1]))
    answer[1].wait()
    found["mindspore async result"] = answer[0].tolist()
    found["mindspore group None"] = outside(
        lambda: comm_func.reduce_scatter_tensor(given(rank, *SHAPE), group=None)[0].tolist()
    )

    for name in RESULTS:
        output = np.empty((2, 2))
        op = getattr(dist.ReduceOp, "PRODUCT" if name == "PROD" else name)
        dist.reduce_scatter(output, pieces(3), op)
        y, _ = comm_func.reduce_scatter_tensor(
            given(rank, *SHAPE), getattr(comm_func.ReduceOp, name)
        )
        found[name] = {"torch": output.tolist(), "mindspore": y.tolist()}

    with pair_groups() as (pair, pair_name):
        output = np.full((3, 2), -1.0)
        if rank == OUTSIDER:
            found["outside"] = [
                outside(lambda: dist.reduce_scatter(output, pieces(2), group=pair)),
                outside(lambda: dist.reduce_scatter(output, pieces(2), group=pair, async_op=True)),
            ]
        else:
            dist.reduce_scatter(output, pieces(2), group=pair)
            y, _ = comm_func.reduce_scatter_tensor(given(rank, *SHAPE), group=pair_name)
            found["mindspore pair"] = y.tolist()
        found["torch pair"] = output.tolist()
    return found


@pytest.fixture(scope="module")
def facts(world: World) -> list[Facts]:
    """The facts of each rank."""
    return collect(world, measure)


# ---- signatures ----------------------------------------------------------------------------------


def test_reduce_scatter__torch_signature() -> None:
    assert parameters(dist.reduce_scatter) == ["output", "input_list", "op", "group", "async_op"]
    assert keywords(dist.reduce_scatter) == {
        "op": dist.ReduceOp.SUM,
        "group": None,
        "async_op": False,
    }


def test_reduce_scatter__mindspore_signature() -> None:
    """Documented as None; the default of group in MindSpore itself is the world's name."""
    function = comm_func.reduce_scatter_tensor
    assert parameters(function) == ["tensor", "op", "group", "async_op"]
    assert keywords(function) == {
        "op": comm_func.ReduceOp.SUM,
        "group": HCCL_WORLD_GROUP,
        "async_op": False,
    }


def test_reduce_scatter__mindspore_takes_none_as_group(facts: list[Facts]) -> None:
    """MindSpore itself refuses None; here it means the world, as documented."""
    assert [found["mindspore group None"] for found in facts] == RESULTS["SUM"]


# ---- the text about PyTorch ----------------------------------------------------------------------


def test_reduce_scatter__torch_output_holds_this_ranks_share(facts: list[Facts]) -> None:
    assert [found["torch output"] for found in facts] == RESULTS["SUM"]


def test_reduce_scatter__torch_input_list_is_what_is_combined(facts: list[Facts]) -> None:
    assert [found["torch inputs"] for found in facts] == [whole.tolist() for whole in ALL]


def test_reduce_scatter__torch_every_rank_gives_as_many_tensors(facts: list[Facts]) -> None:
    """One tensor for each rank: a shorter list is refused, and no rank waits forever."""
    for found in facts:
        assert {"ValueError", "RuntimeError"} & set(found["torch too few"])


def test_reduce_scatter__torch_group_says_who_takes_part(facts: list[Facts]) -> None:
    assert [facts[rank]["torch pair"] for rank in MEMBERS] == PAIR_RESULTS


def test_reduce_scatter__torch_async_returns_a_handle(facts: list[Facts]) -> None:
    assert [found["torch handle"] for found in facts] == [[True, True]] * 3
    assert [found["torch async output"] for found in facts] == RESULTS["SUM"]


def test_reduce_scatter__torch_sync_returns_none(facts: list[Facts]) -> None:
    assert [found["torch sync"] for found in facts] == [None] * 3


# ---- the text about MindSpore --------------------------------------------------------------------


def test_reduce_scatter__mindspore_first_dimension_is_divided_by_the_ranks(
    facts: list[Facts],
) -> None:
    assert [found["mindspore shape"] for found in facts] == [(2, 2)] * 3


def test_reduce_scatter__mindspore_first_dimension_must_be_divisible(facts: list[Facts]) -> None:
    assert all("ValueError" in found["mindspore indivisible"] for found in facts)


def test_reduce_scatter__mindspore_other_dimensions_stay(facts: list[Facts]) -> None:
    assert [found["mindspore deep shape"] for found in facts] == [(1, 4, 5)] * 3


def test_reduce_scatter__mindspore_group_says_who_takes_part(facts: list[Facts]) -> None:
    assert [facts[rank]["mindspore pair"] for rank in MEMBERS] == PAIR_RESULTS


def test_reduce_scatter__mindspore_async_returns_a_handle(facts: list[Facts]) -> None:
    """The text reads as if only a handle were returned; the table and MindSpore have a pair."""
    assert [found["mindspore async"][3] for found in facts] == [comm_func.CommHandle] * 3
    assert [found["mindspore async result"] for found in facts] == RESULTS["SUM"]


def test_reduce_scatter__mindspore_sync_returns_no_handle(facts: list[Facts]) -> None:
    """The text reads as if nothing were returned; the table and MindSpore have `(tensor, None)`."""
    assert [found["mindspore sync"][2:] for found in facts] == [(np.ndarray, None)] * 3


# ---- the table -----------------------------------------------------------------------------------


def test_reduce_scatter__row_output_torch_writes_there(facts: list[Facts]) -> None:
    assert parameters(dist.reduce_scatter)[0] == "output"
    assert [found["torch output"] for found in facts] == RESULTS["SUM"]


def test_reduce_scatter__row_output_mindspore_has_none(facts: list[Facts]) -> None:
    assert "output" not in parameters(comm_func.reduce_scatter_tensor)
    assert [found["mindspore result"] for found in facts] == RESULTS["SUM"]


def test_reduce_scatter__row_input_is_a_list_in_torch() -> None:
    assert parameters(dist.reduce_scatter)[1] == "input_list"


def test_reduce_scatter__row_input_is_one_tensor_in_mindspore(facts: list[Facts]) -> None:
    """The row repeats the shape rule of the output; the input is split by rows, and not changed."""
    assert parameters(comm_func.reduce_scatter_tensor)[0] == "tensor"
    assert [found["mindspore input"] for found in facts] == [whole.tolist() for whole in ALL]


@pytest.mark.parametrize("op", RESULTS)
def test_reduce_scatter__row_op_is_the_same(facts: list[Facts], op: str) -> None:
    assert [found[op]["torch"] for found in facts] == RESULTS[op]
    assert [found[op]["mindspore"] for found in facts] == RESULTS[op]


def test_reduce_scatter__row_group_is_the_same(facts: list[Facts]) -> None:
    """Its meaning is the same, its type is not: an object in one dialect, a name in the other."""
    assert all(facts[r]["torch pair"] == facts[r]["mindspore pair"] for r in MEMBERS)


def test_reduce_scatter__row_async_op_is_the_same(facts: list[Facts]) -> None:
    assert all(found["torch async output"] == found["mindspore async result"] for found in facts)


def test_reduce_scatter__returns_torch_none_outside_the_group(facts: list[Facts]) -> None:
    assert facts[OUTSIDER]["outside"] == [None, None]
    assert facts[OUTSIDER]["torch pair"] == [[-1.0, -1.0]] * 3


def test_reduce_scatter__returns_mindspore_a_tuple_of_tensor_and_handle(
    facts: list[Facts],
) -> None:
    pair = (tuple, 2, np.ndarray, comm_func.CommHandle)
    assert [found["mindspore async"] for found in facts] == [pair] * 3


def test_reduce_scatter__returns_mindspore_none_as_handle_if_not_async(facts: list[Facts]) -> None:
    assert [found["mindspore sync"] for found in facts] == [(tuple, 2, np.ndarray, None)] * 3
