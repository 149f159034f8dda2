"""Ranks in groups of the backend "unisono" of torch: kept in pools, or forked for one test.

A process needs seconds to import torch. So values are tested with ranks of pools that are kept
(`tests/helpers/worlds.py`), and faults with ranks that a server forks, which has imported torch
before. Such a rank is a real process, and ends as any interpreter does.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager as coalescing
from torch.nn.parallel import DistributedDataParallel

from tests.helpers import worlds
from tests.helpers.jobs import Rank, Ranks
from tests.helpers.paths import with_tests
from tests.helpers.processes import DEADLINE, wait_until
from tests.helpers.torch_cases import bits

TIMEOUT = timedelta(seconds=30)

# ---- ranks of a pool -----------------------------------------------------------------------------


def join(world: Any, folder: str) -> Any:
    """Join torch's group and one of Gloo, which is returned; both are made once in a process.

    A pool that has failed is followed by another, which must not use the same file.
    """
    if not dist.is_initialized():
        warnings.simplefilter("ignore", FutureWarning)  # 2.13 has new names for some old ones
        dist.init_process_group(
            "unisono",
            init_method=f"file://{folder}/{os.environ['UNISONO_JOB']}",
            rank=world.rank,
            world_size=world.size,
            timeout=TIMEOUT,
        )
        join.gloo = dist.new_group(backend="gloo", timeout=TIMEOUT)
    return join.gloo


class PooledRanks:
    """Some ranks of a pool that are in torch's group; a context that ends them."""

    def __init__(self, size: int, store: Path) -> None:
        self._size = size
        self._store = str(store)
        self._pools = worlds.Worlds()

    def run(self, folder: Path, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Call `function(rank, folder, *args)` on all ranks."""
        where = self._store, folder
        answers: list[Any] = self._pools.run("shm", self._size, _in_group, where, function, args)
        return answers

    def __enter__(self) -> PooledRanks:
        return self

    def __exit__(self, *exception: object) -> None:
        self._pools.close()


def _in_group(world: Any, where: Any, function: Callable[..., Any], args: Any) -> Any:
    join(world, where[0])
    return function(world.rank, where[1], *args)


def data(rank: int, shape: Any, dtype: torch.dtype = torch.float32, slot: int = 0) -> torch.Tensor:
    """What a rank holds: whole numbers that differ by rank, index and slot, exact in any dtype.

    Four of them add up to less than 100, and multiply to less than 82.
    """
    size = int(np.prod(shape))
    numbers = (np.arange(size) * 5 + rank * 3 + slot * 7 + np.arange(size) // 4 * rank) % 4
    if dtype.itemsize == 1 and dtype.is_floating_point:
        bits = (np.arange(size) * 29 + rank * 13 + slot * 7) % 120  # none of them is NaN
        return torch.from_numpy(bits.astype(np.uint8).reshape(shape)).view(dtype)
    tensor = torch.from_numpy(numbers.reshape(shape)).to(dtype)
    return tensor + tensor * 2j if dtype.is_complex else tensor


def total(size: int, shape: Any = (3,), slot: int = 0) -> torch.Tensor:
    """The sum of what `size` ranks hold."""
    return torch.stack([data(rank, shape, slot=slot) for rank in range(size)]).sum(0)


def same(got: Any, expected: Any) -> None:
    """Refuse anything but the same shape, dtype and numbers."""
    assert isinstance(got, torch.Tensor) and isinstance(expected, torch.Tensor), (got, expected)
    assert got.shape == expected.shape, (got.shape, expected.shape)
    assert got.dtype == expected.dtype, (got.dtype, expected.dtype)
    assert bits(got.detach()) == bits(expected.detach()), f"got {got}, expected {expected}"


def same_each(got: Any, expected: Any) -> None:
    """Compare two lists, tensor by tensor."""
    assert len(got) == len(expected), (len(got), len(expected))
    for left, right in zip(got, expected, strict=True):
        same(left, right)


def check_group(group: Any, ranks: list[int], rank: int) -> None:
    """The group has these ranks in this order, and its collectives work."""
    assert dist.get_process_group_ranks(group) == ranks
    own = ranks.index(rank)
    assert (group.rank(), group.size()) == (own, len(ranks))
    assert dist.get_rank(group) == own and dist.get_world_size(group) == len(ranks)
    x = data(rank, (3,))
    dist.all_reduce(x, group=group)
    same(x, sum(data(each, (3,)) for each in ranks))
    every = [torch.zeros(2) for _ in ranks]
    dist.all_gather(every, data(rank, (2,)), group=group)
    same_each(every, [data(each, (2,)) for each in ranks])
    y = data(rank, (2,))
    dist.broadcast(y, ranks[-1], group=group)
    same(y, data(ranks[-1], (2,)))
    if len(ranks) > 1:
        to, back = ranks[(own + 1) % len(ranks)], ranks[own - 1]
        z = torch.zeros(2)
        work = dist.irecv(z, back, group=group)
        dist.send(data(rank, (2,)), to, group=group)
        work.wait()
        same(z, data(back, (2,)))


def start_each(rank: int, size: int) -> Iterator[tuple[Any, list[Any], list[Any]]]:
    """Every operation, started; with the tensors of its result and what they must hold."""
    last = size - 1
    every = [data(each, (3,)) for each in range(size)]
    total, square = sum(every), sum(data(each, (2, 2)) for each in range(size))
    third = total.chunk(size)[rank]
    own, x, y = every[rank].clone(), every[rank].clone(), every[rank].clone()
    yield dist.all_reduce(x, async_op=True), [x], [total]
    yield dist.broadcast(y, 1, async_op=True), [y], [every[1]]
    z = own.clone()
    yield dist.reduce(z, last, async_op=True), [z], [total if rank == last else own]
    out = [torch.zeros(3) for _ in range(size)]
    yield dist.all_gather(out, own, async_op=True), out, every
    one = torch.zeros(3 * size)
    yield dist.all_gather_into_tensor(one, own, async_op=True), [one], [torch.cat(every)]
    into = [torch.zeros(3) for _ in range(size)] if rank == last else []
    expected = every if rank == last else []
    yield dist.gather(own, into or None, last, async_op=True), into, expected
    scattered = torch.zeros(3)
    parts = every if rank == 1 else None
    yield dist.scatter(scattered, parts, 1, async_op=True), [scattered], [own]
    part = torch.zeros(3)
    parts = [data(rank, (3,), slot=slot) for slot in range(size)]
    yield (
        dist.reduce_scatter(part, parts, async_op=True),
        [part],
        [sum(data(each, (3,), slot=rank) for each in range(size))],
    )
    share = torch.zeros(1)
    yield dist.reduce_scatter_tensor(share, own, async_op=True), [share], [third]
    swapped = torch.zeros(size)
    column = torch.stack([tensor[rank] for tensor in every])
    yield dist.all_to_all_single(swapped, own, async_op=True), [swapped], [column]
    lists = [torch.zeros(1) for _ in range(size)]
    work = dist.all_to_all(lists, list(own.split(1)), async_op=True)
    yield work, lists, list(column.split(1))
    both = [own.clone(), data(rank, (2, 2))]
    with coalescing(async_ops=True) as batch:
        for tensor in both:
            dist.all_reduce(tensor)
    yield batch.works[0], both, [total, square]
    outs = [torch.zeros(3 * size), torch.zeros(size)]
    with coalescing(async_ops=True) as batch:
        dist.all_gather_into_tensor(outs[0], own)
        dist.all_gather_into_tensor(outs[1], torch.tensor([rank + 1.0]))
    yield batch.works[0], outs, [torch.cat(every), torch.arange(size) + 1.0]
    shares = [torch.zeros(1), torch.zeros(1)]
    with coalescing(async_ops=True) as batch:
        for share in shares:
            dist.reduce_scatter_tensor(share, own)
    yield batch.works[0], shares, [third] * 2
    yield dist.barrier(async_op=True), [], []


def call_methods(rank: int, _: Any) -> None:
    """The methods of the group, without options; by their names before 2.13 as well."""
    group, size = dist.group.WORLD, dist.get_world_size()
    every = [data(each, (3,)) for each in range(size)]
    total = sum(every)
    share = total.chunk(size)[rank]

    def own() -> torch.Tensor:
        return every[rank].clone()

    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(*shape)

    x = own()
    assert group.allreduce([x]).wait()
    same(x, total)
    x = own()
    group.allreduce_coalesced([x, data(rank, (2,), torch.int32)]).wait()  # two dtypes
    same(x, total)
    x = own()
    group.broadcast([x]).wait()
    same(x, every[0])
    x = own()
    group.reduce([x]).wait()
    same(x, total if rank == 0 else every[rank])
    out = [zeros(3) for _ in range(size)]
    group.allgather([out], [own()]).wait()
    same_each(out, every)
    out = [[zeros(3)] for _ in range(size)]
    group.allgather_coalesced(out, [own()]).wait()
    same_each([row[0] for row in out], every)
    out = [zeros(3) for _ in range(size)]
    group.gather([out] if rank == 0 else [], [own()]).wait()
    same_each(out, every if rank == 0 else [zeros(3)] * size)
    x = zeros(3)
    group.scatter([x], [every] if rank == 0 else []).wait()
    same(x, every[rank])
    x = zeros(1)
    group.reduce_scatter([x], [list(own().split(1))]).wait()
    same(x, share)
    out = [zeros(1) for _ in range(size)]
    group.alltoall(out, list(own().split(1))).wait()
    same_each(out, [tensor[rank : rank + 1] for tensor in every])
    for name in ("all_gather_single", "_allgather_base"):
        x = zeros(3 * size)
        getattr(group, name)(x, own()).wait()
        same(x, torch.cat(every))
    for name in ("reduce_scatter_single", "_reduce_scatter_base"):
        x = zeros(1)
        getattr(group, name)(x, own()).wait()
        same(x, share)
    for name in ("all_gather_single_coalesced", "allgather_into_tensor_coalesced"):
        x, y = zeros(3 * size), torch.zeros(size, dtype=torch.int64)
        getattr(group, name)([x, y], [own(), torch.tensor([rank])]).wait()
        same_each([x, y], [torch.cat(every), torch.arange(size)])
    for name in ("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"):
        x, y = zeros(1), zeros(1)
        getattr(group, name)([x, y], [own(), own() * 2]).wait()
        same_each([x, y], [share, share * 2])
    for name in ("all_to_all_single", "alltoall_base"):
        x = zeros(3)
        getattr(group, name)(x, own(), [], []).wait()
        same(x, torch.stack([tensor[rank] for tensor in every]))
    x = zeros(3)
    receiving = group.recv([x], (rank - 1) % size, 4)
    group.send([own()], (rank + 1) % size, 4).wait()
    assert receiving.wait() and receiving._source_rank() == (rank - 1) % size
    same(x, every[(rank - 1) % size])
    group.barrier().wait()
    group.monitored_barrier()


def meet_at_barriers(rank: int, folder: Path) -> None:
    """No rank leaves a barrier before the last has entered it."""
    for turn in range(30):
        (folder / f"{turn}-{rank}").touch()
        if turn % 2:
            dist.barrier()
        else:
            dist.barrier(async_op=True).wait()
        assert len(list(folder.glob(f"{turn}-*"))) == dist.get_world_size()


# ---- ranks that are forked -----------------------------------------------------------------------

PRELUDE = """
from tests.helpers.rank_side import hear, os, rank, say, sys, threading, time
from tests.helpers.backend_cases import DistributedDataParallel, dist, enter, fault
from tests.helpers.backend_cases import model, timedelta, torch
"""


class ForkServer:
    """A process that has imported torch and forks others; to be closed at the end."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(DEADLINE)
        script = (
            f"from tests.helpers import backend_cases; exec(backend_cases.serve({theirs.fileno()}))"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONPATH": with_tests()},
            pass_fds=[theirs.fileno()],
        )
        theirs.close()

    def fork(self, body: str, variables: dict[str, str], files: Sequence[int]) -> int:
        """Start a process that runs `body` with these standard files; return its id."""
        request = json.dumps([PRELUDE + body, variables]).encode()
        socket.send_fds(self._socket, [request], files)
        return int(self._socket.recv(100))

    def code(self, pid: int) -> int | None:
        """How a process has ended; None while it runs."""
        self._socket.send(json.dumps(pid).encode())
        answer: int | None = json.loads(self._socket.recv(100))
        return answer

    def close(self) -> None:
        self._socket.close()
        assert self._process.wait(DEADLINE) == 0


def serve(descriptor: int) -> str:
    """Fork ranks until the connection ends; returns what the process, old or new, runs next."""
    # A rank and its model would need seconds to import these.
    for name in ("torch._dynamo", "unisono.engines.shm.engine", "unisono.torch.backend.startup"):
        importlib.import_module(name)

    connection = socket.socket(fileno=descriptor)
    while True:
        message, files, _, _ = socket.recv_fds(connection, 1 << 16, 3)
        if not message:
            return ""
        request = json.loads(message)
        if isinstance(request, int):
            ended, status = os.waitpid(request, os.WNOHANG)
            connection.send(
                json.dumps(os.waitstatus_to_exitcode(status) if ended else None).encode()
            )
            continue
        pid = os.fork()
        if pid == 0:
            connection.close()
            for number, file in enumerate(files):
                os.dup2(file, number)
                os.close(file)
            body, variables = request
            os.environ.update(variables)
            # Where the tests were started by nohup or cron, these are ignored, and inherited so.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            return str(body)
        for file in files:
            os.close(file)
        connection.send(str(pid).encode())


class _ForkedProcess:
    """As much of a Popen as `jobs.Rank` needs."""

    def __init__(self, server: ForkServer, body: str, variables: dict[str, str], log: Path) -> None:
        self._server = server
        self._ended: int | None = None
        reader, stdin = os.pipe()
        stdout, writer = os.pipe()
        with open(log, "wb") as file:
            self.pid = server.fork(body, variables, [reader, writer, file.fileno()])
        os.close(reader)
        os.close(writer)
        self.stdin = os.fdopen(stdin, "wb", 0)
        self.stdout = os.fdopen(stdout, "rb", 0)

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def poll(self) -> int | None:
        if self._ended is None:
            self._ended = self._server.code(self.pid)
        return self._ended

    def wait(self, _: float) -> int:
        wait_until(lambda: self.poll() is not None)
        assert self._ended is not None
        return self._ended


class ForkedRank(Rank):
    """One forked process; `errors` is what it wrote to its standard error."""

    def __init__(self, server: ForkServer, body: str, variables: dict[str, str], log: Path) -> None:
        self.process = _ForkedProcess(server, body, variables, log)
        self._unread = b""
        self._log = log

    @property
    def errors(self) -> str:
        return self._log.read_text()


class ForkedRanks(Ranks):
    """Ranks that find each other by a file of `folder` in `enter`; killed at the end."""

    def __init__(self, server: ForkServer, folder: Path, n: int, body: str) -> None:
        self._server = server
        self._folder = folder
        self._size = n
        super().__init__(n, body)

    def start(self, rank: int, **variables: str) -> ForkedRank:
        launch = {"RANK": str(rank), "WORLD_SIZE": str(self._size), "UNISONO_RANK": str(rank)}
        launch["BACKEND_STORE"] = str(self._folder / "store")
        log = self._folder / f"errors-{rank}"
        process = ForkedRank(self._server, self._body, {**launch, **variables}, log)
        self._all.setdefault(rank, []).append(process)
        return process


def enter(seconds: float = 600, backend: str = "unisono") -> None:
    """Join the group and tell the test so."""
    from tests.helpers.rank_side import say

    dist.init_process_group(
        backend,
        init_method=f"file://{os.environ['BACKEND_STORE']}",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timedelta(seconds=seconds),
    )
    dist.barrier()
    say(joined=True)


def model(hook: Callable[..., Any] | None = None) -> Any:
    """A small model of DDP's, with several buckets."""
    layers = [torch.nn.Linear(20, 20) for _ in range(4)]
    wrapped = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.001)
    if hook is not None:
        wrapped.register_comm_hook(None, hook)
    return wrapped


def fault(action: Callable[[], object]) -> dict[str, Any]:
    """What the action raised, and after how many seconds; kinds is empty if it ended well."""
    began = time.monotonic()
    kinds, text, ranks = [], "", ()
    try:
        action()
    except (Exception, KeyboardInterrupt) as error:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        text, ranks = str(error), getattr(error, "ranks", ())
    seconds = time.monotonic() - began
    return {"kinds": kinds, "text": text, "ranks": ranks, "seconds": seconds}
