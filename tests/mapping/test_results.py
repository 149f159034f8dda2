"""What the mapping table says about results is what the faces return."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import unisono
import unisono.torch.distributed as dist
from unisono import mapping
from unisono.mindspore import communication, ops
from unisono.mindspore.communication import comm_func

SIZE = 2


def given() -> np.ndarray:
    return np.arange(1.0, 5.0) + 10 * dist.get_rank()


def some(count: int = SIZE, length: int = 2) -> list[np.ndarray]:
    return [np.full(length, float(dist.get_rank() * 10 + n + 1)) for n in range(count)]


def only(rank: int, value: object) -> object:
    return value if dist.get_rank() == rank else None


#: The arguments of each call in a pair; `async_op` and the group are added where they belong.
TORCH = {
    "all_reduce": lambda: {"tensor": given()},
    "all_reduce_coalesced": lambda: {"tensors": some()},
    "reduce": lambda: {"tensor": given(), "dst": 0},
    "reduce_scatter": lambda: {"output": np.zeros(2), "input_list": some()},
    "reduce_scatter_tensor": lambda: {"output": np.zeros(2), "input": given()},
    "all_gather": lambda: {"tensor_list": some(length=4), "tensor": given()},
    "all_gather_into_tensor": lambda: {"output_tensor": np.zeros(8), "input_tensor": given()},
    "all_gather_coalesced": lambda: {
        "output_tensor_lists": [some(), some()],
        "input_tensor_list": some(),
    },
    "all_to_all": lambda: {"output_tensor_list": some(), "input_tensor_list": some()},
    "all_to_all_single": lambda: {"output": np.zeros(4), "input": given()},
    "broadcast": lambda: {"tensor": given(), "src": 0},
    "gather": lambda: {"tensor": given(), "gather_list": only(0, some(length=4)), "dst": 0},
    "scatter": lambda: {"tensor": np.zeros(2), "scatter_list": only(0, some()), "src": 0},
    "barrier": dict,
}
MINDSPORE = {
    "all_reduce": lambda: {"tensor": given()},
    "reduce": lambda: {"tensor": given(), "dst": 0},
    "reduce_scatter": lambda: {"tensor": given()},
    "reduce_scatter_tensor": lambda: {"tensor": given()},
    "all_gather": lambda: {"tensor": given()},
    "all_gather_into_tensor": lambda: {"tensor": given()},
    "all_to_all": lambda: {"output_shape_list": [(2,), (2,)], "input_tensor_list": some()},
    "all_to_all_single": lambda: {"output_shape": (4,), "tensor": given()},
    "all_to_all_v_c": lambda: {
        "output": np.zeros(4),
        "input": given(),
        "send_count_matrix": [2, 2, 2, 2],
    },
    "broadcast": lambda: {"tensor": given(), "src": 0},
    "gather": lambda: {"tensor": given(), "dst": 0},
    "scatter": lambda: {"tensor": given(), "src": 0},
    "barrier": dict,
}
PAIRS = {pair.name: pair for entry in mapping.load().values() for pair in entry.pairs}
CASES = [
    (dialect, name, result)
    for dialect, recipes in (("torch", TORCH), ("mindspore", MINDSPORE))
    for name in recipes
    for result in PAIRS[name].results
    if getattr(result, dialect).returns != "absent"
]


def call_of(path: str) -> object:
    return getattr(dist if path.startswith("torch.") else comm_func, path.rpartition(".")[2])


def kind_of(value: object) -> str:
    """Name what a call returned, as the table does."""
    if value is None:
        return "none"
    if hasattr(value, "wait"):
        return "handle"
    if isinstance(value, np.ndarray):
        return "tensor"
    assert isinstance(value, tuple), value
    if all(isinstance(item, np.ndarray) for item in value):
        return "tensors"
    data, handle = value
    return f"{kind_of(data)}_{kind_of(handle)}"


def finish(value: object) -> None:
    for item in value if isinstance(value, tuple) else (value,):
        if hasattr(item, "wait"):
            item.wait()


def once(dialect: str, name: str, mode: str) -> tuple[str, list, list, list | None]:
    """Call one function; return the kind of its answer, the data before and after, the result."""
    pair = PAIRS[name]
    words = (TORCH if dialect == "torch" else MINDSPORE)[name]()
    if mode == "async":
        words["async_op"] = True
    outcome = next(getattr(row, dialect) for row in pair.results if row.mode == mode)
    held = words.get(outcome.data)
    before = np.copy(held).tolist() if held is not None else []
    value = call_of(getattr(pair, dialect))(**words)
    finish(value)
    result = value[0] if isinstance(value, tuple) else value
    shown = np.array(result).tolist() if isinstance(result, np.ndarray | tuple) else None
    return kind_of(value), before, np.copy(held).tolist() if held is not None else [], shown


def outside(dialect: str, name: str) -> str:
    """Call one function for a group of the first two ranks; return what the third rank gets."""
    pair = PAIRS[name]
    words = (TORCH if dialect == "torch" else MINDSPORE)[name]()
    if dialect == "torch":
        words["group"] = dist.new_group([0, 1])
    else:
        words["group"] = "first two"
        if dist.get_rank() < 2:
            communication.create_group("first two", [0, 1])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return kind_of(call_of(getattr(pair, dialect))(**words))
    except RuntimeError:
        return "error"


@pytest.mark.parametrize(
    ("dialect", "name", "row"),
    CASES,
    ids=[f"{dialect}-{name}-{row.mode}-{row.rank}" for dialect, name, row in CASES],
)
def test_results_are_as_the_table_says(dialect, name, row):
    told = getattr(row, dialect)
    if row.rank == "outside":
        seen = unisono.spawn(outside, 3, dialect, name, engine="threads", timeout=30)
        assert seen[2] == told.returns
        return
    seen = unisono.spawn(once, SIZE, dialect, name, row.mode, engine="threads", timeout=30)
    for rank, (kind, before, after, result) in enumerate(seen):
        if row.rank != "every" and (row.rank == "root") != (rank == 0):
            continue
        assert kind == told.returns
        if told.value == "unchanged":
            assert before == after
        elif told.data not in (None, "result") and told.value:
            assert before != after or (name == "broadcast" and rank == 0)
        if told.value == "zeros":
            assert not np.any(result)
        if told.data == "result" and told.shape in ("S", "(d0/N, ...)", "(N*d0, d1, ...)"):
            length = {"S": 4, "(d0/N, ...)": 2, "(N*d0, d1, ...)": 8}[told.shape]
            assert np.shape(result) == (length,)


def messages(module: str) -> list[str]:
    """Send and receive in one dialect; return the kinds of the answers, by function."""
    face = dist if module == "torch" else comm_func
    rank = dist.get_rank()
    peer, kinds = 1 - rank, []
    for plain in (True, False):
        send, recv = (face.send, face.recv) if plain else (face.isend, face.irecv)
        for turn in (0, 1):
            value = send(given(), peer) if rank == turn else recv(np.zeros(4), peer)
            finish(value)
            kinds.append("integer" if isinstance(value, int) else kind_of(value))
    operations = [face.P2POp(face.isend, given(), peer), face.P2POp(face.irecv, np.zeros(4), peer)]
    value = face.batch_isend_irecv(operations)
    if isinstance(value, list):
        for work in value:
            work.wait()
    kinds.append("handles" if isinstance(value, list) else kind_of(value))
    return kinds


@pytest.mark.parametrize("dialect", ["torch", "mindspore"])
def test_messages_are_as_the_table_says(dialect):
    first, second = unisono.spawn(messages, SIZE, dialect, engine="threads", timeout=30)
    told = {
        name: getattr(PAIRS[name].results[0], dialect).returns
        for name in ("send", "recv", "isend", "irecv", "batch_isend_irecv")
    }
    batch = told["batch_isend_irecv"]
    assert first == [told["send"], told["recv"], told["isend"], told["irecv"], batch]
    assert second == [told["recv"], told["send"], told["irecv"], told["isend"], batch]


def uneven() -> tuple[list, list]:
    rank = dist.get_rank()
    parts = [np.zeros(1), np.zeros(2)]
    dist.all_gather(parts, np.full(rank + 1, float(rank)))
    mine = np.zeros(rank + 1)
    dist.reduce_scatter(mine, [np.ones(1), np.ones(2)])
    return [part.tolist() for part in parts], mine.tolist()


def test_uneven_lists_are_accepted():
    seen = unisono.spawn(uneven, SIZE, engine="threads", timeout=30)
    assert [parts for parts, _ in seen] == [[[0.0], [1.0, 1.0]]] * SIZE
    assert [mine for _, mine in seen] == [[2.0], [2.0, 2.0]]


def shapes() -> list:
    found = []
    for shape in ((2, 2), [2, 2], np.zeros((2, 2))):
        value, _ = comm_func.all_to_all_single_with_output_shape(shape, given().reshape(2, 2))
        found.append(value.tolist())
    return found


def test_a_shape_may_be_a_tuple_a_list_or_a_tensor():
    first, second = unisono.spawn(shapes, SIZE, engine="threads", timeout=30)
    assert first == [[[1.0, 2.0], [11.0, 12.0]]] * 3
    assert second == [[[3.0, 4.0], [13.0, 14.0]]] * 3


def names_and_objects() -> tuple:
    rank = dist.get_rank()
    communication.create_group("turned", [1, 0])
    ranks = communication.get_process_group_ranks("turned")
    joined, handle = comm_func.all_gather_into_tensor(given()[:1], "turned", True)
    handle.wait()
    sorted_group = dist.new_group([1, 0])
    average, _ = comm_func.all_reduce(given()[:1], "avg", None)
    world = [comm_func.all_reduce(np.ones(1), group=name)[0][0] for name in WORLDS]
    asked = handle.is_completed(), hasattr(handle, "__await__")
    order = dist.get_process_group_ranks(sorted_group)
    return rank, ranks, joined.tolist(), order, average.tolist(), world, asked


WORLDS = (None, "hccl_world_group", "nccl_world_group", "mccl_world_group")


def test_groups_are_as_the_table_says():
    seen = unisono.spawn(names_and_objects, SIZE, engine="threads", timeout=30)
    for rank, answer in enumerate(seen):
        assert answer == (
            rank,
            [1, 0],
            [11.0, 1.0],
            [0, 1],
            [6.0],
            [2.0] * len(WORLDS),
            (True, True),
        )


def test_before_the_start_only_mindspore_answers(monkeypatch):
    monkeypatch.setenv("RANK_ID", "3")
    assert communication.get_rank() == 3
    with pytest.raises(ValueError, match=r"world|init"):
        dist.get_rank()


#: The arguments of the primitives that a function can replace, and their order.
PRIMITIVES = {
    "AllGather": ({}, [given]),
    "AllReduce": ({"op": "max"}, [given]),
    "AlltoAll": ({"split_count": SIZE, "split_dim": 0, "concat_dim": 0}, [given]),
    "AlltoAllV": ({}, [given, lambda: [2, 2], lambda: [2, 2]]),
    "Broadcast": ({"root_rank": 1}, [given]),
    "CollectiveGather": ({"dest_rank": 1}, [given]),
    "CollectiveScatter": ({"src_rank": 1}, [given]),
    "Reduce": ({"dest_rank": 1, "op": "prod"}, [given]),
    "ReduceScatter": ({"op": "min"}, [given]),
}


def primitive_and_function(name: str) -> tuple[list, list]:
    """Call a primitive, and what the table calls the same, with the same arguments."""
    call = mapping.calls()[f"mindspore.ops.{name}"]
    built, called = PRIMITIVES[name]
    values = [value() for value in called]
    words = {"group": "hccl_world_group", "op": "sum", **built}
    words |= dict(zip((one.name for one in call.call_parameters), values, strict=True))
    answer = eval(call.same_as, {"comm_func": comm_func, **words})
    first = answer[0] if isinstance(answer, tuple) else answer
    return getattr(ops, name)(**built)(*values).tolist(), first.tolist()


@pytest.mark.parametrize("name", PRIMITIVES)
def test_primitives_are_the_same_as_the_table_says(name):
    for primitive, function in unisono.spawn(primitive_and_function, SIZE, name, timeout=30):
        assert primitive == function


def test_all_other_primitives_with_a_function_have_no_result():
    primitives = [call for call in mapping.calls().values() if call.style == "built"]
    same = {call.name for call in primitives if call.same_as}
    assert same - set(PRIMITIVES) == {"Barrier", "Receive", "Send"}


def primitive_messages() -> list:
    if dist.get_rank() == 0:
        ops.Send(7, 1)(given())
        comm_func.send(given(), 1, tag=7)
        return []
    received = comm_func.recv(np.zeros(4), 0, tag=7)
    return [received.tolist(), ops.Receive(7, 0, [4], np.float64)().tolist()]


def test_messages_of_primitives_and_functions_meet():
    answers = unisono.spawn(primitive_messages, SIZE, timeout=30)
    assert answers == [[], [[1.0, 2.0, 3.0, 4.0]] * 2]
