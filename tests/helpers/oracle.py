"""What every reduction must give, computed with NumPy from rank and index alone.

Nothing here calls unisono's arithmetic. The values of a long array repeat with the period `BLOCK`,
a prime that is no multiple of any chunk, so that a chunk in the wrong place shows and megabytes
cost little.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from unisono.core import dtypes
from unisono.core.dtypes import ReduceOp

BLOCK = 65521

REDUCIBLE = tuple(dtype.name for dtype in dtypes.DTYPES if dtype.operators)
MOVABLE = tuple(dtype.name for dtype in dtypes.DTYPES)

_SPECIAL = (math.nan, math.inf, -math.inf, -0.0, 0.0, "tiny", "-tiny", "huge")


def numpy_dtype(name: str) -> np.dtype:
    """NumPy's dtype of that name, those of ml_dtypes among them."""
    return dtypes.by_name(name).numpy


def operators(name: str) -> list[ReduceOp]:
    """Every operator that reduces this dtype."""
    able = dtypes.by_name(name).operators
    return [op for op in ReduceOp.ALL if op.name in able]


def values(name: str, rank: int, count: int, salt: int = 0) -> np.ndarray:
    """The operand of one rank: its own at every index, special values among them."""
    return np.resize(_block(name, rank, min(count, BLOCK), salt), count)


def reduced(op: ReduceOp, name: str, ranks: int, count: int, salt: int = 0) -> np.ndarray:
    """The operands of ranks 0 to `ranks` - 1, combined in rank order."""
    return np.resize(_reduced_block(op, name, ranks, min(count, BLOCK), salt), count)


@functools.lru_cache(maxsize=256)
def _block(name: str, rank: int, count: int, salt: int) -> np.ndarray:
    dtype = numpy_dtype(name)
    if dtype.kind == "c":
        part = np.dtype(f"f{dtype.itemsize // 2}").name
        return _block(part, rank, 2 * count, salt).view(dtype)
    bits = _mix(np.arange(count, dtype=np.uint64) + np.uint64(rank * 1_000_003 + salt * 7_368_787))
    if name == "bool":
        return (bits & np.uint64(1)).astype(bool)
    if dtype.kind in "iu" or not dtypes.by_name(name).operators:
        # Any pattern is a value: integers wrap around, 8-bit floats are only moved.
        return bits.astype(f"u{dtype.itemsize}").view(dtype)
    unit = (bits >> np.uint64(11)).astype(np.float64) / 2.0**52 - 1.0
    exponent = ((bits >> np.uint64(3)) & np.uint64(7)).astype(np.float64) - 4.0
    result = (unit * 2.0**exponent).astype(dtype)
    for index in np.flatnonzero(bits % np.uint64(37) == 0):
        result[index] = _special(dtype, int(index + rank) % len(_SPECIAL))
    # Zeros of either sign meet at one index: min and max must keep the one that came first.
    result[49::100], result[99::100] = (0.0, -0.0) if rank % 2 else (-0.0, 0.0)
    return result


def _mix(bits: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64: neighbouring numbers become unrelated ones."""
    bits = (bits + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def _special(dtype: np.dtype, index: int) -> np.generic:
    value = _SPECIAL[index]
    if isinstance(value, float):
        return dtype.type(value)
    pattern = np.dtype(f"u{dtype.itemsize}").type
    one = np.array([pattern(1)]).view(dtype)[0]  # the smallest number above zero
    if value == "huge":
        infinity = np.array([dtype.type(math.inf)]).view(pattern)[0]
        return np.array([infinity - pattern(1)]).view(dtype)[0]
    return one if value == "tiny" else -one


@functools.lru_cache(maxsize=256)
def _reduced_block(op: ReduceOp, name: str, ranks: int, count: int, salt: int) -> np.ndarray:
    return combine(op, [_block(name, rank, count, salt) for rank in range(ranks)])


def combine(op: ReduceOp, operands: list[np.ndarray]) -> np.ndarray:
    """Combine operands of one dtype in the order given."""
    dtype = operands[0].dtype
    with np.errstate(all="ignore"):
        if dtype.kind == "b":
            return _logical(op.name, np.stack(operands))
        if dtype.kind in "iu":
            return _integer(op.name, operands)
        if dtype.kind == "c":
            return _complex(op, operands)
        wide = dtype if dtype in (np.float32, np.float64) else np.dtype(np.float32)
        total = _real(op, [operand.astype(wide) for operand in operands])
        return total.astype(dtype)


def _logical(name: str, rows: np.ndarray) -> np.ndarray:
    if name in ("sum", "max", "bor"):
        return rows.any(axis=0)
    if name in ("product", "min", "band"):
        return rows.all(axis=0)
    return rows.sum(axis=0) % 2 == 1


def _integer(name: str, operands: list[np.ndarray]) -> np.ndarray:
    dtype = operands[0].dtype
    if name == "avg":
        # 64 bits would overflow, so they are added as Python's own integers.
        wide = np.dtype(object) if dtype.itemsize == 8 else np.dtype(np.int64)
        total = sum((operand.astype(wide) for operand in operands[1:]), operands[0].astype(wide))
        quotient = abs(total) // len(operands)
        return np.where(total < 0, -quotient, quotient).astype(dtype)
    if name in ("sum", "product"):
        # Two's complement wraps, and unsigned arithmetic is defined to do so.
        unsigned = [operand.view(f"u{dtype.itemsize}") for operand in operands]
        function = np.add if name == "sum" else np.multiply
        return functools.reduce(function, unsigned).view(dtype)
    function = {
        "min": np.minimum,
        "max": np.maximum,
        "band": np.bitwise_and,
        "bor": np.bitwise_or,
        "bxor": np.bitwise_xor,
    }[name]
    return functools.reduce(function, operands)


def _real(op: ReduceOp, operands: list[np.ndarray]) -> np.ndarray:
    if op.name == "premul_sum":
        operands = [operand * operand.dtype.type(op.factor) for operand in operands]
    total = operands[0]
    for operand in operands[1:]:
        if op.name == "product":
            total = total * operand
        elif op.name in ("min", "max"):
            better = operand < total if op.name == "min" else operand > total
            total = np.where(~np.isnan(total) & (better | np.isnan(operand)), operand, total)
        else:
            total = total + operand
    return total / total.dtype.type(len(operands)) if op.name == "avg" else total


def _complex(op: ReduceOp, operands: list[np.ndarray]) -> np.ndarray:
    """Products are multiplied out: no fused steps, no repair of infinities."""
    pairs = [(operand.real, operand.imag) for operand in operands]
    if op.name == "product":
        return _join(*functools.reduce(_multiply, pairs))
    if op.name == "premul_sum":
        factor = (pairs[0][0].dtype.type(op.factor), pairs[0][0].dtype.type(0))
        pairs = [_multiply(pair, factor) for pair in pairs]
        op = ReduceOp.SUM
    return _join(*(_real(op, list(parts)) for parts in zip(*pairs, strict=True)))


def _multiply(first: tuple, second: tuple) -> tuple:
    (x, y), (u, v) = first, second
    return x * u - y * v, x * v + y * u


def _join(real: np.ndarray, imaginary: np.ndarray) -> np.ndarray:
    return np.stack([real, imaginary], axis=-1).view(f"c{2 * real.itemsize}").reshape(real.shape)


def check_close(actual: np.ndarray, expected: np.ndarray, label: object, op: ReduceOp) -> None:
    """Compare results of a reduction that may have been rounded in another order."""
    if actual.dtype.kind in "biu" or op.name in ("min", "max"):
        check_same(actual, expected, label, any_nan=True)
        return
    # Operands are below 16, and beside them there are special ones: with those the order decides
    # what overflows, and when, so that such elements cannot be compared.
    step = {2: 2.0**-7, 4: 2.0**-22, 8: 2.0**-51}[actual.real.dtype.itemsize]
    largest = 200.0 if step > 1e-3 else 1e30
    wide = np.complex128 if actual.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        got, wanted = actual.astype(wide), expected.astype(wide)
        plain = (np.abs(got) < largest) & (np.abs(wanted) < largest)
        near = np.abs(got - wanted) <= 16 * step * np.abs(wanted) + 64 * step
    if not (near | ~plain).all() or (plain.size >= 100 and plain.mean() < 0.5):
        first = int(np.flatnonzero(~near)[0])
        raise AssertionError(
            f"{label}: the element at index {first} is far off: got {actual.flat[first]!r}, "
            f"expected {expected.flat[first]!r}"
        )


def check_same(
    actual: np.ndarray, expected: np.ndarray, label: object, *, any_nan: bool = False
) -> None:
    """Compare bits; with `any_nan` one NaN is as good as another (reductions make new ones)."""
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        raise AssertionError(
            f"{label}: got {actual.dtype} {actual.shape}, "
            f"expected {expected.dtype} {expected.shape}"
        )
    got, wanted = np.ascontiguousarray(actual), np.ascontiguousarray(expected)
    if got.tobytes() == wanted.tobytes():
        return
    if got.dtype.kind == "c":
        got, wanted = (x.view(f"f{x.itemsize // 2}") for x in (got, wanted))
    pattern = f"u{got.itemsize}"
    differs = got.view(pattern) != wanted.view(pattern)
    if any_nan and got.dtype.kind not in "biu":
        differs &= ~(np.isnan(got) & np.isnan(wanted))
    if differs.any():
        first = int(np.flatnonzero(differs)[0])
        raise AssertionError(
            f"{label}: {int(differs.sum())} of {differs.size} elements differ, the first at index "
            f"{first}: got {got.flat[first]!r}, expected {wanted.flat[first]!r}"
        )
