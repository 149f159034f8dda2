"""all_to_all in both dialects: each statement of MindSpore\'s documentation about them.

Where that documentation and MindSpore itself differ, the test says which of them holds here.
"""

from __future__ import annotations

import numpy as np
import pytest

import unisono.torch.distributed as dist
from tests.helpers.dialects import (
    EVERYONE,
    MEMBERS,
    OUTSIDER,
    PAIR,
    Facts,
    World,
    collect,
    keywords,
    outside,
    pair_groups,
    parameters,
)
from unisono.mindspore.communication import comm_func


def shape(source: int, target: int) -> tuple[int, int]:
    """The shape of what one rank sends to another: all are different."""
    return source + 1, target + 1


def message(source: int, target: int) -> np.ndarray:
    """What one rank sends to another; the values tell both ranks and the index."""
    rows, columns = shape(source, target)
    indices = np.arange(rows * columns, dtype=np.float64).reshape(rows, columns)
    return indices + 1000.0 * source + 100.0 * target


def received(rank: int, members: tuple[int, ...]) -> list[list[list[float]]]:
    """What a rank receives: an entry from each member, in order."""
    return [message(source, rank).tolist() for source in members]


WORLD = tuple(EVERYONE)
EXPECTED = [received(rank, WORLD) for rank in EVERYONE]


def measure() -> Facts:
    """Measure all that the documentation states, on this rank."""
    rank = dist.get_rank()
    found: Facts = {"rank": rank}

    def sends(members: tuple[int, ...] = WORLD) -> list[np.ndarray]:
        return [message(rank, target) for target in members]

    def shapes(members: tuple[int, ...] = WORLD) -> list[tuple[int, int]]:
        return [shape(source, rank) for source in members]

    def room(members: tuple[int, ...] = WORLD) -> list[np.ndarray]:
        return [np.full(size, -1.0) for size in shapes(members)]

    outputs, inputs = room(), sends()
    before = list(outputs)
    found["torch sync"] = dist.all_to_all(outputs, inputs)
    found["torch outputs"] = [tensor.tolist() for tensor in before]
    found["torch same tensors"] = all(
        one is other for one, other in zip(before, outputs, strict=True)
    )
    found["torch inputs"] = [tensor.tolist() for tensor in inputs]

    outputs = room()
    work = dist.all_to_all(outputs, sends(), async_op=True)
    found["torch handle"] = [hasattr(work, name) for name in ("wait", "is_completed")]
    work.wait()
    found["torch async outputs"] = [tensor.tolist() for tensor in outputs]

    inputs = sends()
    answer = comm_func.all_to_all_with_output_shape(shapes(), inputs)
    found["mindspore sync"] = (type(answer), len(answer), type(answer[0]), answer[1])
    found["mindspore types"] = {type(tensor) for tensor in answer[0]}
    found["mindspore shapes"] = [tensor.shape for tensor in answer[0]]
    found["mindspore result"] = [tensor.tolist() for tensor in answer[0]]
    found["mindspore inputs"] = [tensor.tolist() for tensor in inputs]
    found["mindspore new"] = not any(
        np.shares_memory(one, other) for one in answer[0] for other in inputs
    )

    answer = comm_func.all_to_all_with_output_shape(shapes(), sends(), async_op=True)
    found["mindspore async"] = (type(answer), len(answer), type(answer[0]), type(answer[1]))
    answer[1].wait()
    found["mindspore async result"] = [tensor.tolist() for tensor in answer[0]]

    with pair_groups() as (pair, pair_name):
        outputs, inputs = room(MEMBERS), sends(MEMBERS)
        found["pair is a name"] = (isinstance(pair, str), isinstance(pair_name, str))
        if rank == OUTSIDER:
            found["outside"] = [
                outside(lambda: dist.all_to_all(outputs, inputs, group=pair)),
                outside(lambda: dist.all_to_all(outputs, inputs, group=pair, async_op=True)),
            ]
        else:
            dist.all_to_all(outputs, inputs, group=pair)
            answer = comm_func.all_to_all_with_output_shape(
                shapes(MEMBERS), inputs, group=pair_name
            )
            found["mindspore pair"] = [tensor.tolist() for tensor in answer[0]]
        found["torch pair"] = [tensor.tolist() for tensor in outputs]
    return found


@pytest.fixture(scope="module")
def facts(world: World) -> list[Facts]:
    """The facts of each rank."""
    return collect(world, measure)


# ---- signatures ----------------------------------------------------------------------------------


def test_all_to_all__torch_signature() -> None:
    names = ["output_tensor_list", "input_tensor_list", "group", "async_op"]
    assert parameters(dist.all_to_all) == names
    assert keywords(dist.all_to_all) == {"group": None, "async_op": False}


def test_all_to_all__mindspore_signature() -> None:
    """The documented signature lacks a comma; this is what it means and what MindSpore has."""
    function = comm_func.all_to_all_with_output_shape
    assert parameters(function) == ["output_shape_list", "input_tensor_list", "group", "async_op"]
    assert keywords(function) == {"group": None, "async_op": False}


# ---- the text about PyTorch ----------------------------------------------------------------------


def test_all_to_all__torch_sends_entry_j_to_rank_j(facts: list[Facts]) -> None:
    assert [found["torch outputs"] for found in facts] == EXPECTED


def test_all_to_all__torch_writes_into_the_tensors_of_output_tensor_list(
    facts: list[Facts],
) -> None:
    assert all(found["torch same tensors"] for found in facts)
    assert [found["torch outputs"] for found in facts] == EXPECTED


def test_all_to_all__torch_group_says_who_takes_part(facts: list[Facts]) -> None:
    for rank in MEMBERS:
        assert facts[rank]["torch pair"] == received(rank, MEMBERS)


def test_all_to_all__torch_async_returns_a_handle_to_wait_for(facts: list[Facts]) -> None:
    assert [found["torch handle"] for found in facts] == [[True, True]] * 3
    assert [found["torch async outputs"] for found in facts] == EXPECTED


# ---- the text about MindSpore --------------------------------------------------------------------


def test_all_to_all__mindspore_takes_the_shapes_to_be_received(facts: list[Facts]) -> None:
    for rank, found in enumerate(facts):
        assert found["mindspore shapes"] == [shape(source, rank) for source in WORLD]


def test_all_to_all__mindspore_takes_the_tensors_to_be_sent(facts: list[Facts]) -> None:
    for rank, found in enumerate(facts):
        assert found["mindspore inputs"] == [message(rank, target).tolist() for target in WORLD]


def test_all_to_all__mindspore_takes_the_group(facts: list[Facts]) -> None:
    for rank in MEMBERS:
        assert facts[rank]["mindspore pair"] == received(rank, MEMBERS)


def test_all_to_all__mindspore_returns_a_tuple_of_what_was_received(facts: list[Facts]) -> None:
    assert [found["mindspore sync"][2] for found in facts] == [tuple] * 3
    assert [found["mindspore types"] for found in facts] == [{np.ndarray}] * 3
    assert [found["mindspore result"] for found in facts] == EXPECTED


def test_all_to_all__mindspore_async_returns_data_and_handle(facts: list[Facts]) -> None:
    pair = (tuple, 2, tuple, comm_func.CommHandle)
    assert [found["mindspore async"] for found in facts] == [pair] * 3
    assert [found["mindspore async result"] for found in facts] == EXPECTED


def test_all_to_all__mindspore_sync_returns_data_and_none(facts: list[Facts]) -> None:
    assert [found["mindspore sync"] for found in facts] == [(tuple, 2, tuple, None)] * 3


# ---- the table -----------------------------------------------------------------------------------


def test_all_to_all__row_output_is_a_list_of_tensors_in_torch(facts: list[Facts]) -> None:
    assert parameters(dist.all_to_all)[0] == "output_tensor_list"
    assert all(found["torch same tensors"] for found in facts)


def test_all_to_all__row_output_is_a_list_of_shapes_in_mindspore(facts: list[Facts]) -> None:
    """The row says that a list is returned; the text and MindSpore itself have a tuple."""
    assert parameters(comm_func.all_to_all_with_output_shape)[0] == "output_shape_list"
    assert [found["mindspore sync"][2] for found in facts] == [tuple] * 3


def test_all_to_all__row_output_mindspore_returns_new_tensors(facts: list[Facts]) -> None:
    assert all(found["mindspore new"] for found in facts)


def test_all_to_all__row_input_tensor_list_is_the_same(facts: list[Facts]) -> None:
    names = parameters(dist.all_to_all)[1], parameters(comm_func.all_to_all_with_output_shape)[1]
    assert names == ("input_tensor_list", "input_tensor_list")
    for rank, found in enumerate(facts):
        sent = [message(rank, target).tolist() for target in WORLD]
        assert (found["torch inputs"], found["mindspore inputs"]) == (sent, sent)


def test_all_to_all__row_group_does_the_same(facts: list[Facts]) -> None:
    for rank in MEMBERS:
        assert facts[rank]["torch pair"] == facts[rank]["mindspore pair"]


def test_all_to_all__row_group_is_an_object_in_torch(facts: list[Facts]) -> None:
    assert [found["pair is a name"][0] for found in facts] == [False] * 3


def test_all_to_all__row_group_is_a_name_in_mindspore(facts: list[Facts]) -> None:
    assert [found["pair is a name"][1] for found in facts] == [True] * 3
    assert [facts[rank]["mindspore pair"] for rank in MEMBERS] == [
        received(rank, MEMBERS) for rank in MEMBERS
    ], f"the group called {PAIR!r}"


def test_all_to_all__row_async_op_is_the_same(facts: list[Facts]) -> None:
    assert [found["torch async outputs"] for found in facts] == EXPECTED
    assert [found["mindspore async result"] for found in facts] == EXPECTED


def test_all_to_all__returns_torch_none_if_sync(facts: list[Facts]) -> None:
    """The table has no row for what is returned; the text and torch have this."""
    assert [found["torch sync"] for found in facts] == [None] * 3


def test_all_to_all__returns_torch_none_outside_the_group(facts: list[Facts]) -> None:
    """Not documented for this call, but for the others; torch does it for all."""
    assert facts[OUTSIDER]["outside"] == [None, None]
    untouched = [np.full(shape(source, OUTSIDER), -1.0).tolist() for source in MEMBERS]
    assert facts[OUTSIDER]["torch pair"] == untouched
