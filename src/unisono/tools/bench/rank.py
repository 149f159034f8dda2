"""One rank of one library in `unisono bench`: reads requests on stdin, measures, answers.

A request is a line of JSON: {"collective", "bytes", "calls", "check"}. The answer is the time of
one call on this rank in seconds. Between two requests the rank sleeps in a read, so that it does
not disturb the other libraries.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["main"]

#: What a library prepares for a collective and a count of float32: the call, and its two buffers.
_Prepared = tuple[Callable[[], object], np.ndarray[Any, Any], np.ndarray[Any, Any]]
_Prepare = Callable[[str, int], _Prepared]


def main(library: str) -> None:
    """Join the world of `library` and serve requests until stdin ends."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    prepare, leave = _gloo(size) if library == "gloo" else _unisono(library, size)
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        call, source, target = prepare(request["collective"], request["bytes"] // 4)
        if request["check"]:
            _check(request["collective"], call, source, target, rank, size)
        source[:] = 0
        for _ in range(min(3, request["calls"])):
            call()
        began = time.perf_counter()
        for _ in range(request["calls"]):
            call()
        print((time.perf_counter() - began) / request["calls"], flush=True)
    leave()


def _check(
    collective: str,
    call: Callable[[], object],
    source: np.ndarray[Any, Any],
    target: np.ndarray[Any, Any],
    rank: int,
    size: int,
) -> None:
    """Call once and compare the result, because the time of a wrong result means nothing."""
    index = np.arange(source.size, dtype=np.int64) % 1000
    source[:] = index + 1000 * rank
    given = [(index + 1000 * other).astype(np.float32) for other in range(size)]
    share = slice(rank * source.size // size, (rank + 1) * source.size // size)
    total = np.add.reduce(np.stack(given))
    expected = {
        "all_reduce": total,
        "reduce": total if rank == 0 else None,
        "broadcast": given[0],
        "all_gather": np.concatenate(given),
        "reduce_scatter": total[share],
        "all_to_all": np.concatenate([other[share] for other in given]),
    }[collective]
    call()
    if expected is not None and not np.array_equal(target, expected):
        raise SystemExit(f"{collective} of {source.nbytes} bytes is wrong on rank {rank}")


def _shapes(collective: str, count: int, size: int) -> tuple[int, int]:
    """Return the elements of source and target; the larger of the two has about `count`."""
    share = max(count // size, 1)
    return {
        "all_gather": (share, share * size),
        "reduce_scatter": (share * size, share),
        "all_to_all": (share * size, share * size),
    }.get(collective, (count, count))


def _unisono(engine: str, size: int) -> tuple[_Prepare, Callable[[], None]]:
    from unisono.core import buffers, dispatch, groups
    from unisono.core.engine import ReduceOp

    world = groups.init(engine)
    root = world.rank == 0

    def prepare(collective: str, count: int) -> _Prepared:
        lengths = _shapes(collective, count, size)
        source = np.zeros(lengths[0], np.float32)
        # In place where torch works in place, so that both do the same.
        in_place = collective in ("all_reduce", "reduce", "broadcast")
        target = source if in_place else np.zeros(lengths[1], np.float32)

        def call() -> object:
            src = buffers.view(source)
            dst = src if in_place else buffers.view(target)
            rest: tuple[Any, ...]
            if collective == "all_reduce":
                rest = (src, dst, ReduceOp.SUM)
            elif collective == "reduce":
                rest = (src, dst if root else None, ReduceOp.SUM, 0)
            elif collective == "broadcast":
                rest = (src if root else None, dst, 0)
            elif collective == "all_gather":
                rest = (src, dst, None)
            elif collective == "reduce_scatter":
                rest = (src, dst, ReduceOp.SUM, None)
            else:
                rest = (src, dst, None, None)
            return getattr(dispatch, collective)(world, *rest)

        return call, source, target

    return prepare, groups.close


def _gloo(size: int) -> tuple[_Prepare, Callable[[], None]]:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    # torch 2.13 has new names for these two.
    all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
    reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)

    def prepare(collective: str, count: int) -> _Prepared:
        lengths = _shapes(collective, count, size)
        source = torch.zeros(lengths[0])
        in_place = collective in ("all_reduce", "reduce", "broadcast")
        target = source if in_place else torch.zeros(lengths[1])
        call = {
            "all_reduce": lambda: dist.all_reduce(source),
            "reduce": lambda: dist.reduce(source, 0),
            "broadcast": lambda: dist.broadcast(source, 0),
            "all_gather": lambda: all_gather(target, source),
            "reduce_scatter": lambda: reduce_scatter(target, source),
            "all_to_all": lambda: dist.all_to_all_single(target, source),
        }[collective]
        return call, source.numpy(), target.numpy()

    return prepare, dist.destroy_process_group


if __name__ == "__main__":
    main(sys.argv[1])
