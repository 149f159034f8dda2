"""The kernels of engine `cuda` as functions on host memory: reduce.cu, compiled for this CPU."""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from unisono.core.dtypes import DTYPES, ReduceOp
from unisono.engines.cuda.gpu import kernels, prepared

__all__ = ["COMPILER", "KERNELS", "CudaOnCpu", "build", "expressions"]

#: The path of the compiler; None where there is none.
COMPILER = shutil.which("g++")

_HEADER = Path(__file__).with_name("cuda_on_cpu.hpp")
KERNELS = Path(kernels.__file__).with_name("reduce.cu")
_OPTIONS = ["-std=c++17", "-O2", "-ffp-contract=off", "-fPIC", "-shared", "-Wfatal-errors"]
_LAUNCH = """
extern "C" bool launch(const char* expression, unsigned blocks, unsigned parts, unsigned threads,
                       const void* arguments, uint64 count, double factor, Permit permit) {
    const auto reduces = [&](auto kernel) {
        launch_on_cpu(kernel, Index{blocks, parts}, threads,
                      *static_cast<const Operands*>(arguments), count, factor, permit);
    };
    const auto moves = [&](auto kernel) {
        launch_on_cpu(kernel, Index{blocks, parts}, threads,
                      *static_cast<const Moves*>(arguments), permit);
    };
"""


_DONE = 8  # among `CudaOnCpu.words`


class CudaOnCpu:
    """All kernels, found by the name of their instantiation; arguments are addresses."""

    def __init__(self, library: Path) -> None:
        self._launch = ctypes.CDLL(str(library)).launch
        self._launch.restype = ctypes.c_bool
        #: Words of a permit that allows everything: cancelled, skipped, begun, the state and done.
        self.words = (ctypes.c_uint32 * 16)()
        places = [ctypes.addressof(self.words) + 4 * place for place in (0, 1, 2, 4, 8)]
        self.permit = prepared.Permit(*places[:4], places[4:])

    def reduce(
        self,
        expression: str,
        grid: tuple[int, int],
        targets: Sequence[int],
        sources: Sequence[int],
        count: int,
        factor: float,
        permit: prepared.Permit | None = None,
        step: int | None = None,
    ) -> None:
        """Run a reduction on a grid: blocks, and threads of each."""
        addresses = ctypes.c_void_p * kernels.MAX_RANKS
        operands = prepared.Operands(
            addresses(*sources), addresses(*targets), len(sources), len(targets)
        )
        self._run(expression, (grid[0], 1, grid[1]), operands, permit, step, count, factor)

    def move(
        self,
        moves: Sequence[prepared.Move],
        grid: tuple[int, int],
        permit: prepared.Permit | None = None,
        step: int | None = None,
    ) -> None:
        """Copy on a grid: blocks for each part, and threads of each."""
        size = kernels.move_size(moves)
        parts = prepared.Moves(
            (ctypes.c_void_p * kernels.MAX_MOVES)(*(move.to for move in moves)),
            (ctypes.c_void_p * kernels.MAX_MOVES)(*(move.source for move in moves)),
            (ctypes.c_uint64 * kernels.MAX_MOVES)(*(move.nbytes // size for move in moves)),
        )
        self._run(kernels.move(size), (grid[0], len(moves), grid[1]), parts, permit, step)

    def _run(
        self,
        expression: str,
        grid: tuple[int, int, int],
        arguments: ctypes.Structure,
        permit: prepared.Permit | None,
        step: int | None,
        count: int = 0,
        factor: float = 1.0,
    ) -> None:
        if step is None:
            step = self.words[_DONE] + 1
        found = self._launch(
            expression.encode(),
            *map(ctypes.c_uint, grid),
            ctypes.byref(arguments),
            ctypes.c_ulonglong(count),
            ctypes.c_double(factor),
            prepared.PermitWords.of(permit or self.permit, step),
        )
        if not found:
            raise KeyError(expression)


def expressions() -> list[str]:
    """Every instantiation that some dtype and operator needs."""
    every = {
        kernels.reduction(dtype, op)
        for dtype in DTYPES
        for op in ReduceOp.ALL
        if op.name in dtype.operators
    }
    return sorted(every)


def build(folder: Path) -> CudaOnCpu:
    """Compile all kernels into a library in `folder`, if it is not there from an earlier run."""
    source = _source()
    key = hashlib.sha256(" ".join([*_OPTIONS, source, _HEADER.read_text()]).encode())
    library = folder / f"cuda_on_cpu-{key.hexdigest()[:16]}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        # Another process may build it too: it appears at once, or not at all.
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / library.name
            code = made.with_suffix(".cpp")
            code.write_text(source)
            command = [COMPILER or "g++", *_OPTIONS, f"-I{_HEADER.parent}", code, "-o", made]
            subprocess.run(command, check=True)
            made.replace(library)
    return CudaOnCpu(library)


def _source() -> str:
    lines = [f'#include "{_HEADER.name}"', "#include <cstring>", KERNELS.read_text(), _LAUNCH]
    lines += [
        f'    if (std::strcmp(expression, "{name}") == 0) return reduces({name}), true;'
        for name in expressions()
    ]
    lines += [
        f'    if (std::strcmp(expression, "{name}") == 0) return moves({name}), true;'
        for name in map(kernels.move, (1, 2, 4, 8))
    ]
    return "\n".join([*lines, "    return false;", "}", ""])
