"""What a call costs through torch.distributed, and a step of DDP: unisono, Gloo, and nothing.

    python -m tests.long.bench_backend --ranks 2

"nothing" is a backend in Python whose calls return at once: the price of torch itself. The backends
take turns in one run, so that a busy machine is busy for all of them; the figures are medians.
Before the clock starts, ranks meet by a few calls of the backend that is measured: the barrier that
separates turns lets them go up to half a millisecond apart, and leaves cores asleep. Each rank has
its share of the cores, as `unisono run` gives it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from unisono.launch.cores import core_blocks

BACKENDS = ("nothing", "unisono", "gloo")


class _Ended(dist.Work):  # type: ignore[misc]
    def __init__(self, tensors: Any) -> None:
        super().__init__()
        self.tensors = tensors

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        return True

    def get_future(self) -> Any:
        future: Any = torch.futures.Future()
        future.set_result(self.tensors)
        return future


_ENDED = _Ended(None)


class _Nothing(dist.ProcessGroup):  # type: ignore[misc]
    """A group whose calls do nothing."""

    name = ""

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        if opts is not None and not opts.asyncOp:
            return _ENDED
        return _Ended(tensors)

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        return _ENDED

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        for output in outputs[0]:
            output.copy_(inputs[0])
        return _ENDED

    def barrier(self, opts: Any = None) -> Any:
        return _ENDED

    def getBackendName(self) -> str:  # noqa: N802 - upstream's spelling, here and below
        return "nothing"

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self.name = name

    def getGroupName(self) -> str:  # noqa: N802
        return self.name


def _seconds(action: Callable[[], Any], times: int) -> float:
    for _ in range(max(times // 20, 1)):
        action()
    began = time.perf_counter()
    for _ in range(times):
        action()
    return (time.perf_counter() - began) / times


def _model(parameters: int, group: Any) -> tuple[Any, Any]:
    width = int((parameters / 4) ** 0.5)
    layers = [torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU()) for _ in range(4)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), process_group=group)
    return model, torch.randn(16, width)


def _measure(rank: int, size: int, store: str, rounds: int) -> None:
    shares = core_blocks(size)
    if shares is not None:
        os.sched_setaffinity(0, shares[rank])
    torch.set_num_threads(1)
    dist.Backend.register_backend(
        "nothing",
        lambda options, _: _Nothing(options.group_rank, options.group_size),
        extended_api=True,
        devices=["cpu"],
    )
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    groups = {name: dist.new_group(backend=name) for name in BACKENDS}
    tensor = torch.ones(2)
    rows: dict[str, tuple[float, Callable[[Any], Callable[[], Any]], int]] = {
        "all_reduce, 8 B (us)": (
            1e6,
            lambda group: lambda: dist.all_reduce(tensor, group=group),
            1000,
        ),
        "the same, async_op and wait (us)": (
            1e6,
            lambda group: lambda: dist.all_reduce(tensor, group=group, async_op=True).wait(),
            1000,
        ),
        "the same, with a future (us)": (
            1e6,
            lambda group: (
                lambda: dist.all_reduce(tensor, group=group, async_op=True).get_future().wait()
            ),
            400,
        ),
    }

    def stepper(parameters: int) -> Callable[[Any], Callable[[], Any]]:
        def make(group: Any) -> Callable[[], Any]:
            model, batch = _model(parameters, group)

            def step() -> None:
                model(batch).sum().backward()
                model.zero_grad()

            return step

        return make

    for label, parameters, times in (("0.1M", 10**5, 40), ("1M", 10**6, 10), ("10M", 10**7, 2)):
        rows[f"DDP step, {label} parameters (ms)"] = (1e3, stepper(parameters), times)
    for label, (unit, make, times) in rows.items():
        actions = {name: make(group) for name, group in groups.items()}
        taken: dict[str, list[float]] = {name: [] for name in BACKENDS}
        for turn in range(rounds + 1):
            for name, action in actions.items():
                dist.barrier(groups["gloo"])
                seconds = _seconds(action, times)
                if turn:
                    taken[name].append(seconds * unit)
        if rank == 0:
            middle = {name: statistics.median(taken[name]) for name in BACKENDS}
            figures = "  ".join(f"{name} {middle[name]:9.2f}" for name in BACKENDS)
            above, ratio = middle["unisono"] - middle["nothing"], middle["gloo"] / middle["unisono"]
            print(f"{label:34} {figures}   nothing + {above:.2f}, Gloo / unisono {ratio:.2f}")
    dist.barrier(groups["gloo"])
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(
            _measure, (given.ranks, f"{folder}/store", given.rounds), given.ranks
        )


if __name__ == "__main__":
    main()
