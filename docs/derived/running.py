"""Run the examples of the pages on four ranks, and keep what they print.

The site is built where no framework is installed. What examples print that need torch or MindSpore
is in examples/recorded.json; docs/record_examples.py writes it, and a test runs them again.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import io
import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import unisono
import unisono.torch.distributed as dist
from unisono import mapping
from unisono.mindspore.ops import communication

__all__ = [
    "DIALECTS",
    "RANKS",
    "RECORD",
    "Example",
    "Pair",
    "example",
    "function_name",
    "is_alone",
    "is_recorded",
    "pair",
    "record",
    "recorded",
    "run",
    "without",
]

RANKS = 4
#: Their names are those of the frameworks that recorded examples import.
DIALECTS = ("torch", "mindspore")
RECORD = Path(__file__).parent / "examples" / "recorded.json"
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


def record(dialect: str) -> dict[str, list[str]]:
    """Run all examples of a framework; what each rank printed, by the name of the example.

    Ranks are processes, as MindSpore's gradients need it.
    """
    identities = [each for entry in mapping.load() for each in sorted(recorded(entry))]
    ranks = unisono.spawn(_printed, RANKS, identities, dialect, engine="shm", timeout=_PATIENCE)
    return {
        function_name(identity, dialect): list(outputs)
        for identity, *outputs in zip(identities, *ranks, strict=True)
    }


def _printed(identities: Sequence[str], dialect: str) -> list[str]:
    outputs = []
    for identity in identities:
        with contextlib.redirect_stdout(io.StringIO()) as output:
            _function(identity, dialect)(dist.get_rank())
        outputs.append(output.getvalue())
    return outputs


def _from_record(identity: str, dialect: str) -> Example:
    outputs = _read_record()[function_name(identity, dialect)]
    return Example(_body(_function(identity, dialect)), tuple(outputs))


@functools.cache
def _read_record() -> dict[str, list[str]]:
    found: dict[str, list[str]] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


def _body(function: Callable[[int], None]) -> str:
    lines = inspect.getsource(function).splitlines()
    return textwrap.dedent("\n".join(lines[1:])).strip()


def pair(identity: str) -> Pair | None:
    """Run the two programs of a difference; None if `without` says why there are none."""
    if without(identity):
        return None
    if is_recorded(identity):
        return {dialect: _from_record(identity, dialect) for dialect in DIALECTS}
    start = run_alone if is_alone(identity) else run
    return {dialect: start(_function(identity, dialect)) for dialect in DIALECTS}


def is_alone(identity: str) -> bool:
    """Tell whether the programs of a difference are one process, without a launcher."""
    return identity in getattr(_module(_entry(identity)), "ALONE", ())


def is_recorded(identity: str) -> bool:
    """Tell whether the programs of a difference need a framework: their output is stored."""
    return identity in recorded(_entry(identity))


def recorded(entry: str) -> set[str]:
    """Return the differences of a file of the table whose output is stored."""
    found: set[str] = getattr(_module(entry), "RECORDED", set())
    return found


def function_name(identity: str, dialect: str) -> str:
    """Return the path of an example below derived.examples.

    >>> function_name("all_reduce.gradient-in-place", "torch")
    'all_reduce.gradient_in_place_torch'
    """
    entry, _, name = identity.partition(".")
    return f"{entry}.{name.replace('-', '_').replace('.', '_')}_{dialect}"


def example(entry: str) -> Pair | None:
    """Run the two programs that the picture of a collective shows; None if it has none."""
    module = _module(entry)
    if not hasattr(module, "example_torch"):
        return None
    return {dialect: run(getattr(module, f"example_{dialect}")) for dialect in DIALECTS}


def without(identity: str) -> str | None:
    """Return the key of the reason why a difference has no example here."""
    found: dict[str, str] = getattr(_module(_entry(identity)), "WITHOUT", {})
    return found.get(identity)


def _entry(identity: str) -> str:
    return identity.partition(".")[0]


def _function(identity: str, dialect: str) -> Callable[[int], None]:
    entry, _, name = function_name(identity, dialect).partition(".")
    found: Callable[[int], None] = getattr(_module(entry), name)
    return found


def _module(entry: str) -> Any:
    return importlib.import_module(f"derived.examples.{entry}")
