"""Checks calls, describes each as one `Call`, runs it on the group's engine, explains errors.

There is one function for each verb. With `blocking` the work that comes back has ended; `timeout`
is in seconds, and None means the group's own. `names` are what the caller calls source and
destination, for the texts of errors.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from unisono.core import buffers, trace
from unisono.core.buffers import Buffer, devices
from unisono.core.call import Call, Caller, Counts
from unisono.core.checks import (
    Names,
    check_count,
    check_exchange,
    check_operator,
    check_pair,
    check_parts,
    check_rank,
    check_reduction,
    check_tag,
    need,
)
from unisono.core.debugging import profiler
from unisono.core.engine import DONE, Engine, ReduceOp, Work
from unisono.core.fast import registration, repeats
from unisono.core.groups import Group
from unisono.errors import ArgumentError, NotReady, UnisonoError, Unsupported

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "gather",
    "in_pass",
    "recv",
    "reduce",
    "reduce_scatter",
    "scatter",
    "send",
    "where",
]


class _Pass(threading.local):
    """Whether this thread makes the calls of a backward pass that a compiler has ordered."""

    is_backward = False


_pass = _Pass()


@contextlib.contextmanager
def in_pass(*, backward: bool) -> Iterator[None]:
    """Mark the calls that this thread makes meanwhile, see `Call.backward`."""
    before, _pass.is_backward = _pass.is_backward, backward
    registration.set_backward(backward)
    try:
        yield
    finally:
        _pass.is_backward = before
        registration.set_backward(before)


_NAMES: Names = ("src", "dst")

# ---- the verbs -----------------------------------------------------------------------------------


def broadcast(
    group: Group,
    source: Buffer | None,
    destination: Buffer,
    root: int,
    *,
    blocking: bool = True,
    timeout: float | None = None,
    names: Names = _NAMES,
) -> Work:
    """Copy `source` of the root to `destination` of every rank (`source` is None elsewhere)."""
    try:
        engine = _engine(group, source, destination, names)
        check_rank(group, root, "root")
        if group.rank == root:
            source = need(source, names[0])
            check_pair(source, destination, names)
            check_count(destination.count, source.count, names[1])
        buffers.check_writable(destination, names[1])
        call = Call.broadcast(_caller(group, engine, blocking, timeout), source, destination, root)
        return _run(engine.broadcast, call, group)
    except UnisonoError as error:
        _add_note(error, "broadcast", group)
        raise


def reduce(
    group: Group,
    source: Buffer,
    destination: Buffer | None,
    op: ReduceOp,
    root: int,
    *,
    blocking: bool = True,
    timeout: float | None = None,
    names: Names = _NAMES,
) -> Work:
    """Combine every `source` into `destination` of the root (`destination` is None elsewhere)."""
    try:
        engine = _engine(group, source, destination, names)
        check_rank(group, root, "root")
        if group.rank == root:
            destination = need(destination, names[1])
            check_reduction(source, destination, op, names)
        else:
            check_operator(source, op, names[0])
        call = Call.reduce(_caller(group, engine, blocking, timeout), source, destination, op, root)
        return _run(engine.reduce, call, group)
    except UnisonoError as error:
        _add_note(error, "reduce", group)
        raise


def all_reduce(
    group: Group,
    source: Buffer,
    destination: Buffer,
    op: ReduceOp,
    *,
    blocking: bool = True,
    timeout: float | None = None,
    names: Names = _NAMES,
) -> Work:
    """Combine every `source` into `destination` of every rank."""
    try:
        engine = _engine(group, source, destination, names)
        check_reduction(source, destination, op, names)
        call = Call.all_reduce(_caller(group, engine, blocking, timeout), source, destination, op)
        return _run(engine.all_reduce, call, group)
    except UnisonoError as error:
        _add_note(error, "all_reduce", group)
        raise


def reduce_scatter(
    group: Group,
    source: Buffer,
    destination: Buffer,
    op: ReduceOp,
    counts: Counts = None,
    *,
    blocking: bool = True,
    timeout: float | None = None,
    names: Names = _NAMES,
) -> Work:
    """Combine every `source` and leave part `rank` of the result in `destination`."""
    try:
        engine = _engine(group, source, destination, names)
        check_operator(source, op, names[0])
        check_parts(group, counts, source, destination, names)
        buffers.check_writable(destination, names[1])
        caller = _caller(group, engine, blocking, timeout)
        call = Call.reduce_scatter(caller, source, destination, op, counts)
        return _run(engine.reduce_scatter, call, group)
    except UnisonoError as error:
        _add_note(error, "reduce_scatter", group)
        raise


def gather(
    group: Group,
    source: Buffer,
    destination: Buffer | None,
    root: int,
    counts: Counts = None,
    *,
    blocking: bool = True,
    timeout: float | None = None,
    names: Names = _NAMES,
) -> Work:
    """Join every `source` in `destination` of the root; `counts` matters on the root only."""
    try:
        engine = _engine(group, source, destination, names)
        check_rank(group, root, "root")
        if group.rank == root:
            destination = need(destination, names[1])
            check_parts(group, counts, destination, source, names[::-1])
            buffers.check_writable(destination, names[1])
        caller = _caller(group, engine, blocking, timeout)
        call = Call.gather(caller, source, destination, root, counts)
        return _run(engine.gather, call, group)
    except UnisonoError as error:
        _add_note(error, "gather", group)
        raise


def all_gather(
    group: Group,
    source: Buffer,
    destination: Buffer,
    counts: Counts = None,
    *,
    blocking: bool = True,
    timeout: float | None = None,
    names: Names = _NAMES,
) -> Work:
    """Join every `source` in `destination` of every rank."""
    try:
        engine = _engine(group, source, destination, names)
        check_parts(group, counts, destination, source, names[::-1])
        buffers.check_writable(destination, names[1])
        call = Call.all_gather(
            _caller(group, engine, blocking, timeout), source, destination, counts
        )
        return _run(engine.all_gather, call, group)
    except UnisonoError as error:
        _add_note(error, "all_gather", group)
        raise


def scatter(
    group: Group,
    source: Buffer | None,
    destination: Buffer,
    root: int,
    counts: Counts = None,
    *,
    blocking: bool = True,
    timeout: float | None = None,
    names: Names = _NAMES,
) -> Work:
    """Distribute `source` of the root; `counts` matters on the root only."""
    try:
        engine = _engine(group, source, destination, names)
        check_rank(group, root, "root")
        if group.rank == root:
            source = need(source, names[0])
            check_parts(group, counts, source, destination, names)
        buffers.check_writable(destination, names[1])
        caller = _caller(group, engine, blocking, timeout)
        call = Call.scatter(caller, source, destination, root, counts)
        return _run(engine.scatter, call, group)
    except UnisonoError as error:
        _add_note(error, "scatter", group)
        raise


def all_to_all(
    group: Group,
    source: Buffer,
    destination: Buffer,
    sends: Counts = None,
    receives: Counts = None,
    *,
    blocking: bool = True,
    timeout: float | None = None,
    names: Names = _NAMES,
) -> Work:
    """Send part j of `source` to rank j, and receive part i of `destination` from rank i."""
    try:
        engine = _engine(group, source, destination, names)
        check_exchange(group, source, destination, sends, receives, names)
        caller = _caller(group, engine, blocking, timeout)
        call = Call.all_to_all(caller, source, destination, sends, receives)
        return _run(engine.all_to_all, call, group)
    except UnisonoError as error:
        _add_note(error, "all_to_all", group)
        raise


def send(
    group: Group,
    source: Buffer,
    peer: int,
    tag: int = 0,
    *,
    blocking: bool = True,
    timeout: float | None = None,
    names: Names = _NAMES,
) -> Work:
    """Send `source` to `peer`; ends when `source` may be written again."""
    try:
        engine = _engine(group, source, None, names)
        check_rank(group, peer, "peer")
        check_tag(tag)
        caller = _caller(group, engine, blocking, timeout, message=True)
        call = Call.send(caller, source, peer, tag)
        return _run(engine.send, call, group)
    except UnisonoError as error:
        _add_note(error, "send", group, tag)
        raise


def recv(
    group: Group,
    destination: Buffer,
    peer: int | None,
    tag: int = 0,
    *,
    blocking: bool = True,
    timeout: float | None = None,
    names: Names = _NAMES,
) -> Work:
    """Receive into `destination` from `peer`, or from any rank; `work.source` says from whom."""
    try:
        engine = _engine(group, None, destination, names)
        if peer is not None:
            check_rank(group, peer, "peer")
        check_tag(tag)
        buffers.check_writable(destination, names[1])
        if destination.copy_back is not None:
            buffers.expect_message(destination)
        caller = _caller(group, engine, blocking, timeout, message=True)
        call = Call.recv(caller, destination, peer, tag)
        return _run(engine.recv, call, group)
    except UnisonoError as error:
        _add_note(error, "recv", group, tag)
        raise


def barrier(group: Group, *, blocking: bool = True, timeout: float | None = None) -> Work:
    """End when every rank of the group has called it."""
    try:
        engine = _engine(group, None, None, _NAMES)
        call = Call.barrier(_caller(group, engine, blocking, timeout))
        return _run(engine.barrier, call, group)
    except UnisonoError as error:
        _add_note(error, "barrier", group)
        raise


# ---- before and after the engine -----------------------------------------------------------------


def _engine(
    group: Group, source: Buffer | None, destination: Buffer | None, names: Names
) -> Engine:
    """The engine of the group that reaches the memory, if this rank is a member."""
    engine = group.engine
    if engine is None:
        raise _no_engine(group)
    if devices.saw_device_tensor:
        return _engine_for_devices(group, engine, source, destination, names)
    return engine


def _engine_for_devices(
    group: Group,
    engine: Engine,
    source: Buffer | None,
    destination: Buffer | None,
    names: Names,
) -> Engine:
    """The engine that reaches all buffers of a call, which are in one memory.

    Those that no engine of the group reaches go through the host's memory if they can.
    """
    found = engine
    pairs = ((source, names[0]), (destination, names[1]))
    for buffer, name in pairs[:1] if source is destination else pairs:
        if buffer is None or buffer.device in engine.devices:
            continue
        reaching = group.engine_for(buffer.device)
        if reaching is not None:
            found = reaching
        elif not buffers.move_to_host(buffer):
            reached = " and ".join(sorted(engine.devices))
            raise Unsupported(
                f"engine {engine.name!r} reaches memory of {reached} only, and {name} is on "
                f"{buffer.device}; move it to the CPU, or use engine 'cuda' or 'torch:nccl'"
            )
    if source is not None and destination is not None and source.device != destination.device:
        raise ArgumentError(
            f"{names[0]} is on {source.device} and {names[1]} on {destination.device}; one call "
            "needs them in one memory"
        )
    if source is not None and destination is not None and source.device == "cuda":
        first, second = devices.device_index(source), devices.device_index(destination)
        if first != second:
            raise ArgumentError(
                f"{names[0]} is on GPU {first} and {names[1]} on GPU {second}; one call needs them "
                "in one memory"
            )
    return found


def _caller(
    group: Group, engine: Engine, blocking: bool, timeout: float | None, *, message: bool = False
) -> Caller:
    number = 0
    if not message:
        number = group.count_call()
    if timeout is None:
        timeout = engine.timeout
    site = "" if engine.finds_call_sites else trace.call_site() or ""
    # As in `core.call`: the constructor would cost more than the rest.
    fields = (group.rank, group.size, number, timeout, blocking, True, site, _pass.is_backward)
    return tuple.__new__(Caller, fields)


def _run(verb: Callable[[Call], Work], call: Call, group: Group) -> Work:
    """Make a call, and show it to torch's profiler if that is on."""
    if not profiler.is_on():
        work = _finish(verb(call), call, group)
        if devices.saw_device_tensor and call.blocking:
            repeats.remember(group, verb.__self__, call)  # type: ignore[attr-defined]
        return work
    with profiler.span(call, group) as span:
        work = _finish(verb(call), call, group)
        span.follow(work)
        return work


def _finish(work: Work, call: Call, group: Group) -> Work:
    """Copy the result back where that is needed, and wait if the caller does."""
    destination = call.destination
    if destination is not None and destination.copy_back is not None:
        work.then(destination.copy_back)
    if work is DONE:
        return work
    if call.blocking:
        work.wait()  # it has ended; this notes its outcome and copies its result back
    else:
        work.note(lambda: where(call.verb, group, call.number, call.tag))
    return work


def _add_note(error: UnisonoError, verb: str, group: Group, tag: int = 0) -> None:
    """Let an error say where it happened."""
    error.add_note(where(verb, group, group.calls, tag))


def _explain_fast_call(error: BaseException, verb: str, group: Group, tag: int) -> None:
    """Add to the error of a call of `core.fast` what the general way adds."""
    if isinstance(error, UnisonoError):
        if group.engine is not None:
            group.engine.explain(error)
        _add_note(error, verb, group, tag)


def _work_of_fast_call(
    pending: Any, verb: str, group: Group, tag: int, tensors: list[Any]
) -> Work | None:
    """The work of a call that `core.fast` has started."""
    engine, number = group.engine, group.calls
    if engine is None:
        raise _no_engine(group)
    work = engine.work_of(pending)
    work.note(lambda: where(verb, group, number, tag))
    return work.with_value(tensors)


registration.set_hooks(_explain_fast_call, _work_of_fast_call)


def where(verb: str, group: Group, number: int, tag: int = 0) -> str:
    """Say which call of which group this is, for the note of an error."""
    if group.rank < 0:
        return f"in {verb} on group {group.name!r}, by a rank that is not in it"
    if verb in ("send", "recv"):  # messages are not counted: their tags tell them apart
        which = f" with tag {tag}"
    else:
        which = f" (call {number})" if number else ""
    return f"in {verb}{which} on group {group.name!r}, rank {group.rank} of {group.size}"


def _no_engine(group: Group) -> NotReady:
    if group.rank < 0:
        return NotReady(
            f"this rank is not in group {group.name!r} (world ranks {list(group.ranks)}); "
            "only members may call its collectives"
        )
    return NotReady(f"group {group.name!r} is closed; make a new one")
