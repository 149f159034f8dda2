"""The MindSpore face: init, release, ranks, and groups by name."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import unisono
from unisono.core import groups
from unisono.errors import LaunchError, NotReady
from unisono.mindspore import communication
from unisono.mindspore.communication import GlobalComm, comm_func, management

ENGINES = ["threads", "shm"]


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No launcher, no world, and GlobalComm as it is after import."""
    for name in list(os.environ):
        if name.startswith(("UNISONO_", "MS_", "RANK", "LOCAL_", "OMPI_", "PMI", "SLURM_")):
            monkeypatch.delenv(name)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr(GlobalComm, "BACKEND", "hccl")
    monkeypatch.setattr(GlobalComm, "WORLD_COMM_GROUP", "hccl_world_group")
    assert not groups.is_initialized()
    yield
    communication.release()


def test_management_has_the_same_things():
    assert sorted(management.__all__) == sorted(communication.__all__)
    for name in communication.__all__:
        assert getattr(management, name) is getattr(communication, name)


def test_names_of_the_world():
    assert communication.HCCL_WORLD_COMM_GROUP == "hccl_world_group"
    assert communication.NCCL_WORLD_COMM_GROUP == "nccl_world_group"
    assert communication.MCCL_WORLD_COMM_GROUP == "mccl_world_group"


# ---- init and release ----------------------------------------------------------------------------


def test_init_and_release(alone):
    assert (GlobalComm.BACKEND, GlobalComm.WORLD_COMM_GROUP) == ("hccl", "hccl_world_group")
    assert (GlobalComm.INITED, GlobalComm.CHECK_ENVS) == (False, True)
    assert communication.init() is None
    assert (GlobalComm.BACKEND, GlobalComm.WORLD_COMM_GROUP) == ("mccl", "mccl_world_group")
    assert GlobalComm.INITED is True
    world = groups.world()
    assert communication.init() is None
    assert groups.world() is world
    assert communication.get_rank(GlobalComm.WORLD_COMM_GROUP) == 0
    total, _ = comm_func.all_reduce(np.ones(2), group=GlobalComm.WORLD_COMM_GROUP)
    assert total.tolist() == [1, 1]
    assert communication.release() is None
    assert GlobalComm.INITED is False
    communication.release()
    communication.init()
    assert groups.world() is not world


@pytest.mark.parametrize(
    ("backend", "reported"), [("hccl", "hccl"), ("nccl", "nccl"), ("mccl", "mccl"), ("shm", "mccl")]
)
def test_backends(alone, backend, reported):
    communication.init(backend)
    assert reported == GlobalComm.BACKEND
    assert f"{reported}_world_group" == GlobalComm.WORLD_COMM_GROUP
    assert communication.get_group_size() == 1


def test_release_before_init_does_no_harm(alone):
    communication.release()
    communication.init()
    assert communication.get_group_size() == 1


def test_the_other_face_may_init_after_this_one(alone):
    communication.init()
    world = groups.init()
    communication.init()  # still nothing to do, though the other face has claimed the world
    assert groups.world() is world


@pytest.mark.parametrize(("backend", "error"), [(3, TypeError), ("gloo", RuntimeError)])
def test_bad_backend(alone, backend, error):
    with pytest.raises(error, match="backend_name"):
        communication.init(backend)
    assert not GlobalComm.INITED


# ---- before init ---------------------------------------------------------------------------------

ASKED = {
    "get_rank": ("RANK_ID", 0),
    "get_local_rank": ("LOCAL_RANK", 0),
    "get_group_size": ("RANK_SIZE", 1),
    "get_local_rank_size": ("LOCAL_RANK_SIZE", 1),
}


@pytest.mark.parametrize("name", ASKED)
def test_before_init_the_environment_answers(alone, monkeypatch, name):
    variable, default = ASKED[name]
    ask: Callable[..., int] = getattr(communication, name)
    assert ask() == ask("any name") == default
    monkeypatch.setenv(variable, "7")
    assert ask() == ask("any name") == 7
    with pytest.raises(TypeError, match="group"):
        ask(3)
    monkeypatch.setenv(variable, "seven")
    with pytest.raises(LaunchError, match=variable):
        ask()


def test_before_init_the_launcher_of_unisono_answers(alone, monkeypatch):
    variables = {"UNISONO_RANK": "5", "UNISONO_SIZE": "8"}
    variables |= {"UNISONO_LOCAL_RANK": "1", "UNISONO_LOCAL_SIZE": "4"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert [getattr(communication, name)() for name in ASKED] == [5, 1, 8, 4]


@pytest.mark.parametrize(
    "call",
    [
        lambda: communication.create_group("g", [0]),
        lambda: communication.destroy_group("g"),
        lambda: communication.get_world_rank_from_group_rank("g", 0),
        lambda: communication.get_group_rank_from_world_rank(0, "g"),
        lambda: communication.get_process_group_ranks(),
        lambda: communication.get_comm_name(),
    ],
)
def test_the_rest_needs_init(alone, call):
    with pytest.raises(RuntimeError, match="call init first"):
        call()


# ---- ranks and groups ----------------------------------------------------------------------------


def ask_about(group: Any) -> list[Any]:
    size = communication.get_group_size(group)
    ranks = communication.get_process_group_ranks(group)
    assert [communication.get_world_rank_from_group_rank(group, i) for i in range(size)] == ranks
    assert [communication.get_group_rank_from_world_rank(r, group) for r in ranks] == list(
        range(size)
    )
    assert communication.get_comm_name(group) == ""
    return [
        communication.get_rank(group),
        communication.get_local_rank(group),
        size,
        communication.get_local_rank_size(group),
        ranks,
    ]


def world_and_group() -> tuple[Any, Any]:
    communication.init()
    every = ["hccl_world_group", "nccl_world_group", "mccl_world_group", None, groups.world()]
    answers = [ask_about(name) for name in every]
    assert answers == answers[:1] * len(every)
    assert communication.get_rank() == answers[0][0]
    if communication.get_rank() == 0:
        return answers[0], None
    assert communication.create_group("unsorted", [3, 1, 2]) is None
    answer = ask_about("unsorted")
    assert ask_about(groups.find("unsorted")) == answer
    comm_func.barrier("unsorted")
    assert communication.destroy_group("unsorted") is None
    with pytest.raises(KeyError, match="unsorted"):
        communication.get_rank("unsorted")
    communication.release()
    return answers[0], answer


@pytest.mark.parametrize("engine_name", ENGINES)
def test_ranks_follow_the_order_that_was_given(engine_name):
    answers = unisono.spawn(world_and_group, 4, engine=engine_name, timeout=40)
    for rank, (world, unsorted) in enumerate(answers):
        assert world == [rank, rank, 4, 4, [0, 1, 2, 3]]
        index = [3, 1, 2].index(rank) if rank else None
        assert unsorted == (None if index is None else [index, index, 3, 3, [3, 1, 2]])


def ask_where_two_ranks_are_here() -> list[Any]:
    """The engine knows that two ranks of this world of four, 2 and 3, are on the second host."""
    engine = groups.world().engine
    assert engine is not None
    engine.hosts = ["one a", "one a", "two b", "two b"]
    groups.world().split([3, 0, 2], "mixed")
    whole = [communication.get_local_rank(), communication.get_local_rank_size()]
    mixed = communication.get_local_rank("mixed") if groups.world().rank == 3 else -1
    return [*whole, mixed, communication.get_local_rank_size("mixed")]


def test_local_ranks_where_the_job_has_two_hosts():
    answers = unisono.spawn(ask_where_two_ranks_are_here, 4)
    assert answers == [[0, 2, -1, 1], [1, 2, -1, 1], [0, 2, -1, 2], [1, 2, 0, 2]]


def test_local_ranks_of_a_world_that_the_launcher_did_not_describe(alone, monkeypatch):
    """Variables speak of the launcher's job; spawned ranks are all on this host."""
    variables = {"UNISONO_RANK": "3", "UNISONO_SIZE": "4", "UNISONO_JOB": "two-hosts"}
    variables |= {"UNISONO_LOCAL_RANK": "1", "UNISONO_LOCAL_SIZE": "2"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    ask = communication.get_local_rank, communication.get_local_rank_size
    assert unisono.spawn(lambda: [each() for each in ask], 4) == [[rank, 4] for rank in range(4)]


def refuse(call: Callable[[], Any], *kinds: type[Exception]) -> None:
    with pytest.raises(kinds) as caught:
        call()
    assert all(isinstance(caught.value, kind) for kind in kinds), repr(caught.value)


class GroupOptions:
    """Looks like MindSpore's class of this name."""


def bad_groups() -> None:
    rank = communication.get_rank()
    create, destroy = communication.create_group, communication.destroy_group
    refuse(lambda: create(3, [rank]), TypeError)
    refuse(lambda: create("g", (rank,)), TypeError)
    refuse(lambda: create("g", ["0"]), TypeError)
    refuse(lambda: create("g", [rank], options=3), TypeError)
    refuse(lambda: create("g", []), ValueError)
    refuse(lambda: create("g", [rank, rank]), ValueError)
    refuse(lambda: create("g", [rank, 9]), RuntimeError)
    refuse(lambda: create("g", [1 - rank]), RuntimeError, NotReady)
    refuse(lambda: create("hccl_world_group", [rank]), ValueError)
    # None of these has created the group.
    refuse(lambda: communication.get_rank("g"), RuntimeError)
    create("g", [1, 0], GroupOptions())
    refuse(lambda: create("g", [0, 1]), ValueError)
    create("g", [1, 0])
    assert communication.get_process_group_ranks("g") == [1, 0]
    for name in ("hccl_world_group", "nccl_world_group", "mccl_world_group", "world", None):
        refuse(lambda name=name: destroy(name), ValueError)
    refuse(lambda: destroy("no"), KeyError, RuntimeError)
    refuse(lambda: destroy(3), TypeError)
    comm_func.barrier("g")
    destroy("g")
    refuse(lambda: destroy("g"), KeyError)
    create("g", [rank])  # one rank is enough
    assert communication.get_group_size("g") == 1
    destroy("g")


@pytest.mark.parametrize("engine_name", ENGINES)
def test_bad_groups(engine_name):
    unisono.spawn(bad_groups, 2, engine=engine_name, timeout=40)


def test_the_same_group_again_is_a_warning(alone, caplog):
    def twice() -> None:
        communication.create_group("again", [0])
        assert not caplog.records
        communication.create_group("again", [0])

    with caplog.at_level(logging.WARNING, "unisono"):
        unisono.spawn(twice, 1)
    assert [record.getMessage() for record in caplog.records] == [
        "group 'again' with ranks [0] exists already"
    ]


def bad_ranks() -> None:
    for name in (*ASKED, "get_comm_name", "get_process_group_ranks"):
        ask = getattr(communication, name)
        refuse(lambda ask=ask: ask(3), TypeError)
        refuse(lambda ask=ask: ask("no"), RuntimeError)
    to_world = communication.get_world_rank_from_group_rank
    to_group = communication.get_group_rank_from_world_rank
    world = GlobalComm.WORLD_COMM_GROUP
    refuse(lambda: to_world(3, 0), TypeError)
    refuse(lambda: to_world("no", 0), RuntimeError)
    refuse(lambda: to_world(world, "0"), TypeError)
    refuse(lambda: to_world(world, -1), TypeError)
    refuse(lambda: to_world(world, 2), RuntimeError)
    refuse(lambda: to_group(0, 3), TypeError)
    refuse(lambda: to_group(0, "no"), RuntimeError)
    refuse(lambda: to_group("0", world), TypeError)
    refuse(lambda: to_group(2, world), RuntimeError)
    refuse(lambda: to_group(-1, world), RuntimeError)


def test_bad_ranks():
    unisono.spawn(bad_ranks, 2)


def test_a_rank_outside_a_group_has_no_rank_in_it():
    def ask() -> int:
        group = groups.world().split([1], "single")
        if communication.get_rank() == 0:
            for name in ("get_rank", "get_local_rank"):
                with pytest.raises(NotReady, match="not in group 'single'"):
                    getattr(communication, name)("single")
        return communication.get_group_size(group)

    assert unisono.spawn(ask, 2) == [1, 1]
