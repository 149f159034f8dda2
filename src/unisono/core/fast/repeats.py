"""The same call on the same memory once more, for tensors that native code leaves alone.

An engine may remember a call that has ended well, see `Engine.repeat`. If the next one is the same,
nothing is made anew for it: no buffers, no description, no work. That is for tensors on a GPU, in
calls that return when they are in the caller's stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unisono.core import groups
from unisono.core.buffers import devices
from unisono.core.debugging import profiler
from unisono.core.groups import Group
from unisono.errors import UnisonoError

if TYPE_CHECKING:
    from unisono.core.call import Call
    from unisono.core.engine import Engine

__all__ = ["again", "remember"]

_REMEMBERED = 256  # calls of one group


def again(given: Any, verb: str, detail: object, *tensors: Any) -> bool:
    """Make a call again, if it was made before; otherwise nothing is done.

    `given` is the group, or None for the world; `detail` the operator or the root. The tensors are
    the one that is written, and then the other one if there is another.
    """
    group = groups.current_world() if given is None else given
    if type(group) is not Group or not group.repeats:
        return False
    known = group.repeats
    key = _key(verb, detail, tensors)
    try:
        found = None if key is None else known.get(key)
    except TypeError:  # the operator is something that is none
        return False
    if found is None or profiler.is_on():
        return False
    try:
        if not found(tensors, group.calls + 1):
            del known[key]  # perhaps this is other memory now
            return False
    except UnisonoError as error:
        from unisono.core.dispatch import where  # which stands on this module

        error.add_note(where(verb, group, group.count_call()))
        raise
    group.count_call()
    return True


def remember(group: Group, engine: Engine, call: Call) -> None:
    """Let the engine remember a call that has ended well."""
    used = [buffer for buffer in (call.destination, call.source) if buffer is not None]
    if not used or used[0].device == "cpu" or call.backward or call.uneven:
        return
    if any(buffer.copy_back is not None for buffer in used):
        return
    if len(used) == 2 and used[0] is used[1]:
        used.pop()
    detail = call.root if call.op is None else call.op
    key = _key(call.verb, detail, tuple(buffer.owner for buffer in used))
    if key is None or key in group.repeats:
        return
    repeat = engine.repeat(call)
    if repeat is not None:
        if len(group.repeats) >= _REMEMBERED:
            group.repeats.clear()
        group.repeats[key] = repeat


def _key(verb: str, detail: object, tensors: tuple[Any, ...]) -> tuple[object, ...] | None:
    first = devices.fingerprint(tensors[0])
    if len(tensors) == 1 or first is None:
        return None if first is None else (verb, detail, *first)
    other = devices.fingerprint(tensors[1])
    return None if other is None else (verb, detail, *first, *other)
