"""`unisono bench --tune`: from which size on one copy is faster than two, on this machine.

The same ranks of unisono run twice: once they read each other's memory whatever the size, and once
they stage everything through the segment. Both are measured in turn, as in `bench collectives`. The
answer goes to a file in the cache folder, which the engine `shm` reads when a job starts.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from unisono.engines.shm import tuning
from unisono.engines.shm.tuning import CopyRange
from unisono.errors import ArgumentError
from unisono.launch.cores import allowed_cores
from unisono.tools.bench.arguments import STDOUT, parse_size, split_names, write_json
from unisono.tools.bench.collectives import measure
from unisono.tools.bench.peers import unisono_library
from unisono.tools.bench.report import Progress
from unisono.tools.bench.runner import start_libraries
from unisono.tools.formatting import byte_size, plural
from unisono.tools.table import table, terminal_columns

__all__ = ["COLLECTIVES", "best_range", "main"]

#: Collectives that have both ways, and whether a share is one n-th of the larger buffer.
COLLECTIVES = {
    "broadcast": False,
    "all_gather": True,
    "all_to_all": True,
    "reduce_scatter": True,
    "all_reduce": False,
    "reduce": False,
}
_RANKS = (2, 4, 8, 16)
_SHARES = "8K,16K,32K,64K,128K,256K,512K,1M,2M,4M,8M,16M"
_LARGEST_BUFFER = 64 << 20
#: The gain that counts, as a logarithm: 10 per cent at two sizes. What is less may be noise.
_LEAST_GAIN = 2 * math.log(1.1)

_FEWEST_ROUNDS = 5

_STAGED = {"UNISONO_SINGLE_COPY": "0"}
_DIRECT = {"UNISONO_SINGLE_COPY": "1"}  # bytes from which on memory is read directly


def main(arguments: argparse.Namespace) -> int:
    """Measure, print what was found, and store it."""
    collectives = split_names(
        arguments.collectives or ",".join(COLLECTIVES), tuple(COLLECTIVES), "collective to tune"
    )
    if arguments.rounds < _FEWEST_ROUNDS:
        raise ArgumentError(
            f"--rounds is {arguments.rounds}; --tune needs {_FEWEST_ROUNDS} or more, because what "
            "fewer say may be chance"
        )
    shares = [parse_size(text) for text in (arguments.sizes or _SHARES).split(",")]
    threads = sum(map(len, allowed_cores()))
    counts = arguments.n or [n for n in _RANKS if n <= threads] or [2]
    cells: list[dict[str, Any]] = []
    found: dict[tuple[str, int], CopyRange] = {}
    with Progress(len(counts) * len(collectives) * len(shares)) as progress:
        for ranks in counts:
            library = unisono_library("shm", "torch", "ordinary", ranks)
            both = [
                replace(library, name="staged", variables={**library.variables, **_STAGED}),
                replace(library, name="direct", variables={**library.variables, **_DIRECT}),
            ]
            with start_libraries(both, ranks) as running:
                for collective in collectives:
                    own = []
                    for share in shares:
                        progress.show(f"{collective}, {byte_size(share)}, {plural(ranks, 'rank')}")
                        size = share * ranks if COLLECTIVES[collective] else share
                        if size <= _LARGEST_BUFFER:
                            cell = measure(
                                running, collective, size, arguments.rounds, arguments.seconds
                            )
                            own.append({"ranks": ranks, "share": share, **cell})
                        progress.done += 1
                    cells += own
                    best = best_range(own)
                    if best is not None:
                        found[collective, ranks] = best
    measured = {(cell["collective"], cell["ranks"]) for cell in cells}
    others = {key: value for key, value in tuning.read().items() if key not in measured}
    path = tuning.write({**others, **found})
    if arguments.json is not None:
        ranges = [
            {"collective": collective, "ranks": ranks, "from": first, "below": below}
            for (collective, ranks), (first, below) in found.items()
        ]
        written = {"machine": tuning.machine(), "file": str(path), "ranges": ranges, "cells": cells}
        write_json(written, arguments.json)
    if arguments.json != STDOUT:
        _print(found, collectives, counts)
        print(f"\nstored in {path}")
    return 0


def best_range(cells: Sequence[dict[str, Any]]) -> CopyRange | None:
    """Find the shares for which the direct way gains most, or None if nothing can be said.

    A size counts only if every round of one way is faster than those of the other, but for the
    slowest of each. The range is the one with the largest sum of gains, so that one outlier does
    not end it.
    """
    gains = [_gain(cell) for cell in sorted(cells, key=lambda cell: int(cell["share"]))]
    shares = sorted(cell["share"] for cell in cells)
    best, first, below = _LEAST_GAIN, None, None
    for begin in range(len(gains)):
        for end in range(begin + 1, len(gains) + 1):
            total = sum(gains[begin:end])
            # Of equal ranges the longest to the right, and the shortest to the left.
            if gains[begin] > 0 and (total > best or (total == best and begin == first)):
                best, first, below = total, begin, end
    if first is None or below is None:
        return CopyRange(None) if sum(gains) <= -_LEAST_GAIN else None
    return CopyRange(shares[first], shares[below] if below < len(shares) else None)


def _gain(cell: dict[str, Any]) -> float:
    """Return the logarithm of how many times the direct way is faster; 0 if that is not clear."""
    staged = sorted(cell["rounds"]["staged"])[:-1]
    direct = sorted(cell["rounds"]["direct"])[:-1]
    if direct[-1] < staged[0] or staged[-1] < direct[0]:
        return math.log(cell["seconds"]["staged"] / cell["seconds"]["direct"])
    return 0.0


def _print(
    found: dict[tuple[str, int], CopyRange], collectives: Sequence[str], counts: Sequence[int]
) -> None:
    print("shares for which ranks read each other's memory; otherwise they stage")
    rows = [["", *(plural(ranks, "rank") for ranks in counts)]]
    rows += [
        [collective, *(_text(found.get((collective, ranks))) for ranks in counts)]
        for collective in collectives
    ]
    print("\n".join(table(rows, terminal_columns())))


def _text(found: CopyRange | None) -> str:
    if found is None:
        return "no clear difference"
    if found.first is None:
        return "never"
    below = "" if found.below is None else f", below {byte_size(found.below)}"
    return f"from {byte_size(found.first)}{below}"
