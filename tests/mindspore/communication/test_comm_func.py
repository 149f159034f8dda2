"""The functions of comm_func: every tensor kind, the world and an unsorted group, each engine."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from unisono.core.groups import Group
from unisono.errors import ArgumentError, NotReady
from unisono.mindspore import communication
from unisono.mindspore.communication import comm_func

KINDS = ["numpy", "torch", "jax"]
WHOLE = [0, 1, 2, 3]
UNSORTED = [3, 1, 2]


class Member(NamedTuple):
    """One rank of a group: the group's name and world ranks, our world rank, the tensor kind."""

    group: str
    ranks: list[int]
    world_rank: int
    kind: str

    @property
    def rank(self) -> int:
        """Our rank in the group."""
        return self.ranks.index(self.world_rank)


def made(kind: str, array: np.ndarray) -> Any:
    """The array as a tensor of this kind, with memory of its own."""
    if kind == "torch":
        import torch

        return torch.from_numpy(array.copy())
    if kind == "jax":
        import jax

        return jax.numpy.asarray(array)
    return array.copy()


def values(rank: int, *shape: int) -> np.ndarray:
    """Numbers from 1 up that no other rank has."""
    return (np.arange(np.prod(shape)) + 1 + 100 * rank).reshape(shape).astype(np.float32)


def same(kind: str, got: Any, expected: np.ndarray) -> None:
    """The result is a new tensor of the kind that was given, with this shape and these numbers."""
    if kind == "numpy":
        assert type(got) is np.ndarray
    else:
        base = sys.modules["torch"].Tensor if kind == "torch" else sys.modules["jax"].Array
        assert isinstance(got, base)
    assert str(got.dtype).removeprefix("torch.") == "float32"
    assert np.shape(got) == expected.shape
    np.testing.assert_array_equal(np.asarray(got), expected.astype(np.float32))


def run_on(world: Group, case: Callable[[Member], None], ranks: list[int], kind: str) -> str:
    """Run the case on those ranks, in the world or in a group of theirs."""
    if ranks == WHOLE:
        case(Member("nccl_world_group", ranks, world.rank, kind))
        return "ran"
    if world.rank not in ranks:
        return "outside"
    communication.create_group("chosen", ranks)
    case(Member("chosen", ranks, world.rank, kind))
    comm_func.barrier("chosen")  # no rank leaves while another still works
    communication.destroy_group("chosen")
    return "ran"


# ---- one case for each function ------------------------------------------------------------------


def case_all_reduce(member: Member) -> None:
    sources = np.stack([values(rank, 2, 3) for rank in member.ranks])
    operators = {"sum": np.sum, "prod": np.prod, "min": np.min, "max": np.max, "avg": np.mean}
    for op, numpy_operator in operators.items():
        x = made(member.kind, values(member.world_rank, 2, 3))
        got, handle = comm_func.all_reduce(x, op, member.group)
        assert handle is None
        same(member.kind, got, numpy_operator(sources.astype(np.float64), axis=0))
        same(member.kind, x, values(member.world_rank, 2, 3))


def case_all_gather_into_tensor(member: Member) -> None:
    x = made(member.kind, values(member.world_rank, 2, 3))
    got, handle = comm_func.all_gather_into_tensor(x, member.group)
    assert handle is None
    same(member.kind, got, np.concatenate([values(rank, 2, 3) for rank in member.ranks]))
    same(member.kind, x, values(member.world_rank, 2, 3))
    scalar, _ = comm_func.all_gather_into_tensor(
        made(member.kind, values(member.world_rank)), member.group
    )
    same(member.kind, scalar, np.array([1 + 100 * rank for rank in member.ranks]))
    empty, _ = comm_func.all_gather_into_tensor(made(member.kind, values(0, 0, 3)), member.group)
    same(member.kind, empty, np.zeros((0, 3)))


def case_reduce_scatter_tensor(member: Member) -> None:
    size = len(member.ranks)
    x = made(member.kind, values(member.world_rank, 2 * size, 3))
    got, handle = comm_func.reduce_scatter_tensor(x, "max", member.group)
    assert handle is None
    whole = np.max([values(rank, 2 * size, 3) for rank in member.ranks], axis=0)
    same(member.kind, got, whole[2 * member.rank : 2 * member.rank + 2])
    same(member.kind, x, values(member.world_rank, 2 * size, 3))


def case_reduce(member: Member) -> None:
    for dst in member.ranks:
        x = made(member.kind, values(member.world_rank, 2, 3))
        got = comm_func.reduce(x, dst, group=member.group)
        whole = np.sum([values(rank, 2, 3) for rank in member.ranks], axis=0)
        same(member.kind, got, whole if dst == member.world_rank else np.zeros((2, 3)))
        same(member.kind, x, values(member.world_rank, 2, 3))


def case_broadcast(member: Member) -> None:
    for src in member.ranks:
        x = made(member.kind, values(member.world_rank, 2, 3))
        same(member.kind, comm_func.broadcast(x, src, member.group), values(src, 2, 3))
        same(member.kind, x, values(member.world_rank, 2, 3))


def case_scatter_tensor(member: Member) -> None:
    size = len(member.ranks)
    for src in member.ranks:
        x = made(member.kind, values(member.world_rank, 2 * size, 3))
        part = values(src, 2 * size, 3)[2 * member.rank : 2 * member.rank + 2]
        same(member.kind, comm_func.scatter_tensor(x, src, member.group), part)
        same(member.kind, x, values(member.world_rank, 2 * size, 3))


def case_gather_into_tensor(member: Member) -> None:
    for dst in member.ranks:
        x = made(member.kind, values(member.world_rank, 2, 3))
        got = comm_func.gather_into_tensor(x, dst, member.group)
        whole = np.concatenate([values(rank, 2, 3) for rank in member.ranks])
        same(member.kind, got, whole if dst == member.world_rank else np.zeros((2, 3)))
        same(member.kind, x, values(member.world_rank, 2, 3))
    scalar = comm_func.gather_into_tensor(
        made(member.kind, values(member.world_rank)), dst, member.group
    )
    expected = np.array([1 + 100 * rank for rank in member.ranks])
    same(member.kind, scalar, expected if dst == member.world_rank else np.zeros(()))


def case_barrier(member: Member) -> None:
    assert comm_func.barrier(member.group) is None


def case_all_to_all_with_output_shape(member: Member) -> None:
    # Rank i sends i + j + 1 numbers to rank j, which wants them as a column.
    def message(sender: int, receiver: int) -> np.ndarray:
        return values(10 * sender + receiver, sender + receiver + 1)

    size, rank = len(member.ranks), member.rank
    sent = [made(member.kind, message(rank, other)) for other in range(size)]
    shapes: list[Any] = [(other + rank + 1, 1) for other in range(size)]
    shapes[0] = list(shapes[0])
    shapes[1] = made(member.kind, np.zeros(shapes[1]))
    got, handle = comm_func.all_to_all_with_output_shape(shapes, sent, member.group)
    assert handle is None and type(got) is tuple and len(got) == size
    for other, tensor in enumerate(got):
        same(member.kind, tensor, message(other, rank)[:, None])
        same(member.kind, sent[other], message(rank, other))


def case_all_to_all_single_with_output_shape(member: Member) -> None:
    size, rank = len(member.ranks), member.rank
    x = made(member.kind, values(member.world_rank, 2 * size, 2))
    rows = [values(other, 2 * size, 2)[2 * rank : 2 * rank + 2] for other in member.ranks]
    for shape in ((2 * size, 2), [2 * size, 2], x):
        got, handle = comm_func.all_to_all_single_with_output_shape(
            shape, x, [], None, group=member.group
        )
        assert handle is None
        same(member.kind, got, np.concatenate(rows))
    # Rows of two are received as rows of four, so that the first dimensions differ.
    wide, _ = comm_func.all_to_all_single_with_output_shape((size, 4), x, group=member.group)
    same(member.kind, wide, np.concatenate(rows).reshape(size, 4))
    # Rank i sends j rows to rank j: none to the first.
    uneven = made(member.kind, values(member.world_rank, sum(range(size)), 2))
    first = sum(range(rank))
    got, _ = comm_func.all_to_all_single_with_output_shape(
        (0, 2), uneven, [rank] * size, list(range(size)), member.group
    )
    cuts = [values(other, sum(range(size)), 2)[first : first + rank] for other in member.ranks]
    same(member.kind, got, np.concatenate(cuts))
    same(member.kind, uneven, values(member.world_rank, sum(range(size)), 2))


def case_all_to_all_v_c(member: Member) -> None:
    # Rank i sends (i + 2 j) % 3 rows of two to rank j.
    size, rank = len(member.ranks), member.rank
    matrix = [(i + 2 * j) % 3 for i in range(size) for j in range(size)]

    def sent(sender: int) -> np.ndarray:
        return values(member.ranks[sender], sum(matrix[sender * size : (sender + 1) * size]), 2)

    expected = []
    for sender in range(size):
        first = sum(matrix[sender * size : sender * size + rank])
        expected.append(sent(sender)[first : first + matrix[sender * size + rank]])
    whole = np.concatenate(expected)
    x, output = made(member.kind, sent(rank)), made(member.kind, np.zeros_like(whole))
    if member.kind == "jax":
        with pytest.raises(ArgumentError, match="cannot be written"):
            comm_func.all_to_all_v_c(output, x, matrix, member.group)
        return
    assert comm_func.all_to_all_v_c(output, x, matrix, member.group) is None
    same(member.kind, output, whole)
    later = made(member.kind, np.zeros_like(whole))
    handle = comm_func.all_to_all_v_c(later, x, matrix, member.group, True)
    handle.wait()
    same(member.kind, later, whole)
    same(member.kind, x, sent(rank))


def case_messages(member: Member) -> None:
    # Around the ring of the group.
    after = member.ranks[(member.rank + 1) % len(member.ranks)]
    before = member.ranks[member.rank - 1]
    x = made(member.kind, values(member.world_rank, 3))
    template = made(member.kind, np.zeros(3, np.float32))
    sending = comm_func.isend(x, after, member.group, tag=5)
    got = comm_func.recv(template, before, member.group, tag=5)
    assert type(sending) is comm_func.CommHandle and sending.wait() is None
    same(member.kind, got, values(before, 3))
    same(member.kind, template, np.zeros(3))
    if member.rank == 0:
        assert comm_func.send(x, after, member.group) is None
    elif member.rank == 1:
        received, receiving = comm_func.irecv(template, before, member.group)
        assert type(receiving) is comm_func.CommHandle and receiving.wait() is None
        same(member.kind, received, values(before, 3))
        same(member.kind, template, np.zeros(3))


def case_batch_isend_irecv(member: Member) -> None:
    after = member.ranks[(member.rank + 1) % len(member.ranks)]
    before = member.ranks[member.rank - 1]
    x = made(member.kind, values(member.world_rank, 3))
    template = made(member.kind, np.zeros(3, np.float32))
    P2POp = comm_func.P2POp  # noqa: N806  (a class)
    got = comm_func.batch_isend_irecv(
        [
            P2POp("isend", x, after, member.group),
            P2POp(comm_func.irecv, template, before, member.group),
            P2POp("irecv", (1, 3), after, member.group, recv_dtype=x.dtype),
            P2POp(comm_func.isend, x, before, member.group, 0),
        ]
    )
    assert type(got) is tuple and len(got) == 4
    same(member.kind, got[0], np.zeros(()))
    same(member.kind, got[1], values(before, 3))
    # A dtype of JAX is one of NumPy, so a shape with it gives a NumPy array.
    same("numpy" if member.kind == "jax" else member.kind, got[2], values(after, 1, 3))
    same(member.kind, got[3], np.zeros(()))
    same(member.kind, template, np.zeros(3))


CASES = [case for name, case in globals().items() if name.startswith("case_")]


def test_every_function_has_a_case():
    named = {case.__name__.removeprefix("case_") for case in CASES}
    together = {"send", "recv", "isend", "irecv", "P2POp", "CommHandle"}
    assert set(comm_func.__all__) - together == named - {"messages"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chosen", [WHOLE, UNSORTED], ids=["world", "unsorted group"])
@pytest.mark.parametrize("case", CASES)
def test_function(world, case, chosen, kind):
    roles = world(4, run_on, case, chosen, kind)
    assert roles == ["ran" if rank in chosen else "outside" for rank in range(4)]


# ---- handles -------------------------------------------------------------------------------------


def wait_for_all(_: Group, kind: str) -> None:
    rank, size = communication.get_rank(), communication.get_group_size()
    x = made(kind, values(rank, size, 2))
    sources = [values(other, size, 2) for other in range(size)]
    total = np.sum(sources, axis=0)
    parts = list(x)
    started = [
        (comm_func.all_reduce(x, async_op=True), total),
        (comm_func.all_gather_into_tensor(x, async_op=True), np.concatenate(sources)),
        (comm_func.reduce_scatter_tensor(x, async_op=True), total[rank : rank + 1]),
        (
            comm_func.all_to_all_single_with_output_shape((size, 2), x, async_op=True),
            np.stack([source[rank] for source in sources]),
        ),
    ]
    several, several_handle = comm_func.all_to_all_with_output_shape(
        [(2,)] * size, parts, async_op=True
    )
    for (result, handle), expected in reversed(started):
        handle.wait()
        handle.wait()
        assert handle.is_completed() and handle.exception() is None
        assert handle.result() is result and "completed" in repr(handle)
        same(kind, result, expected)
    assert asyncio.run(awaited(several_handle)) is several
    for other, tensor in enumerate(several):
        same(kind, tensor, sources[other][rank])
    same(kind, x, values(rank, size, 2))


async def awaited(handle: Any) -> Any:
    return await handle


@pytest.mark.parametrize("kind", KINDS)
def test_handles(world, kind):
    world(2, wait_for_all, kind)


def wait_for_the_other_rank(world: Group) -> bool:
    x = values(world.rank, 2)
    if world.rank == 0:
        total, handle = comm_func.all_reduce(x, async_op=True)
        early = handle.is_completed() or "in progress" not in repr(handle)
        comm_func.send(x, 1)
    else:
        early = False
        comm_func.recv(x, 0)
        total, handle = comm_func.all_reduce(x, async_op=True)
    handle.wait()
    same("numpy", total, values(0, 2) + values(1, 2))
    return early


def test_a_handle_is_not_complete_before_all_ranks_have_called(world):
    assert world(2, wait_for_the_other_rank) == [False, False]


def test_a_handle_without_work_is_complete():
    handle = comm_func.CommHandle()
    assert handle.handle is None and handle.exec_sync is False
    assert handle.wait() is None and handle.is_completed()
    assert handle.exception() is None and handle.result() is None
    assert asyncio.run(awaited(handle)) is None


# ---- groups --------------------------------------------------------------------------------------


def every_way_to_name_the_world(world: Group) -> list[float]:
    names = ["hccl_world_group", "nccl_world_group", "mccl_world_group", None, world]
    results = [comm_func.all_reduce(values(world.rank, 1), group=name)[0] for name in names]
    results.append(comm_func.all_reduce(values(world.rank, 1))[0])
    return [float(result[0]) for result in results]


def test_every_name_of_the_world_is_the_world(world):
    assert world(2, every_way_to_name_the_world) == [[102.0] * 6] * 2


def by_object_and_by_name(world: Group) -> Any:
    child = world.split([2, 0], "pair")
    if child.rank < 0:
        with pytest.raises(NotReady, match="not in group"):
            comm_func.barrier(child)
        child.close()
        return None
    given = values(world.rank, 1)
    by_object, _ = comm_func.all_gather_into_tensor(given, child)
    by_name, _ = comm_func.all_gather_into_tensor(given, "pair")
    comm_func.barrier(child)
    child.close()
    return by_object.tolist(), by_name.tolist()


def test_a_group_object_works_as_well_as_its_name(world):
    both = ([201.0, 1.0], [201.0, 1.0])
    assert world(3, by_object_and_by_name) == [both, None, both]


def each_entry_in_its_own_group(world: Group) -> Any:
    if world.rank == 0:
        return None
    communication.create_group("reversed", [2, 1])
    other = 3 - world.rank
    _, first, _, second = comm_func.batch_isend_irecv(
        [
            comm_func.P2POp("isend", values(world.rank, 1), other, "reversed"),
            comm_func.P2POp("irecv", values(9, 1), other, "reversed"),
            comm_func.P2POp("isend", values(world.rank + 4, 1), other),
            comm_func.P2POp("irecv", values(9, 1), other),
        ]
    )
    comm_func.barrier("reversed")
    communication.destroy_group("reversed")
    return first.tolist(), second.tolist()


def test_a_batch_may_use_several_groups(world):
    expected = [None, ([201.0], [601.0]), ([101.0], [501.0])]
    assert world(3, each_entry_in_its_own_group) == expected


def to_oneself(world: Group) -> list[float]:
    sending = comm_func.isend(values(world.rank, 2), world.rank)
    got = comm_func.recv(np.zeros(2, np.float32), world.rank)
    sending.wait()
    return got.tolist()


def test_a_rank_may_send_to_itself(world):
    assert world(2, to_oneself) == [[1.0, 2.0], [101.0, 102.0]]
