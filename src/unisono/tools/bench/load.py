"""Whether figures can be believed: what else this machine did meanwhile, and how much they vary."""

from __future__ import annotations

import os
import resource
import statistics
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from unisono.tools.formatting import plural

__all__ = ["LoadMeter", "describe", "spread"]

#: The share of the cores' time that other programs may use, or that a hypervisor may take.
_MOST_TAKEN = 0.1
#: The spread beyond which a row is noisy, and the share of noisy rows beyond which all are doubted.
_MOST_SPREAD = 0.25
_MOST_NOISY = 0.25
_STATISTICS = Path("/proc/stat")
#: What /proc/stat counts for each core, in this order; what is not idle is busy.
_IDLE = (3, 4)
_STOLEN = 7
_FIELDS = 8


class LoadMeter:
    """Measures what others do on our cores, from now until `finish`.

    Ours is what this process and the children that it has collected have used.
    """

    def __init__(self) -> None:
        self._load_average = os.getloadavg()[0]
        self._began = time.monotonic()
        self._own = _own_seconds()
        self._busy, self._stolen = _core_seconds()

    def finish(self, spreads: Sequence[float]) -> dict[str, Any]:
        """Return the findings; `spreads` are those of the rows that were measured."""
        cores = len(os.sched_getaffinity(0))
        whole = max(time.monotonic() - self._began, 1e-9) * cores
        busy, stolen = _core_seconds()
        taken = stolen - self._stolen
        others = max(0.0, busy - self._busy - taken - (_own_seconds() - self._own))
        noisy = sum(one > _MOST_SPREAD for one in spreads)
        return {
            "cores": cores,
            "load_average_before": self._load_average,
            "used_by_others": others / whole,
            "stolen": taken / whole,
            "rows": len(spreads),
            "noisy_rows": noisy,
            "largest_spread": max(spreads, default=0.0),
            "too_busy": (others + taken) / whole > _MOST_TAKEN
            or noisy > _MOST_NOISY * len(spreads),
        }


def spread(rounds: Sequence[float]) -> float:
    """Return half of the distance between the quartiles, as a share of the median.

    >>> spread([4.0, 1.0, 2.0, 3.0, 5.0])
    0.3333333333333333
    """
    if len(rounds) == 1:
        return 0.0
    first, median, third = statistics.quantiles(rounds, n=4, method="inclusive")
    return (third - first) / 2 / median


def describe(load: dict[str, Any]) -> str:
    """Write the findings as one line."""
    cores = plural(load["cores"], "core")
    taken = f"other programs used {load['used_by_others']:.0%} of {cores}"
    if load["stolen"] >= 0.005:
        taken += f", other machines of this host {load['stolen']:.0%}"
    if not load["too_busy"]:
        return f"{taken}; the largest spread is {load['largest_spread']:.0%}"
    return (
        f"do not believe these figures: {taken}, and {load['noisy_rows']} of "
        f"{plural(load['rows'], 'row')} spread by more than {_MOST_SPREAD:.0%}; measure again when "
        "the machine is idle, or with more --rounds and --seconds"
    )


def _own_seconds() -> float:
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    used = [resource.getrusage(kind) for kind in kinds]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _core_seconds() -> tuple[float, float]:
    """Return for how long the cores that we may use were busy since the start, and were stolen."""
    names = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    busy = stolen = 0
    for name, *counted in _counters():
        if name in names:
            ticks = [int(one) for one in counted[:_FIELDS]]
            busy += sum(ticks) - sum(ticks[field] for field in _IDLE)
            stolen += ticks[_STOLEN]
    tick = os.sysconf("SC_CLK_TCK")
    return busy / tick, stolen / tick


def _counters() -> Iterable[list[str]]:
    try:
        return [line.split() for line in _STATISTICS.read_text().splitlines()]
    except OSError:  # a sandbox that does not tell: then only the spread counts
        return []
