"""Objects as bytes: pickled, or as plain data where UNISONO_PICKLE=0 or the program forbids that.

Unpickling runs any code that the sender chooses. Plain data goes through msgpack, which can only
make values of the kinds listed here. The first byte says how the rest is encoded, so that a rank
that refuses pickle never unpickles; a sender that cannot encode an object sends the reason instead,
so that the others do not wait for it.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from unisono import errors
from unisono.core import dtypes
from unisono.core.buffers import view
from unisono.core.registry import install_command
from unisono.errors import (
    ArgumentError,
    ArgumentTypeError,
    MismatchError,
    UnisonoError,
    Unsupported,
)

__all__ = ["allow_pickle", "decode", "encode", "pickle_is_allowed"]

_PICKLE, _PLAIN, _REFUSAL = b"P", b"M", b"R"
_BUILT_IN = "biufcSUmM"  # kinds of NumPy dtypes that are nothing but their bytes


def allow_pickle(allowed: bool) -> None:
    """Say whether object collectives may use pickle, in this process and in those that it starts.

    It sets UNISONO_PICKLE, so the program's word replaces the user's. All ranks of a job have to
    agree; those that are threads of this process do.

    >>> allow_pickle(False)
    >>> pickle_is_allowed()
    False
    >>> allow_pickle(True)
    """
    if not isinstance(allowed, bool):
        raise ArgumentTypeError(f"allowed is {allowed!r}; give True or False")
    os.environ["UNISONO_PICKLE"] = "1" if allowed else "0"


def pickle_is_allowed() -> bool:
    """What UNISONO_PICKLE says: 1, the default, or 0."""
    given = os.environ.get("UNISONO_PICKLE") or "1"
    if given not in ("0", "1"):
        raise ArgumentError(f"UNISONO_PICKLE is {given!r}; set 0 to refuse pickle, or 1")
    return given == "1"


def encode(thing: Any) -> tuple[bytes, Exception | None]:
    """An object as bytes; if that fails, bytes that tell receivers why, and the error.

    The sender raises the error once the bytes are sent.
    """
    try:
        if pickle_is_allowed():
            return _PICKLE + pickle.dumps(thing), None
        return _PLAIN + _pack(thing), None
    except Exception as error:  # pickling raises anything, from the object's own methods too
        return _REFUSAL + str(error).encode(errors="replace")[:2048], error


def decode(data: bytes, rank: int) -> Any:
    """The object that `rank` encoded; raises if it could not, or if that is refused here."""
    mark, body = data[:1], data[1:]
    if mark == _REFUSAL:
        text = body.decode(errors="replace")
        raise ArgumentTypeError(f"rank {rank} could not send its object: {text}", [rank])
    if mark != (_PICKLE if pickle_is_allowed() else _PLAIN):
        theirs, ours = ("1", "0") if mark == _PICKLE else ("0", "1")
        raise MismatchError(
            f"rank {rank} sends objects as with UNISONO_PICKLE={theirs}, this rank has {ours}; "
            "set it, or call unisono.allow_pickle, alike on all ranks",
            [rank],
        )
    if mark == _PICKLE:
        return pickle.loads(body)
    try:
        return _unpack(body)
    except UnisonoError:
        raise
    except Exception as error:  # whatever hostile bytes lead to
        raise ArgumentError(
            f"what rank {rank} sent cannot be read: {error or type(error).__name__}", [rank]
        ) from error


# ---- plain data: what msgpack does not know is an extension, made of what it knows ---------------


def _pack(thing: Any) -> bytes:
    # Strict: a subclass would come out as its base, and a tuple as a list.
    packed: bytes
    try:
        packed = _msgpack().packb(thing, default=_extension, strict_types=True)
    except (ValueError, OverflowError, RecursionError) as error:
        if isinstance(error, UnisonoError):
            raise
        raise ArgumentError(f"the object cannot be sent without pickle: {error}") from error
    return packed


def _unpack(data: bytes) -> Any:
    return _msgpack().unpackb(data, ext_hook=_extended, strict_map_key=False)


def _msgpack() -> Any:
    try:
        import msgpack
    except ImportError:
        raise Unsupported(
            "with UNISONO_PICKLE=0 objects travel through msgpack, which is not installed: "
            f"{install_command('msgpack')}"
        ) from None
    return msgpack


def _extension(thing: Any) -> Any:
    for code, (fits, take_apart, _) in _KINDS.items():
        if fits(thing):
            return _msgpack().ExtType(code, _pack(take_apart(thing)))
    kind = f"{type(thing).__module__}.{type(thing).__qualname__}"
    raise ArgumentTypeError(
        f"UNISONO_PICKLE=0 refuses pickle, and {kind} is not plain data; send None, bool, int, "
        "float, complex, str, bytes, list, tuple, dict, set, NumPy arrays or torch tensors on the "
        "CPU made from it, or set UNISONO_PICKLE=1 or call unisono.allow_pickle(True) on all ranks"
    )


def _extended(code: int, data: bytes) -> Any:
    if code not in _KINDS:
        raise ArgumentError(f"kind {code} is unknown")
    return _KINDS[code][2](_unpack(data))


def _is(kind: type) -> Callable[[Any], bool]:
    return lambda thing: type(thing) is kind


def _integer_bytes(number: int) -> bytes:
    return number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)


def _array_parts(array: Any) -> list[Any]:
    array = np.asarray(array)
    known = dtypes.of(array.dtype)
    if known is None and array.dtype.kind not in _BUILT_IN:
        raise ArgumentTypeError(f"an array of {array.dtype} is not plain data; convert it first")
    return [known.name if known else array.dtype.str, list(array.shape), array.tobytes()]


def _array(parts: list[Any]) -> np.ndarray[Any, Any]:
    name, shape, data = parts
    known = dtypes.by_name(name)
    dtype = known.numpy if known else np.dtype(name)
    if known is None and dtype.kind not in _BUILT_IN:
        raise ArgumentError(f"dtype {name!r} is not plain data")
    # A copy that can be written, as an unpickled one.
    return np.frombuffer(bytearray(data), dtype).reshape(shape) if data else np.empty(shape, dtype)


def _is_tensor(thing: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and type(thing) is torch.Tensor


def _tensor_parts(tensor: Any) -> list[Any]:
    if not tensor.is_cpu:
        raise ArgumentTypeError(
            f"a tensor on {tensor.device} is not plain data; move it to the CPU first"
        )
    buffer = view(tensor.detach())
    return [buffer.dtype.name, list(tensor.shape), buffer.array.tobytes(), tensor.requires_grad]


def _tensor(parts: list[Any]) -> Any:
    name, shape, data, requires_grad = parts
    dtype = getattr(_torch(), name if dtypes.by_name(name) else "", None)
    if dtype is None:
        raise ArgumentError(f"torch has no dtype {name!r}")
    flat = _torch().frombuffer(bytearray(data), dtype=dtype) if data else None
    whole = _torch().empty(shape, dtype=dtype) if flat is None else flat.reshape(shape)
    return whole.requires_grad_(bool(requires_grad))


def _is_torch_dtype(thing: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(thing, torch.dtype)


def _torch_dtype(name: str) -> Any:
    dtype = getattr(_torch(), name)
    if not isinstance(dtype, _torch().dtype):
        raise ArgumentError(f"torch.{name} is not a dtype")
    return dtype


def _torch() -> Any:
    torch = sys.modules.get("torch")
    if torch is None:
        raise Unsupported(
            "a torch tensor was received, but this rank has not imported torch; import it first"
        )
    return torch


def _error_parts(error: UnisonoError) -> list[Any]:
    known = next(kind.__name__ for kind in type(error).mro() if kind.__name__ in errors.__all__)
    notes = [str(note) for note in getattr(error, "__notes__", [])]
    return [known, str(error), [int(rank) for rank in error.ranks], notes]


def _error(parts: list[Any]) -> UnisonoError:
    name, text, ranks, notes = parts
    if name not in errors.__all__:
        raise ArgumentError(f"there is no error {name!r}")
    error: UnisonoError = getattr(errors, name)(text, ranks)
    for note in notes:
        error.add_note(note)
    return error


#: For each kind: its test, what it is taken apart into, and how it is put together again.
_KINDS: dict[int, tuple[Callable[[Any], bool], Callable[[Any], Any], Callable[[Any], Any]]] = {
    1: (_is(tuple), list, tuple),
    2: (_is(set), list, set),
    3: (_is(frozenset), list, frozenset),
    4: (_is(int), _integer_bytes, lambda data: int.from_bytes(data, "little", signed=True)),
    5: (_is(complex), lambda number: [number.real, number.imag], lambda parts: complex(*parts)),
    6: (_is(OrderedDict), lambda pairs: [list(pair) for pair in pairs.items()], OrderedDict),
    7: (_is(np.ndarray), _array_parts, _array),
    8: (lambda thing: isinstance(thing, np.generic), _array_parts, lambda parts: _array(parts)[()]),
    9: (_is_tensor, _tensor_parts, _tensor),
    10: (_is_torch_dtype, lambda dtype: str(dtype).removeprefix("torch."), _torch_dtype),
    11: (lambda thing: isinstance(thing, UnisonoError), _error_parts, _error),
}
