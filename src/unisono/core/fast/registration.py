"""What the native code of hot calls has to know: groups, the world, operators, tensors, hooks."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from unisono.core import fast
from unisono.core.dtypes import DTYPES, DType, ReduceOp

if TYPE_CHECKING:
    from unisono.core.groups import Group

# None without a compiler: there are the other engines.
_native: Any = fast.native
__all__ = [
    "calls_of",
    "learn_torch",
    "name_world",
    "serve",
    "set_backward",
    "set_hooks",
    "set_world",
    "stop_serving",
]


def set_hooks(failed: Callable[..., None], started: Callable[..., Any]) -> None:
    """Say what completes an error, `(error, verb, group, tag)`, and what makes the work of a call.

    The latter is `(handle, verb, group, tag, tensors)`, for a call that is under way.
    """
    if _native is not None:
        _native.set_hooks(failed, started)


def set_backward(backward: bool) -> None:
    """Mark the calls that this thread makes from now on, see `Call.backward`."""
    if _native is not None:
        _native.set_backward(backward)


def set_world(world: Group | None, named: dict[str, Group]) -> None:
    """Say which group None means, or None if there is none that all threads have.

    `named` has the groups of that world by name, now and later.
    """
    if _native is not None:
        _native.set_world(world, named)


def name_world(name: str) -> None:
    """Let a name mean the world."""
    if _native is not None:
        _native.name_world(name)


def serve(group: Group, communicator: Any) -> None:
    """Let native code make the calls of a group on engine `shm`."""
    if os.environ.get("UNISONO_FAST_CALLS") != "0":
        _native.add_group(group, communicator, int(group.rank), list(group.ranks))


def stop_serving(communicator: Any) -> None:
    """Leave the calls of a group to the general way; it is being closed."""
    _native.remove_group(communicator)


def calls_of(communicator: Any) -> int:
    """How many collectives of a group native code has made."""
    made: int = _native.calls_of(communicator)
    return made


#: DLPack's codes of our types; the number of bits tells those of one code apart.
_DLPACK_CODES = {
    "int": 0,
    "uint": 1,
    "float": 2,
    "bfloat": 4,
    "complex": 5,
    "bool": 6,
    "float8_e4m3fn": 10,
    "float8_e4m3fnuz": 11,
    "float8_e5m2": 12,
    "float8_e5m2fnuz": 13,
    "float8_e8m0fnu": 14,
}


@functools.cache
def learn_torch() -> None:
    """Let native code read the tensors of torch, which has been imported."""
    if _native is None:
        return
    torch = sys.modules["torch"]
    _native.set_probes(*_probes(torch))
    for kind in (torch.Tensor, torch.nn.Parameter):
        if not _native.learn_torch(kind):
            return
    for dtype in DTYPES:
        code = _DLPACK_CODES.get(dtype.name, _DLPACK_CODES.get(dtype.name.rstrip("0123456789"), -1))
        _native.learn_dlpack(code, 8 * dtype.itemsize, *_facts(dtype))


def _probes(torch: Any) -> tuple[int, int]:
    """Addresses of functions of torch that tell whether this thread is watched; 0: there is none.

    They take a few nanoseconds; asking in Python takes as long as a tenth of a small call.
    """
    library = ctypes.CDLL(torch._C.__file__)  # and all that it is linked with
    names = "_ZN2at12hasCallbacksEv", "_ZN3c104impl20TorchDispatchModeTLS13any_modes_setEb"
    profiler, modes = (ctypes.cast(getattr(library, name, 0), ctypes.c_void_p) for name in names)
    return profiler.value or 0, modes.value or 0


def _facts(dtype: DType) -> tuple[int, int, int]:
    operators = sum(1 << op.code for op in ReduceOp.ALL if op.name in dtype.operators)
    return dtype.code, dtype.itemsize, operators


if _native is not None:
    for _dtype in DTYPES:
        _native.learn_numpy(np.ndarray, _dtype.numpy, *_facts(_dtype))
    for _op in (*ReduceOp.ALL[:-1], ReduceOp.PREMUL_SUM):  # the last has some factor
        _native.learn_operator(_op, _op.code, _op.factor)
