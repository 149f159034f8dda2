"""`unisono bench ddp`: a training step under DistributedDataParallel, by backend of torch.

For each model size the backends run in turn, with and without the exchange of gradients, in the
same ranks. The time of a round is that of its slowest rank, and the time of a cell is the median of
its rounds. A step without the exchange is the same work for all backends, so its rounds are taken
together as the floor. What a backend needs above the floor is its share of communication. Gradients
are checked before they are timed.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from unisono.errors import ArgumentError
from unisono.tools.bench.arguments import (
    STDOUT,
    need_torch,
    one_number,
    split_names,
    write_json,
)
from unisono.tools.bench.ddp_rank import BATCH
from unisono.tools.bench.load import LoadMeter, describe, spread
from unisono.tools.bench.runner import (
    Library,
    LibraryRanks,
    calls_per_round,
    in_turn,
    start_libraries,
)
from unisono.tools.formatting import duration, plural, ratio
from unisono.tools.table import line

__all__ = ["main", "measure"]

_FEWEST_PARAMETERS = 1000
_NOISE = 0.05  # on an idle host noise may make a share this negative


def main(arguments: argparse.Namespace) -> int:
    """Measure, and print the table."""
    peers = split_names(arguments.against, ("gloo",), "peer")
    sizes = [_parse_parameters(text) for text in arguments.parameters.split(",")]
    ranks = one_number(arguments.n or [2], "ddp")
    need_torch("`bench ddp`")
    names = ["unisono", *peers]
    header = _header(names)
    widths = [max(len(name), 10) for name in header]
    align = ">" * len(header)
    shown = arguments.json != STDOUT
    cells = []
    meter = LoadMeter()
    command = (sys.executable, "-m", "unisono.tools.bench.ddp_rank")
    with start_libraries([Library(name, (*command, name)) for name in names], ranks) as libraries:
        if shown:
            count = plural(ranks, "rank")
            print(f"a step of DistributedDataParallel, {count}, {BATCH} samples each, float32;")
            print("share: the part of the step that is communication")
            print(line(header, widths, align), flush=True)
        for parameters in sizes:
            cell = measure(libraries, parameters, arguments.rounds, arguments.seconds)
            cells.append(cell)
            if shown:
                print(line(_row(cell, names), widths, align), flush=True)
    load = meter.finish([spread(cell["rounds"]["unisono"]["sync"]) for cell in cells])
    if arguments.json is not None:
        found = {"ranks": ranks, "cores": os.cpu_count(), "batch": BATCH, "cells": cells}
        write_json({**found, "load": load}, arguments.json)
    if shown:
        print(f"\n{describe(load)}")
    if any(share < -_NOISE for cell in cells for share in cell["share"].values()):
        print(
            "unisono: steps took longer without communication than with it, so another program "
            "keeps this host busy; measure again when the host is idle",
            file=sys.stderr,
        )
    return 0


def measure(
    libraries: Sequence[LibraryRanks], parameters: int, rounds: int, seconds: float
) -> dict[str, Any]:
    """Measure one row of the table: the median seconds of a step, and the shares."""
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


def _parse_parameters(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KM]?)", text.strip().upper())
    count = round(float(match[1]) * {"": 1, "K": 1e3, "M": 1e6}[match[2]]) if match else 0
    if count < _FEWEST_PARAMETERS:
        raise ArgumentError(
            f"{text!r} is not a number of parameters, {_FEWEST_PARAMETERS} or more; "
            "write 50K, 0.1M, 10M"
        )
    return count


def _header(names: Sequence[str]) -> list[str]:
    columns = ["parameters", "no sync"]
    for name in names:
        columns += [name, "share"]
    return columns + [f"{name}/{names[0]}" for name in names[1:]]


def _row(cell: dict[str, Any], names: Sequence[str]) -> list[str]:
    seconds = cell["seconds"]
    columns = [_parameter_count(cell["parameters"]), duration(seconds["no sync"])]
    for name in names:
        columns += [duration(seconds[name]), f"{cell['share'][name]:.0%}"]
    return columns + [ratio(seconds[name] / seconds[names[0]]) for name in names[1:]]


def _parameter_count(count: int) -> str:
    return f"{count / 1e6:g}M" if count >= 100_000 else f"{count / 1e3:g}K"
