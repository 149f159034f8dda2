"""What the comparisons of both dialects share: a world of three, a group of two, small tools.

MindSpore documents how five of its collectives differ from PyTorch's. For each of them, `measure`
runs on every rank and returns facts by name, and `collect` runs it on the ranks of an engine. Each
test then compares one statement of that documentation with the facts.
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from unisono.core.groups import Group

__all__ = [
    "EVERYONE",
    "Facts",
    "HCCL_WORLD_GROUP",
    "MEMBERS",
    "OUTSIDER",
    "PAIR",
    "World",
    "collect",
    "error_of",
    "given",
    "keywords",
    "outside",
    "pair_groups",
    "parameters",
]

EVERYONE = range(3)
#: The members of the group that is not the world, and the rank that is not in it.
MEMBERS = (0, 2)
OUTSIDER = 1
#: What the group is called in MindSpore's dialect.
PAIR = "the pair"
#: What GlobalComm.WORLD_COMM_GROUP is when defaults are fixed, which init() may change later.
HCCL_WORLD_GROUP = "hccl_world_group"

Facts = dict[str, Any]
World = Callable[..., list[Any]]  # the fixture of that name


def collect(world: World, measure: Callable[[], Facts]) -> list[Facts]:
    """Run `measure` on three ranks; the facts of each rank."""
    return world(len(EVERYONE), _measured, measure)


def _measured(_: Group, measure: Callable[[], Facts]) -> Facts:
    return measure()


def given(rank: int, *shape: int) -> np.ndarray:
    """A rank's input: each value tells its rank and its index, so that mistakes are seen."""
    return np.arange(np.prod(shape), dtype=np.float64).reshape(shape) + 100.0 * (rank + 1)


@contextlib.contextmanager
def pair_groups() -> Iterator[tuple[Any, str]]:
    """Make the group of two in both dialects: an object for every rank, and a name for members.

    The ranks go on with the next comparison, so it is closed at the end.
    """
    import unisono.torch.distributed as dist
    from unisono.mindspore import communication

    pair = dist.new_group(list(MEMBERS))
    if dist.get_rank() in MEMBERS:
        communication.create_group(PAIR, list(MEMBERS))
    yield pair, PAIR
    dist.barrier()  # no rank leaves while another still works
    if dist.get_rank() in MEMBERS:
        communication.destroy_group(PAIR)
        dist.destroy_process_group(pair)


def outside(call: Callable[[], object]) -> object:
    """What a call on a group returns on a rank that is not in it, or its error; it may warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return call()
        except Exception as error:
            return repr(error)  # one wrong fact must not hide the others


def error_of(call: Callable[[], object]) -> list[str]:
    """The classes of the error that a call raises, itself first; an empty list if none."""
    try:
        call()
    except Exception as error:
        return [kind.__name__ for kind in type(error).__mro__]
    return []


def parameters(function: Callable[..., object]) -> list[str]:
    """The names of a function's parameters, in order."""
    return list(inspect.signature(function).parameters)


def keywords(function: Callable[..., object]) -> Facts:
    """The parameters of a function that have a default, with it."""
    return {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }
