"""Arguments as callers pass them (numbers, lists, shapes, splits), read and checked for all faces.

The dialects agree on what is wrong, but not always on the type of the error: where they differ,
`error` says which one to raise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import index
from typing import TYPE_CHECKING, Any, NoReturn

from unisono.errors import ArgumentError, ArgumentTypeError, UnisonoError

if TYPE_CHECKING:
    from unisono.core.buffers import Buffer

__all__ = [
    "as_int",
    "as_ints",
    "check_length",
    "check_list",
    "check_one_dtype",
    "check_shape",
    "equal_rows",
    "missing_name",
    "shape_of",
    "split_counts",
]

_Error = type[UnisonoError]


# ---- numbers -------------------------------------------------------------------------------------


def as_int(value: Any, name: str) -> int:
    """An int of any library as Python's own; the error names the parameter.

    >>> as_int(True, "tag")
    1
    """
    try:
        return index(value)
    except Exception as error:  # each library raises its own, such as tensors without data
        raise ArgumentTypeError(f"{name} must be a whole number, got {value!r}") from error


def as_ints(values: Any, name: str) -> list[int]:
    """The same for a list of them, or for any other iterable.

    >>> as_ints(range(3), "counts")
    [0, 1, 2]
    """
    try:
        return [index(value) for value in values]
    except Exception as error:
        raise ArgumentTypeError(f"{name} must be whole numbers, got {values!r}") from error


# ---- lists ---------------------------------------------------------------------------------------


def check_list(values: Any, name: str, kinds: tuple[type, ...] = (list,)) -> None:
    """Refuse what is not a list, or one of the `kinds` that the dialect takes for a list."""
    if not isinstance(values, kinds):
        raise ArgumentTypeError(f"{name} must be a list, got {type(values).__name__}")


def check_length(
    values: Sequence[Any], name: str, size: int | None = None, error: _Error = ArgumentError
) -> None:
    """Refuse a list that is empty or, with `size`, that has not one entry for each rank.

    >>> check_length([7], "tensor_list", 2)
    Traceback (most recent call last):
    unisono.errors.ArgumentError: tensor_list has 1 entry; it needs 2, one for each rank
    """
    if not values or (size is not None and len(values) != size):
        entries = "1 entry" if len(values) == 1 else f"{len(values)} entries"
        needed = "at least one" if size is None else f"{size}, one for each rank"
        raise error(f"{name} has {entries}; it needs {needed}")


# ---- tensors -------------------------------------------------------------------------------------


def check_one_dtype(
    parts: Sequence[Buffer],
    error: _Error = ArgumentError,
    names: str = "the tensors of one call",
) -> None:
    """Refuse tensors of different dtypes in one call; `names` says which of its arguments."""
    first = parts[0].dtype
    for part in parts:
        if part.dtype is not first:
            raise error(f"{names} must have one dtype, not {first.name} and {part.dtype.name}")


def shape_of(tensor: Any) -> tuple[int, ...]:
    """The lengths of a tensor's dimensions; a plain buffer has them too, without saying so.

    Where the tensor has been viewed, `Buffer.shape` is the same.

    >>> shape_of(bytearray(3))
    (3,)
    """
    try:
        shape: Any = getattr(tensor, "shape", None)
        lengths: Any = memoryview(tensor).shape if shape is None else shape
        return tuple(lengths)
    except (RuntimeError, TypeError):  # a nested tensor, or no tensor at all
        raise ArgumentTypeError(
            f"expected a tensor with a shape, got {type(tensor).__name__}"
        ) from None


def check_shape(
    shape: Sequence[int], expected: Sequence[int], name: str, error: _Error = ArgumentError
) -> None:
    """Refuse a tensor whose shape is not the one that this call reads or fills.

    >>> check_shape((2, 3), (6,), "output")
    Traceback (most recent call last):
    unisono.errors.ArgumentError: output has shape (2, 3) where (6,) is needed
    """
    if tuple(shape) != tuple(expected):
        raise error(f"{name} has shape {tuple(shape)} where {tuple(expected)} is needed")


def equal_rows(
    shape: Sequence[int], size: int, name: str = "tensor", error: _Error = ArgumentError
) -> int:
    """How many rows of the first dimension each of `size` ranks has.

    >>> equal_rows((6, 5), 3)
    2
    """
    if not shape or shape[0] % size:
        raise error(
            f"{name} has shape {tuple(shape)}; its first dimension must be a multiple of the "
            f"{size} ranks"
        )
    return shape[0] // size


def split_counts(
    shape: Sequence[int],
    elements: int,
    splits: Any,
    size: int,
    name: str,
    error: _Error = ArgumentError,
) -> list[int]:
    """How many elements belong to each rank, from how many rows of the first dimension do.

    `splits` is what the caller passed as `name`; None and an empty list mean equal shares.

    >>> split_counts((4, 5), 20, [1, 3], 2, "input_split_sizes")
    [5, 15]
    >>> split_counts((4, 5), 20, None, 2, "input_split_sizes")
    [10, 10]
    """
    if not shape:
        raise error(f"{name} splits rows, but this tensor has no dimensions")
    rows = shape[0]
    lengths = [] if splits is None else as_ints(splits, name)
    if not lengths:
        if rows % size:
            raise error(f"{rows} rows cannot be shared equally by {size} ranks; give {name}")
        return [elements // size] * size
    if len(lengths) != size or sum(lengths) != rows or min(lengths) < 0:
        raise error(
            f"{name} is {lengths}; it needs {size} lengths, one for each rank, that add up to "
            f"{rows} rows"
        )
    width = elements // rows if rows else 0
    return [length * width for length in lengths]


# ---- names that a face lacks ---------------------------------------------------------------------


def missing_name(
    upstream: str, names: Sequence[str], nearest: Mapping[str, str] | None = None
) -> Callable[[str], NoReturn]:
    """Make the `__getattr__` of the module that stands for `upstream`.

    `nearest` says what to use instead of a name; for others it is one of `names` that is similar,
    if there is one. Nothing is passed on to the real framework: that call would reach another
    world.
    """

    def lookup(name: str) -> NoReturn:
        instead = (nearest or {}).get(name)
        if instead is None and names:
            import difflib  # few need it

            instead = next(iter(difflib.get_close_matches(name, names, 1, 0.7)), None)
        if instead is not None:
            text = f"{upstream}.{name} is not in unisono; nearest: {instead}"
        else:
            text = f"unisono's module for {upstream} has no attribute {name!r}"
        raise AttributeError(text, name=name)

    return lookup
