"""Measure `hybrid` next to plain Gloo on two hosts of two ranks, with a shaped link between them.

    python -m tests.long.bench_several_hosts            all_reduce of 64 MiB, 1 Gbit/s, 1 ms
    python -m tests.long.bench_several_hosts --help     other sizes and links

Both run in the same processes, in turns. Bytes are those that left the first host's network card.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

import numpy as np

ROUNDS = 3
PATTERNS = ("hybrid", "gloo")


def main() -> int:
    """Start the ranks and print a table."""
    from tests.helpers.hosts import Hosts, why_not

    parser = argparse.ArgumentParser(description="hybrid next to plain Gloo, over a shaped link")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=2, help="on each host")
    parser.add_argument("--sizes", default="64", help="MiB, such as 1,16,64")
    parser.add_argument(
        "--cyclic", action="store_true", help="deal ranks out to hosts one by one, not in blocks"
    )
    parser.add_argument("--rate", default="1gbit", help="of the link, as tc writes it")
    parser.add_argument("--delay", type=float, default=0.001, help="seconds from host to host")
    arguments = parser.parse_args()
    reason = why_not(rate=True, delay=True)
    if reason is not None:
        print(f"cannot make hosts here: {reason}", file=sys.stderr)
        return 2
    hosts_of_ranks = [host for host in range(arguments.hosts) for _ in range(arguments.ranks)]
    if arguments.cyclic:
        hosts_of_ranks = list(range(arguments.hosts)) * arguments.ranks
    with Hosts(arguments.hosts, rate=arguments.rate, delay=arguments.delay / 2) as hosts:
        command = [sys.executable, "-m", "tests.long.bench_several_hosts", "rank", arguments.sizes]
        programs = hosts.ranks(hosts_of_ranks, command, {"OMP_NUM_THREADS": "1"})
        codes = [program.wait(600) for program in programs]
        if any(codes):
            print(*(program.err for program in programs), file=sys.stderr)
            return 1
        rows = [json.loads(line) for line in programs[0].out.splitlines()]
    placed = "one by one" if arguments.cyclic else "in blocks"
    where = f"{arguments.hosts} hosts x {arguments.ranks} ranks, placed {placed}"
    print(f"all_reduce, {where}, {arguments.rate}, {arguments.delay:g} s")
    print(f"{'size':>8} {'engine':>8} {'time':>10} {'bytes out of a host':>20}")
    for row in rows:
        for name in PATTERNS:
            size, cell = f"{row['mebibytes']} MiB", row[name]
            print(f"{size:>8} {name:>8} {cell['seconds']:>8.3f} s {cell['bytes']:>20,}")
        faster = row["gloo"]["seconds"] / row["hybrid"]["seconds"]
        fewer = row["gloo"]["bytes"] / row["hybrid"]["bytes"]
        print(f"{'':>8} gloo / hybrid: {faster:.2f} times the time, {fewer:.2f} times the bytes")
    return 0


def sent() -> int:
    """Bytes that have left this host so far, on all its cards but the loopback."""
    cards = [card for card in Path("/sys/class/net").iterdir() if card.name != "lo"]
    return sum(int((card / "statistics/tx_bytes").read_text()) for card in cards)


def rank(sizes: str) -> None:
    """One rank: both ways in turns, and a line for each size from rank 0."""
    import torch
    import torch.distributed as dist

    from unisono.core import buffers, dispatch, groups
    from unisono.core.engine import ReduceOp

    world = groups.init("hybrid", 300)
    dist.init_process_group("gloo")

    def hybrid(data: np.ndarray) -> None:
        view = buffers.view(data)
        dispatch.all_reduce(world, view, view, ReduceOp.SUM)

    def gloo(data: np.ndarray) -> None:
        dist.all_reduce(torch.from_numpy(data))

    for size in map(int, sizes.split(",")):
        found: dict[str, list[tuple[float, int]]] = {"hybrid": [], "gloo": []}
        for turn in range(ROUNDS):
            for call in (hybrid, gloo) if turn % 2 else (gloo, hybrid):
                data = np.ones(size << 18, np.float32)
                dist.barrier()
                before, began = sent(), time.perf_counter()
                call(data)
                dispatch.barrier(world)
                found[call.__name__].append((time.perf_counter() - began, sent() - before))
                assert (data == world.size).all()
        row = {
            name: {
                "seconds": statistics.median(seconds for seconds, _ in cells),
                "bytes": statistics.median(count for _, count in cells),
            }
            for name, cells in found.items()
        }
        if world.rank == 0:
            print(json.dumps({"mebibytes": size, **row}), flush=True)
    dist.barrier()
    groups.close()
    os._exit(0)  # Gloo's threads may abort while Python ends


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank(sys.argv[2])
    else:
        sys.exit(main())
