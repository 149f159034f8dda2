"""`unisono bench`: latency by collective, size and engine, with peers measured in the same run.

All contestants are alive at once, each blocked in a read. Every cell runs them in turn, in rounds
of rotating order; a round counts with its slowest rank, a cell with the median of its rounds. Every
result is checked before it is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import select
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from unisono import bench_faces
from unisono.core import registry
from unisono.errors import ArgumentError, LaunchError
from unisono.placement import Job, core_blocks, die_with_parent

__all__ = ["COLLECTIVES", "Contestant", "configure", "main", "measure"]

COLLECTIVES = ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all")
_SIZES = "8,64,1K,8K,64K,256K,1M,4M,16M,64M"
_PEERS = ("gloo",)
_DEADLINE = 120.0
# glibc gives large blocks back after each call unless told otherwise; peers that allocate scratch
# memory in every call would pay for fresh pages, which is not what is compared.
_KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "17179869184"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `unisono bench`."""
    parser.add_argument(
        "--collectives", default="all_reduce", metavar="A,B", help=f"from {', '.join(COLLECTIVES)}"
    )
    parser.add_argument("--sizes", default=_SIZES, metavar="S,T", help="bytes: 8, 64K, 1M, ...")
    parser.add_argument("-n", type=int, default=2, metavar="N", help="ranks (default 2)")
    parser.add_argument("--engine", default="shm", metavar="E", help="engine (default shm)")
    parser.add_argument(
        "--against", default="", metavar="P,Q", help=f"peers to measure too: {', '.join(_PEERS)}"
    )
    parser.add_argument("--rounds", type=int, default=7, help="rounds for each cell (default 7)")
    parser.add_argument(
        "--seconds", type=float, default=0.1, help="about how long a round takes (default 0.1)"
    )
    parser.add_argument(
        "--faces", action="store_true", help="instead: what a face adds to an 8-byte all_reduce"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="also draw a picture")


def main(arguments: argparse.Namespace) -> int:
    """Measure, and print the table."""
    if arguments.faces:
        return bench_faces.main(arguments)
    collectives = _chosen(arguments.collectives, COLLECTIVES, "collective")
    peers = _chosen(arguments.against, _PEERS, "peer")
    sizes = [_parse_size(word) for word in arguments.sizes.split(",")]
    if arguments.n < 1:
        raise ArgumentError(f"the number of ranks is {arguments.n}; give 1 or more")
    if arguments.plot is not None:
        _need_matplotlib()
    registry.load(arguments.engine)
    contestants = [Contestant(name, arguments.n) for name in (arguments.engine, *peers)]
    try:
        for contestant in contestants:
            contestant.wait_ready()
        cells = []
        for collective in collectives:
            if not arguments.json:
                print(_header(collective, arguments.n, contestants))
            for size in sizes:
                cell = measure(contestants, collective, size, arguments.rounds, arguments.seconds)
                cells.append(cell)
                if not arguments.json:
                    print(_row(cell, contestants), flush=True)
    finally:
        for contestant in contestants:
            contestant.close()
    if arguments.json:
        print(json.dumps({"ranks": arguments.n, "cores": os.cpu_count(), "cells": cells}, indent=2))
    if arguments.plot is not None:
        _draw(arguments.plot, cells, [contestant.name for contestant in contestants], arguments.n)
    return 0


class Contestant:
    """The ranks of one library, waiting for orders."""

    def __init__(self, name: str, ranks: int) -> None:
        self.name = name
        job = Job(ranks)
        blocks = core_blocks(ranks)
        parent = os.getpid()
        self._ranks: list[subprocess.Popen[str]] = []

        def prepare(rank: int) -> Callable[[], None]:
            def settle() -> None:
                die_with_parent(parent)
                if blocks is not None:
                    os.sched_setaffinity(0, blocks[rank])

            return settle

        for rank in range(ranks):
            self._ranks.append(
                subprocess.Popen(
                    [sys.executable, "-m", "unisono.bench_rank", name],
                    env={**os.environ, **_KEEP_MEMORY, **job.variables(rank)},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    preexec_fn=prepare(rank),
                )
            )

    def wait_ready(self) -> None:
        """Return when all ranks have joined their world."""
        for rank in range(len(self._ranks)):
            self._answer(rank)

    def run(self, collective: str, size: int, calls: int, check: bool = False) -> float:
        """Seconds of one call on the slowest rank."""
        order = {"collective": collective, "bytes": size, "calls": calls, "check": check}
        for process in self._ranks:
            assert process.stdin is not None
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
        return max(float(self._answer(rank)) for rank in range(len(self._ranks)))

    def close(self) -> None:
        """End the ranks; they leave by themselves when their stdin ends."""
        for process in self._ranks:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._ranks:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def _answer(self, rank: int) -> str:
        stdout = self._ranks[rank].stdout
        assert stdout is not None
        if not select.select([stdout], [], [], _DEADLINE)[0]:
            raise LaunchError(f"rank {rank} of {self.name} gave no answer in {_DEADLINE:g} s")
        line = stdout.readline()
        if not line:
            raise LaunchError(f"rank {rank} of {self.name} ended; its error stands above")
        return line


def measure(
    contestants: Sequence[Contestant], collective: str, size: int, rounds: int, seconds: float
) -> dict[str, Any]:
    """One cell of the table: the median seconds of a call for each contestant."""
    calls = {}
    for contestant in contestants:
        contestant.run(collective, size, 1, check=True)
        once = contestant.run(collective, size, 3)
        calls[contestant.name] = max(1, min(20000, int(seconds / max(once, 1e-7))))
    times: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
    for turn in range(rounds):
        first = turn % len(contestants)
        for contestant in [*contestants[first:], *contestants[:first]]:
            name = contestant.name
            times[name].append(contestant.run(collective, size, calls[name]))
    return {
        "collective": collective,
        "bytes": size,
        "seconds": {name: statistics.median(values) for name, values in times.items()},
        "rounds": times,
    }


# ---- words, tables, pictures ---------------------------------------------------------------------


def _chosen(words: str, allowed: Sequence[str], kind: str) -> list[str]:
    chosen = [word for word in words.split(",") if word]
    for word in chosen:
        if word not in allowed:
            raise ArgumentError(f"no {kind} {word!r}; there are {', '.join(allowed)}")
    return chosen


def _parse_size(word: str) -> int:
    match = re.fullmatch(r"(\d+)([KMG]?)", word.strip().upper())
    size: int = int(match[1]) << 10 * " KMG".index(match[2] or " ") if match else 0
    if size < 4:
        raise ArgumentError(f"{word!r} is not a size of 4 bytes or more; write 8, 64K, 1M")
    return size


def _size_name(size: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size} {unit}"
        size //= 1024
    return f"{size} GiB"


def _time_name(seconds: float) -> str:
    return f"{seconds * 1e6:.2f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def _header(collective: str, ranks: int, contestants: Sequence[Contestant]) -> str:
    columns = [f"{contestant.name:>12}" for contestant in contestants]
    first = contestants[0].name
    columns += [f"{contestant.name + '/' + first:>12}" for contestant in contestants[1:]]
    return f"{collective}, {ranks} ranks, float32\n{'size':>8} {' '.join(columns)}"


def _row(cell: dict[str, Any], contestants: Sequence[Contestant]) -> str:
    seconds = [cell["seconds"][contestant.name] for contestant in contestants]
    columns = [f"{_time_name(value):>12}" for value in seconds]
    columns += [f"{f'{value / seconds[0]:.1f}x':>12}" for value in seconds[1:]]
    return f"{_size_name(cell['bytes']):>8} {' '.join(columns)}"


def _need_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ArgumentError("--plot needs matplotlib: pip install 'unisono[bench]'") from None


def _draw(file: Path, cells: Sequence[dict[str, Any]], names: Sequence[str], ranks: int) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    collectives = list(dict.fromkeys(cell["collective"] for cell in cells))
    figure, axes = pyplot.subplots(
        1, len(collectives), figsize=(6 * len(collectives), 4.5), squeeze=False
    )
    for axis, collective in zip(axes[0], collectives, strict=True):
        own = [cell for cell in cells if cell["collective"] == collective]
        for name in names:
            axis.loglog(
                [cell["bytes"] for cell in own],
                [cell["seconds"][name] * 1e6 for cell in own],
                marker="o",
                label=name,
            )
        ticks = [cell["bytes"] for cell in own]
        axis.set_xticks(ticks, [_size_name(size) for size in ticks], rotation=45, ha="right")
        axis.minorticks_off()
        axis.set(title=f"{collective}, {ranks} ranks", ylabel="microseconds a call")
        axis.grid(alpha=0.3)
        axis.legend()
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    pyplot.close(figure)
