"""Run the examples of the pages on four ranks, and keep what they print."""

from __future__ import annotations

import functools
import importlib
import inspect
import io
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import unisono
from unisono.mindspore.ops import communication

__all__ = ["DIALECTS", "RANKS", "Example", "Pair", "example", "is_alone", "pair", "run", "without"]

RANKS = 4
DIALECTS = ("torch", "mindspore")
#: Calls that wait in vain, as some examples do, are given up after this many seconds.
_PATIENCE = 20.0
#: These examples show how a job ends whose limit is short.
_SHORT = {"no_monitored_mindspore": 1.0, "comm_timeout": 1.0}


@dataclass(frozen=True)
class Example:
    """The lines of a program, and what each rank printed."""

    source: str
    outputs: tuple[str, ...]

    @property
    def shown(self) -> str:
        """Return the output as `unisono run` labels it; equal lines of all ranks once.

        >>> Example("", ("6\\n",) * 4).shown
        '[0-3] 6'
        >>> Example("", ("1\\n", "", "", "")).shown
        '[0] 1'
        """
        if len(self.outputs) == 1:  # a program of its own
            return self.outputs[0].rstrip()
        if len(set(self.outputs)) == 1:
            labelled = [(f"0-{RANKS - 1}", self.outputs[0])]
        else:
            labelled = [(str(rank), output) for rank, output in enumerate(self.outputs)]
        return "\n".join(
            f"[{label}] {line}" for label, text in labelled for line in text.splitlines()
        )


#: One example in either dialect.
Pair = dict[str, Example]


class _PerThread(io.TextIOBase):
    """Keep what each rank prints apart: ranks are threads of this process."""

    def __init__(self, other: Any) -> None:
        self._other = other
        self._own = threading.local()

    def write(self, text: str) -> int:
        buffer = getattr(self._own, "buffer", None)
        return int((self._other if buffer is None else buffer).write(text))

    def collect(self, function: Callable[[int], None], rank: int) -> str:
        """Return what a function prints in this thread."""
        self._own.buffer = io.StringIO()
        try:
            function(rank)
            return str(self._own.buffer.getvalue())
        finally:
            self._own.buffer = None


@functools.cache
def run(function: Callable[[int], None]) -> Example:
    """Run an example on four ranks; once, for the pages of all languages."""
    from unisono.core import groups

    writer = _PerThread(sys.stdout)

    def on_rank() -> str:
        return writer.collect(function, groups.world().rank)

    before, sys.stdout = sys.stdout, writer
    try:
        timeout = _SHORT.get(function.__name__, _PATIENCE)
        outputs = unisono.spawn(on_rank, RANKS, timeout=timeout)
    except Exception as error:
        error.add_note(f"in the example {function.__module__}.{function.__name__}")
        raise
    finally:
        sys.stdout = before
        communication.set_comm_ops_inplace(True)  # one example switches it off
    if not any(outputs):
        raise ValueError(f"{function.__module__}.{function.__name__} prints nothing")
    return Example(_body(function), tuple(outputs))


@functools.cache
def run_alone(function: Callable[[int], None]) -> Example:
    """Run an example as a program of its own, which no launcher has started."""
    module = inspect.getsource(sys.modules[function.__module__])
    imports = [line for line in module.splitlines() if line.startswith(("import ", "from "))]
    program = "\n".join([*imports, _body(function)])
    environment = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True,
        timeout=_PATIENCE, check=False,
    )  # fmt: skip
    if done.returncode or not done.stdout:
        raise RuntimeError(f"the example {function.__name__} fails: {done.stderr}")
    return Example(_body(function), (done.stdout,))


def _body(function: Callable[[int], None]) -> str:
    lines = inspect.getsource(function).splitlines()
    return textwrap.dedent("\n".join(lines[1:])).strip()


def pair(identity: str) -> Pair | None:
    """Run the two programs of a difference; None if `without` says why there are none."""
    if without(identity):
        return None
    entry, _, name = identity.partition(".")
    plain = name.replace("-", "_").replace(".", "_")
    module = _module(entry)
    start = run_alone if is_alone(identity) else run
    return {dialect: start(getattr(module, f"{plain}_{dialect}")) for dialect in DIALECTS}


def is_alone(identity: str) -> bool:
    """Tell whether the programs of a difference are one process, without a launcher."""
    return identity in getattr(_module(identity.partition(".")[0]), "ALONE", ())


def example(entry: str) -> Pair | None:
    """Run the two programs that the picture of a collective shows; None if it has none."""
    module = _module(entry)
    if not hasattr(module, "example_torch"):
        return None
    return {dialect: run(getattr(module, f"example_{dialect}")) for dialect in DIALECTS}


def without(identity: str) -> str | None:
    """Return the key of the reason why a difference has no example here."""
    found: dict[str, str] = getattr(_module(identity.partition(".")[0]), "WITHOUT", {})
    return found.get(identity)


def _module(entry: str) -> Any:
    return importlib.import_module(f"derived.examples.{entry}")
