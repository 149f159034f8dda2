"""Errors as data: what a rank tells about its failure, another process reads without loss."""

from __future__ import annotations

import json
import pickle

import pytest

from unisono import errors
from unisono.errors import (
    CommTimeout,
    MismatchError,
    PeerLost,
    UnisonoError,
    cause,
    remember,
)

TYPES = [kind for kind in vars(errors).values() if isinstance(kind, type)]
TYPES = [kind for kind in TYPES if issubclass(kind, UnisonoError)]


def through_json(error: UnisonoError) -> UnisonoError:
    return errors.from_data(json.loads(json.dumps(error.to_data())))


def through_pickle(error: UnisonoError) -> UnisonoError:
    return pickle.loads(pickle.dumps(error))


@pytest.mark.parametrize("copied", [through_json, through_pickle])
@pytest.mark.parametrize("kind", TYPES)
def test_every_error_survives_the_way_to_another_process(kind, copied) -> None:
    error = kind("what happened", [2, 5])
    error.add_note("in all_reduce")
    error.host = "node1"
    copy = copied(error)
    assert type(copy) is kind
    assert (str(copy), copy.ranks) == ("what happened", (2, 5))
    assert copy.__notes__ == ["in all_reduce"]
    assert copy.host == "node1"


def test_data_of_an_error_without_extras_is_short() -> None:
    data = {"type": "CommTimeout", "message": "late", "ranks": [1]}
    assert CommTimeout("late", (1,)).to_data() == data


def test_an_unknown_type_becomes_the_root() -> None:
    class NewError(PeerLost):
        """A type that the reader does not have."""

    copy = errors.from_data(NewError("from a newer version", [3]).to_data())
    assert type(copy) is UnisonoError
    assert (str(copy), copy.ranks) == ("from a newer version", (3,))


@pytest.mark.parametrize("name", ["Mapping", "from_data", "_TYPES", "", None])
def test_only_error_types_can_be_named(name) -> None:
    assert type(errors.from_data({"type": name, "message": "x"})) is UnisonoError


def test_data_is_a_copy() -> None:
    error = MismatchError("ranks disagree", [0])
    error.to_data()["ranks"].append(1)
    assert error.ranks == (0,)


def test_the_cause_of_an_error_is_found() -> None:
    lost = PeerLost("rank 3 was killed", [3])
    lost.add_note("in barrier")
    assert cause(lost) is lost
    other = KeyError("a")
    other.__context__ = lost
    assert cause(other) is lost
    assert cause(RuntimeError("rank 3 was killed")) is None


def test_an_error_of_which_only_the_text_is_left_is_found() -> None:
    lost = PeerLost("rank 5 was killed", [5])
    lost.add_note("in barrier")
    try:
        raise lost
    except PeerLost as error:
        remember(error)
    found = cause(RuntimeError("C++ says: unisono.errors.PeerLost: rank 5 was killed"))
    assert isinstance(found, PeerLost)
    assert (found.ranks, found.__notes__) == ((5,), ["in barrier"])
    assert found.__traceback__ is None  # it would keep tensors alive
    assert cause(RuntimeError("rank 4 was killed")) is None
