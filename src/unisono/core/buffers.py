"""Any tensor as flat memory: NumPy, torch, MindSpore, JAX, CuPy, DLPack, the buffer protocol.

`view(tensor)` gives a `Buffer`: an address, a count and a dtype. Memory that is not contiguous
is packed first, and unpacked again by `Buffer.copy_back` when the call has ended. This module alone
knows tensor kinds, and looks only at frameworks that the user has already imported.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from unisono.core import dtypes, trace
from unisono.core.arguments import as_ints, shape_of
from unisono.core.dtypes import DType
from unisono.core.engine import Work
from unisono.core.fast import registration
from unisono.errors import ArgumentError, ArgumentTypeError, Unsupported

__all__ = [
    "Buffer",
    "Output",
    "check_writable",
    "concatenated",
    "current_stream",
    "current_stream_of",
    "device_index",
    "expect_message",
    "fingerprint",
    "in_stream",
    "unpack_into",
    "is_tensor",
    "move_to_host",
    "output_like",
    "overlap",
    "empty_for",
    "read",
    "saw_device_tensor",
    "view",
    "write",
]

_address_of = ctypes.addressof
_first_byte: Callable[[Any], ctypes.c_char] = ctypes.c_char.from_buffer


#: Whether any tensor so far was not in the memory of the host; until then nobody need look.
saw_device_tensor = False


class Buffer:
    """Flat memory of one dtype that `owner` keeps alive; `device` says whose memory it is."""

    __slots__ = ("address", "copy_back", "count", "device", "dtype", "nbytes", "owner", "writable")

    def __init__(
        self,
        address: int,
        count: int,
        dtype: DType,
        owner: object,
        writable: bool = True,
        copy_back: Callable[[], None] | None = None,
    ) -> None:
        self.address = address
        self.count = count
        self.dtype = dtype
        self.nbytes = count * dtype.itemsize
        self.owner = owner
        self.writable = writable
        self.copy_back = copy_back
        self.device = "cpu"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor that was viewed; looked up when it is asked for."""
        # A tensor that needed a copy is packed in one of its own shape.
        return shape_of(self.owner[0] if isinstance(self.owner, tuple) else self.owner)

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """The same memory as a one-dimensional NumPy array, if it is the host's."""
        if self.device != "cpu":
            raise Unsupported(f"this needs memory of the host, and the tensor is on {self.device}")
        if self.count == 0:
            return np.empty(0, self.dtype.numpy)
        memory = (ctypes.c_char * self.nbytes).from_address(self.address)
        bytes_of: np.ndarray[Any, Any] = np.frombuffer(memoryview(memory), np.uint8)
        return bytes_of.view(self.dtype.numpy)

    def __repr__(self) -> str:
        return f"Buffer({self.dtype.name} x {self.count})"


def view(tensor: Any) -> Buffer:
    """Show `tensor` as flat memory, without a copy where it is contiguous.

    >>> view(np.arange(6.0).reshape(2, 3))
    Buffer(float64 x 6)
    """
    viewer: Callable[[Any], Buffer] | None = _VIEWERS.get(type(tensor))
    if viewer is None:
        viewer = _find_viewer(tensor)
        _VIEWERS[type(tensor)] = viewer
    return viewer(tensor)


class Output:
    """A new tensor for a result: `buffer` is what the engine writes, `finish` gives the tensor.

    A JAX array cannot be written, so its memory is a NumPy array until the call has ended.
    """

    __slots__ = ("_kind", "_tensor", "buffer")

    def __init__(self, tensor: Any, kind: str) -> None:
        self._tensor = tensor
        self._kind = kind
        self.buffer = view(tensor)

    def finish(self, work: Work | None = None) -> Any:
        """The tensor; where it cannot be written later, after waiting for `work`."""
        if self._kind != "jax":
            return self._tensor
        if work is not None:
            work.wait()
        return sys.modules["jax"].numpy.asarray(self._tensor)


def output_like(tensor: Any, shape: Sequence[int] | None = None) -> Output:
    """Make a new tensor for a result, of the same kind and dtype, with `shape` if it is given.

    >>> output_like(np.zeros((2, 3), np.float32), (4, 3)).buffer
    Buffer(float32 x 12)
    """
    kind = _kind(tensor)
    if kind not in ("numpy", "torch", "mindspore", "jax", "cupy"):
        raise ArgumentTypeError(
            f"cannot make a tensor like {_describe(tensor)}; "
            "pass a NumPy, torch, MindSpore, JAX or CuPy tensor"
        )
    asked = None if shape is None else as_ints(shape, "a shape")
    try:
        size = tuple(tensor.shape if asked is None else asked)
        made = _empty(kind, size, tensor)
    except ArgumentTypeError:
        raise
    except (
        ValueError,
        TypeError,
        RuntimeError,
        OverflowError,
    ) as error:  # each framework has its own texts
        if type(error).__name__ == "OutOfMemoryError":
            raise  # a GPU that is full is not the caller's mistake
        what = f"like {_describe(tensor)}" if asked is None else f"of shape {tuple(asked)}"
        reason = str(error).partition("\n")[0]
        raise ArgumentError(f"cannot make a tensor {what}: {reason}") from None
    return Output(made, kind)


def _empty(kind: str, size: tuple[int, ...], like: Any) -> Any:
    if kind == "torch":
        return sys.modules["torch"].empty(size, dtype=like.dtype, device=like.device)
    if kind == "mindspore":
        return _empty_mindspore(size, _mindspore_dtype(like))
    if kind == "cupy":
        return sys.modules["cupy"].empty(size, like.dtype)
    return np.empty(size, like.dtype)


_mindspore_lock = threading.Lock()
_mindspore_started = False


def _empty_mindspore(size: Sequence[int], dtype: DType) -> Any:
    """A new tensor over the memory of a NumPy array, which it keeps alive.

    Memory of MindSpore's own takes a hundred times as long to get.
    """
    global _mindspore_started
    mindspore = sys.modules["mindspore"]
    if not _mindspore_started:
        # MindSpore aborts if two threads run its very first operator at once, and ranks that are
        # threads compute with results at the same time.
        with _mindspore_lock:
            (mindspore.Tensor([1.0]) + 1.0).asnumpy()
            _mindspore_started = True
    return mindspore.Tensor.from_numpy(np.empty(size, dtype.numpy))


def concatenated(parts: Sequence[Buffer]) -> Any:
    """A new flat array with the elements of several buffers, one after the other."""
    _bring_together(parts)
    if parts[0].device == "cpu":
        return np.concatenate([part.array for part in parts])
    flat = [_flat(part) for part in parts]
    if _kind(flat[0]) == "cupy":
        return sys.modules["cupy"].concatenate(flat)
    return sys.modules["torch"].cat(flat)


def empty_for(parts: Sequence[Buffer]) -> Any:
    """A new flat array, as long as several buffers together."""
    _bring_together(parts)
    count = sum(part.count for part in parts)
    if parts[0].device == "cpu":
        return np.empty(count, parts[0].dtype.numpy)
    first = _flat(parts[0])
    if _kind(first) == "cupy":
        return sys.modules["cupy"].empty(count, first.dtype)
    return first.new_empty(count)


def unpack_into(whole: Any, parts: Sequence[Buffer]) -> None:
    """Copy the elements of a flat array to several buffers, and back to their tensors."""
    start = 0
    for part in parts:
        piece = whole[start : start + part.count]
        if part.device == "cpu":
            part.array[:] = piece
        else:
            _flat(part)[:] = piece
        start += part.count
        if part.copy_back is not None:
            part.copy_back()


def _bring_together(parts: Sequence[Buffer]) -> None:
    """If parts are in different memories, show them all in the host's."""
    if len({part.device for part in parts}) > 1:
        for part in parts:
            if part.device != "cpu" and not move_to_host(part):
                raise ArgumentError("the tensors of a list are on different devices; move them")


def read(buffer: Buffer) -> np.ndarray[Any, Any]:
    """The elements of a buffer in the host's memory: the same memory, or a copy."""
    if buffer.device == "cpu":
        return buffer.array
    flat = _flat(buffer)
    if _kind(flat) == "cupy":
        return np.asarray(flat.get())
    raw: np.ndarray[Any, Any] = flat.view(sys.modules["torch"].uint8).cpu().numpy()
    return raw.view(buffer.dtype.numpy)


def write(buffer: Buffer, values: np.ndarray[Any, Any]) -> None:
    """Set the elements of a buffer, in whichever memory."""
    if buffer.device == "cpu":
        buffer.array[:] = values
        return
    host = np.empty(buffer.count, buffer.dtype.numpy)
    host[:] = values
    flat = _flat(buffer)
    if _kind(flat) == "cupy":
        flat.set(host)
        return
    torch = sys.modules["torch"]
    flat.view(torch.uint8).copy_(torch.from_numpy(host.view(np.uint8)))


def _flat(part: Buffer) -> Any:
    """A buffer on a GPU, as the tensor that it shows."""
    owner: Any = part.owner
    return owner.ravel() if _kind(owner) == "cupy" else owner.detach().view(-1)


def is_tensor(thing: Any) -> bool:
    """Tell whether `view` can show it: a tensor of any kind, or a buffer."""
    try:
        _kind(thing)
    except ArgumentTypeError:
        return False
    return True


# ---- one viewer for each kind of tensor -----------------------------------------------------


def _view_numpy(array: np.ndarray[Any, Any]) -> Buffer:
    dtype = dtypes.of(array.dtype)
    if dtype is None:
        raise ArgumentTypeError(
            f"dtype {array.dtype} cannot be moved; use one of {', '.join(_names())}"
        )
    flags = array.flags
    writable = flags.writeable
    if not (flags.c_contiguous and flags.aligned):
        if writable and _overlaps_itself(array.shape, array.strides, array.itemsize):
            writable = False
        packed = array.copy(order="C")
        return Buffer(
            packed.ctypes.data,
            packed.size,
            dtype,
            packed,
            writable,
            lambda: np.copyto(array, packed),
        )
    if writable and array.size and dtype.storage is dtype.numpy:
        address = _address_of(_first_byte(array))  # a third of the cost of array.ctypes.data
    else:
        address = array.ctypes.data
    return Buffer(address, array.size, dtype, array, writable)


def _view_torch(tensor: Any) -> Buffer:
    dtype = _torch_dtypes().get(tensor.dtype)
    if dtype is None:
        raise ArgumentTypeError(
            f"dtype {tensor.dtype} cannot be moved; use one of {', '.join(_names())}"
        )
    if tensor.is_meta:
        raise Unsupported(f"a torch tensor on {tensor.device} has no memory; make a real one first")
    torch = sys.modules["torch"]
    if tensor.layout is not torch.strided:
        raise ArgumentTypeError(f"a {tensor.layout} tensor has no flat memory; use to_dense()")
    if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
        buffer = Buffer(tensor.data_ptr(), tensor.numel(), dtype, tensor)
        if not buffer.address and buffer.count:
            raise Unsupported("a torch tensor of zeros without memory; make a real one first")
        if not tensor.is_cpu:
            _note_device(buffer, tensor.device.type)
        if tensor.requires_grad and torch.is_grad_enabled():
            buffer.copy_back = _BackwardWarning(tensor).attach
        return buffer
    plain = tensor.detach()
    packed = plain.clone(memory_format=torch.contiguous_format).resolve_conj().resolve_neg()
    overlapping = _overlaps_itself(tensor.shape, tensor.stride(), 1)
    unpack = _TorchUnpack(plain, packed)
    if tensor.requires_grad and torch.is_grad_enabled():
        unpack.warning = _BackwardWarning(tensor)
    buffer = Buffer(packed.data_ptr(), packed.numel(), dtype, packed, not overlapping, unpack)
    if not tensor.is_cpu:
        _note_device(buffer, tensor.device.type)
    return buffer


class _TorchUnpack:
    """The copy back of a tensor that was packed."""

    def __init__(self, plain: Any, packed: Any) -> None:
        self._plain = plain
        self._packed = packed
        self.warning: _BackwardWarning | None = None

    def __call__(self) -> None:
        self._plain.copy_(self._packed)
        if self.warning is not None:
            self.warning.attach()


def expect_message(buffer: Buffer) -> None:
    """Let no backward warn that a message was received into this tensor.

    A message is a new value, with a gradient of its own that the program sends back, as pipelines
    do. A collective changes a value whose gradient then belongs to another program.
    """
    if isinstance(buffer.copy_back, _TorchUnpack):
        buffer.copy_back.warning = None
    elif isinstance(getattr(buffer.copy_back, "__self__", None), _BackwardWarning):
        buffer.copy_back = None


class _BackwardWarning:
    """A hook of a tensor that a call wrote into: a backward through it warns, as in torch.

    Autograd does not know of the call and goes on as if there were none. `attach` is for the end of
    the call.
    """

    def __init__(self, tensor: Any) -> None:
        self._tensor: Any = tensor
        self._site = trace.call_site()  # now: the call may end elsewhere in the program

    def attach(self) -> None:
        tensor, self._tensor = self._tensor, None  # a hook that holds its tensor would be a cycle
        if tensor is None or any(
            isinstance(hook, _BackwardWarning) for hook in (tensor._backward_hooks or {}).values()
        ):
            return
        # A view whose memory was written has no node until it is asked for, and torch 2.13 crashes
        # if it gets a hook before.
        if tensor.grad_fn is not None or tensor.requires_grad:
            tensor.register_hook(self)

    def __call__(self, gradient: Any) -> None:
        warnings.warn(
            f"the call at {self._site} wrote into a tensor that requires a gradient, and autograd "
            "does not know of it: the gradient is that of a program without the call. Use "
            "unisono.torch.distributed.nn.functional, or torch.no_grad() if it is meant so",
            stacklevel=2,
        )


def _note_device(buffer: Buffer, device: str) -> None:
    global saw_device_tensor
    buffer.device = device
    saw_device_tensor = True


def _view_mindspore(tensor: Any) -> Buffer:
    dtype = _mindspore_dtype(tensor)
    count = tensor.size
    if count == 0:
        return Buffer(0, 0, dtype, tensor)
    # data_ptr() waits for operators that are under way, those that read this tensor included.
    address = tensor.data_ptr()
    if not address:
        version = sys.modules["mindspore"].__version__
        raise Unsupported(
            f"MindSpore {version} does not say where this tensor's memory is; use 2.10 or newer"
        )
    if tensor.is_contiguous():
        return Buffer(address, count, dtype, tensor)
    # Its own copy_ does not write strided CPU memory, so NumPy views the same strides: those of
    # stride(), because `strides` says what they would be if the tensor were contiguous.
    strides = [step * dtype.itemsize for step in tensor.stride()]
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, strides, strict=True))
    memory = (ctypes.c_char * (reach + dtype.itemsize)).from_address(address)
    array = np.ndarray(tensor.shape, dtype.storage, memory, strides=strides)
    buffer = _view_numpy(array)
    buffer.dtype = dtype
    buffer.owner = (tensor, buffer.owner)
    return buffer


def _view_cupy(array: Any) -> Buffer:
    dtype = dtypes.of(array.dtype)
    if dtype is None:
        raise ArgumentTypeError(
            f"dtype {array.dtype} cannot be moved; use one of {', '.join(_names())}"
        )
    packed = array if array.flags.c_contiguous else sys.modules["cupy"].ascontiguousarray(array)
    buffer = Buffer(packed.data.ptr, packed.size, dtype, packed)
    if packed is not array:
        buffer.writable = not _overlaps_itself(array.shape, array.strides, array.itemsize)

        def copy_back() -> None:
            array[...] = packed

        buffer.copy_back = copy_back
    _note_device(buffer, "cuda")
    return buffer


def move_to_host(buffer: Buffer) -> bool:
    """Let a buffer show a copy in the host's memory; False if its kind has always been elsewhere.

    That is for CuPy, whose arrays every engine takes.
    """
    array, unpack = buffer.owner, buffer.copy_back
    if _kind(array) != "cupy":
        return False
    host = array.get()  # type: ignore[attr-defined]
    moved = _view_numpy(host)
    buffer.address, buffer.owner, buffer.device = moved.address, (array, host), "cpu"

    def copy_back() -> None:
        array.set(host)  # type: ignore[attr-defined]
        if unpack is not None:
            unpack()

    buffer.copy_back = copy_back
    return True


# ---- the GPU of a buffer, as the framework of its tensor knows it ----


def device_index(buffer: Buffer) -> int:
    """The number of the GPU that the memory is on, in this process."""
    owner: Any = buffer.owner
    if _is_cupy(owner):
        return int(owner.device.id)
    return int(owner.get_device())


def current_stream(buffer: Buffer) -> int:
    """The stream in which the caller's framework works now, on the GPU of this buffer."""
    owner: Any = buffer.owner
    if _is_cupy(owner):
        return int(sys.modules["cupy"].cuda.get_current_stream().ptr)
    return _torch_stream()(owner.get_device())


def in_stream(buffer: Buffer, stream: int) -> AbstractContextManager[object]:
    """Let the framework of this buffer work in a stream meanwhile, in this thread."""
    index = device_index(buffer)
    if _is_cupy(buffer.owner):
        made: AbstractContextManager[object] = sys.modules["cupy"].cuda.ExternalStream(
            stream, device_id=index
        )
        return made
    cuda = sys.modules["torch"].cuda
    context: AbstractContextManager[object] = cuda.stream(cuda.ExternalStream(stream, device=index))
    return context


def current_stream_of(tensor: Any) -> int:
    """The same for the GPU of a tensor, as `fingerprint` knows it."""
    if _VIEWERS[type(tensor)] is _view_cupy:
        return int(sys.modules["cupy"].cuda.get_current_stream().ptr)
    return _torch_stream()(tensor.get_device())


def fingerprint(tensor: Any) -> tuple[object, ...] | None:
    """Where a tensor is, how long and of what dtype, if its whole memory is just its elements.

    It costs a fraction of `view`, but only knows torch's own tensors and CuPy's, seen before.
    """
    viewer = _VIEWERS.get(type(tensor))
    if viewer is _view_torch:
        torch = sys.modules["torch"]
        if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided:
            return None
        if tensor.requires_grad:
            return None
        if not tensor.is_contiguous() or tensor.is_neg() or tensor.is_conj():
            return None
        return tensor.data_ptr(), tensor.numel(), tensor.dtype
    if viewer is _view_cupy and tensor.flags.c_contiguous:
        return tensor.data.ptr, tensor.size, tensor.dtype
    return None


def _is_cupy(owner: object) -> bool:
    return (_VIEWERS.get(type(owner)) or _find_viewer(owner)) is _view_cupy


@functools.cache
def _torch_stream() -> Callable[[int], int]:
    """How torch tells the current stream of a GPU: without an object for it, where it can."""
    torch = sys.modules["torch"]
    raw: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return raw or (lambda index: int(torch.cuda.current_stream(index).cuda_stream))


def _view_by_array(tensor: Any) -> Buffer:
    return _view_numpy(np.asarray(tensor))  # JAX on the CPU: the same memory, read-only


def _view_dlpack(tensor: Any) -> Buffer:
    try:
        return _view_numpy(np.from_dlpack(tensor))
    except (BufferError, RuntimeError) as error:
        raise Unsupported(
            f"cannot view {_describe(tensor)}: {error}; move it to the CPU first"
        ) from error


def _view_memory(tensor: Any) -> Buffer:
    return _view_numpy(np.asarray(memoryview(tensor)))


_VIEWERS: dict[type, Callable[[Any], Buffer]] = {np.ndarray: _view_numpy}
_BY_KIND: dict[str, Callable[[Any], Buffer]] = {
    "numpy": _view_numpy,
    "torch": _view_torch,
    "mindspore": _view_mindspore,
    "jax": _view_by_array,
    "cupy": _view_cupy,
    "dlpack": _view_dlpack,
    "memory": _view_memory,
}


def _kind(tensor: Any) -> str:
    """Which framework made this tensor; only those already imported are asked."""
    if isinstance(tensor, np.ndarray):
        return "numpy"
    for name in ("torch", "mindspore"):
        framework = sys.modules.get(name)
        if framework is not None and isinstance(tensor, getattr(framework, "Tensor", ())):
            return name
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(tensor, jax.Array):
        return "jax"
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(tensor, cupy.ndarray):
        return "cupy"
    if hasattr(tensor, "__dlpack__"):
        return "dlpack"
    try:
        memoryview(tensor)
    except TypeError:
        raise ArgumentTypeError(
            f"expected a tensor (NumPy, torch, MindSpore, JAX, DLPack or a buffer), "
            f"got {_describe(tensor)}"
        ) from None
    return "memory"


def _find_viewer(tensor: Any) -> Callable[[Any], Buffer]:
    kind = _kind(tensor)
    if kind == "torch" and "torch" not in _seen:
        _seen.add(kind)
        registration.learn_torch()
    return _BY_KIND[kind]


_seen: set[str] = set()


_TORCH_DTYPES: dict[Any, DType] = {}


def _torch_dtypes() -> dict[Any, DType]:
    """torch's dtype objects to ours, filled at first use because torch comes late or never."""
    if not _TORCH_DTYPES:
        torch = sys.modules["torch"]
        for dtype in dtypes.DTYPES:
            if hasattr(torch, dtype.name):
                _TORCH_DTYPES[getattr(torch, dtype.name)] = dtype
    return _TORCH_DTYPES


_MINDSPORE_DTYPES: dict[Any, DType] = {}


def _mindspore_dtype(tensor: Any) -> DType:
    """Our dtype of a MindSpore tensor, by MindSpore's dtype objects: their names cost more."""
    dtype = _MINDSPORE_DTYPES.get(tensor.dtype)
    if dtype is None:
        dtype = dtypes.by_name(str(tensor.dtype).lower())
        if dtype is None:
            raise ArgumentTypeError(
                f"dtype {tensor.dtype} cannot be moved; use one of {', '.join(_names())}"
            )
        _MINDSPORE_DTYPES[tensor.dtype] = dtype
    return dtype


def _overlaps_itself(shape: Sequence[int], strides: Sequence[int], item: int) -> bool:
    """Tell whether two indexes may share memory, as in an expanded tensor."""
    reach = item
    for stride, length in sorted((abs(s), n) for s, n in zip(strides, shape, strict=True) if n > 1):
        if stride < reach:
            return True
        reach = stride * (length - 1) + reach
    return False


def _names() -> list[str]:
    return [dtype.name for dtype in dtypes.DTYPES]


def _describe(tensor: Any) -> str:
    kind = type(tensor)
    return f"{getattr(kind, '__module__', 'nowhere')}.{kind.__qualname__}"


def overlap(first: Buffer, second: Buffer) -> bool:
    """Tell whether two buffers share memory."""
    return (
        first.nbytes > 0
        and second.nbytes > 0
        and first.address < second.address + second.nbytes
        and second.address < first.address + first.nbytes
    )


def check_writable(buffer: Buffer, name: str = "the destination") -> None:
    """Refuse a destination that cannot be written, before anything moves."""
    if not buffer.writable:
        raise ArgumentError(
            f"{name} cannot be written: it is read-only (a JAX array, a broadcast view), "
            "or several of its elements share memory; pass a writable copy"
        )
