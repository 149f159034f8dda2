"""`unisono bench faces`: what each way to make a small call takes, and what it adds to the core.

The core is called the general way, through Python. Where native code makes the whole call, a face
takes less than that, and what it adds is negative.

All ways to call run in the same ranks of the same world, in rounds of rotating order, so that they
differ in nothing else. The time of a round is that of its slowest rank; the time of a way is its
fastest round: a face costs a fixed number of instructions, and other work on the host only adds to
them. The result of every way is checked before it is timed.

Tensors are NumPy's, and torch's and MindSpore's where these are installed.

Real torch with the backend "unisono" is one of the ways. Much of what it adds is torch's own, which
no backend can avoid: a backend that does nothing shows how much.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from unisono.launch.spawn import spawn
from unisono.tools.bench.arguments import STDOUT, one_number, write_json
from unisono.tools.bench.load import LoadMeter, describe, spread
from unisono.tools.bench.runner import calls_per_round, in_turn
from unisono.tools.formatting import plural
from unisono.tools.table import table, terminal_columns

__all__ = ["WAYS", "main", "rank_times"]

#: Each way to call, and the call of the core that it is compared to. Some faces work in place and
#: others make a new tensor, which takes time in the core too.
WAYS = {
    "core, in place": None,
    "unisono.torch.distributed": "core, in place",
    "mint.distributed": "core, in place",
    "torch, backend unisono": "core, in place",
    "torch, backend that does nothing": None,
    "core, new tensor": None,
    "comm_func": "core, new tensor",
}
_UNISONO, _IDLE = _REAL_TORCH = ("torch, backend unisono", "torch, backend that does nothing")
_BYTES = 8

#: Microseconds of each round, by kind of tensor and way.
_Times = dict[str, dict[str, list[float]]]


def main(arguments: argparse.Namespace) -> int:
    """Measure, and print a table with a row for each way and two columns for each tensor kind."""
    ranks = one_number(arguments.n or [2], "faces")
    ways = {"numpy": [way for way in WAYS if way not in _REAL_TORCH]}
    if importlib.util.find_spec("torch"):
        # Real torch has one process group per process, so its ranks cannot be threads.
        ways["torch"] = ways["numpy"] if arguments.engine == "threads" else list(WAYS)
    if importlib.util.find_spec("mindspore"):
        ways["mindspore"] = ways["numpy"]
    meter = LoadMeter()
    every: list[_Times] = spawn(
        rank_times,
        ranks,
        ways,
        arguments.engine,
        arguments.rounds,
        arguments.seconds,
        engine=arguments.engine,
        timeout=120,
    )
    rounds = {
        kind: {
            way: [max(times) for times in zip(*(rank[kind][way] for rank in every), strict=True)]
            for way in ways[kind]
        }
        for kind in ways
    }
    fastest = {
        kind: {way: min(times) for way, times in own.items()} for kind, own in rounds.items()
    }
    load = meter.finish([spread(times) for own in rounds.values() for times in own.values()])
    if arguments.json is not None:
        found = {
            "ranks": ranks,
            "engine": arguments.engine,
            "bytes": _BYTES,
            "microseconds": fastest,
            "rounds": rounds,
            "load": load,
        }
        write_json(found, arguments.json)
    if arguments.json != STDOUT:
        count = plural(ranks, "rank")
        print(f"all_reduce of {_BYTES} bytes, {count}, engine {arguments.engine}; µs per call")
        rows = _rows(fastest)
        align = "<" + ">" * (len(rows[0]) - 1)
        print("\n".join(table(rows, terminal_columns(), align=align)))
        print(f"\n{describe(load)}")
    return 0


def rank_times(ways: dict[str, list[str]], engine: str, rounds: int, seconds: float) -> _Times:
    """Time these ways, by kind of tensor, on this rank; all ranks in the same order."""
    from unisono.core import buffers, dispatch, groups
    from unisono.core.engine import ReduceOp

    world = groups.world()
    with contextlib.ExitStack() as stack:
        asked = any(way in own for own in ways.values() for way in _REAL_TORCH)
        real = stack.enter_context(_real_torch(engine)) if asked else {}
        calls = {(kind, way): _prepare(kind, way, real) for kind in ways for way in ways[kind]}
        # All ranks must make the same number of calls, so the slowest rank decides how many.
        slowest = np.array([_seconds(calls["numpy", "core, in place"], 200)])
        buffer = buffers.view(slowest)
        dispatch.all_reduce(world, buffer, buffer, ReduceOp.MAX)
        count = calls_per_round(seconds, float(slowest[0]))

        times: _Times = {kind: {way: [] for way in own} for kind, own in ways.items()}
        for kind, way in in_turn(list(calls), rounds):
            call = calls[kind, way]
            _seconds(call, min(3, count))
            times[kind][way].append(_seconds(call, count) * 1e6)
    return times


def _prepare(kind: str, way: str, real: dict[str, Callable[[Any], object]]) -> Callable[[], object]:
    """Make the call of one way on a tensor of one kind, after a look at its result."""
    import unisono.torch.distributed as dist
    from unisono.core import buffers, dispatch, groups
    from unisono.core.engine import ReduceOp
    from unisono.mindspore.communication import comm_func
    from unisono.mindspore.mint import distributed as mint

    world = groups.world()
    tensor = _ones(kind)
    in_place = mint.all_reduce if way == "mint.distributed" else real.get(way, dist.all_reduce)

    def core_in_place() -> object:
        buffer = buffers.view(tensor)
        dispatch.all_reduce(world, buffer, buffer, ReduceOp.SUM)
        return tensor

    def face_in_place() -> object:
        in_place(tensor)
        return tensor

    def core_new_tensor() -> object:
        out = buffers.output_like(tensor)
        source = buffers.view(tensor)
        return out.finish(dispatch.all_reduce(world, source, out.buffer, ReduceOp.SUM))

    def face_new_tensor() -> object:
        return comm_func.all_reduce(tensor)[0]

    call = {
        "core, in place": core_in_place,
        "core, new tensor": core_new_tensor,
        "comm_func": face_new_tensor,
    }.get(way, face_in_place)
    result: Any = call()
    wanted = 1 if way == _IDLE else world.size
    if result.tolist() != [float(wanted)]:
        raise SystemExit(f"{way} with {kind} is wrong: {result} instead of {wanted}")
    buffers.view(tensor).array[:] = 0  # repeated sums in place would overflow
    return call


@contextlib.contextmanager
def _real_torch(engine: str) -> Iterator[dict[str, Callable[[Any], object]]]:
    """Join a group of real torch, and yield its all_reduce by way to call."""
    import torch.distributed as dist

    import unisono.torch.backend  # noqa: F401 - torch may be set not to load backends by itself

    class Finished(dist.Work):  # type: ignore[misc]
        def wait(self, timeout: Any = None) -> bool:
            return True

    finished = Finished()

    class Idle(dist.ProcessGroup):  # type: ignore[misc]
        """A group that does nothing, as fast as Python can."""

        def allreduce(self, tensors: Any, opts: Any = None) -> Any:
            return finished

        def setGroupName(self, name: str) -> None:  # noqa: N802
            pass

    os.environ["UNISONO_ENGINE"] = engine  # this process is a rank and nothing else
    dist.Backend.register_backend(
        "idle",
        lambda options, _: Idle(options.group_rank, options.group_size),
        extended_api=True,
        devices=["cpu"],
    )
    dist.init_process_group("unisono")
    idle = dist.new_group(backend="idle")
    yield {
        _UNISONO: functools.partial(dist.all_reduce, group=dist.group.WORLD),
        _IDLE: functools.partial(dist.all_reduce, group=idle),
    }
    dist.destroy_process_group()


def _ones(kind: str) -> Any:
    ones = np.ones(_BYTES // 8)
    if kind == "numpy":
        return ones
    if kind == "mindspore":
        import mindspore

        return mindspore.Tensor(ones)
    import torch

    return torch.from_numpy(ones)


def _seconds(call: Callable[[], object], count: int) -> float:
    """Seconds of one call, out of `count` in a row."""
    began = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - began) / count


def _rows(fastest: dict[str, dict[str, float]]) -> list[list[str]]:
    header = [""]
    for kind in fastest:
        header += [kind, "over core"]
    rows = [header]
    for way, core in WAYS.items():
        row = [way]
        for ways in fastest.values():
            row.append(f"{ways[way]:.2f}" if way in ways else "-")
            more = f"{ways[way] - ways[core]:+.2f}" if way in ways and core is not None else ""
            row.append(more)
        rows.append(row)
    return rows
