"""Compiles reduce.cu for a GPU, one kernel when it is first needed.

A kernel takes a tenth of a second and all of them several: most programs need one or two. The
compiler is NVIDIA's NVRTC, found by `cuda.core`; no GPU and no toolkit is needed to run it.
"""

from __future__ import annotations

import functools
import itertools
import operator
import os
import threading
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from unisono.core.dtypes import DType, ReduceOp
from unisono.errors import Unsupported

__all__ = [
    "MAX_MOVES",
    "MAX_RANKS",
    "Kernel",
    "compile",
    "geometry",
    "move",
    "move_geometry",
    "move_size",
    "reduction",
]

#: Length of the arrays in `struct Operands` and in `struct Moves`.
MAX_RANKS = MAX_MOVES = 64

#: Bytes that one thread reads at once from each source.
_BLOCK = 16
_THREADS = 256
#: So many find room at once on every processor, with 64 registers for each thread, and with 32.
_BLOCKS_PER_PROCESSOR = 4
_MOVES_PER_PROCESSOR = 8

#: Types of elements, if they have another name than NumPy's.
_ELEMENTS = {
    "bool": "uint8",
    "float16": "Half",
    "bfloat16": "BFloat",
    "float32": "float",
    "float64": "double",
    "complex64": "Complex<float>",
    "complex128": "Complex<double>",
}
#: Types in which elements are combined, if not in their own.
_ACCUMULATORS = {"float16": "float", "bfloat16": "float"}
#: An average of integers is exact: all sources together fit these types, unsigned ones too.
_EXACT = {1: "int32", 2: "int32", 4: "int64", 8: "int128"}
_OPERATORS = {
    "sum": "Sum",
    "product": "Product",
    "min": "Min",
    "max": "Max",
    "band": "And",
    "bor": "Or",
    "bxor": "Xor",
    "avg": "Sum",
    "premul_sum": "Sum",
}
#: Types of elements that are only copied, by their sizes.
_WORDS = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}
_LOGICAL = {"sum": "Or", "max": "Or", "product": "And", "min": "And"}


class Kernel(NamedTuple):
    """A kernel for one architecture, and its name in there."""

    image: bytes
    symbol: str


def reduction(dtype: DType, op: ReduceOp) -> str:
    """Name the instantiation that reduces `dtype` by one of its operators.

    >>> from unisono.core.dtypes import by_name
    >>> reduction(by_name("float16"), ReduceOp.AVG)
    'reduce<Half, float, Sum, Keep, Divide>'
    """
    element = _ELEMENTS.get(dtype.name, dtype.name)
    accumulator = _ACCUMULATORS.get(dtype.name, element)
    operator = _OPERATORS[op.name]
    if dtype.kind == "bool":
        operator = _LOGICAL.get(op.name, operator)
    if dtype.kind == "integer" and op.name == "avg":
        accumulator = _EXACT[dtype.itemsize]
    first = "Scale" if op.name == "premul_sum" else "Keep"
    last = "Divide" if op.name == "avg" else "Keep"
    return f"reduce<{element}, {accumulator}, {operator}, {first}, {last}>"


def move(size: int) -> str:
    """Name the instantiation that copies elements of this size.

    >>> move(2)
    'move<uint16>'
    """
    return f"move<{_WORDS[size]}>"


def move_size(moves: Sequence[tuple[int, int, int]]) -> int:
    """Choose the largest size of elements to which all addresses and lengths are aligned.

    >>> move_size([(0x1000, 0x2004, 24)]), move_size([(0x1000, 0x2000, 7)])
    (4, 1)
    """
    together = functools.reduce(operator.or_, itertools.chain(*moves))
    return max(size for size in _WORDS if not together % size)


def compile(name: str, architecture: str) -> Kernel:  # noqa: A001
    """Compile an instantiation for an architecture such as "sm_90", once."""
    try:
        with _lock:  # cuda.core cannot be imported by two threads at once
            return _compiled(name, architecture)
    except Exception as error:  # each part of NVIDIA's has its own
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise Unsupported(
            f"the kernel {name} cannot be compiled for {architecture}: {reason}; other versions of "
            "cuda-core, cuda-bindings and nvidia-cuda-nvrtc may help"
        ) from error


_lock = threading.Lock()


@functools.cache
def _compiled(name: str, architecture: str) -> Kernel:
    # Not for a factor of the operator: that is an argument and needs no kernel of its own.
    from cuda.core import Program

    source = files("unisono.engines.cuda.gpu").joinpath("reduce.cu").read_text()
    program = Program(source, "c++", _options(architecture))
    compiled = program.compile("cubin", name_expressions=(name,))
    # The symbol is bytes now, but cuda.core declares a string.
    return Kernel(bytes(compiled.code), os.fsdecode(compiled.symbol_mapping[name]))


def _options(architecture: str) -> Any:
    from cuda.core import ProgramOptions

    return ProgramOptions(
        name="reduce.cu",
        arch=architecture,
        std="c++17",
        device_as_default_execution_space=True,
        device_int128=True,
        # The bits are those of the CPU: each operation is rounded once, as IEEE 754 says.
        fma=False,
        ftz=False,
        prec_div=True,
        prec_sqrt=True,
    )


def geometry(count: int, itemsize: int, processors: int) -> tuple[int, int]:
    """Choose the blocks of a launch and the threads of a block for `count` elements.

    Enough to give each thread one piece, but no more than fit on the GPU at once.

    >>> geometry(count=1000, itemsize=4, processors=132), geometry(10**9, 4, 132)
    ((1, 256), (528, 256))
    """
    pieces = -(-count * itemsize // _BLOCK)
    blocks = -(-pieces // _THREADS)
    return max(1, min(blocks, _BLOCKS_PER_PROCESSOR * processors)), _THREADS


def move_geometry(nbytes: int, parts: int, processors: int) -> tuple[int, int]:
    """Choose the blocks for each part, of which the longest has `nbytes`, and their threads.

    >>> move_geometry(8, parts=4, processors=132), move_geometry(10**9, 4, 132)
    ((1, 256), (264, 256))
    """
    blocks = -(-nbytes // (_BLOCK * _THREADS))
    return max(1, min(blocks, -(-_MOVES_PER_PROCESSOR * processors // parts))), _THREADS
