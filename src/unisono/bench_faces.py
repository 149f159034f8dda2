"""`unisono bench --faces`: what the faces add to the core, in microseconds of one small call.

Every way to call runs in the same ranks of the same world, in rounds of rotating order, so that
they differ in nothing but the face. A round counts with its slowest rank, a way with its fastest
round: a face costs a fixed number of instructions, and whatever else the host does only adds to
them. Every way is checked before it is timed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from unisono.errors import ArgumentError
from unisono.launch import spawn

__all__ = ["WAYS", "main", "rank_times"]

#: Each way to call, with the one that it is compared to: the core, doing the same. One face works
#: in place and the other makes a new tensor, which takes time in the core too.
WAYS = {
    "core, in place": None,
    "torch.distributed": "core, in place",
    "core, new tensor": None,
    "comm_func": "core, new tensor",
}
_BYTES = 8
_MOST_CALLS = 20000

#: Microseconds of each round, by kind of tensor and way.
_Times = dict[str, dict[str, list[float]]]


def main(arguments: argparse.Namespace) -> int:
    """Measure, and print a table with a row for each way and two columns for each kind."""
    if arguments.n < 1:
        raise ArgumentError(f"the number of ranks is {arguments.n}; give 1 or more")
    if arguments.rounds < 1:
        raise ArgumentError(f"the number of rounds is {arguments.rounds}; give 1 or more")
    kinds = ["numpy", "torch"] if importlib.util.find_spec("torch") else ["numpy"]
    every: list[_Times] = spawn(
        rank_times,
        arguments.n,
        kinds,
        arguments.rounds,
        arguments.seconds,
        engine=arguments.engine,
        timeout=120,
    )
    rounds = {
        kind: {
            way: [max(times) for times in zip(*(rank[kind][way] for rank in every), strict=True)]
            for way in WAYS
        }
        for kind in kinds
    }
    fastest = {
        kind: {way: min(times) for way, times in ways.items()} for kind, ways in rounds.items()
    }
    if arguments.json:
        found = {
            "ranks": arguments.n,
            "engine": arguments.engine,
            "bytes": _BYTES,
            "microseconds": fastest,
            "rounds": rounds,
        }
        print(json.dumps(found, indent=2))
    else:
        print(_table(fastest, arguments.n, arguments.engine))
    return 0


def rank_times(kinds: list[str], rounds: int, seconds: float) -> _Times:
    """Time every way on this rank, all ranks in the same order."""
    from unisono.core import buffers, dispatch, groups
    from unisono.core.engine import ReduceOp

    world = groups.world()
    calls = {(kind, way): _prepare(kind, way) for kind in kinds for way in WAYS}
    # All ranks must make the same number of calls, so the slowest says how many.
    call = calls["numpy", "core, in place"]
    slowest = np.array([_seconds(call, 200)])
    buffer = buffers.view(slowest)
    dispatch.start("all_reduce", world, True, buffer, buffer, ReduceOp.MAX)
    count = max(1, min(_MOST_CALLS, int(seconds / max(float(slowest[0]), 1e-7))))

    times: _Times = {kind: {way: [] for way in WAYS} for kind in kinds}
    order = list(calls)
    for turn in range(rounds):
        first = turn % len(order)
        for kind, way in [*order[first:], *order[:first]]:
            call = calls[kind, way]
            _seconds(call, min(3, count))
            times[kind][way].append(_seconds(call, count) * 1e6)
    return times


def _prepare(kind: str, way: str) -> Callable[[], object]:
    """Make the call of one way on a tensor of one kind, after a look at its result."""
    import unisono.torch.distributed as dist
    from unisono.core import buffers, dispatch, groups
    from unisono.core.engine import ReduceOp
    from unisono.mindspore.communication import comm_func

    world = groups.world()
    tensor = _ones(kind)

    def core_in_place() -> object:
        buffer = buffers.view(tensor)
        dispatch.start("all_reduce", world, True, buffer, buffer, ReduceOp.SUM)
        return tensor

    def torch_words() -> object:
        dist.all_reduce(tensor)
        return tensor

    def core_new_tensor() -> object:
        out = buffers.output_like(tensor)
        source = buffers.view(tensor)
        return out.finish(
            dispatch.start("all_reduce", world, True, source, out.buffer, ReduceOp.SUM)
        )

    def mindspore_words() -> object:
        return comm_func.all_reduce(tensor)[0]

    ways = (core_in_place, torch_words, core_new_tensor, mindspore_words)
    call = dict(zip(WAYS, ways, strict=True))[way]
    result: Any = call()
    if result.tolist() != [float(world.size)]:
        raise SystemExit(f"{way} with {kind} is wrong: {result} instead of {world.size}")
    tensor[:] = 0  # sums in place would run away
    return call


def _ones(kind: str) -> Any:
    ones = np.ones(_BYTES // 8)
    if kind == "numpy":
        return ones
    import torch

    return torch.from_numpy(ones)


def _seconds(call: Callable[[], object], count: int) -> float:
    """Seconds of one call, out of `count` in a row."""
    began = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - began) / count


def _table(fastest: dict[str, dict[str, float]], ranks: int, engine: str) -> str:
    lines = [f"all_reduce of {_BYTES} bytes, {ranks} ranks, engine {engine}; microseconds a call"]
    lines.append(f"{'':18}" + "".join(f"{kind:>10}{'over core':>12}" for kind in fastest))
    for way, core in WAYS.items():
        cells = ""
        for ways in fastest.values():
            more = "" if core is None else f"{ways[way] - ways[core]:+.2f}"
            cells += f"{ways[way]:>10.2f}{more:>12}"
        lines.append(f"{way:18}{cells}".rstrip())
    return "\n".join(lines)
