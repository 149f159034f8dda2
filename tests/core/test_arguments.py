"""The reading and checking of arguments that all faces share."""

from __future__ import annotations

import numpy as np
import pytest

from unisono.core import arguments
from unisono.core.buffers import view
from unisono.errors import ArgumentError, ArgumentTypeError


@pytest.mark.parametrize(
    ("splits", "counts"),
    [(None, [6, 6]), ([], [6, 6]), ([1, 3], [3, 9]), (np.array([4, 0]), [12, 0])],
)
def test_splits_are_rows(splits, counts):
    assert arguments.split_counts((4, 3), 12, splits, 2, "splits") == counts


def test_splits_of_a_tensor_without_elements():
    assert arguments.split_counts((0, 3), 0, [0, 0], 2, "splits") == [0, 0]
    assert arguments.split_counts((2, 0), 0, [2, 0], 2, "splits") == [0, 0]


@pytest.mark.parametrize(
    ("shape", "splits", "error"),
    [
        ((), None, ArgumentError),
        ((3,), None, ArgumentError),
        ((4,), [1, 2], ArgumentError),
        ((4,), [1, 1, 2], ArgumentError),
        ((4,), [5, -1], ArgumentError),
        ((4,), [1.5, 2.5], ArgumentTypeError),
        ((4,), 4, ArgumentTypeError),
    ],
)
def test_splits_that_do_not_fit(shape, splits, error):
    with pytest.raises(error, match="splits"):
        arguments.split_counts(shape, 4, splits, 2, "splits")


def test_the_dialect_chooses_the_error():
    floats, ints = view(np.zeros(2)), view(np.zeros(2, np.int64))
    for error in (ArgumentError, ArgumentTypeError):
        with pytest.raises(error, match="float64 and int64"):
            arguments.check_one_dtype([floats, ints], error)
        with pytest.raises(error, match=r"x has shape \(2,\) where \(3,\)"):
            arguments.check_shape((2,), (3,), "x", error)
        with pytest.raises(error, match="x has 0 entries"):
            arguments.check_length([], "x", error=error)
        with pytest.raises(error, match="multiple of the 2 ranks"):
            arguments.equal_rows((3,), 2, error=error)
    arguments.check_one_dtype([floats, floats])


@pytest.mark.parametrize(
    ("tensor", "shape"),
    [(np.zeros((2, 3)).T, (3, 2)), (np.float32(1), ()), (bytearray(5), (5,)), (np.zeros(0), (0,))],
)
def test_shapes(tensor, shape):
    assert arguments.shape_of(tensor) == shape
    assert view(tensor).shape == shape


def test_things_without_a_shape():
    for thing in ("text", [1, 2], None):
        with pytest.raises(ArgumentTypeError, match="with a shape"):
            arguments.shape_of(thing)


def test_missing_names():
    lookup = arguments.missing_name("up.stream", ["all_reduce", "send"], {"Store": "files"})
    for name, nearest in (("Store", "files"), ("all_reducer", "all_reduce"), ("sned", "send")):
        with pytest.raises(AttributeError, match=f"up.stream.{name} is not .* nearest: {nearest}$"):
            lookup(name)
    for names in (["all_reduce", "send"], ()):  # nothing that is near
        with pytest.raises(AttributeError, match=r"up.stream has no attribute 'Argmax'$"):
            arguments.missing_name("up.stream", names, {"Store": "files"})("Argmax")
