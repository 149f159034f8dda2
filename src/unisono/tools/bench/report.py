"""What `unisono bench collectives` prints: progress, a table for each collective, a summary."""

from __future__ import annotations

import itertools
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from unisono.tools.bench.load import describe
from unisono.tools.formatting import byte_size, duration, plural, ratio
from unisono.tools.table import table, terminal_columns

__all__ = [
    "Progress",
    "geometric_mean",
    "print_heading",
    "print_load",
    "print_summary",
    "print_table",
    "tables",
]

_Cell = dict[str, Any]
_BAR = 24
_GREEN, _RED = 32, 31
_FACES = {"torch": "unisono.torch.distributed", "comm_func": "comm_func"}


class Progress:
    """A bar on standard error, if that is a terminal; `done` counts rows."""

    def __init__(self, total: int) -> None:
        self.done = 0
        self._total = total
        self._began = 0.0  # when the first row did
        self._visible = sys.stderr.isatty()

    def show(self, what: str) -> None:
        """Draw the bar; `what` is measured now."""
        if not self._visible:
            return
        if not self.done:
            self._began = time.monotonic()
        filled = _BAR * self.done // self._total
        left = ""
        if self.done:
            seconds = (time.monotonic() - self._began) / self.done * (self._total - self.done)
            left = f", about {duration(seconds)} left"
        text = f"[{'#' * filled}{'.' * (_BAR - filled)}] {self.done}/{self._total}{left}: {what}"
        sys.stderr.write(f"\r\x1b[K{text[: terminal_columns() - 1]}")
        sys.stderr.flush()

    def clear(self) -> None:
        """Remove the bar, so that something else can be printed."""
        if self._visible:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()


def tables(cells: Sequence[_Cell]) -> Iterator[list[_Cell]]:
    """Yield the rows of each table: those of one number of ranks and one collective."""
    for _, group in itertools.groupby(cells, lambda cell: (cell["ranks"], cell["collective"])):
        yield list(group)


def print_heading(found: dict[str, Any]) -> None:
    """Print what is compared, where, and how to read it."""
    machine = found["machine"]
    print(f"{machine['cpu']}, {plural(machine['cores'], 'core')}; Python {machine['python']}")
    versions = [version for name, version in found["libraries"].items() if name != "unisono"]
    own = f"{found['libraries']['unisono']}: engine {found['engine']}, {_FACES[found['face']]}"
    if found.get("memory") == "shared":
        own += ", arrays in shared memory"
    print("; ".join([own, *versions]))
    print("time of a call: median, and half of the distance between the quartiles")
    print("size: the larger buffer that one rank holds; memcpy: all ranks copy as many bytes")
    if versions:
        print("best/unisono: the best peer's time divided by ours; above 1 unisono is faster")


def print_table(cells: Sequence[_Cell]) -> None:
    """Print the table of one collective and one number of ranks."""
    # A peer that fails is missing from the rows that follow.
    names = list(dict.fromkeys(name for cell in cells for name in cell["seconds"]))
    names.remove("memcpy")
    compared = len(names) > 1
    # In two lines, so that a comparison with four peers fits into 120 columns.
    header = ["size", *names, "memcpy", "unisono\n/memcpy"] + ["best\n/unisono"] * compared
    rows = [header]
    for cell in cells:
        memory = cell["seconds"]["unisono"] / cell["seconds"]["memcpy"]
        row = [byte_size(cell["bytes"]), *(_time(cell, name) for name in [*names, "memcpy"])]
        rows.append([*row, ratio(memory), *([_ratio(cell)] if compared else [])])
    print(f"\n{cells[0]['collective']}, {plural(cells[0]['ranks'], 'rank')}, float32")
    for line in table(rows, terminal_columns(), align=">" * len(header)):
        print(_coloured(line, [_ratio(cell) for cell in cells]) if compared else line)
    sys.stdout.flush()


def print_load(found: dict[str, Any]) -> None:
    """Print whether the machine was idle enough, if that was measured."""
    if "load" in found:
        print(f"\n{describe(found['load'])}")


def print_summary(found: dict[str, Any]) -> None:
    """Print the geometric mean of the ratios to the best peer, in all and for each table."""
    compared = [cell for cell in found["cells"] if cell["ratio"] is not None]
    if not compared:
        return
    ranks = list(dict.fromkeys(cell["ranks"] for cell in compared))
    rows = [["best/unisono", *(plural(n, "rank") for n in ranks)]]
    for collective in dict.fromkeys(cell["collective"] for cell in compared):
        own = [cell for cell in compared if cell["collective"] == collective]
        means = [geometric_mean([cell for cell in own if cell["ranks"] == n]) for n in ranks]
        rows.append([collective, *("-" if mean is None else f"{mean:.2f}" for mean in means)])
    print()
    print("\n".join(table(rows, terminal_columns(), align="<" + ">" * len(ranks))))
    worst = min(compared, key=lambda cell: float(cell["ratio"]))
    slower = sum(cell["ratio"] < 1 for cell in compared)
    print(
        f"\ngeometric mean of {plural(len(compared), 'row')}: {geometric_mean(compared):.2f}; "
        f"{slower} below 1; lowest {worst['ratio']:.2f} ({worst['collective']}, "
        f"{byte_size(worst['bytes'])}, {plural(worst['ranks'], 'rank')}, {worst['best_peer']})"
    )


def geometric_mean(cells: Sequence[_Cell]) -> float | None:
    """Return the geometric mean of the rows' ratios to the best peer, if there was a peer.

    >>> geometric_mean([{"ratio": 0.5}, {"ratio": 2.0}, {"ratio": None}])
    1.0
    """
    ratios = [cell["ratio"] for cell in cells if cell["ratio"] is not None]
    return statistics.geometric_mean(ratios) if ratios else None


def _time(cell: _Cell, name: str) -> str:
    if name not in cell["seconds"]:
        return "-"
    median, (first, third) = cell["seconds"][name], cell["quartiles"][name]
    return f"{duration(median)} ±{(third - first) / 2 / median:.0%}"


def _ratio(cell: _Cell) -> str:
    return "-" if cell["ratio"] is None else f"{cell['ratio']:.2f}"


def _coloured(line: str, ratios: Sequence[str]) -> str:
    """Colour the ratio at the end of a line: green if unisono is faster, red if not."""
    text = line.rpartition(" ")[2]
    if text not in ratios or text == "-" or not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return line
    colour = _GREEN if float(text) >= 1 else _RED
    return f"{line.removesuffix(text)}\x1b[{colour}m{text}\x1b[0m"
