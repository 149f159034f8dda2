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
from unisono.engines.cuda.gpu import kernels

__all__ = ["COMPILER", "KERNELS", "CudaOnCpu", "build", "expressions"]

#: The path of the compiler; None where there is none.
COMPILER = shutil.which("g++")

_HEADER = Path(__file__).with_name("cuda_on_cpu.hpp")
KERNELS = Path(kernels.__file__).with_name("reduce.cu")
_OPTIONS = ["-std=c++17", "-O2", "-ffp-contract=off", "-fPIC", "-shared", "-Wfatal-errors"]
_LAUNCH = """
extern "C" bool launch(const char* expression, unsigned blocks, unsigned threads, void* to,
                       const Sources* from, int sources, uint64 count, double factor) {
    const auto run = [&](auto kernel) {
        launch_on_cpu(kernel, blocks, threads, to, *from, sources, count, factor);
    };
"""


class CudaOnCpu:
    """All kernels, found by the name of their instantiation."""

    def __init__(self, library: Path) -> None:
        self._launch = ctypes.CDLL(str(library)).launch
        self._launch.restype = ctypes.c_bool

    def launch(
        self,
        expression: str,
        blocks: int,
        threads: int,
        to: int,
        sources: Sequence[int],
        count: int,
        factor: float,
    ) -> None:
        """Run a kernel on a grid; `to` and `sources` are addresses."""
        addresses = (ctypes.c_void_p * kernels.MAX_SOURCES)(*sources)
        found = self._launch(
            expression.encode(),
            ctypes.c_uint(blocks),
            ctypes.c_uint(threads),
            ctypes.c_void_p(to),
            addresses,
            ctypes.c_int(len(sources)),
            ctypes.c_ulonglong(count),
            ctypes.c_double(factor),
        )
        if not found:
            raise KeyError(expression)


def expressions() -> list[str]:
    """Every instantiation that some dtype and operator needs."""
    every = {
        kernels.expression(dtype, op)
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
        f'    if (std::strcmp(expression, "{name}") == 0) return run({name}), true;'
        for name in expressions()
    ]
    return "\n".join([*lines, "    return false;", "}", ""])
