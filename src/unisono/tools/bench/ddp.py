"""`unisono bench ddp`: a training step under DistributedDataParallel, by backend of torch.

Each model size runs every backend in turn, with and without the exchange of gradients, in the same
ranks. A round counts with its slowest rank, a cell with the median of its rounds. The step without
exchange is the same work for all backends, so its rounds are taken together: it is the floor, and
what a backend needs above it is its share of communication. Gradients are checked before.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from unisono.errors import ArgumentError
from unisono.tools.bench.arguments import PEERS, need_torch, split_names
from unisono.tools.bench.ddp_rank import BATCH
from unisono.tools.bench.runner import LibraryRanks, calls_per_round, in_turn, start_libraries
from unisono.tools.formatting import duration

__all__ = ["main", "measure"]

_LEAST = 1000
_NOISE = 0.05  # a share may come out so far below nothing on an idle host


def main(arguments: argparse.Namespace) -> int:
    """Measure, and print the table."""
    peers = split_names(arguments.against, PEERS, "peer")
    sizes = [_parse_parameters(word) for word in arguments.parameters.split(",")]
    need_torch("`bench ddp`")
    names = ["unisono", *peers]
    cells = []
    with start_libraries(names, arguments.n, "unisono.tools.bench.ddp_rank") as libraries:
        if not arguments.json:
            print(_header(arguments.n, names), flush=True)
        for parameters in sizes:
            cell = measure(libraries, parameters, arguments.rounds, arguments.seconds)
            cells.append(cell)
            if not arguments.json:
                print(_row(cell, names), flush=True)
    if arguments.json:
        found = {"ranks": arguments.n, "cores": os.cpu_count(), "batch": BATCH, "cells": cells}
        print(json.dumps(found, indent=2))
    if any(share < -_NOISE for cell in cells for share in cell["share"].values()):
        print(
            "unisono: steps without communication took longer than with it, so something else "
            "keeps this host busy; measure again when it is idle",
            file=sys.stderr,
        )
    return 0


def measure(
    libraries: Sequence[LibraryRanks], parameters: int, rounds: int, seconds: float
) -> dict[str, Any]:
    """One row of the table: the median seconds of a step, and the shares of communication."""
    request = {"parameters": parameters, "sync": True, "steps": 1, "check": True}
    requests = {}
    times: dict[str, dict[str, list[float]]] = {}
    for library in libraries:
        library.ask(request)
        times[library.name] = {"sync": [], "no sync": []}
        for how in times[library.name]:
            trial = {**request, "sync": how == "sync", "steps": 3, "check": False}
            steps = calls_per_round(seconds, library.slowest(trial))
            requests[library.name, how] = {**trial, "steps": steps}
    entries = [(library, how) for library in libraries for how in ("sync", "no sync")]
    for library, how in in_turn(entries, rounds):
        name = library.name
        times[name][how].append(library.slowest(requests[name, how]))
    floor = statistics.median([value for own in times.values() for value in own["no sync"]])
    medians = {name: statistics.median(own["sync"]) for name, own in times.items()}
    return {
        "parameters": parameters,
        "seconds": {"no sync": floor, **medians},
        "share": {name: (value - floor) / value for name, value in medians.items()},
        "rounds": times,
    }


def _parse_parameters(word: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KM]?)", word.strip().upper())
    count = round(float(match[1]) * {"": 1, "K": 1e3, "M": 1e6}[match[2]]) if match else 0
    if count < _LEAST:
        raise ArgumentError(
            f"{word!r} is not a number of parameters from {_LEAST} on; write 50K, 0.1M, 10M"
        )
    return count


def _parameters_name(count: int) -> str:
    return f"{count / 1e6:g}M" if count >= 100_000 else f"{count / 1e3:g}K"


def _header(ranks: int, names: Sequence[str]) -> str:
    columns = [f"{'no sync':>12}", *(f"{name:>12} {'share':>6}" for name in names)]
    columns += [f"{name + '/' + names[0]:>14}" for name in names[1:]]
    return (
        f"a step of DistributedDataParallel, {ranks} ranks, {BATCH} samples each, float32; "
        f"share: of communication\n{'parameters':>10} {' '.join(columns)}"
    )


def _row(cell: dict[str, Any], names: Sequence[str]) -> str:
    seconds = cell["seconds"]
    columns = [f"{duration(1e9 * seconds['no sync']):>12}"]
    columns += [
        f"{duration(1e9 * seconds[name]):>12} {cell['share'][name]:>6.0%}" for name in names
    ]
    columns += [f"{f'{seconds[name] / seconds[names[0]]:.2f}x':>14}" for name in names[1:]]
    return f"{_parameters_name(cell['parameters']):>10} {' '.join(columns)}"
