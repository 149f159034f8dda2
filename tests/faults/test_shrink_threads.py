"""Shrinking where ranks are threads, and requests that cannot be right."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import unisono.torch.distributed as dist
from unisono import spawn
from unisono.core import buffers, dispatch, groups
from unisono.core.dtypes import ReduceOp
from unisono.core.engine import Engine
from unisono.core.groups import Group
from unisono.errors import (
    ArgumentError,
    ArgumentTypeError,
    CommTimeout,
    NotReady,
    PeerLost,
    UnisonoError,
    Unsupported,
)

# ---- ranks that are threads ----------------------------------------------------------------------


def total(group: Group) -> float:
    array = np.array([float(1 << group.ranks[group.rank])])
    memory = buffers.view(array)
    dispatch.all_reduce(group, memory, memory, ReduceOp.SUM)
    return float(array[0])


def call_until_told(group: Group) -> None:
    try:
        while True:
            total(group)
    except (PeerLost, NotReady):
        return


def survive(victims: list[int]) -> Any:
    group = groups.world()
    rank = int(group.rank)
    for victim in victims:
        total(group)
        if rank == victim:
            return None
        call_until_told(group)
        group = group.shrink()
    return list(group.ranks), total(group)


@pytest.mark.parametrize("victims", [[1], [0, 3], [3, 2, 0]])
def test_threads(victims: list[int]) -> None:
    left = [rank for rank in range(5) if rank not in victims]
    results = spawn(survive, 5, victims)
    for rank in left:
        assert results[rank] == (left, float(sum(1 << other for other in left)))


def come_late(gate: threading.Semaphore) -> Any:
    group = groups.world()
    if group.rank == 2:
        for _ in range(2):  # who leaves before both have given up is not missed
            gate.acquire(timeout=30)
        return None
    try:
        group.shrink()
    except CommTimeout as error:
        ranks = error.ranks
    gate.release()
    return ranks


def test_threads_that_do_not_come() -> None:
    assert spawn(come_late, 3, threading.Semaphore(0), timeout=1.0)[:2] == [(2,), (2,)]


def leave_out(kind: str) -> Any:
    group = groups.world()
    if group.rank == 1:
        with pytest.raises(ArgumentError, match="excludes itself"):
            group.shrink([1])
        return None
    pending = dispatch.barrier(group, blocking=False) if kind == "pending" else None
    smaller = group.shrink([1])
    if pending is not None:
        with pytest.raises((NotReady, PeerLost)):
            pending.wait()
    with pytest.raises(NotReady):
        total(group)
    return list(smaller.ranks), total(smaller)


@pytest.mark.parametrize("kind", ["idle", "pending"])
def test_threads_exclude(kind: str) -> None:
    results = spawn(leave_out, 3, kind)
    assert results[0] == results[2] == ([0, 2], 5.0)


# ---- bad requests --------------------------------------------------------------------------------


def ask_wrongly() -> list[str]:
    told = []
    for arguments in (([7],), ([0, 0],), ([], None, 9), (3,), (["a"],), ([[]],)):
        try:
            dist.shrink_group(*arguments)
        except UnisonoError as error:
            told.append(type(error).__name__)
    for method in (groups.world().shrink, groups.world().split):
        with pytest.raises(ArgumentTypeError, match="must be whole numbers"):
            method(["a"])
    return told


def test_bad_arguments() -> None:
    (told,) = spawn(ask_wrongly, 1)
    assert told == ["ArgumentError"] * 3 + ["ArgumentTypeError"] * 3


def test_engines_that_cannot() -> None:
    class Stiff(Engine):
        name = "stiff"

    Stiff.__abstractmethods__ = frozenset()
    with pytest.raises(Unsupported, match="'stiff' cannot shrink a group; engines 'shm' and"):
        Stiff().shrink()


def test_same_signature_as_upstream() -> None:
    import inspect

    import torch.distributed as upstream

    ours, theirs = (inspect.signature(face.shrink_group) for face in (dist, upstream))
    assert list(ours.parameters) == list(theirs.parameters)
    for name, parameter in theirs.parameters.items():
        assert ours.parameters[name].default == parameter.default
