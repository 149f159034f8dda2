"""The world and its groups: ordered world ranks with a name and an engine.

A process has one world; where ranks are threads, each thread has its own.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from unisono.core import environment, registry
from unisono.core.arguments import as_ints
from unisono.core.engine import Engine
from unisono.core.environment import Launch
from unisono.core.fast import registration
from unisono.errors import ArgumentError, NotReady, UnisonoError

__all__ = [
    "WORLD_NAME",
    "Group",
    "add_world_names",
    "calls_by_group",
    "close",
    "current_world",
    "find",
    "init",
    "install",
    "is_initialized",
    "resolve",
    "separate_world",
    "unclaim",
    "world",
]

#: The name of the group of all ranks; faces may add others for it.
WORLD_NAME = "world"
_world_names = {WORLD_NAME}
registration.name_world(WORLD_NAME)


class _Number(int):
    """A number that can also be called: torch's groups have methods where ours have attributes."""

    def __call__(self) -> int:
        return int(self)


class Group:
    """Some ranks of the world, in order. `rank` is -1 on a rank that is not a member.

    >>> group = Group("world", (0, 1, 2), None, -1)
    >>> group.size, group.rank, group.size()
    (3, -1, 3)
    """

    __slots__ = (
        "_calls",
        "_companions",
        "_state",
        "engine",
        "name",
        "rank",
        "ranks",
        "repeats",
        "size",
    )

    def __init__(
        self,
        name: str,
        ranks: Sequence[int],
        engine: Engine | None,
        rank: int,
        state: _State | None = None,
    ) -> None:
        self.name = name
        self.ranks = tuple(ranks)
        self.size = _Number(len(self.ranks))
        self.engine = engine
        self.rank = _Number(rank)
        self._calls = 0
        #: Calls that may be made again in a short way, see fast/repeats.py.
        self.repeats: dict[object, Callable[[Sequence[Any], int], bool]] = {}
        self._companions: dict[str, Engine | None] = {}  # by the device whose memory they reach
        self._state = state or _State()
        if engine is not None:
            engine.attach(self)

    @property
    def calls(self) -> int:
        """How many collectives this rank has called in the group."""
        return self._calls + (0 if self.engine is None else self.engine.fast_calls())

    def count_call(self) -> int:
        """The number of a collective that is called now."""
        self._calls += 1
        return self.calls

    def engine_for(self, device: str) -> Engine | None:
        """The engine that reaches the memory of a device: the group's own, or one beside it."""
        engine = self.engine
        if engine is None or device in engine.devices:
            return engine
        if device not in self._companions:
            self._companions[device] = registry.companion(engine, device)
        return self._companions[device]

    def order_apart(self, device: str) -> None:
        """Give calls on the memory of a device an order of their own; every rank calls this first.

        Otherwise all calls of a group are in one order. Programs of torch rely on this: each device
        has a backend of its own there, and another thread may make calls on the CPU meanwhile.
        """
        engine = self.engine
        if engine is not None and device not in engine.devices:
            self._close_companions()
            made = registry.companion(engine, device, apart=f"{self.name} on {device}")
            self._companions[device] = made

    def _close_companions(self) -> None:
        self.repeats.clear()
        while self._companions:
            companion = self._companions.popitem()[1]
            if companion is not None:
                companion.close()

    def split(self, ranks: Sequence[int], name: str | None = None) -> Group:
        """Make a group of these ranks of this group, in the given order.

        All members must call it; on other ranks it makes a group that they are not in. No rank
        waits for ranks outside the new group.
        """
        chosen = tuple(as_ints(ranks, "ranks"))
        if not chosen:
            raise ArgumentError("a group needs at least one rank")
        if len(set(chosen)) != len(chosen):
            raise ArgumentError(f"the ranks {list(chosen)} name a rank twice")
        for rank in chosen:
            if not 0 <= rank < self.size:
                raise ArgumentError(f"rank {rank} is not in group {self.name!r} of {self.size}")
        if name is not None and name in self._state.named:
            raise ArgumentError(f"there is a group {name!r} already; destroy it first")
        engine = self.engine
        if engine is None:
            raise NotReady(f"this rank is not in group {self.name!r}, so it cannot split it")
        world_ranks = tuple(self.ranks[rank] for rank in chosen)
        # The same ranks may be asked for again: members count alike, so the key agrees among them.
        times = self._state.splits.get(world_ranks, 0)
        self._state.splits[world_ranks] = times + 1
        key = f"{self.name}/{','.join(map(str, world_ranks))}#{times}"
        member = self.rank in chosen
        try:
            made = engine.split(chosen, key) if member else None
        except UnisonoError as error:
            error.add_note(
                f"in making a group of ranks {list(world_ranks)}; all of them must ask for it"
            )
            raise
        child = Group(
            name or key,
            world_ranks,
            made,
            chosen.index(self.rank) if member else -1,
            self._state,
        )
        self._state.named[child.name] = child
        return child

    def shrink(self, exclude: Sequence[int] = (), *, world: bool = False) -> Group:
        """Make a group of the members that are alive, but for the ranks to `exclude`.

        All of them must call it, as they do when a call has failed because a rank is lost. Calls of
        this group that are under way end with an error, and it can no longer be used. With `world`
        the new group replaces the world: ranks are numbered anew, and every other group is closed.
        """
        excluded = tuple(as_ints(exclude, "the ranks to exclude"))
        for rank in excluded:
            if not 0 <= rank < self.size:
                raise ArgumentError(f"rank {rank} is not in group {self.name!r} of {self.size}")
        if self.engine is None:
            raise NotReady(f"this rank is not in group {self.name!r}, so it cannot shrink it")
        if self.rank in excluded:
            raise ArgumentError(
                f"rank {self.rank} excludes itself from group {self.name!r}; only ranks that stay "
                "may shrink it, the others close it or end"
            )
        self._close_companions()
        engine, members = self.engine.shrink(excluded)
        started = [self._state.started.get(rank, rank) for rank in self.ranks]
        if getattr(_thread, "state", None) is not self._state:  # a supervisor watches processes
            lost = [started[one] for one in range(self.size) if one not in members]
            environment.tell_supervisor({"left_behind": lost})
        if world:
            self._state.started = {new: started[old] for new, old in enumerate(members)}
            return self._replace_world(engine)
        world_ranks = tuple(self.ranks[rank] for rank in members)
        times = self._state.splits.get(world_ranks, 0)
        self._state.splits[world_ranks] = times + 1
        name = f"{self.name}/{','.join(map(str, world_ranks))}#{times}"
        child = Group(name, world_ranks, engine, engine.rank, self._state)
        self._state.named[name] = child
        if self is not self._state.world:  # the world keeps the job until all groups are closed
            self.close()
        return child

    def _replace_world(self, engine: Engine) -> Group:
        """Continue as a world of these ranks; the old world is closed together with it."""
        state = self._state
        for group in list(state.named.values()):
            if group is not state.world:
                group.close()
        old = state.world
        if old is not None and old.engine is not None:
            old._close_companions()
            state.retired.append(old.engine)
            old.engine = None
        made = Group(WORLD_NAME, range(engine.size), engine, engine.rank, state)
        state.world = made
        state.named = {made.name: made}
        _tell_native()
        state.splits.clear()
        return made

    def local_ranks(self) -> list[int]:
        """The world ranks of the members that run on this host, in the order of the group."""
        # Only the world's engine knows this on ranks that are not members.
        whole = self._state.world or self
        if whole.engine is None:
            raise NotReady(f"the world of group {self.name!r} is closed")
        here = {whole.ranks[rank] for rank in whole.engine.local_ranks()}
        return [rank for rank in self.ranks if rank in here]

    def close(self) -> None:
        """Leave this group; closing twice is allowed. Closing the world closes every group."""
        if self._state.world is self:
            for group in list(self._state.named.values()):
                if group is not self:
                    group.close()
        self._state.named.pop(self.name, None)
        self._close_companions()
        engine, self.engine = self.engine, None
        if engine is not None:
            engine.close()
        if self._state.world is self:
            while self._state.retired:
                self._state.retired.pop().close()

    def __repr__(self) -> str:
        return f"Group({self.name!r}, ranks={list(self.ranks)}, rank={self.rank})"


@dataclass(eq=False)
class _State:
    """One world: its groups by name, and how often each set of ranks was asked for."""

    world: Group | None = None
    named: dict[str, Group] = field(default_factory=dict)
    splits: dict[tuple[int, ...], int] = field(default_factory=dict)
    claimed: bool = True
    #: The ranks as the launcher counts them, by their numbers in a world that has shrunk.
    started: dict[int, int] = field(default_factory=dict)
    retired: list[Engine] = field(default_factory=list)  # of worlds before this one


_process: _State | None = None
_thread = threading.local()
_of_threads: weakref.WeakSet[_State] = weakref.WeakSet()  # worlds that single threads have
_launch: Launch | None = None  # what the world of this process was made of
_forked = False
_FORKED = (
    "this process was forked after init and has no world; start ranks with `unisono run` or "
    "unisono.spawn instead"
)


def init(
    engine: str | None = None,
    timeout: float | None = None,
    *,
    claimed: bool = True,
    launch: Launch | None = None,
) -> Group:
    """Join the world that the launcher described, or that `launch` does, and return it.

    In a rank that `unisono.spawn` or a test started the world exists already: the first call
    returns it (the world is left not `claimed` for that).
    """
    global _launch
    state = _state()
    if state is not None and state.world is not None:
        if state.claimed:
            raise NotReady("the world is initialised already; close it first")
        state.claimed = True
        return state.world
    launch = launch or environment.find()
    if _forked and launch == _launch and launch.size > 1:
        raise NotReady(_FORKED)  # the parent is that rank, and no other will join
    chosen = registry.choose(engine, launch)
    _launch = launch
    return install(chosen.open(launch, environment.timeout(timeout)), claimed=claimed)


def install(engine: Engine, *, in_thread: bool = False, claimed: bool = True) -> Group:
    """Make the world of this process, or of this thread, out of an engine."""
    global _process, _forked
    world = separate_world(engine)
    state = world._state
    state.claimed = claimed
    if in_thread:
        _thread.state = state
        _of_threads.add(state)
    else:
        _process = state
        _forked = False
    _tell_native()
    return world


def _tell_native() -> None:
    """Say which world a call of any thread is for: none while a thread has one of its own."""
    if _process is None or _of_threads:
        registration.set_world(None, {})
    else:
        registration.set_world(_process.world, _process.named)


def separate_world(
    engine: Engine, name: str = WORLD_NAME, ranks: Sequence[int] | None = None
) -> Group:
    """Make a world that this process does not have as its own; `ranks` are its ranks elsewhere."""
    state = _State()
    chosen = range(engine.size) if ranks is None else ranks
    state.world = Group(name, chosen, engine, engine.rank, state)
    state.named[name] = state.world
    return state.world


def unclaim() -> None:
    """Let the next `init` return the world that is there, as in a rank that has just started."""
    state = _state()
    if state is not None:
        state.claimed = False


def calls_by_group() -> dict[str, int]:
    """How many collectives this rank has called in each group that it is in."""
    named = world()._state.named
    return {name: group.calls for name, group in named.items() if group.engine is not None}


def is_initialized() -> bool:
    """Tell whether this rank has a world."""
    state = _state()
    return state is not None and state.world is not None


def current_world() -> Group | None:
    """The group of all ranks, if there is one."""
    state = _state()
    return None if state is None else state.world


def world() -> Group:
    """The group of all ranks."""
    state = _state()
    if state is None or state.world is None:
        if _forked:
            raise NotReady(_FORKED)
        raise NotReady(
            "there is no world yet; call init first (init_process_group, or "
            "mindspore.communication.init), and start ranks with `unisono run -n N script.py`"
        )
    return state.world


def add_world_names(*names: str) -> None:
    """Let further names mean the world: a face has its own."""
    _world_names.update(names)
    for name in names:
        registration.name_world(name)


def find(name: str) -> Group:
    """The group called `name`; every name of the world means the world."""
    if name in _world_names:
        return world()
    named = world()._state.named
    if name not in named:
        raise ArgumentError(f"there is no group {name!r}; there are {sorted(named)}")
    return named[name]


def resolve(group: Group | str | None) -> Group:
    """A group from what callers pass: an object, a name, or None for the world."""
    if group is None:
        return world()
    if isinstance(group, str):
        return find(group)
    return group


def close(*, exiting: bool = False) -> None:
    """Leave the world and all its groups; closing twice is allowed.

    `exiting` says that this process is about to end, and that is why.
    """
    global _process
    state = _state()
    if state is None or state.world is None:
        return
    whole = state.world
    if exiting and whole.engine is not None:
        whole.engine.exit()
    if state in _of_threads:
        _thread.state = None
        _of_threads.discard(state)
    else:
        _process = None
    _tell_native()
    whole.close()


def _state() -> _State | None:
    state: _State | None = getattr(_thread, "state", None)
    return state if state is not None else _process


def _forget_in_child() -> None:
    """A forked child shares the parent's memory but is not its rank: it must not act as it."""
    global _process, _forked
    if _process is not None:
        _process = None
        _forked = True
        _tell_native()


os.register_at_fork(after_in_child=_forget_in_child)
atexit.register(close, exiting=True)
