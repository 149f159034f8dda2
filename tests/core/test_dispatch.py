"""Bad input is a clear error before anything moves, and the group works on afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import pytest

from tests.helpers import cases
from tests.helpers.cases import Case
from unisono.core import buffers, dispatch, groups
from unisono.core.dtypes import ReduceOp
from unisono.core.groups import Group
from unisono.errors import ArgumentError, ArgumentTypeError, NotReady, UnisonoError, Unsupported

SUM = ReduceOp.SUM


def flat(count: int, dtype: object = np.float64) -> np.ndarray:
    return np.zeros(count, dtype)


def read_only() -> np.ndarray:
    array = flat(4)
    array.flags.writeable = False
    return array


def expanded() -> np.ndarray:
    return np.lib.stride_tricks.as_strided(flat(1), (4,), (0,))


def crossing() -> tuple[np.ndarray, np.ndarray]:
    whole = flat(6)
    return whole[:4], whole[2:]


def own_part_of_another(rank: int) -> tuple[np.ndarray, np.ndarray]:
    """A source that lies in the destination, but where another rank's part belongs."""
    whole = flat(8)
    other = 1 - rank
    return whole[4 * other : 4 * other + 4], whole


@dataclass(frozen=True)
class Bad:
    """A call that cannot be right on a group of two, and what its error must say.

    `arguments` makes the arguments for a rank; arrays are viewed.
    """

    error: type[UnisonoError]
    texts: tuple[str, ...]
    verb: str
    arguments: Callable[[int], tuple] = field(repr=False)


BAD = {
    "operator is a string": Bad(
        ArgumentTypeError, ("ReduceOp", "'sum'"), "all_reduce", lambda r: (flat(4), flat(4), "sum")
    ),
    "operator of a reduce is a string": Bad(
        ArgumentTypeError, ("ReduceOp",), "reduce", lambda r: (flat(4), flat(4), "sum", 0)
    ),
    "bitwise operator on floats": Bad(
        Unsupported,
        ("float64", "band"),
        "all_reduce",
        lambda r: (flat(4), flat(4), ReduceOp.BAND),
    ),
    "order of complex numbers": Bad(
        Unsupported,
        ("complex64", "max"),
        "reduce_scatter",
        lambda r: (flat(4, "c8"), flat(2, "c8"), ReduceOp.MAX, None),
    ),
    "average of bool": Bad(
        Unsupported,
        ("bool", "avg"),
        "reduce",
        lambda r: (flat(4, bool), flat(4, bool), ReduceOp.AVG, 0),
    ),
    "8-bit floats are only moved": Bad(
        Unsupported,
        ("float8_e5m2", "moved"),
        "all_reduce",
        lambda r: (flat(4, ml_dtypes.float8_e5m2), flat(4, ml_dtypes.float8_e5m2), SUM),
    ),
    "read-only destination": Bad(
        ArgumentError, ("read-only",), "all_reduce", lambda r: (flat(4), read_only(), SUM)
    ),
    "read-only in broadcast": Bad(
        ArgumentError, ("read-only",), "broadcast", lambda r: (flat(4), read_only(), 0)
    ),
    "read-only in recv": Bad(
        ArgumentError, ("read-only",), "recv", lambda r: (read_only(), 1 - r, 0)
    ),
    "expanded destination": Bad(
        ArgumentError, ("share memory",), "all_reduce", lambda r: (flat(4), expanded(), SUM)
    ),
    "overlap": Bad(ArgumentError, ("overlap",), "all_reduce", lambda r: (*crossing(), SUM)),
    "overlap in all_to_all": Bad(
        ArgumentError, ("overlap",), "all_to_all", lambda r: (*crossing(), None, None)
    ),
    "another rank's part": Bad(
        ArgumentError, ("overlap",), "all_gather", lambda r: (*own_part_of_another(r), None)
    ),
    "two dtypes": Bad(
        ArgumentTypeError,
        ("float64", "float32"),
        "all_reduce",
        lambda r: (flat(4), flat(4, "f4"), SUM),
    ),
    "two counts": Bad(ArgumentError, ("5", "4"), "all_reduce", lambda r: (flat(4), flat(5), SUM)),
    "destination is no multiple": Bad(
        ArgumentError, ("dst", "7", "6"), "all_gather", lambda r: (flat(3), flat(7), None)
    ),
    "source is no multiple": Bad(
        ArgumentError, ("src", "5", "4"), "reduce_scatter", lambda r: (flat(5), flat(2), SUM, None)
    ),
    "all_to_all is no multiple": Bad(
        ArgumentError, ("5", "multiple"), "all_to_all", lambda r: (flat(5), flat(5), None, None)
    ),
    "half of the counts": Bad(
        ArgumentError, ("both",), "all_to_all", lambda r: (flat(4), flat(4), [2, 2], None)
    ),
    "number of counts": Bad(
        ArgumentError,
        ("3 counts", "2 ranks"),
        "all_gather",
        lambda r: (flat(1), flat(3), [1, 1, 1]),
    ),
    "sum of counts": Bad(
        ArgumentError, ("[1, 3]", "4", "5"), "all_gather", lambda r: (flat(1), flat(5), [1, 3])
    ),
    "negative count": Bad(
        ArgumentError, ("negative", "-1"), "all_gather", lambda r: (flat(1), flat(1), [2, -1])
    ),
    "share is not its own": Bad(
        ArgumentError, ("src", "9"), "all_gather", lambda r: (flat(9), flat(3), [1, 2])
    ),
    "root too large": Bad(
        ArgumentError, ("root 2", "0 to 1"), "broadcast", lambda r: (flat(4), flat(4), 2)
    ),
    "root negative": Bad(
        ArgumentError, ("root -1",), "gather", lambda r: (flat(4), flat(8), -1, None)
    ),
    "root is a string": Bad(
        ArgumentTypeError, ("root", "'0'"), "scatter", lambda r: (flat(4), flat(2), "0", None)
    ),
    "peer too large": Bad(ArgumentError, ("peer 2",), "send", lambda r: (flat(4), 2, 0)),
    "peer negative": Bad(ArgumentError, ("peer -3",), "recv", lambda r: (flat(4), -3, 0)),
    "root has no source": Bad(
        ArgumentError, ("src on the root",), "broadcast", lambda r: (None, flat(4), r)
    ),
    "root has no destination": Bad(
        ArgumentError, ("dst on the root",), "reduce", lambda r: (flat(4), None, SUM, r)
    ),
}


def attempt(group: Group, name: str, blocking: bool) -> UnisonoError:
    """No peer is needed for the error: each rank meets it alone, then all work together."""
    bad = BAD[name]
    arguments = bad.arguments(group.rank)
    before = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
    viewed = [buffers.view(a) if isinstance(a, np.ndarray) else a for a in arguments]
    try:
        getattr(dispatch, bad.verb)(group, *viewed, blocking=blocking)
    except UnisonoError as raised:
        error = raised
    else:
        raise AssertionError(f"{name}: no error")
    for now, then in zip(arguments, before, strict=True):
        if isinstance(now, np.ndarray):
            np.testing.assert_array_equal(now.astype("c16"), then.astype("c16"))
    cases.run(group, Case("all_reduce", "float32", 57))
    return error


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "asynchronous"])
@pytest.mark.parametrize("name", BAD)
def test_bad_call(world, name, blocking):
    bad = BAD[name]
    for rank, error in enumerate(world(2, attempt, name, blocking)):
        assert type(error) is bad.error, repr(error)
        for text in bad.texts:
            assert text in str(error), f"{text!r} is not in: {error}"
        (where,) = error.__notes__
        assert f"in {bad.verb} " in where
        assert "group 'world'" in where
        assert f"rank {rank} of 2" in where


# ---- no world, no longer a group, not a member ---------------------------------------------------


def outsider(group: Group) -> UnisonoError | None:
    pair = group.split([0, 1], name="pair")
    error = None
    if group.rank == 2:
        with pytest.raises(NotReady) as caught:
            dispatch.barrier(pair)
        error = caught.value
        with pytest.raises(NotReady, match="pair"):
            pair.split([0])
    else:
        cases.run(pair, Case("all_reduce", "float32", 5))
    pair.close()
    cases.run(group, Case("all_reduce", "float32", 5))
    return error


def test_call_by_a_rank_that_is_not_in_the_group(world):
    error = world(3, outsider)[2]
    assert "not in group 'pair'" in str(error)
    assert "[0, 1]" in str(error)
    assert error.__notes__ == ["in barrier on group 'pair', by a rank that is not in it"]


def closed(group: Group) -> list[UnisonoError]:
    child = group.split(range(group.size), name="child")
    cases.run(child, Case("all_reduce", "float32", 5))
    dispatch.barrier(group)
    child.close()
    child.close()  # twice is allowed
    errors = []
    for blocking in (True, False):
        with pytest.raises(NotReady) as caught:
            dispatch.barrier(child, blocking=blocking)
        errors.append(caught.value)
    cases.run(group, Case("all_reduce", "float32", 5))
    return errors


def test_call_after_close(world):
    for rank, errors in enumerate(world(2, closed)):
        for error in errors:
            assert "group 'child' is closed" in str(error)
            assert f"rank {rank} of 2" in error.__notes__[0]


def bad_splits(group: Group) -> list[str]:
    texts = []
    for members in ([], [0, 0], [0, 2], [-1]):
        with pytest.raises(ArgumentError) as caught:
            group.split(members)
        texts.append(str(caught.value))
    named = group.split([0, 1], name="twice")
    with pytest.raises(ArgumentError, match="'twice' already"):
        group.split([1, 0], name="twice")
    named.close()
    group.split([1, 0], name="twice").close()  # the name is free again
    with pytest.raises(ArgumentError, match="no group 'nowhere'"):
        groups.find("nowhere")
    return texts


def test_bad_split(world):
    for texts in world(2, bad_splits):
        empty, twice, outside, negative = texts
        assert "at least one" in empty
        assert "twice" in twice
        assert "rank 2 is not in group 'world'" in outside
        assert "rank -1" in negative


def test_no_world_yet():
    errors = []

    def body() -> None:
        for ask in (groups.world, lambda: groups.resolve(None), lambda: groups.find("world")):
            try:
                ask()
            except NotReady as error:
                errors.append(str(error))

    thread = threading.Thread(target=body)  # a thread has a world of its own or none
    thread.start()
    thread.join()
    assert len(errors) == 3
    assert all("no world yet; call init first" in text for text in errors)
    assert not groups.is_initialized()
    groups.close()  # nothing to close is no error
