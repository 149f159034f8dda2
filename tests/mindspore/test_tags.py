"""Messages with tags: each receive gets the message with its tag, in every MindSpore face."""

from __future__ import annotations

import time
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import unisono
from unisono.core.groups import Group
from unisono.errors import CommTimeout
from unisono.mindspore.communication import comm_func
from unisono.mindspore.mint import distributed as mint
from unisono.mindspore.ops import communication as ops

FACES = {"comm_func": comm_func, "mint": mint, "ops": ops}
faces = pytest.mark.parametrize("face", FACES)
SENT = (3, 0, 7, 1)
TAKEN = (1, 7, 3, 0)


def received(face: ModuleType, tag: int) -> Any:
    """What a blocking receive with this tag gets."""
    into = np.zeros(2)
    result = face.recv(into, 0, tag=tag)
    return result if face is comm_func else into


def out_of_order(group: Group, name: str) -> list[list[Any]]:
    """The numbers that rank 1 gets by tag; messages carry their tags and a count."""
    face = FACES[name]
    if group.rank == 0:
        handles = [face.isend(np.array([tag, 0.0]), 1, tag=tag) for tag in SENT]
        for handle in handles:
            handle.wait()
        for tag in SENT:
            face.send(np.array([tag, 1.0]), 1, tag=tag)
        return []
    now = [received(face, tag).tolist() for tag in TAKEN]
    started = [(np.zeros(2), tag) for tag in TAKEN]
    later, handles = [], []
    for into, tag in started:
        result = face.irecv(into, 0, tag=tag)
        tensor, handle = result if face is comm_func else (into, result)
        later.append(tensor)
        handles.append(handle)
    for handle in reversed(handles):
        handle.wait()
    return [now, [tensor.tolist() for tensor in later]]


@faces
def test_each_receive_gets_the_message_with_its_tag(world, face):
    now, later = world(2, out_of_order, face)[1]
    assert now == [[tag, 0] for tag in TAKEN]
    assert later == [[tag, 1] for tag in TAKEN]


def same_tag(group: Group, name: str) -> list[float]:
    face = FACES[name]
    if group.rank == 0:
        for number in range(3):
            face.send(np.array([0.0, number]), 1, tag=4)
        return []
    return [received(face, 4)[1] for _ in range(3)]


@faces
def test_messages_of_one_tag_keep_their_order(world, face):
    assert world(2, same_tag, face)[1] == [0, 1, 2]


TIMEOUT = 2.0


def other_tags() -> list[str]:
    """The notes of the errors of receives whose tags nobody sends, one for each face and a recv."""
    into = np.zeros(2)
    if mint.get_rank() == 0:
        mint.isend(np.ones(2), 1, tag=8)
        time.sleep(TIMEOUT)  # so that the barrier waits long enough for the other rank
        mint.barrier()
        return []
    handles = [
        comm_func.irecv(into, 0, tag=9)[1],
        mint.irecv(np.zeros(2), 0, tag=10),
        ops.irecv(np.zeros(2), 0, tag=11),
    ]
    notes = []
    for wait in (lambda: mint.recv(into, 0, tag=12), *(handle.wait for handle in handles)):
        with pytest.raises(CommTimeout) as caught:
            wait()
        notes.append("\n".join(caught.value.__notes__))
    mint.recv(into, 0, tag=8)  # the message is still there for its own receive
    assert into.tolist() == [1, 1]
    mint.barrier()
    return notes


@pytest.mark.parametrize("engine_name", ["threads", "shm"])
def test_a_tag_that_does_not_come(engine_name):
    notes = unisono.spawn(other_tags, 2, engine=engine_name, timeout=TIMEOUT)[1]
    assert len(notes) == 4
    for tag, note in zip((12, 9, 10, 11), notes, strict=True):
        assert f"in recv with tag {tag} on group 'world', rank 1 of 2" in note


@faces
@pytest.mark.parametrize("name", ["send", "isend", "recv", "irecv"])
@pytest.mark.parametrize("tag", ["0", 0.0, None])
def test_a_tag_is_a_whole_number(face, name, tag):
    # There is no world here: types are checked before anything else.
    with pytest.raises(TypeError, match="tag must be of type int"):
        getattr(FACES[face], name)(np.zeros(2), 1, tag=tag)
