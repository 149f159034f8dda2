"""`unisono bench`: measure unisono next to other libraries, or its faces next to its core."""

from __future__ import annotations

import argparse
from typing import Any

from unisono.errors import ArgumentError
from unisono.tools.bench import collectives, ddp, faces, tune
from unisono.tools.bench.arguments import STDOUT
from unisono.tools.bench.peers import PACKAGES

__all__ = ["configure", "main"]

#: What can be measured: the function that does it, and its help.
_TABLES = {
    "collectives": (collectives.main, "the latency of collectives, by size"),
    "faces": (faces.main, "what an all_reduce of 8 bytes takes, by each way to call"),
    "ddp": (ddp.main, "steps of DistributedDataParallel, and the share of communication"),
}
#: The options that only some tables have, with their defaults; other tables refuse them.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "collectives": {
        "collectives": None,
        "sizes": None,
        "engine": "shm",
        "against": "",
        "face": "torch",
        "memory": "ordinary",
        "device": "cpu",
        "peer_env": [],
        "plot": None,
        "from": None,
    },
    "faces": {"engine": "shm"},
    "ddp": {"parameters": "0.1M,1M,10M", "against": "gloo"},
    "--tune": {"collectives": None, "sizes": None},
}
#: Their values and help.
_OPTIONS: dict[str, tuple[str, str]] = {
    "collectives": (
        "A,B",
        f"from {', '.join(collectives.COLLECTIVES)} (default: all with --against, else all_reduce)",
    ),
    "sizes": ("S,T", "bytes: 8, 64K, 1M, ... (default: from 8 to 64M)"),
    "engine": ("E", "engine (default shm)"),
    "against": (
        "P,Q",
        f"libraries to compare with: {', '.join(PACKAGES)}; collectives makes an environment for "
        "each in the cache folder, by pip, if there is none; ddp only has gloo",
    ),
    "face": ("F", f"how unisono is called: {' or '.join(collectives.FACES)} (default torch)"),
    "memory": (
        "M",
        f"where unisono's arrays are: {' or '.join(collectives.MEMORY)}; shared is that of "
        "unisono.empty (default ordinary)",
    ),
    "device": (
        "D",
        f"whose memory the tensors are in: {' or '.join(collectives.DEVICES)}; with cuda all ranks "
        "share the first GPU (default cpu)",
    ),
    "peer_env": (
        "NAME=PYTHON",
        "the Python of an environment that has the peer, with mpiexec beside it; may be repeated",
    ),
    "plot": ("FILE", "also draw time against size, as .svg, .png or .pdf"),
    "from": ("FILE", "do not measure; print (and plot) what --json FILE has written"),
    "parameters": ("P,Q", "sizes of models: 0.1M, 1M, ..."),
}
#: A step of a large model takes longer than a call.
_SECONDS = {"collectives": 0.1, "faces": 0.1, "ddp": 0.5, "--tune": 0.05}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `unisono bench`."""
    texts = "; ".join(f"{table}: {text}" for table, (_, text) in _TABLES.items())
    parser.add_argument(
        "table", nargs="?", choices=tuple(_TABLES), default="collectives", help=texts
    )
    parser.add_argument(
        "-n",
        "--ranks",
        dest="n",
        metavar="N",
        help="number of ranks (default 2); collectives takes several, as 2,8; its default with "
        "--against is 2,8,16, as far as there are cores",
    )
    parser.add_argument(
        "--rounds", type=int, default=7, metavar="R", help="rounds for each cell (default 7)"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        metavar="S",
        help="approximate length of a round (default 0.1, for ddp 0.5, with --tune 0.05)",
    )
    parser.add_argument(
        "--json",
        nargs="?",
        const=STDOUT,
        metavar="FILE",
        help="write one JSON object to FILE; without FILE, print it and nothing else",
    )
    parser.add_argument(
        "--tune",
        action="store_true",
        help="find out for which sizes ranks of this machine should read each other's memory, and "
        "store it for the engine shm",
    )
    for name, (metavar, text) in _OPTIONS.items():
        tables = " and ".join(table for table, options in _DEFAULTS.items() if name in options)
        # No default here, so that `main` can tell which options were given.
        parser.add_argument(
            _flag(name),
            default=argparse.SUPPRESS,
            action="append" if name == "peer_env" else "store",
            metavar=metavar,
            help=f"{tables}: {text}",
        )


def main(arguments: argparse.Namespace) -> int:
    """Measure what was asked for."""
    table = arguments.table
    if arguments.tune:
        if table != "collectives":
            raise ArgumentError(f"--tune has no table; leave {table!r} out")
        table = "--tune"
    for name in sorted(set(_OPTIONS) & set(vars(arguments)) - set(_DEFAULTS[table])):
        tables = " or ".join(f"`bench {other}`" for other in _TABLES if name in _DEFAULTS[other])
        raise ArgumentError(f"`bench {table}` has no {_flag(name)}; leave it out, or use {tables}")
    for name, default in _DEFAULTS[table].items():
        if not hasattr(arguments, name):
            setattr(arguments, name, default)
    if arguments.json in _TABLES:
        raise ArgumentError(f"--json {arguments.json}: write `bench {arguments.json} --json`")
    if arguments.seconds is None:
        arguments.seconds = _SECONDS[table]
    arguments.n = None if arguments.n is None else [_number(n) for n in arguments.n.split(",")]
    if arguments.rounds < 1:
        raise ArgumentError(f"the number of rounds is {arguments.rounds}; give 1 or more")
    if not 0 < arguments.seconds < float("inf"):
        raise ArgumentError(f"--seconds is {arguments.seconds:g}; give a number above 0")
    return tune.main(arguments) if arguments.tune else _TABLES[table][0](arguments)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _number(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise ArgumentError(f"the number of ranks is {text}; give 1 or more")
    return int(text)
