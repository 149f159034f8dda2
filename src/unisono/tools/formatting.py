"""Times, sizes, counts and ranks as short text, the same in every command."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = [
    "NANOSECOND",
    "bandwidth",
    "byte_size",
    "duration",
    "plain",
    "plural",
    "rank_list",
    "rate",
    "ratio",
]

#: In seconds, because traces count in nanoseconds and `duration` takes seconds.
NANOSECOND = 1e-9


def plain(text: str) -> str:
    r"""Replace everything in a text that could control a terminal.

    >>> plain("train\x1b[2J.py")
    'train?[2J.py'
    """
    return "".join(character if character.isprintable() else "?" for character in text)


def duration(seconds: float) -> str:
    """Write a time in the unit that suits it.

    >>> [duration(time) for time in (7.2e-7, 4.13e-5, 0.0009999, 0.00987, 3.21, 754, 8000)]
    ['720 ns', '41.3 µs', '1 ms', '9.87 ms', '3.21 s', '12:34 min', '2:13 h']
    """
    for limit, factor, unit in ((1e-6, 1e9, "ns"), (1e-3, 1e6, "µs"), (1, 1e3, "ms")):
        if seconds < limit * 0.9995:  # what would be rounded to 1000 gets the next unit
            return f"{seconds * factor:.3g} {unit}"
    if seconds < 100:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02} h"


def byte_size(size: int | None) -> str:
    """Write a number of bytes in the unit that suits it.

    >>> [byte_size(size) for size in (8, 1000, 65536, 3_450_000_000, None)]
    ['8 B', '1000 B', '64 KiB', '3.21 GiB', 'unknown']
    """
    if size is None:
        return "unknown"
    value = float(size)
    for unit in ("B", "KiB", "MiB"):
        if value < 1023.5:
            return f"{_digits(value)} {unit}"
        value /= 1024
    return f"{_digits(value)} GiB"


def bandwidth(speed: float) -> str:
    """Write bytes per second, and bits per second as network hardware is rated.

    >>> bandwidth(112.4e6), bandwidth(2.5e9)
    ('112 MB/s (0.899 Gbit/s)', '2.5 GB/s (20 Gbit/s)')
    """
    value = f"{speed / 1e9:.3g} GB/s" if speed >= 1e9 else f"{speed / 1e6:.3g} MB/s"
    return f"{value} ({speed * 8 / 1e9:.3g} Gbit/s)"


def ratio(value: float) -> str:
    """Write how many times one number is another.

    >>> ratio(1.25), ratio(189.04), ratio(2400)
    ('1.25x', '189x', '2400x')
    """
    return f"{_digits(value)}x"


def rate(value: float) -> str:
    """Write how often something happens in a second.

    >>> [rate(value) for value in (0, 0.1234, 12.3, 999.9, 43210, 1.1e6)]
    ['0', '0.12', '12', '1.0k', '43k', '1.1M']
    """
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if value >= limit * 0.9995:
            scaled = value / limit
            return f"{scaled:.1f}{unit}" if scaled < 9.95 else f"{scaled:.0f}{unit}"
    return f"{value:.2g}" if value < 99.5 else f"{value:.0f}"


def _digits(value: float) -> str:
    """Write three significant digits, and never an exponent."""
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def plural(count: int, noun: str) -> str:
    """Write a count with its noun.

    >>> plural(1, "host"), plural(3, "host")
    ('1 host', '3 hosts')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def rank_list(ranks: Iterable[int]) -> str:
    """Write ranks in order, three or more neighbours as a range.

    >>> rank_list([3, 0, 4, 5, 9, 10])
    '0, 3-5, 9, 10'
    """
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    texts = [
        f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(str(rank) for rank in run)
        for run in runs
    ]
    return ", ".join(texts)
