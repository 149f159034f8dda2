"""all_gather in both dialects: each statement of MindSpore\'s documentation about them.

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
    given,
    keywords,
    outside,
    pair_groups,
    parameters,
)
from unisono.mindspore.communication import comm_func

SHAPE = (2, 3)
ALL = [given(rank, *SHAPE) for rank in EVERYONE]
LIST = [whole.tolist() for whole in ALL]
JOINED = np.concatenate(ALL).tolist()
PAIR_LIST = [LIST[rank] for rank in MEMBERS]


def measure() -> Facts:
    """Measure all that the documentation states, on this rank."""
    rank = dist.get_rank()
    found: Facts = {"rank": rank}

    def room(count: int) -> list[np.ndarray]:
        return [np.full(SHAPE, -1.0) for _ in range(count)]

    tensors, x = room(3), given(rank, *SHAPE)
    before = [id(tensor) for tensor in tensors]
    found["torch sync"] = dist.all_gather(tensors, x)
    found["torch list"] = [tensor.tolist() for tensor in tensors]
    found["torch type"] = (type(tensors), type(tensors[0]), len(tensors))
    found["torch same tensors"] = before == [id(tensor) for tensor in tensors]
    found["torch input"] = x.tolist()

    tensors = room(3)
    work = dist.all_gather(tensors, given(rank, *SHAPE), async_op=True)
    found["torch handle"] = [hasattr(work, name) for name in ("wait", "is_completed")]
    work.wait()
    found["torch async list"] = [tensor.tolist() for tensor in tensors]

    x = given(rank, *SHAPE)
    answer = comm_func.all_gather_into_tensor(x)
    found["mindspore sync"] = (type(answer), len(answer), type(answer[0]), answer[1])
    found["mindspore result"] = answer[0].tolist()
    found["mindspore shape"] = answer[0].shape
    found["mindspore input"] = x.tolist()
    found["mindspore deep shape"] = comm_func.all_gather_into_tensor(given(rank, 2, 4, 5))[0].shape

    answer = comm_func.all_gather_into_tensor(given(rank, *SHAPE), async_op=True)
    found["mindspore async"] = (type(answer), len(answer), type(answer[0]), type(answer[1]))
    answer[1].wait()
    found["mindspore async result"] = answer[0].tolist()
    found["mindspore group None"] = outside(
        lambda: comm_func.all_gather_into_tensor(given(rank, *SHAPE), group=None)[0].tolist()
    )

    with pair_groups() as (pair, pair_name):
        tensors, x = room(2), given(rank, *SHAPE)
        if rank == OUTSIDER:
            found["outside"] = [
                outside(lambda: dist.all_gather(tensors, x, group=pair)),
                outside(lambda: dist.all_gather(tensors, x, group=pair, async_op=True)),
            ]
        else:
            dist.all_gather(tensors, x, group=pair)
            found["mindspore pair"] = comm_func.all_gather_into_tensor(x, group=pair_name)[
                0
            ].tolist()
        found["torch pair"] = [tensor.tolist() for tensor in tensors]
    return found


@pytest.fixture(scope="module")
def facts(world: World) -> list[Facts]:
    """The facts of each rank."""
    return collect(world, measure)


# ---- signatures ----------------------------------------------------------------------------------


def test_all_gather__torch_signature() -> None:
    assert parameters(dist.all_gather) == ["tensor_list", "tensor", "group", "async_op"]
    assert keywords(dist.all_gather) == {"group": None, "async_op": False}


def test_all_gather__mindspore_signature() -> None:
    """Documented as None; the default of group in MindSpore itself is the world's name."""
    function = comm_func.all_gather_into_tensor
    assert parameters(function) == ["tensor", "group", "async_op"]
    assert keywords(function) == {"group": HCCL_WORLD_GROUP, "async_op": False}


def test_all_gather__mindspore_takes_none_as_group(facts: list[Facts]) -> None:
    """MindSpore itself refuses None; here it means the world, as documented."""
    assert [found["mindspore group None"] for found in facts] == [JOINED] * 3


# ---- the text about PyTorch ----------------------------------------------------------------------


def test_all_gather__torch_puts_every_tensor_into_tensor_list(facts: list[Facts]) -> None:
    assert [found["torch list"] for found in facts] == [LIST] * 3


def test_all_gather__torch_tensor_list_is_a_list_of_tensors_one_for_each_rank(
    facts: list[Facts],
) -> None:
    assert [found["torch type"] for found in facts] == [(list, np.ndarray, 3)] * 3
    assert all(found["torch same tensors"] for found in facts)


def test_all_gather__torch_group_says_who_takes_part(facts: list[Facts]) -> None:
    assert [facts[rank]["torch pair"] for rank in MEMBERS] == [PAIR_LIST] * 2


def test_all_gather__torch_async_returns_a_handle(facts: list[Facts]) -> None:
    assert [found["torch handle"] for found in facts] == [[True, True]] * 3
    assert [found["torch async list"] for found in facts] == [LIST] * 3


def test_all_gather__torch_sync_returns_nothing(facts: list[Facts]) -> None:
    assert [found["torch sync"] for found in facts] == [None] * 3


# ---- the text about MindSpore --------------------------------------------------------------------


def test_all_gather__mindspore_joins_along_the_first_dimension(facts: list[Facts]) -> None:
    """Documented as a new first dimension; MindSpore itself concatenates, and so do we."""
    assert [found["mindspore shape"] for found in facts] == [(6, 3)] * 3
    assert [found["mindspore result"] for found in facts] == [JOINED] * 3


def test_all_gather__mindspore_other_dimensions_stay(facts: list[Facts]) -> None:
    assert [found["mindspore deep shape"] for found in facts] == [(6, 4, 5)] * 3


def test_all_gather__mindspore_result_is_a_tensor_and_no_list(facts: list[Facts]) -> None:
    assert [found["mindspore sync"][2] for found in facts] == [np.ndarray] * 3


def test_all_gather__mindspore_group_says_who_takes_part(facts: list[Facts]) -> None:
    joined = [row for part in PAIR_LIST for row in part]
    assert [facts[rank]["mindspore pair"] for rank in MEMBERS] == [joined] * 2


def test_all_gather__mindspore_other_result_is_a_handle_if_async(facts: list[Facts]) -> None:
    assert [found["mindspore async"][3] for found in facts] == [comm_func.CommHandle] * 3
    assert [found["mindspore async result"] for found in facts] == [JOINED] * 3


def test_all_gather__mindspore_other_result_is_nothing_if_sync(facts: list[Facts]) -> None:
    assert [found["mindspore sync"][3] for found in facts] == [None] * 3


# ---- the table -----------------------------------------------------------------------------------


def test_all_gather__row_tensor_list_is_the_output_in_torch(facts: list[Facts]) -> None:
    assert parameters(dist.all_gather)[0] == "tensor_list"
    assert [found["torch list"] for found in facts] == [LIST] * 3


def test_all_gather__row_tensor_list_mindspore_has_none() -> None:
    assert "tensor_list" not in parameters(comm_func.all_gather_into_tensor)


def test_all_gather__row_tensor_is_the_same(facts: list[Facts]) -> None:
    assert parameters(dist.all_gather)[1] == parameters(comm_func.all_gather_into_tensor)[0]
    assert [found["torch input"] for found in facts] == LIST
    assert [found["mindspore input"] for found in facts] == LIST


def test_all_gather__row_group_is_the_same(facts: list[Facts]) -> None:
    """Its meaning is the same, its type is not: an object in one dialect, a name in the other."""
    for rank in MEMBERS:
        joined = [row for part in facts[rank]["torch pair"] for row in part]
        assert joined == facts[rank]["mindspore pair"]


def test_all_gather__row_async_op_is_the_same(facts: list[Facts]) -> None:
    for found in facts:
        joined = [row for part in found["torch async list"] for row in part]
        assert joined == found["mindspore async result"]


def test_all_gather__returns_torch_none_outside_the_group(facts: list[Facts]) -> None:
    assert facts[OUTSIDER]["outside"] == [None, None]
    assert facts[OUTSIDER]["torch pair"] == [[[-1.0] * 3] * 2] * 2


def test_all_gather__returns_mindspore_a_tuple_of_tensor_and_handle(facts: list[Facts]) -> None:
    pair = (tuple, 2, np.ndarray, comm_func.CommHandle)
    assert [found["mindspore async"] for found in facts] == [pair] * 3


def test_all_gather__returns_mindspore_none_as_handle_if_not_async(facts: list[Facts]) -> None:
    assert [found["mindspore sync"] for found in facts] == [(tuple, 2, np.ndarray, None)] * 3
