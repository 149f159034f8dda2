"""One rank of the soak: random calls on random groups, each compared with NumPy, bit for bit.

All ranks draw the same calls from one stream of random numbers, which starts again whenever the
group has shrunk: it depends on nothing but the seed and who is left.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from tests.helpers import cases
from tests.helpers.cases import Case, Running
from unisono.core import buffers, dispatch, dtypes, groups
from unisono.core.dtypes import ReduceOp
from unisono.core.groups import Group
from unisono.errors import CommTimeout, LaunchError, PeerLost

__all__ = ["Soaked", "soak"]

DEADLINE = 60.0  # seconds of the groups; nothing takes so long, stops included
FEWEST = 2  # with fewer ranks there is nothing to do
_UNDER_WAY = 6  # asynchronous calls at the same time
_GROUPS = 5  # subgroups at the same time
_COUNTS = (0, 1, 2, 3, 7, 64, 257, 1000)
_LARGE = (4096, 20011, 70001)
_PREMUL = ReduceOp.premul_sum(0.5)


@dataclass
class Soaked:
    """What a rank has seen."""

    calls: int = 0
    messages: int = 0
    groups: int = 0
    lost: int = 0  # times that ranks were lost, and the group shrank
    unstarted: int = 0  # a rank was lost before all had met
    members: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        return json.dumps(self.__dict__)


def soak(seed: int, calls: int) -> Soaked:
    """Make so many calls after the last loss; raises if anything is wrong."""
    soaked = Soaked()
    try:
        group = groups.init("shm", timeout=DEADLINE)
    except (LaunchError, CommTimeout):  # the latter if rank 0 was lost before we came
        soaked.unstarted += 1
        return soaked
    while group.size >= FEWEST:
        try:
            _Round(group, seed, soaked).run(calls)
            break
        except PeerLost:
            soaked.lost += 1
            group = _shrunk(group)
    soaked.members = list(group.ranks)
    groups.close()
    return soaked


def _shrunk(group: Group) -> Group:
    while True:
        try:
            return group.shrink()
        except PeerLost:
            continue  # one more was lost in the meantime


class _Round:
    """All that happens between two losses."""

    def __init__(self, group: Group, seed: int, soaked: Soaked) -> None:
        self._world = group
        self._soaked = soaked
        self._random = random.Random(f"{seed} {group.ranks}")
        self._own = random.Random(f"{seed} {group.ranks} {group.rank} {os.getpid()}")
        self._groups: list[Group] = []
        self._running: list[Running] = []

    def run(self, calls: int) -> None:
        try:
            for number in range(calls):
                self._step(number)
            self._settle()
            dispatch.barrier(self._world)
        finally:
            # Ranks that wait for us in one of them are told that we have left.
            for group in self._groups:
                group.close()
            self._give_up()

    def _give_up(self) -> None:
        """Memory of calls that are under way is not ours to free."""
        for running in self._running:
            running.work.exception()

    def _step(self, number: int) -> None:
        if self._own.random() < 0.01:
            time.sleep(self._own.random() * 0.02)
        draw = self._random.random()
        if draw < 0.02:
            self._regroup()
        elif draw < 0.12:
            self._message(number)
        else:
            self._call(number)
        if self._own.random() < 0.1:
            self._settle()

    def _settle(self) -> None:
        running, self._running = self._running, []
        while running:
            one = running[0]
            one.work.wait()
            running.pop(0)
            one.check()

    def _regroup(self) -> None:
        """Make a group, or leave one; all ranks draw the same, members act."""
        size = self._world.size
        if len(self._groups) < _GROUPS:
            ranks = self._random.sample(range(size), self._random.randint(1, size))
            self._groups.append(self._world.split(ranks))
            self._soaked.groups += 1
        else:
            self._settle()
            self._groups.pop(self._random.randrange(len(self._groups))).close()

    def _call(self, number: int) -> None:
        group = self._random.choice([self._world, *self._groups])
        case = _drawn(self._random, group.size, number)
        blocking = self._random.random() < 0.6
        if group.rank < 0:
            return
        running = cases.start(group, case, blocking)
        self._soaked.calls += 1
        if blocking:
            running.check()
            return
        self._running.append(running)
        if len(self._running) > _UNDER_WAY:
            self._settle()

    def _message(self, number: int) -> None:
        size = self._world.size
        sender, receiver = self._random.sample(range(size), 2)
        count = self._random.choice(_COUNTS)
        data = np.random.default_rng([number, sender]).integers(0, 255, count, np.uint8)
        if self._world.rank == sender:
            dispatch.send(self._world, buffers.view(data), receiver, number)
        elif self._world.rank == receiver:
            room = np.zeros(count, np.uint8)
            source = None if number % 3 == 0 else sender
            work = dispatch.recv(self._world, buffers.view(room), source, number)
            assert (room == data).all(), f"message {number} of {sender} to {receiver}"
            assert work.source == sender
            self._soaked.messages += 1


def _operators(dtype: dtypes.DType) -> Iterator[ReduceOp]:
    for op in (*ReduceOp.ALL, _PREMUL):
        if op.name in dtype.operators and op is not ReduceOp.PREMUL_SUM:
            yield op


def _drawn(draw: random.Random, size: int, salt: int) -> Case:
    verb = draw.choice([*cases.MOVES, *cases.REDUCTIONS, "all_reduce", "barrier"])
    able = [
        dtype for dtype in dtypes.DTYPES if verb not in cases.REDUCTIONS or any(_operators(dtype))
    ]
    dtype = draw.choice(able)
    op = draw.choice(list(_operators(dtype)) or [ReduceOp.SUM])
    count = draw.choice(_COUNTS if draw.random() < 0.95 else _LARGE)
    counts = None
    if verb in cases.COUNTED and draw.random() < 0.3:
        counts = tuple(draw.choice(_COUNTS) for _ in range(size))
    in_place = draw.random() < 0.3 and not (verb == "all_to_all" and counts is not None)
    return Case(verb, dtype.name, count, op, draw.randrange(size), counts, in_place, salt % 4)
