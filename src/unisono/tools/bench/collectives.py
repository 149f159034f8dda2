"""`unisono bench collectives`: latency by collective, size and engine, next to other libraries.

For every cell the libraries run in turn. The time of a round is that of its slowest rank, and the
time of a cell is the median of its rounds. Every result is checked before it is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unisono.core import registry
from unisono.errors import ArgumentError
from unisono.tools.bench.arguments import PEERS, need_torch, split_names
from unisono.tools.bench.runner import LibraryRanks, calls_per_round, in_turn, start_libraries
from unisono.tools.formatting import byte_size, duration, plural, ratio
from unisono.tools.table import line

__all__ = ["COLLECTIVES", "main", "measure"]

COLLECTIVES = ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all")


def main(arguments: argparse.Namespace) -> int:
    """Measure, and print the table."""
    collectives = split_names(arguments.collectives, COLLECTIVES, "collective")
    peers = split_names(arguments.against, PEERS, "peer")
    sizes = [_parse_size(text) for text in arguments.sizes.split(",")]
    if peers:
        need_torch(f"--against {peers[0]}")
    if arguments.plot is not None:
        _need_matplotlib()
    registry.load(arguments.engine)
    names = [arguments.engine, *peers]
    header = _header(names)
    widths = [max(len(name), 10) for name in header]
    align = ">" * len(header)
    cells = []
    with start_libraries(names, arguments.n, "unisono.tools.bench.rank") as libraries:
        for collective in collectives:
            if not arguments.json:
                print(f"{collective}, {plural(arguments.n, 'rank')}, float32")
                print(line(header, widths, align), flush=True)
            for size in sizes:
                cell = measure(libraries, collective, size, arguments.rounds, arguments.seconds)
                cells.append(cell)
                if not arguments.json:
                    print(line(_row(cell, names), widths, align), flush=True)
    if arguments.json:
        print(json.dumps({"ranks": arguments.n, "cores": os.cpu_count(), "cells": cells}, indent=2))
    if arguments.plot is not None:
        _draw(Path(arguments.plot), cells, names, arguments.n)
    return 0


def measure(
    libraries: Sequence[LibraryRanks], collective: str, size: int, rounds: int, seconds: float
) -> dict[str, Any]:
    """Measure one cell of the table: the median seconds of a call for each library."""
    requests = {}
    for library in libraries:
        request = {"collective": collective, "bytes": size, "calls": 1, "check": True}
        library.ask(request)
        once = library.slowest({**request, "calls": 3, "check": False})
        requests[library.name] = {
            **request,
            "calls": calls_per_round(seconds, once),
            "check": False,
        }
    times: dict[str, list[float]] = {library.name: [] for library in libraries}
    for library in in_turn(libraries, rounds):
        times[library.name].append(library.slowest(requests[library.name]))
    return {
        "collective": collective,
        "bytes": size,
        "seconds": {name: statistics.median(values) for name, values in times.items()},
        "rounds": times,
    }


# ---- sizes, rows, plots --------------------------------------------------------------------------


def _parse_size(text: str) -> int:
    match = re.fullmatch(r"(\d+)([KMG]?)", text.strip().upper())
    size: int = int(match[1]) << 10 * " KMG".index(match[2] or " ") if match else 0
    if size < 4:
        raise ArgumentError(f"{text!r} is not a size of 4 bytes or more; write 8, 64K, 1M")
    return size


def _header(names: Sequence[str]) -> list[str]:
    return ["size", *names, *(f"{name}/{names[0]}" for name in names[1:])]


def _row(cell: dict[str, Any], names: Sequence[str]) -> list[str]:
    seconds = [cell["seconds"][name] for name in names]
    ratios = [ratio(value / seconds[0]) for value in seconds[1:]]
    return [byte_size(cell["bytes"]), *map(duration, seconds), *ratios]


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
        axis.set_xticks(ticks, [byte_size(size) for size in ticks], rotation=45, ha="right")
        axis.minorticks_off()
        axis.set(title=f"{collective}, {ranks} ranks", ylabel="microseconds per call")
        axis.grid(alpha=0.3)
        axis.legend()
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    pyplot.close(figure)
