"""A process that runs the calls of a fuzz run, as one rank or as both ranks of a world of threads.

It reads commands as lines of JSON and answers each with one. A crash is seen as the end of this
process, and a hang as silence: see worlds.py.
"""

from __future__ import annotations

import array
import contextlib
import faulthandler
import importlib
import inspect
import json
import os
import queue
import sys
import tempfile
import threading
import traceback
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed  # expressions name its operators

from tests.long.fuzz.calls import MODULES, functions
from unisono import errors
from unisono.core import groups
from unisono.engines.threads.engine import threads_world
from unisono.errors import UnisonoError
from unisono.launch.process import ReservedPort

#: Seconds that a rank waits for another; a world that starts has much more time.
TIMEOUT = float(os.environ.get("FUZZ_TIMEOUT", "0.25"))
_START = 60.0


# ---- things that expressions name ----------------------------------------------------------------


class Foreign:
    """No tensor, no group, no number: nothing that a face knows."""


class BadShape:
    """Looks like a tensor, and is none."""

    shape = "no"
    dtype = "float32"
    ranks = None


class LyingArray:
    """Says that NumPy can have it, and then refuses."""

    shape = (2,)
    dtype = np.dtype("f4")

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        raise ValueError("no array after all")

    def __dlpack__(self, **_: object) -> object:
        raise BufferError("no memory after all")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


class Index:
    """A number only by `__index__`."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


class BadIndex:
    def __index__(self) -> int:
        raise ValueError("no number after all")


class Raises:
    """Whatever is asked of it, it raises."""

    def __getattr__(self, name: str) -> object:
        raise ValueError(f"no {name}")

    def __len__(self) -> int:
        raise ValueError("no length")

    def __bool__(self) -> bool:
        raise ValueError("neither true nor false")

    def __eq__(self, other: object) -> bool:
        raise ValueError("not comparable")

    __hash__ = None  # type: ignore[assignment]


class RefusesPickle:
    def __reduce__(self) -> str:
        raise ValueError("stays here")


class Unpicklable:
    def __init__(self) -> None:
        self.lock = threading.Lock()


def read_only(value: np.ndarray) -> np.ndarray:
    value.flags.writeable = False
    return value


def cyclic() -> list:
    ring: list = []
    ring.append(ring)
    return ring


def free_port() -> str:
    return str(ReservedPort())


def new_file() -> str:
    return str(Path(tempfile.gettempdir()) / os.urandom(6).hex())


_NAMES: dict[str, Any] = {
    **{short: importlib.import_module(name) for short, name in MODULES.items()},
    **{thing.__name__: thing for thing in (Foreign, BadShape, LyingArray, Index, BadIndex, Raises)},
    **{thing.__name__: thing for thing in (RefusesPickle, Unpicklable, read_only, cyclic)},
    "free_port": free_port,
    "new_file": new_file,
    "timedelta": timedelta,
    "np": np,
    "torch": torch,
    "os": os,
    "sys": sys,
    "threading": threading,
    "array": array,
}
_FUNCTIONS = functions()
_PACKAGE = str(Path(errors.__file__).parent) + os.sep


# ---- one rank ------------------------------------------------------------------------------------


class Rank:
    """One rank of a world that can be left and joined again."""

    def __init__(self, me: int, size: int) -> None:
        self.me = me
        self.size = size
        self.own: list[str] = []
        self.names: dict[str, Any] = {}

    def settle(self) -> None:
        """Make the groups that expressions name; the world is there, and its deadline long."""
        dist, comm = _NAMES["dist"], _NAMES["comm"]
        everyone = list(range(self.size))
        dead = dist.new_group(everyone)
        comm.create_group("pair", everyone)
        self.names = {
            **_NAMES,
            "n": self.size,
            "me": self.me,
            "other": (self.me + 1) % self.size,
            "pair": dist.new_group(everyone),
            "first": dist.new_group([0]),
            "dead": dead,
        }
        dist.barrier()
        dist.destroy_process_group(dead)
        self.own = sorted(groups.world()._state.named)
        for group in groups.world()._state.named.values():
            if group.engine is not None:
                group.engine.timeout = TIMEOUT

    def settle_alone(self) -> None:
        """No world at all: what calls do before init."""
        self.names = {**_NAMES, "n": 1, "me": 0, "other": 0}
        self.names.update(pair=None, first=-100, dead="dead")
        self.own = []

    def run(self, call: dict[str, Any]) -> dict[str, Any]:
        """Make one call and tell how it ended; `stale` if the world must be made anew."""
        try:
            arguments = eval(f"gather({', '.join(call['arguments'])})", {**self.names, **_GATHER})
            then = None
            if call["then"] is not None:
                then = eval(f"gather({', '.join(call['then'])})", {**self.names, **_GATHER})
        except UnisonoError as error:  # an argument was made by a face, which refused
            return {"kind": _public_name(error), "text": str(error), "stale": False}
        except Exception as error:
            return {"kind": "bad expression", "text": repr(error), "bad": True, "stale": False}
        outcome = self._outcome(_FUNCTIONS[call["path"]], arguments, then)
        outcome["stale"] = self._tidy_up()
        return outcome

    def _outcome(self, function: Any, arguments: tuple, then: tuple | None) -> dict[str, Any]:
        stage, given = function, arguments
        try:
            result = function(*arguments[0], **arguments[1])
            if then is not None:
                stage, given = result, then
                result = result(*then[0], **then[1])
            for handle in _handles(result):
                handle.wait()
            repr(result)
        except UnisonoError as error:
            return {"kind": _public_name(error), "text": str(error)}
        except BaseException as error:
            kind = _excuse(error, stage, given)
            fields = {
                "kind": kind or type(error).__name__,
                "text": repr(error),
                "bad": kind is None,
            }
            if kind is None:
                fields["trace"] = "".join(traceback.format_exception(error))
                fields["line"] = _own_line(error)
            return fields
        return {"kind": "result", "text": ""}

    def _tidy_up(self) -> bool:
        _NAMES["communication"].set_comm_ops_inplace(True)
        if not self.own:
            groups.close()
            return False
        if not groups.is_initialized():
            return True
        named = groups.world()._state.named
        for name in set(named) - set(self.own):
            named[name].close()
        return sorted(named) != self.own

    def check(self, timeout: float) -> dict[str, Any]:
        """A right call must still be right."""
        if not self.own:
            return {"kind": "result", "bad": False}
        value = np.arange(5.0) + self.me
        try:
            groups.world().engine.timeout = timeout
            _NAMES["dist"].all_reduce(value)
            groups.world().engine.timeout = TIMEOUT
        except UnisonoError as error:
            return {"kind": _public_name(error), "text": str(error), "bad": False}
        right = np.arange(5.0) * self.size + sum(range(self.size))
        wrong = not np.array_equal(value, right)
        return {"kind": "wrong sum" if wrong else "result", "text": f"{value}", "bad": wrong}


def _gather(*positional: Any, **named: Any) -> tuple[tuple, dict]:
    return positional, named


_GATHER = {"gather": _gather}


def _handles(result: Any) -> list[Any]:
    parts = result if isinstance(result, list | tuple) else [result]
    return [
        part
        for part in parts
        if type(part).__module__.startswith("unisono") and hasattr(part, "wait")
    ]


def _public_name(error: UnisonoError) -> str:
    """The nearest class that users know."""
    for kind in type(error).__mro__:
        if kind.__name__ in errors.__all__:
            return kind.__name__
    return "UnisonoError"


def _excuse(error: BaseException, function: Any, arguments: tuple) -> str | None:
    """Why an error that is not ours is in order; None if it is not."""
    if isinstance(error, TypeError):
        try:
            inspect.signature(function).bind(*arguments[0], **arguments[1])
        except TypeError:
            return "binding"
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return "no memory"
    frames = traceback.extract_tb(error.__traceback__)
    if frames[-1].filename == __file__ and len(frames) > 2:
        return "its own"  # raised by one of the odd arguments above
    if any(
        (Path(frame.filename).name, frame.name) == ("encoding.py", "encode") for frame in frames
    ):
        return "pickling"  # what pickle, or the object, says about it
    return None


def _own_line(error: BaseException) -> str:
    """The innermost line of unisono that the error passed through."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.startswith(_PACKAGE):
            return f"{frame.filename.removeprefix(_PACKAGE)}:{frame.lineno}"
    return "outside"


# ---- commands ------------------------------------------------------------------------------------


def _answer(rank: Rank, command: dict[str, Any], renew: Any) -> dict[str, Any]:
    if command["do"] == "renew":
        renew()
        return {}
    if command["do"] == "check":
        return rank.check(command["timeout"])
    return rank.run(command["call"])


def serve(me: int, size: int, world: str) -> None:
    """What a rank that is a process does."""
    rank = Rank(me, size)

    def renew() -> None:
        groups.close()
        if world == "none":
            rank.settle_alone()
        else:
            groups.init("shm", _START)
            rank.settle()

    for line in sys.stdin:
        command = json.loads(line)
        _say([_answer(rank, command, renew)])


def serve_threads(size: int) -> None:
    """The same for ranks that are threads: each has a queue of commands."""
    inboxes: list[queue.Queue] = [queue.Queue() for _ in range(size)]
    outbox: queue.Queue = queue.Queue()

    def live(me: int) -> None:
        rank = Rank(me, size)
        while True:
            command, engine = inboxes[me].get()

            def renew(engine: Any = engine) -> None:
                groups.close()
                groups.install(engine, in_thread=True)
                rank.settle()

            try:
                outbox.put((me, _answer(rank, command, renew)))
            except BaseException:
                outbox.put((me, {"kind": "harness", "text": traceback.format_exc(), "bad": True}))

    for me in range(size):
        threading.Thread(target=live, args=(me,), daemon=True).start()
    for line in sys.stdin:
        command = json.loads(line)
        engines = threads_world(size, _START) if command["do"] == "renew" else [None] * size
        for me in range(size):
            calls = command.get("calls")
            mine = {**command, "call": calls[me]} if calls else command
            inboxes[me].put((mine, engines[me]))
        _say(
            [
                answer
                for _, answer in sorted((outbox.get() for _ in range(size)), key=lambda p: p[0])
            ]
        )


def _say(answer: list[dict[str, Any]]) -> None:
    _OUT.write(json.dumps(answer) + "\n")
    _OUT.flush()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    faulthandler.enable()
    faulthandler.register(__import__("signal").SIGUSR1, all_threads=True)
    # Calls may print; answers go where nobody else writes.
    _OUT = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(1)
    kind, number, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with contextlib.suppress(KeyboardInterrupt):
        if kind == "threads":
            serve_threads(count)
        else:
            serve(number, count, kind)
