"""`unisono demo`: run five collectives on four ranks in both dialects, and check each value."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from unisono.launch.spawn import spawn
from unisono.tools.table import table, terminal_columns, wrap

__all__ = ["configure", "main", "rank_results"]

_RANKS = 4


@dataclass(frozen=True)
class _Example:
    """One collective: how each dialect writes it, and what every rank must hold afterwards."""

    name: str
    torch: str
    mindspore: str
    expected: Callable[[int, str], list[float]]


def _input(rank: int) -> np.ndarray[Any, Any]:
    return np.arange(_RANKS, dtype=np.float32) + 10 * rank


_TOTAL = [sum(float(_input(rank)[i]) for rank in range(_RANKS)) for i in range(_RANKS)]


def _not_root(rank: int, dialect: str) -> list[float]:
    """What a rank other than the root holds after reduce: its own tensor, or new zeros."""
    return [float(x) for x in _input(rank)] if dialect == "torch" else [0.0] * _RANKS


_EXAMPLES = (
    _Example(
        "all_reduce",
        "dist.all_reduce(x)",
        "x, _ = comm_func.all_reduce(x)",
        lambda rank, dialect: _TOTAL,
    ),
    _Example(
        "reduce",
        "dist.reduce(x, dst=0)",
        "y = comm_func.reduce(x, 0)",
        lambda rank, dialect: _TOTAL if rank == 0 else _not_root(rank, dialect),
    ),
    _Example(
        "reduce_scatter",
        "dist.reduce_scatter(y, list(x))",
        "y, _ = comm_func.reduce_scatter_tensor(x)",
        lambda rank, dialect: [_TOTAL[rank]],
    ),
    _Example(
        "all_gather",
        "dist.all_gather(parts, x[:1])",
        "y, _ = comm_func.all_gather_into_tensor(x[:1])",
        lambda rank, dialect: [float(_input(other)[0]) for other in range(_RANKS)],
    ),
    _Example(
        "all_to_all",
        "dist.all_to_all(parts, list(x))",
        "y, _ = comm_func.all_to_all_with_output_shape(shapes, list(x))",
        lambda rank, dialect: [float(_input(other)[rank]) for other in range(_RANKS)],
    ),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `unisono demo`."""
    parser.add_argument(
        "--engine", default="shm", metavar="E", help="shm (processes, the default) or threads"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def main(arguments: argparse.Namespace) -> int:
    """Run the examples on four ranks, show them, and return 1 if any value is wrong."""
    results: list[dict[str, dict[str, list[float]]]] = spawn(
        rank_results, _RANKS, engine=arguments.engine, timeout=60
    )
    wrong = [
        f"{example.name} in {dialect} on rank {rank}: {results[rank][example.name][dialect]} "
        f"instead of {example.expected(rank, dialect)}"
        for example in _EXAMPLES
        for rank in range(_RANKS)
        for dialect in ("torch", "mindspore")
        if results[rank][example.name][dialect] != example.expected(rank, dialect)
    ]
    if arguments.json:
        print(json.dumps({"engine": arguments.engine, "ranks": results, "wrong": wrong}))
    else:
        _show(arguments.engine, results, wrong)
    return 1 if wrong else 0


def rank_results() -> dict[str, dict[str, list[float]]]:
    """Run every example on this rank in both dialects; results by example and dialect."""
    import unisono.torch.distributed as dist
    from unisono.mindspore.communication import comm_func

    rank = dist.get_rank()
    pieces = [_input(rank)[i : i + 1] for i in range(_RANKS)]
    shapes = [(1,)] * _RANKS

    def empty_parts() -> list[np.ndarray[Any, Any]]:
        return [np.empty(1, np.float32) for _ in range(_RANKS)]

    x = _input(rank)
    dist.all_reduce(x)
    y, _ = comm_func.all_reduce(_input(rank))
    results = {"all_reduce": _both(x, y)}

    x = _input(rank)
    dist.reduce(x, dst=0)
    y = comm_func.reduce(_input(rank), 0)
    results["reduce"] = _both(x, y)

    x = np.empty(1, np.float32)
    dist.reduce_scatter(x, pieces)
    y, _ = comm_func.reduce_scatter_tensor(_input(rank))
    results["reduce_scatter"] = _both(x, y)

    parts = empty_parts()
    dist.all_gather(parts, pieces[0])
    y, _ = comm_func.all_gather_into_tensor(pieces[0])
    results["all_gather"] = _both(np.concatenate(parts), y)

    parts = empty_parts()
    dist.all_to_all(parts, pieces)
    received, _ = comm_func.all_to_all_with_output_shape(shapes, pieces)
    results["all_to_all"] = _both(np.concatenate(parts), np.concatenate(received))
    return results


def _both(torch: Any, mindspore: Any) -> dict[str, list[float]]:
    return {"torch": torch.tolist(), "mindspore": mindspore.tolist()}


def _show(engine: str, results: list[dict[str, dict[str, list[float]]]], wrong: list[str]) -> None:
    columns = terminal_columns()
    title = f"{_RANKS} ranks on engine {engine!r}; rank r holds x = [10r, 10r+1, 10r+2, 10r+3]"
    print("\n".join([*wrap(title, columns), ""]))
    for example in _EXAMPLES:
        rows = [("", "PyTorch", "MindSpore"), ("call", example.torch, example.mindspore)]
        for rank in range(_RANKS):
            torch, mindspore = results[rank][example.name].values()
            rows.append((f"rank {rank}", _numbers(torch), _numbers(mindspore)))
        print("\n".join([example.name, *table(rows, columns, indent="  "), ""]))
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
    else:
        count = 2 * _RANKS * len(_EXAMPLES)
        print(f"{count} results checked: both dialects agree, and every value is right")


def _numbers(values: list[float]) -> str:
    return " ".join(f"{value:g}" for value in values)
