"""unisono.allow_pickle: the program refuses pickle, with the effect of UNISONO_PICKLE=0."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import unisono
from unisono.core.encoding import encode, pickle_is_allowed
from unisono.errors import ArgumentTypeError, MismatchError, UnisonoError

pytest.importorskip("msgpack")

FACES = ["unisono.torch.distributed", "unisono.mindspore.mint.distributed"]


@pytest.fixture(autouse=True)
def setting() -> Iterator[None]:
    """What a test sets is gone after it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNISONO_PICKLE", "1")
        yield


class Unknown:
    """Pickle can send it, and nothing else."""


def send_unknown(face: str, refused_by: tuple[int, ...] = ()) -> tuple[str, str]:
    """What an object collective says of it; afterwards the group is used again."""
    dist = importlib.import_module(face)
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank in refused_by:
        unisono.allow_pickle(False)
    try:
        dist.all_gather_object([None] * size, Unknown())
        seen = ("", "")
    except UnisonoError as error:
        seen = type(error).__name__, str(error)
    dist.barrier()
    return seen


@pytest.mark.thorough
@pytest.mark.parametrize("engine_name", ["threads", "shm"])
@pytest.mark.parametrize("face", FACES)
def test_ranks_that_are_started_inherit_it(face: str, engine_name: str) -> None:
    unisono.allow_pickle(False)
    by_program = unisono.spawn(send_unknown, 2, face, engine=engine_name, timeout=60)
    assert by_program[0][0] == "ArgumentTypeError"
    assert "Unknown is not plain data" in by_program[0][1]
    unisono.allow_pickle(True)
    assert unisono.spawn(send_unknown, 2, face, engine=engine_name, timeout=60) == [("", "")] * 2


def test_the_error_is_that_of_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNISONO_PICKLE", "0")
    by_variable = encode(Unknown())
    monkeypatch.setenv("UNISONO_PICKLE", "1")
    unisono.allow_pickle(False)
    by_program = encode(Unknown())
    assert by_program[0] == by_variable[0]
    assert isinstance(by_program[1], ArgumentTypeError)
    assert "unisono.allow_pickle(True)" in str(by_program[1])


def test_ranks_that_disagree() -> None:
    first, second = unisono.spawn(send_unknown, 2, FACES[0], (1,), engine="shm", timeout=60)
    assert first[0] == second[0] == "ArgumentTypeError"  # rank 1 cannot send it, and says so
    first, second = unisono.spawn(send_number, 2, engine="shm", timeout=60)
    assert first[0] == second[0] == MismatchError.__name__
    assert "rank 1 sends objects as with UNISONO_PICKLE=0, this rank has 1" in first[1]
    assert "call unisono.allow_pickle, alike on all ranks" in first[1]


def send_number() -> tuple[str, str]:
    import unisono.torch.distributed as dist

    if dist.get_rank() == 1:
        unisono.allow_pickle(False)
    with pytest.raises(UnisonoError) as caught:
        dist.all_gather_object([None, None], 1)
    return type(caught.value).__name__, str(caught.value)


def test_it_holds_for_every_thread() -> None:
    unisono.allow_pickle(False)
    seen: list[bool] = []
    thread = threading.Thread(target=lambda: seen.append(pickle_is_allowed()))
    thread.start()
    thread.join()
    assert seen == [False] and os.environ["UNISONO_PICKLE"] == "0"


@pytest.mark.parametrize("wrong", [0, None, "0"])
def test_wrong_argument(wrong: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="give True or False"):
        unisono.allow_pickle(wrong)
    assert pickle_is_allowed()
