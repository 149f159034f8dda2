"""One rank of a job on several hosts: `several_hosts_rank.py ENGINE PART... [-- ENGINE PART...]`.

It runs the parts one after the other and prints one line of JSON for each engine: its rank, its
host, and what each part gives. A rank that fails says so in "error" and ends with 1. Parts of the
core share a world; the faces join and leave one of their own, and so does torch, for DDP.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.helpers import cases, oracle
from tests.helpers.cases import Case
from unisono.core import buffers, dispatch, groups, objects
from unisono.core.dtypes import ReduceOp
from unisono.core.groups import Group

TIMEOUT = float(os.environ.get("UNISONO_TIMEOUT", "40"))
VERBS = cases.MOVES + cases.REDUCTIONS
COUNTS = (0, 1, 1009)
LARGE = 70_001
PAYLOAD = 4 << 20  # bytes of a call whose traffic is counted


def check(running: cases.Running) -> None:
    """Wait for a call and compare its result."""
    running.work.wait()
    running.check()


# ---- the core ------------------------------------------------------------------------------------


def by_host(world: Group) -> list[list[int]]:
    """The ranks of each host, in the order of their first ones."""
    found: dict[str, list[int]] = {}
    for rank, name in enumerate(objects.all_gather(world, socket.gethostname())):
        found.setdefault(name, []).append(rank)
    return list(found.values())


def combinations(size: int) -> list[Case]:
    """Every verb, with several dtypes, operators, counts, roots and uneven shares."""
    kinds = [("float32", ReduceOp.SUM), ("bfloat16", ReduceOp.AVG), ("int64", ReduceOp.SUM)]
    kinds += [("bool", ReduceOp.BXOR), ("float64", ReduceOp.MAX), ("complex64", ReduceOp.PRODUCT)]
    kinds += [("int32", ReduceOp.AVG), ("float16", ReduceOp.premul_sum(0.5))]
    found = [
        Case(verb, dtype, count, op, (index + count) % size, None, index % 2 == 0, index)
        for verb in VERBS
        for index, (dtype, op) in enumerate(kinds)
        for count in COUNTS
    ]
    found += [Case(verb, "int32", 257, root=root) for verb in cases.ROOTED for root in range(size)]
    found += [Case(verb, "float32", LARGE, in_place=place) for verb in VERBS for place in (0, 1)]
    for salt in range(3):
        uneven = tuple((7 * rank + 1009 * salt) * (rank != salt) for rank in range(size))
        found += [Case(verb, "float32", 0, counts=uneven, salt=salt) for verb in cases.COUNTED]
    return [*found, Case("barrier", "", 0)]


def run_verbs(world: Group) -> int:
    """Each call by itself."""
    every = combinations(world.size)
    for case in every:
        check(cases.start(world, case, blocking=True))
    return len(every)


def run_overlapping(world: Group) -> int:
    """Many calls under way together, waited for from the last to the first."""
    every = [
        Case(verb, "float32", count, root=salt % world.size, salt=salt)
        for salt, verb in enumerate(VERBS)
        for count in (300, LARGE)
    ]
    running = [cases.start(world, case, blocking=False) for case in every]
    for each in reversed(running):
        check(each)
    return len(every)


def run_groups(world: Group) -> int:
    """Groups within a host, across hosts, in another order, and of one rank."""
    ranks_of_hosts = by_host(world)
    whole = [rank for ranks in ranks_of_hosts for rank in ranks]
    memberships = [
        *ranks_of_hosts,
        [ranks[0] for ranks in ranks_of_hosts],
        [ranks[-1] for ranks in ranks_of_hosts],
    ]
    memberships += [whole[::-1], whole[1:], [whole[0], whole[-1]], [whole[1]]]
    children = [world.split(members) for members in memberships]
    made = 0
    for child in [*(each for each in children if each.rank >= 0), world]:
        for salt, verb in enumerate(VERBS):
            case = Case(verb, "int64" if salt % 2 else "float32", 531, root=salt % child.size)
            check(cases.start(child, case, blocking=salt % 3 > 0))
            made += 1
    # A group of a group counts its ranks within that.
    if world.rank in whole[1:]:
        inner = children[len(ranks_of_hosts) + 3].split(range(len(whole) - 1)[::-1])
        case = Case("all_reduce", "int64", 17)
        check(cases.start(inner, case, blocking=True))
        made += 1
    for child in children:
        child.close()
    return made


def exchange_messages(world: Group) -> int:
    """A message from each rank to each other one, of several sizes, in turns."""
    received = 0
    for count in (1, 1009, LARGE):
        for distance in range(1, world.size):
            target, source = (world.rank + distance) % world.size, (world.rank - distance)
            source %= world.size
            given = oracle.values("float32", world.rank * 16 + target, count)
            found = np.zeros(count, np.float32)
            sent = dispatch.send(world, buffers.view(given), target, distance, blocking=False)
            dispatch.recv(world, buffers.view(found), source, distance)
            sent.wait()
            wanted = oracle.values("float32", source * 16 + world.rank, count)
            oracle.check_same(found, wanted, f"{count} from {source}")
            received += 1
    return received


# ---- traffic -------------------------------------------------------------------------------------


def crossed() -> tuple[int, int]:
    """Bytes that this host has sent and received through its link."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "eth0":
            counted = [int(word) for word in numbers.split()]
            return counted[8], counted[0]
    raise AssertionError("this host has no link")


def count_traffic(world: Group) -> list[dict[str, Any]]:
    """What each verb costs a host, with 1, 2, ... ranks of each host taking part."""
    ranks_of_hosts = by_host(world)
    found = []
    number = 1
    while number <= len(ranks_of_hosts[0]):
        group = world.split([rank for ranks in ranks_of_hosts for rank in ranks[:number]])
        for verb in ("all_reduce", "all_gather", "reduce_scatter", "broadcast"):
            sent, received = _traffic_of(world, group, verb)
            found.append({"verb": verb, "ranks": number, "sent": sent, "received": received})
        group.close()
        number *= 2
    return found


def _traffic_of(world: Group, group: Group, verb: str) -> tuple[int, int]:
    """A call whose whole vector, all shares together, is PAYLOAD bytes."""
    dispatch.barrier(world)
    time.sleep(0.05)  # let what is on its way arrive
    before = crossed()
    dispatch.barrier(world)
    if group.rank >= 0:
        count = PAYLOAD // 4
        share = count if verb in ("all_reduce", "broadcast") else count // group.size
        case = Case(verb, "int32", share)
        cases.run(group, case)
    dispatch.barrier(world)
    time.sleep(0.05)
    after = crossed()
    return after[0] - before[0], after[1] - before[1]


# ---- a host that disappears ----------------------------------------------------------------------


def loop(world: Group) -> dict[str, Any]:
    """Reduce without end, and tell how that ended and after how long."""
    array = np.ones(1009, np.float32)
    memory = buffers.view(array)
    print("looping", flush=True)
    while True:
        began = time.monotonic()
        try:
            dispatch.all_reduce(world, memory, memory, ReduceOp.MAX)
        except Exception as error:
            kind = [each.__name__ for each in type(error).__mro__]
            return {"kind": kind, "text": str(error), "seconds": time.monotonic() - began}


# ---- the faces -----------------------------------------------------------------------------------


def call_torch(engine: str) -> dict[str, Any]:
    """What the PyTorch face gives; see `expected` in the test."""
    import unisono.torch.distributed as dist

    dist.init_process_group(engine)
    rank, size = dist.get_rank(), dist.get_world_size()
    given = np.arange(2 * size) + 100 * rank
    total = given.copy()
    dist.all_reduce(total)
    joined = np.zeros(2 * size * size, given.dtype)
    dist.all_gather_into_tensor(joined, given)
    part = np.zeros(2, given.dtype)
    dist.reduce_scatter_tensor(part, given)
    spread = given.copy()
    dist.broadcast(spread, src=size - 1)
    exchanged = np.zeros_like(given)
    dist.all_to_all_single(exchanged, given)
    names = [""] * size
    dist.all_gather_object(names, socket.gethostname())
    here = [other for other in range(size) if names[other] == names[rank]]
    teams = [[other for other in range(size) if names[other] == name] for name in set(names)]
    handles = {tuple(team): dist.new_group(team) for team in sorted(teams)}
    near = given.copy()
    dist.all_reduce(near, group=handles[tuple(here)])
    dist.barrier()
    dist.destroy_process_group()
    return _as_lists(total, joined, part, spread, exchanged, near)


def call_mindspore(engine: str) -> dict[str, Any]:
    """What the MindSpore face gives, the same."""
    from unisono.mindspore import communication as comm
    from unisono.mindspore.communication import comm_func

    os.environ["UNISONO_ENGINE"] = engine
    comm.init()
    rank, size = comm.get_rank(), comm.get_group_size()
    given = np.arange(2 * size) + 100 * rank
    total, _ = comm_func.all_reduce(given)
    joined, _ = comm_func.all_gather_into_tensor(given)
    part, _ = comm_func.reduce_scatter_tensor(given)
    spread = comm_func.broadcast(given, src=size - 1)
    exchanged, _ = comm_func.all_to_all_single_with_output_shape(given.shape, given)
    names, _ = comm_func.all_gather_into_tensor(np.array([hash_of(socket.gethostname())]))
    teams = [[other for other in range(size) if names[other] == name] for name in set(names)]
    for team in sorted(teams):
        if rank in team:
            comm.create_group("near", team)
    near, _ = comm_func.all_reduce(given, group="near")
    comm_func.barrier()
    comm.release()
    return _as_lists(total, joined, part, spread, exchanged, near)


def hash_of(name: str) -> int:
    """A number for a host's name, the same in all processes."""
    return int.from_bytes(name.encode()[-7:], "big")


def _as_lists(*results: np.ndarray) -> dict[str, Any]:
    keys = ("total", "joined", "part", "spread", "exchanged", "near")
    return {key: result.tolist() for key, result in zip(keys, results, strict=True)}


# ---- DDP -----------------------------------------------------------------------------------------


def train(engine: str) -> dict[str, Any]:
    """Train a small model by DDP, over torch's own functions, and once more without it."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    os.environ.pop("UNISONO_ENGINE", None)
    if engine != "hybrid":
        os.environ["UNISONO_ENGINE"] = engine
    torch.set_num_threads(1)
    dist.init_process_group("unisono")
    rank, size = dist.get_rank(), dist.get_world_size()

    def made() -> torch.nn.Module:
        torch.manual_seed(7)
        return torch.nn.Sequential(
            torch.nn.Linear(24, 300), torch.nn.Tanh(), torch.nn.Linear(300, 5)
        )

    def trained(model: torch.nn.Module, data: torch.Tensor) -> torch.Tensor:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(4):
            optimizer.zero_grad()
            model(data).square().mean().backward()
            optimizer.step()
        return torch.cat([each.detach().reshape(-1) for each in model.parameters()])

    torch.manual_seed(11)
    data = torch.randn(size, 8, 24)
    together = trained(DistributedDataParallel(made(), bucket_cap_mb=0.01), data[rank])
    alone = trained(made(), data.reshape(-1, 24))
    digest = float(together.double().square().sum())
    close = bool(torch.allclose(together, alone, rtol=1e-4, atol=1e-6))
    used = dist.group.WORLD.group_for_this_thread().engine.name
    dist.barrier()
    dist.destroy_process_group()
    return {"close": close, "digest": digest.hex(), "engine": used}


# ---- the job -------------------------------------------------------------------------------------

CORE: dict[str, Callable[[Group, bool], Any]] = {
    "verbs": run_verbs,
    "overlapping": run_overlapping,
    "groups": run_groups,
    "messages": exchange_messages,
    "traffic": count_traffic,
    "loop": loop,
}
JOINING: dict[str, Callable[[str], Any]] = {
    "torch": call_torch,
    "mindspore": call_mindspore,
    "ddp": train,
}


def main(arguments: list[str]) -> int:
    """Run the parts with one engine after the other, and print what they give."""
    while arguments:
        end = arguments.index("--") if "--" in arguments else len(arguments)
        told = run(arguments[0], arguments[1:end])
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()
        if "error" in told:
            return 1
        arguments = arguments[end + 1 :]
    return 0


def run(engine: str, parts: list[str]) -> dict[str, Any]:
    """Run the parts with one engine."""
    told: dict[str, Any] = {"engine": engine, "host": socket.gethostname()}
    try:
        if set(parts) & set(CORE):
            world = groups.init(engine, TIMEOUT)
            told["rank"], told["size"] = int(world.rank), int(world.size)
            for part in parts:
                if part in CORE:
                    told[part] = CORE[part](world)
            groups.close()
        for part in parts:
            if part in JOINING:
                told[part] = JOINING[part](engine)
    except BaseException:
        told["error"] = traceback.format_exc()
    return told


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
