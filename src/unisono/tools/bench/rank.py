"""One rank of one library in `unisono bench`: takes requests from a socket, measures, answers.

A request is a line of JSON: {"collective", "bytes", "calls", "check"}. The answer is the time of
one call on this rank in seconds, or that the library does not have this call. Between two requests
the rank sleeps in a read, so that it does not disturb the other libraries.

Peers run this file in environments of their own, which have NumPy and the peer but not unisono, and
perhaps Python 3.10: what only unisono needs is imported where it is used.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

__all__ = ["main", "serve"]

_Array = np.ndarray[Any, Any]
_PR_SET_PDEATHSIG = 1

#: Values are distinct for each rank and index, and sums of hundreds of ranks are exact in float32.
_PERIOD = 97
_STEP = 100


def _nothing() -> None:
    pass


class _Prepared(NamedTuple):
    """A call, the buffer that it reads, and how to find its result in what it returns."""

    call: Callable[[], Any]
    source: _Array
    result: Callable[[Any], _Array]
    #: Copies the buffer to where the call reads it, if that is a GPU.
    load: Callable[[], object] = _nothing


class _Library(NamedTuple):
    """This rank in the world of a library; `prepare` takes a collective and a count of float32."""

    version: str
    rank: int
    size: int
    prepare: Callable[[str, int], _Prepared]
    barrier: Callable[[], object]
    leave: Callable[[], object]
    #: Waits until the calls so far have ended, if they return before.
    finish: Callable[[], object] = _nothing


def main(way: str, address: str) -> None:
    """Join a world in one way to call, and serve requests until the bench closes the socket.

    The way of unisono is that of a face, and says where tensors are: "torch/shared". A number
    behind that is how many ranks are threads of this process.
    """
    way, memory, threads = (*way.split("/"), "", "")[:3]
    if threads:
        import unisono

        unisono.spawn(_serve_rank, int(threads), way, memory, address)
    else:
        _serve_rank(way, memory, address)


def _serve_rank(way: str, memory: str, address: str) -> None:
    on_gpu = memory == "cuda"
    library = {"mpi": _mpi, "gloo": _gloo, "comm_func": _comm_func, "torch": _torch}[way](on_gpu)
    copies = partial(_memory, on_gpu)
    # The last two that were asked for: collectives take turns with memcpy on unisono's ranks.
    last: dict[Callable[[str, int], _Prepared], tuple[tuple[str, int], _Prepared]] = {}

    def answer(request: dict[str, Any]) -> float:
        collective: str = request["collective"]
        calls: int = request["calls"]
        prepare = copies if collective == "memcpy" else library.prepare
        row = collective, request["bytes"] // 4
        if prepare not in last or last[prepare][0] != row:
            last.pop(prepare, None)  # first, so that the next buffers can have this memory
            last[prepare] = row, prepare(*row)
        prepared = last[prepare][1]
        if request["check"]:
            _check(collective, prepared, library.rank, library.size)
        call = prepared.call
        for _ in range(calls // 10 + 1):
            call()
        library.finish()
        library.barrier()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        library.finish()
        return (time.perf_counter() - began) / calls

    with _shared() if memory == "shared" else contextlib.nullcontext():
        serve(address, library.rank, library.version, answer)
    library.leave()


def _shared() -> contextlib.AbstractContextManager[None]:
    """A context in which all arrays are in unisono's memory, but those of short parts."""
    import unisono

    return unisono.shared_arrays(1 << 14)


def serve(
    address: str, rank: int, version: str, answer: Callable[[dict[str, Any]], object]
) -> None:
    """Answer requests that come by the socket at `address` until it is closed."""
    # A launcher that is killed must not leave ranks behind.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        stream = connection.makefile("rw")
        print(json.dumps({"rank": rank, "version": version}), file=stream, flush=True)
        for line in stream:
            try:
                found = {"answer": answer(json.loads(line))}
            except NotImplementedError as error:
                found = {"refused": str(error)}
            except Exception as error:
                # Not raised: a rank of MPI that ends alone would wait for the others for ever.
                traceback.print_exc()
                found = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(found), file=stream, flush=True)


# ---- values --------------------------------------------------------------------------------------


def _check(collective: str, prepared: _Prepared, rank: int, size: int) -> None:
    """Call once and compare the result, because the time of a wrong result means nothing."""
    call, source, result, load = prepared
    index = np.arange(source.size, dtype=np.float32) % _PERIOD
    share = index.size // size
    own = slice(rank * share, (rank + 1) * share)
    total = size * index + _STEP * (size * (size - 1) // 2)
    np.copyto(source, index + _STEP * rank)
    load()
    found = result(call())
    if collective in ("all_gather", "all_to_all"):
        expected = index if collective == "all_gather" else index[own]
        right = all(
            np.array_equal(block, expected + np.float32(_STEP * other))
            for other, block in enumerate(found.reshape(size, -1))
        )
    elif collective == "reduce_scatter":
        right = np.array_equal(found, total[own])
    elif collective == "all_reduce":
        right = np.array_equal(found, total)
    elif collective == "reduce":
        right = rank != 0 or np.array_equal(found, total)
    else:  # broadcast, from rank 0; or memcpy
        right = np.array_equal(found, index + _STEP * (rank if collective == "memcpy" else 0))
    source[:] = 0  # repeated sums in place would overflow
    load()
    if not right:
        raise RuntimeError(f"{collective} of {source.nbytes} bytes is wrong on rank {rank}")


def _buffers(collective: str, count: int, size: int) -> tuple[_Array, _Array]:
    """Make source and target; the larger of the two has about `count` elements.

    Where torch works in place they are the same, so that all libraries do the same.
    """
    share = max(count // size, 1)
    if collective in ("all_reduce", "reduce", "broadcast"):
        source = np.zeros(count, np.float32)
        return source, source
    lengths = {
        "all_gather": (share, share * size),
        "reduce_scatter": (share * size, share),
        "all_to_all": (share * size, share * size),
        "memcpy": (count, count),
    }[collective]
    return np.zeros(lengths[0], np.float32), np.zeros(lengths[1], np.float32)


def _memory(on_gpu: bool, collective: str, count: int) -> _Prepared:
    """Copy memory, which needs no library: what no collective on it can be expected to beat."""
    arrays = _buffers(collective, count, 1)
    if not on_gpu:
        source, target = arrays
        return _Prepared(partial(np.copyto, target, source), source, lambda _: target)
    copied, result, load = _on_gpu(arrays)
    return _Prepared(partial(result.copy_, copied), arrays[0], lambda _: _fetched(result), load)


# ---- tensors on a GPU ----------------------------------------------------------------------------


def _on_gpu(arrays: tuple[_Array, _Array]) -> tuple[Any, Any, Callable[[], object]]:
    """Make two such tensors on the first GPU, and a function that copies the first one there."""
    import torch

    host = torch.from_numpy(arrays[0])
    source = host.cuda()
    target = source if arrays[0] is arrays[1] else torch.from_numpy(arrays[1]).cuda()
    return source, target, lambda: source.copy_(host)


def _fetched(tensor: Any) -> _Array:
    """Return an array of what a tensor holds, which may be one already."""
    found: _Array = tensor.cpu().numpy() if hasattr(tensor, "cpu") else tensor
    return found


def _gpu_name() -> str:
    import torch

    return f" on {torch.cuda.get_device_name()}"


def _wait_for_gpu() -> None:
    import torch

    torch.cuda.synchronize()


# ---- libraries -----------------------------------------------------------------------------------


def _torch(on_gpu: bool) -> _Library:
    import unisono
    import unisono.torch.distributed as dist

    dist.init_process_group()
    size = dist.get_world_size()

    def prepare(collective: str, count: int) -> _Prepared:
        arrays = _buffers(collective, count, size)
        source, target, load = _on_gpu(arrays) if on_gpu else (*arrays, _nothing)
        call: Callable[[], Any] = {
            "all_reduce": partial(dist.all_reduce, source),
            "reduce": partial(dist.reduce, source, 0),
            "broadcast": partial(dist.broadcast, source, 0),
            "all_gather": partial(dist.all_gather_into_tensor, target, source),
            "reduce_scatter": partial(dist.reduce_scatter_tensor, target, source),
            "all_to_all": partial(dist.all_to_all_single, target, source),
        }[collective]
        return _Prepared(call, arrays[0], lambda _: _fetched(target), load)

    return _Library(
        f"unisono {unisono.__version__}" + (_gpu_name() if on_gpu else ""),
        dist.get_rank(),
        size,
        prepare,
        dist.barrier,
        dist.destroy_process_group,
        _wait_for_gpu if on_gpu else _nothing,
    )


def _comm_func(on_gpu: bool) -> _Library:
    import unisono
    import unisono.mindspore.communication as comm
    from unisono.mindspore.communication import comm_func

    comm.init()
    size = comm.get_group_size()

    def prepare(collective: str, count: int) -> _Prepared:
        arrays = _buffers(collective, count, size)
        source, target, load = _on_gpu(arrays) if on_gpu else (*arrays, _nothing)
        call: Callable[[], Any] = {
            "all_reduce": partial(comm_func.all_reduce, source),
            "reduce": partial(comm_func.reduce, source, 0),
            "broadcast": partial(comm_func.broadcast, source, 0),
            "all_gather": partial(comm_func.all_gather_into_tensor, source),
            "reduce_scatter": partial(comm_func.reduce_scatter_tensor, source),
            "all_to_all": partial(
                comm_func.all_to_all_single_with_output_shape, target.shape, source
            ),
        }[collective]

        def result(got: Any) -> _Array:  # some return a tensor, and some a tensor and a handle
            return _fetched(got[0] if isinstance(got, tuple) else got)

        return _Prepared(call, arrays[0], result, load)

    return _Library(
        f"unisono {unisono.__version__}" + (_gpu_name() if on_gpu else ""),
        comm.get_rank(),
        size,
        prepare,
        comm_func.barrier,
        comm.release,
        _wait_for_gpu if on_gpu else _nothing,
    )


def _mpi(on_gpu: bool) -> _Library:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()

    def prepare(collective: str, count: int) -> _Prepared:
        source, target = _buffers(collective, count, size)
        reduce = (MPI.IN_PLACE, source) if rank == 0 else (source, None)
        call: Callable[[], Any] = {
            "all_reduce": partial(world.Allreduce, MPI.IN_PLACE, source),
            "reduce": partial(world.Reduce, *reduce),
            "broadcast": partial(world.Bcast, source),
            "all_gather": partial(world.Allgather, source, target),
            "reduce_scatter": partial(world.Reduce_scatter_block, source, target),
            "all_to_all": partial(world.Alltoall, source, target),
        }[collective]
        return _Prepared(call, source, lambda _: target)

    version = MPI.Get_library_version().splitlines()[0].split(", package")[0]
    return _Library(" ".join(version.split()), rank, size, prepare, world.Barrier, MPI.Finalize)


def _gloo(on_gpu: bool) -> _Library:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    size = dist.get_world_size()
    # torch 2.13 has new names for these two.
    all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
    reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)

    def prepare(collective: str, count: int) -> _Prepared:
        arrays = _buffers(collective, count, size)
        source, target, load = (
            _on_gpu(arrays) if on_gpu else (*map(torch.from_numpy, arrays), _nothing)
        )
        call: Callable[[], Any] = {
            "all_reduce": partial(dist.all_reduce, source),
            "reduce": partial(dist.reduce, source, 0),
            "broadcast": partial(dist.broadcast, source, 0),
            "all_gather": partial(all_gather, target, source),
            "reduce_scatter": partial(reduce_scatter, target, source),
            "all_to_all": partial(dist.all_to_all_single, target, source),
        }[collective]
        if on_gpu:
            try:
                call()
            except RuntimeError as error:
                raise NotImplementedError(f"not for tensors on a GPU: {error}") from error
        return _Prepared(call, arrays[0], lambda _: _fetched(target), load)

    return _Library(
        f"Gloo of torch {torch.__version__}",
        dist.get_rank(),
        size,
        prepare,
        dist.barrier,
        dist.destroy_process_group,
        _wait_for_gpu if on_gpu else _nothing,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
