"""`unisono bench collectives`: latency by collective, ranks and size, next to other libraries.

For every row the libraries run in turn. Each loop of calls begins after a barrier; its time is that
of the slowest rank, and the time of a row is the median of its rounds. A plain copy of the same
bytes, by all ranks at once, takes its turns with them: it is the memory's own speed. Every result
is checked before it is timed.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unisono.core import registry
from unisono.engines.shm import tuning
from unisono.errors import ArgumentError, LaunchError, Unsupported
from unisono.launch.cores import allowed_cores
from unisono.tools.bench import plot, report
from unisono.tools.bench.arguments import (
    STDOUT,
    need_torch,
    parse_size,
    split_names,
    write_json,
)
from unisono.tools.bench.environments import given_pythons, peer_python
from unisono.tools.bench.load import LoadMeter, spread
from unisono.tools.bench.peers import PACKAGES, peer_library, unisono_library
from unisono.tools.bench.runner import (
    Library,
    LibraryRanks,
    calls_per_round,
    in_turn,
    start_libraries,
)
from unisono.tools.formatting import byte_size, plural

__all__ = ["COLLECTIVES", "DEVICES", "FACES", "MEMORY", "main", "measure"]

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce")
FACES = ("torch", "comm_func")
MEMORY = ("ordinary", "shared")
DEVICES = ("cpu", "cuda")
_COPY = "memcpy"
_SCHEMA = 1

#: The rows of a comparison: many sizes of few ranks, and fewer of more.
_RANKS = (2, 8, 16)
_SIZES = "8,1K,16K,64K,256K,1M,4M,16M,64M"
_FEWER_SIZES = "8,16K,256K,4M,64M"
_MANY_RANKS = 8
#: The same for ranks that share a GPU.
_RANKS_ON_GPU = (2, 4)
_SIZES_ON_GPU = f"{_SIZES},256M"
_PEERS_ON_GPU = ("gloo",)

_Row = tuple[int, str, int]
_Cell = dict[str, Any]


def main(arguments: argparse.Namespace) -> int:
    """Measure, and print the tables."""
    if arguments.plot is not None:
        plot.check(arguments.plot)
    file = getattr(arguments, "from")  # a keyword
    found = _Comparison(arguments).run() if file is None else _earlier(file, arguments)
    if arguments.json is not None:
        write_json(found, arguments.json)
    if arguments.plot is not None:
        plot.draw(found, arguments.plot)
    return 0


def _earlier(file: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Read what an earlier run has written, and print the rows that are asked for."""
    try:
        found: dict[str, Any] = json.loads(Path(file).read_text())
    except (OSError, ValueError) as error:
        raise ArgumentError(f"--from {file} cannot be read: {error}") from error
    if not isinstance(found, dict) or found.get("schema") != _SCHEMA:
        raise ArgumentError(
            f"--from {file} is not what --json of this version writes; measure again"
        )
    asked = {
        "ranks": arguments.n,
        "collective": _collectives(arguments, ",".join(COLLECTIVES)),
        "bytes": arguments.sizes and _sizes(arguments.sizes),
    }
    found["cells"] = [
        cell
        for cell in found["cells"]
        if all(values is None or cell[name] in values for name, values in asked.items())
    ]
    if not found["cells"]:
        raise ArgumentError(f"--from {file} has no such rows; ask for others")
    found["geometric_mean"] = report.geometric_mean(found["cells"])
    if arguments.json != STDOUT:
        report.print_heading(found)
        for cells in report.tables(found["cells"]):
            report.print_table(cells)
        report.print_load(found)
        report.print_summary(found)
    return found


class _Comparison:
    """One run: what is measured, what was found, and who is left out."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._rows = _rows(arguments)
        peers = tuple(PACKAGES) if arguments.device == "cpu" else _PEERS_ON_GPU
        self._peers = split_names(arguments.against, peers, "peer")
        self._given = given_pythons(arguments.peer_env)
        if arguments.face not in FACES:
            raise ArgumentError(f"no face {arguments.face!r}; there are {', '.join(FACES)}")
        if arguments.memory not in MEMORY:
            raise ArgumentError(f"no memory {arguments.memory!r}; there are {', '.join(MEMORY)}")
        registry.load(arguments.engine)
        self._memory = arguments.memory
        if arguments.device == "cuda":
            _check_gpu(arguments)
            self._memory = "cuda"
        self._is_shown = arguments.json != STDOUT
        self._progress = report.Progress(len(self._rows))
        self.found: dict[str, Any] = {
            "schema": _SCHEMA,
            "machine": {
                **tuning.machine(),
                "python": platform.python_version(),
                "numpy": np.__version__,
            },
            "engine": arguments.engine,
            "face": arguments.face,
            "memory": self._memory,
            "libraries": {},
            "left_out": {},
            "geometric_mean": None,
            "cells": [],
        }

    def run(self) -> dict[str, Any]:
        """Measure all rows, and print a table as soon as it is complete."""
        pythons = {}
        for name in self._peers:
            try:
                pythons[name] = peer_python(name, self._given)
            except LaunchError as error:
                self._leave_out(name, error)
        meter = LoadMeter()
        with self._progress:
            for ranks in dict.fromkeys(row[0] for row in self._rows):
                libraries = self._libraries(pythons, ranks)
                with start_libraries(libraries, ranks, self._leave_out) as running:
                    self._begin(running)
                    for collective in dict.fromkeys(row[1] for row in self._rows):
                        self._finish_table(self._table(running, ranks, collective))
        self.found["load"] = meter.finish([_spread(cell) for cell in self.found["cells"]])
        if self._is_shown:
            report.print_load(self.found)
            report.print_summary(self.found)
        return self.found

    def _libraries(self, pythons: Mapping[str, str], ranks: int) -> list[Library]:
        own = self._arguments
        libraries = [unisono_library(own.engine, own.face, self._memory, ranks)]
        for name, python in pythons.items():
            try:
                libraries.append(peer_library(name, python, self._memory, ranks))
            except LaunchError as error:
                self._leave_out(name, error)
        return libraries

    def _begin(self, running: Sequence[LibraryRanks]) -> None:
        """Say what is compared, before the first row."""
        is_first = not self.found["cells"]
        if is_first and self._peers and len(running) == 1:
            raise LaunchError(
                f"no peer is left of {', '.join(self._peers)}, for the reasons above; "
                "name an environment with --peer-env"
            )
        self.found["libraries"] |= {own.name: own.version for own in running}
        if is_first and self._is_shown:
            report.print_heading(self.found)

    def _table(self, running: list[LibraryRanks], ranks: int, collective: str) -> list[_Cell]:
        """Measure the rows of one table; a peer that fails is removed from those that run."""
        cells: list[_Cell] = []
        sizes = [row[2] for row in self._rows if row[:2] == (ranks, collective)]
        while len(cells) < len(sizes):
            size = sizes[len(cells)]
            self._progress.show(f"{collective}, {byte_size(size)}, {plural(ranks, 'rank')}")
            rounds, seconds = self._arguments.rounds, self._arguments.seconds
            try:
                cell = measure(running, collective, size, rounds, seconds)
            except LaunchError as error:
                failed = next((own for own in running[1:] if own.has_failed), None)
                if failed is None:
                    raise
                running.remove(failed)
                failed.close()
                self._leave_out(failed.name, error)
            else:
                cells.append({"ranks": ranks, **cell})
                self._progress.done += 1
        return cells

    def _finish_table(self, cells: list[_Cell]) -> None:
        self._progress.clear()
        self.found["cells"] += cells
        self.found["geometric_mean"] = report.geometric_mean(self.found["cells"])
        if self._is_shown:
            report.print_table(cells)
        if self._arguments.json not in (None, STDOUT):
            write_json(self.found, self._arguments.json)  # so that an interrupt loses little

    def _leave_out(self, name: str, error: LaunchError) -> None:
        self._progress.clear()
        self.found["left_out"][name] = str(error)
        print(f"unisono: {name} is left out: {error}", file=sys.stderr, flush=True)


def _rows(arguments: argparse.Namespace) -> list[_Row]:
    """List the rows to measure: ranks, collective and size."""
    every = ",".join(COLLECTIVES) if arguments.against else "all_reduce"
    collectives = _collectives(arguments, every)
    if arguments.device not in DEVICES:
        raise ArgumentError(f"no device {arguments.device!r}; there are {', '.join(DEVICES)}")
    on_gpu = arguments.device == "cuda"
    ranks = arguments.n
    if ranks is None:
        cores = sum(map(len, allowed_cores()))
        usual = _RANKS_ON_GPU if on_gpu else _RANKS
        ranks = [n for n in usual if n <= cores] if arguments.against else []
        ranks = ranks or [2]
    rows = []
    for n in ranks:
        usual_sizes = _FEWER_SIZES if n >= _MANY_RANKS else _SIZES_ON_GPU if on_gpu else _SIZES
        sizes = _sizes(arguments.sizes or usual_sizes)
        rows += [(n, collective, size) for collective in collectives for size in sizes]
    return list(dict.fromkeys(rows))


def _check_gpu(arguments: argparse.Namespace) -> None:
    """Refuse a measurement on a GPU that cannot be made here."""
    if arguments.memory != "ordinary":
        raise ArgumentError(f"--memory {arguments.memory} is on the CPU; leave it or --device out")
    need_torch("--device cuda")
    reason = registry.load("cuda").unavailable()
    if reason is not None:
        raise LaunchError(f"engine 'cuda' cannot run here: {reason}")


def _collectives(arguments: argparse.Namespace, default: str) -> list[str]:
    return split_names(arguments.collectives or default, COLLECTIVES, "collective")


def _sizes(text: str) -> list[int]:
    return [parse_size(one) for one in text.split(",")]


def measure(
    libraries: Sequence[LibraryRanks], collective: str, size: int, rounds: int, seconds: float
) -> dict[str, Any]:
    """Measure one row: the median seconds of a call for each library, and of a copy of memory.

    The first library is unisono; its ranks also copy memory.
    """
    entries = [(library, library.name, collective) for library in libraries]
    entries.append((libraries[0], _COPY, _COPY))
    calls: dict[str, int] = {}
    for entry in list(entries):
        library, name, verb = entry
        request = {"collective": verb, "bytes": size, "calls": 3, "check": True}
        try:
            library.ask(request)
        except Unsupported:
            if library is libraries[0]:
                raise
            entries.remove(entry)  # this row does without it
            continue
        # The first calls after a sleep are slow, so a short round says how long a call takes.
        once = library.slowest({**request, "check": False})
        trial = {**request, "calls": calls_per_round(seconds / 10, once), "check": False}
        calls[name] = calls_per_round(seconds, library.slowest(trial))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for library, name, verb in in_turn(entries, rounds):
        request = {"collective": verb, "bytes": size, "calls": calls[name], "check": False}
        times[name].append(library.slowest(request))
    medians = {name: statistics.median(values) for name, values in times.items()}
    peers = {own.name: medians[own.name] for own in libraries[1:] if own.name in medians}
    best = min(peers, key=peers.__getitem__, default=None)
    return {
        "collective": collective,
        "bytes": size,
        "seconds": medians,
        "quartiles": {name: _quartiles(values) for name, values in times.items()},
        "best_peer": best,
        "ratio": None if best is None else peers[best] / medians[libraries[0].name],
        "rounds": times,
    }


def _spread(cell: _Cell) -> float:
    return spread(cell["rounds"]["unisono"])


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    """Return the first and the third quartile.

    >>> _quartiles([4.0, 1.0, 2.0, 3.0, 5.0])
    (2.0, 4.0)
    """
    if len(values) == 1:
        return values[0], values[0]
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, third
