"""`unisono bench`: measure unisono next to other libraries, or its faces next to its core."""

from __future__ import annotations

import argparse
from typing import Any

from unisono.errors import ArgumentError
from unisono.tools.bench import collectives, ddp, faces
from unisono.tools.bench.arguments import PEERS

__all__ = ["configure", "main"]

#: What can be measured: the function that does it, and its help.
_TABLES = {
    "collectives": (collectives.main, "the latency of collectives, by size"),
    "faces": (faces.main, "what each way to call adds to an all_reduce of 8 bytes"),
    "ddp": (ddp.main, "steps of DistributedDataParallel, and the share of communication"),
}
#: The options that only some tables have, with their defaults; other tables refuse them.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "collectives": {
        "collectives": "all_reduce",
        "sizes": "8,64,1K,8K,64K,256K,1M,4M,16M,64M",
        "engine": "shm",
        "against": "",
        "plot": None,
    },
    "faces": {"engine": "shm"},
    "ddp": {"parameters": "0.1M,1M,10M", "against": "gloo"},
}
#: A step of a large model takes longer than a call.
_SECONDS = {"collectives": 0.1, "faces": 0.1, "ddp": 0.5}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `unisono bench`."""
    texts = "; ".join(f"{table}: {text}" for table, (_, text) in _TABLES.items())
    parser.add_argument(
        "table", nargs="?", choices=tuple(_TABLES), default="collectives", help=texts
    )
    parser.add_argument("-n", type=int, default=2, metavar="N", help="number of ranks (default 2)")
    parser.add_argument(
        "--rounds", type=int, default=7, metavar="R", help="rounds for each cell (default 7)"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        metavar="S",
        help="approximate length of a round (default 0.1, for ddp 0.5)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    for name, metavar, text in (
        ("collectives", "A,B", f"from {', '.join(collectives.COLLECTIVES)}"),
        ("sizes", "S,T", "bytes: 8, 64K, 1M, ..."),
        ("engine", "E", "engine (default shm)"),
        ("against", "P,Q", f"libraries to compare with: {', '.join(PEERS)}"),
        ("plot", "FILE", "also write a plot to FILE"),
        ("parameters", "P,Q", "sizes of models: 0.1M, 1M, ..."),
    ):
        tables = " and ".join(table for table, options in _DEFAULTS.items() if name in options)
        # No default here, so that `main` can tell which options were given.
        parser.add_argument(
            f"--{name}", default=argparse.SUPPRESS, metavar=metavar, help=f"{tables}: {text}"
        )


def main(arguments: argparse.Namespace) -> int:
    """Measure what was asked for."""
    table = arguments.table
    options = {name for defaults in _DEFAULTS.values() for name in defaults}
    for name in sorted(options & set(vars(arguments)) - set(_DEFAULTS[table])):
        tables = " or ".join(f"`bench {other}`" for other in _TABLES if name in _DEFAULTS[other])
        raise ArgumentError(f"`bench {table}` has no --{name}; leave it out, or use {tables}")
    for name, default in _DEFAULTS[table].items():
        if not hasattr(arguments, name):
            setattr(arguments, name, default)
    if arguments.seconds is None:
        arguments.seconds = _SECONDS[table]
    if arguments.n < 1:
        raise ArgumentError(f"the number of ranks is {arguments.n}; give 1 or more")
    if arguments.rounds < 1:
        raise ArgumentError(f"the number of rounds is {arguments.rounds}; give 1 or more")
    if not 0 < arguments.seconds < float("inf"):
        raise ArgumentError(f"--seconds is {arguments.seconds:g}; give a number above 0")
    return _TABLES[table][0](arguments)
