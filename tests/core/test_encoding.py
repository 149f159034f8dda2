"""UNISONO_PICKLE=0: objects travel as plain data, and no rank runs what another one sends."""

from __future__ import annotations

import collections
import importlib
import os
import pickle
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import unisono
from tests.helpers.thorough import essential
from unisono.core import buffers, dispatch, groups, objects
from unisono.core.encoding import decode, encode
from unisono.errors import (
    ArgumentError,
    ArgumentTypeError,
    MismatchError,
    PeerLost,
    UnisonoError,
)

pytest.importorskip("msgpack")

FACES = ["unisono.torch.distributed", "unisono.mindspore.mint.distributed"]
ENGINES = ["threads", "shm"]
both = pytest.mark.parametrize("engine_name", ENGINES)
faces = pytest.mark.parametrize("face", FACES)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNISONO_PICKLE", "0")


class Unknown:
    """Pickle can send it, and nothing else."""


class Bomb:
    """Unpickling it makes a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path(self.path),)


def run_ranks(function: Any, n: int, *args: Any, engine_name: str) -> list[Any]:
    """Its own errors are results: where ranks are processes, spawn would wrap them."""
    return unisono.spawn(outcome, n, function, *args, engine=engine_name, timeout=60)


def outcome(function: Any, *args: Any) -> Any:
    try:
        return function(*args)
    except UnisonoError as error:
        return type(error).__name__, str(error), error.ranks


# ---- what travels --------------------------------------------------------------------------------

PLAIN: list[Any] = [
    None,
    True,
    2**64 - 1,
    -(2**63),
    10**60,
    -(10**60),
    1.5,
    float("inf"),
    1 - 2j,
    "wörd",
    b"\0\xff",
    [1, [2, ()]],
    (1, [2], (3,)),
    {"a": 1, 2: (3,), (4, 5): None},
    {1, "two"},
    frozenset([(1, 2)]),
    collections.OrderedDict([("b", 1), ("a", 2)]),
    np.float64(0.1),
    np.int8(-3),
    np.bool_(True),
    np.datetime64("2024-02-29"),
    ml_dtypes.bfloat16(1.5),
]


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("thing", PLAIN, ids=lambda thing: type(thing).__name__)
def test_plain_data_is_kept(thing: Any) -> None:
    data, failure = encode(thing)
    assert failure is None
    back = decode(data, 0)
    assert type(back) is type(thing) and back == thing


trees = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(trees)
def test_any_tree_of_plain_data_is_kept(thing: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNISONO_PICKLE", "0")
        data, failure = encode(thing)
        assert failure is None
        # repr tells 1 from True and -0.0 from 0.0 as well.
        assert repr(decode(data, 0)) == repr(thing)


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=200))
def test_garbage_is_a_clear_error_or_plain_data(body: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNISONO_PICKLE", "0")
        for mark in (b"M", b"P", b""):
            try:
                decode(mark + body, 3)
            except UnisonoError:
                continue


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(6).reshape(2, 3).T,
        np.zeros((0, 3), np.uint8),
        np.array(5),
        np.array(["ab", "c"]),
        np.arange(4).astype(ml_dtypes.bfloat16),
    ],
    ids=lambda array: f"{array.dtype} {array.shape}",
)
def test_arrays_are_kept(array: np.ndarray) -> None:
    back = decode(encode({"array": array})[0], 0)["array"]
    assert back.dtype == array.dtype and back.shape == array.shape
    assert np.array_equal(back, array)
    back[...] = back  # it can be written, as an unpickled one


@pytest.mark.usefixtures("plain")
@pytest.mark.skipif(find_spec("torch") is None, reason="there is no torch")
def test_torch_tensors_are_kept() -> None:
    import torch

    for tensor in (
        torch.arange(6).reshape(2, 3).t(),
        torch.zeros(0, 2),
        torch.ones((), dtype=torch.bfloat16, requires_grad=True),
        torch.tensor([True, False]),
    ):
        back = decode(encode((tensor, tensor.dtype))[0], 0)
        assert back[1] is tensor.dtype and back[0].dtype is tensor.dtype
        assert back[0].requires_grad == tensor.requires_grad
        assert torch.equal(back[0], tensor)


@pytest.mark.usefixtures("plain")
def test_our_own_errors_are_kept() -> None:
    error = PeerLost("rank 3 is gone", [3])
    error.add_note("in all_reduce")
    back = decode(encode(error)[0], 0)
    assert (type(back), str(back), back.ranks) == (PeerLost, "rank 3 is gone", (3,))
    assert back.__notes__ == ["in all_reduce"]


def itself() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize(
    ("thing", "kind", "texts"),
    [
        (Unknown(), ArgumentTypeError, ["test_encoding.Unknown", "UNISONO_PICKLE"]),
        ([{"deep": (print,)}], ArgumentTypeError, ["builtin_function_or_method"]),
        (collections.Counter("a"), ArgumentTypeError, ["collections.Counter"]),
        (np.array([None]), ArgumentTypeError, ["object"]),
        (itself(), ArgumentError, ["without pickle"]),
    ],
    ids=["class", "function", "subclass", "array of objects", "loop"],
)
def test_other_objects_are_refused(thing: Any, kind: type, texts: list[str]) -> None:
    data, failure = encode(thing)
    assert type(failure) is kind
    assert all(text in str(failure) for text in texts)
    with pytest.raises(ArgumentTypeError, match="rank 5 could not send its object") as caught:
        decode(data, 5)
    assert caught.value.ranks == (5,)


@pytest.mark.parametrize("wrong", ["no", "false", "2"])
def test_wrong_switch(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNISONO_PICKLE", wrong)
    failure = encode(1)[1]
    assert isinstance(failure, ArgumentError) and f"UNISONO_PICKLE is '{wrong}'" in str(failure)


# ---- in the faces --------------------------------------------------------------------------------


def every_call(face: str) -> list[Any]:
    dist = importlib.import_module(face)
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = {"rank": rank, "array": np.full(3, rank), "pair": (rank, None)}
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, mine)
    seen = [[(each["rank"], each["array"].tolist(), each["pair"]) for each in gathered]]
    into: list[Any] = [("a", rank), {rank}] if rank == 1 else [None, None]
    dist.broadcast_object_list(into, 1)
    seen.append(into)
    into = [None] * size
    dist.gather_object("x" * rank, into if rank == 2 else None, 2)
    seen.append(into)
    into = [None]
    dist.scatter_object_list(into, [(each,) for each in range(size)] if rank == 0 else None)
    seen.append(into)
    into = [None, None]
    if rank == 0:
        dist.send_object_list([10**30, "two"], 1)
    elif rank == 1:
        dist.recv_object_list(into, 0)
    seen.append(into)
    return seen


@both
@faces
@pytest.mark.usefixtures("plain")
def test_every_call_of_a_face(face: str, engine_name: str) -> None:
    for rank, seen in enumerate(run_ranks(every_call, 3, face, engine_name=engine_name)):
        assert seen[0] == [(each, [each] * 3, (each, None)) for each in range(3)]
        assert seen[1] == [("a", 1), {1}]
        assert seen[2] == (["", "x", "xx"] if rank == 2 else [None] * 3)
        assert seen[3] == [(rank,)]
        assert seen[4] == ([10**30, "two"] if rank == 1 else [None, None])


def one_bad_object(face: str, name: str, bad: Any, sender: int) -> list[Any]:
    """One rank's object cannot be sent; afterwards all use the group again."""
    dist = importlib.import_module(face)
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = bad() if rank == sender else rank
    calls = {
        "all_gather": lambda: dist.all_gather_object([None] * size, mine),
        "gather": lambda: dist.gather_object(mine, [None] * size if rank == 0 else None, 0),
        "broadcast": lambda: dist.broadcast_object_list([mine], sender),
        "scatter": lambda: dist.scatter_object_list(
            [None], [0, bad(), 2] if rank == sender else None, sender
        ),
    }
    try:
        calls[name]()
        seen: Any = None
    except Exception as error:
        seen = type(error).__name__, str(error)
    after = [None] * size
    dist.all_gather_object(after, rank)
    assert after == list(range(size))
    return seen


@both
@faces
@pytest.mark.parametrize("name", essential(1, ["all_gather", "gather", "broadcast", "scatter"]))
@pytest.mark.usefixtures("plain")
def test_no_rank_waits_for_an_object_that_is_refused(
    face: str, engine_name: str, name: str
) -> None:
    seen = run_ranks(one_bad_object, 3, face, name, Unknown, 1, engine_name=engine_name)
    assert seen[1][0] == "ArgumentTypeError" and "Unknown is not plain data" in seen[1][1]
    assert seen[0][0] == "ArgumentTypeError" and "rank 1 could not send" in seen[0][1]
    assert "Unknown" in seen[0][1]
    assert seen[2] == (None if name == "gather" else seen[0])


@pytest.mark.parametrize("name", essential(1, ["all_gather", "broadcast", "scatter"]))
def test_no_rank_waits_for_an_object_that_pickle_refuses(name: str) -> None:
    seen = run_ranks(one_bad_object, 3, FACES[0], name, threading.Lock, 1, engine_name="shm")
    assert seen[1] == ("TypeError", "cannot pickle '_thread.lock' object")
    for other in (0, 2):
        assert seen[other][0] == "ArgumentTypeError" and "_thread.lock" in seen[other][1]


def bad_message(face: str) -> None:
    dist = importlib.import_module(face)
    if dist.get_rank() == 0:
        dist.send_object_list([Unknown()], 1)
    else:
        dist.recv_object_list([None], 0)


@both
@faces
@pytest.mark.usefixtures("plain")
def test_nobody_waits_for_a_message_that_is_refused(face: str, engine_name: str) -> None:
    seen = run_ranks(bad_message, 2, face, engine_name=engine_name)
    assert seen[0][0] == seen[1][0] == "ArgumentTypeError"
    assert "Unknown is not plain data" in seen[0][1]
    assert "rank 0 could not send its object" in seen[1][1] and seen[1][2] == (0,)


# ---- ranks that disagree, and hostile ones -------------------------------------------------------


def mixed(face: str, path: str) -> list[str]:
    dist = importlib.import_module(face)
    rank = dist.get_rank()
    os.environ["UNISONO_PICKLE"] = "0" if rank == 1 else "1"
    texts = []
    for call in (
        lambda: dist.all_gather_object([None, None], rank),
        lambda: dist.broadcast_object_list([Bomb(path) if rank == 0 else None], 0),
        lambda: dist.broadcast_object_list([1], 1),
    ):
        try:
            call()
        except MismatchError as error:
            texts.append(str(error))
        else:
            texts.append("")
    return texts


@faces
def test_ranks_that_disagree_about_pickle(face: str, tmp_path: Path) -> None:
    path = tmp_path / "ran"
    first, second = run_ranks(mixed, 2, face, str(path), engine_name="shm")
    assert "rank 1 sends objects as with UNISONO_PICKLE=0, this rank has 1" in first[0]
    assert "rank 0 sends objects as with UNISONO_PICKLE=1, this rank has 0" in second[0]
    assert first[1] == "" and second[1] == second[0]
    assert first[2] == first[0] and second[2] == ""
    assert not path.exists()


def hostile(path: str, mark: bytes) -> Any:
    """Rank 0 forges what an object collective would send."""
    world = groups.world()
    if world.rank == 1:
        return objects.recv(world, 0)
    forged = np.frombuffer(bytearray(mark + pickle.dumps(Bomb(path))), np.uint8)
    for array in (np.array([forged.size]), forged):
        dispatch.send(world, buffers.view(array), 1, 0)
    return None


@both
@pytest.mark.parametrize("mark", [b"P", b"M", b"", b"R"], ids=["P", "M", "none", "R"])
@pytest.mark.usefixtures("plain")
def test_a_hostile_pickle_does_not_run(engine_name: str, mark: bytes, tmp_path: Path) -> None:
    seen = run_ranks(hostile, 2, str(tmp_path / "ran"), mark, engine_name=engine_name)
    assert seen[1][0] in ("MismatchError", "ArgumentError", "ArgumentTypeError"), seen[1]
    assert not (tmp_path / "ran").exists()


def test_a_hostile_pickle_runs_where_pickle_is_allowed(tmp_path: Path) -> None:
    """The same bomb goes off without the switch, so the tests above can fail."""
    run_ranks(hostile, 2, str(tmp_path / "ran"), b"P", engine_name="shm")
    assert (tmp_path / "ran").exists()


# ---- no msgpack ----------------------------------------------------------------------------------


def without_msgpack() -> Any:
    sys.modules["msgpack"] = None  # type: ignore[assignment]  # what Python does for a missing one
    return objects.all_gather(groups.world(), 1)


@pytest.mark.usefixtures("plain")
def test_msgpack_is_missing() -> None:
    for kind, text, _ in run_ranks(without_msgpack, 2, engine_name="shm"):
        assert kind == "Unsupported"
        assert "pip install 'msgpack>=" in text
