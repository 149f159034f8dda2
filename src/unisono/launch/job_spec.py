"""The words of `unisono run`: one or more parts, divided by a lone colon, that make one job.

`unisono run -n 2 a.py : -n 1 --python PATH b.py` has three ranks: 0 and 1 run a.py, 2 runs b.py.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from unisono.errors import ArgumentError, LaunchError

__all__ = ["Part", "check", "commands", "configure", "read", "split"]


@dataclass(frozen=True)
class Part:
    """Some neighbouring ranks of a job that run the same program."""

    program: Sequence[str]
    n: int
    python: str = sys.executable


def split(words: Sequence[str]) -> list[list[str]]:
    """Divide the words of a command at lone colons; a script cannot be given one of those.

    >>> split(["-n", "1", "a.py", ":", "-n", "1", "b.py", "x:y"])
    [['-n', '1', 'a.py'], ['-n', '1', 'b.py', 'x:y']]
    """
    found: list[list[str]] = [[]]
    for word in words:
        if word == ":":
            found.append([])
        else:
            found[-1].append(word)
    return found


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of a part; all from the script's name on belongs to the script."""
    parser.usage = (
        "unisono run -n N [--python P] [--engine E] [--timeout S] [--log-dir D] [--no-bind] "
        "script.py | -m module ... [: -n N [--python P] script.py | -m module ...]..."
    )
    parser.epilog = (
        "Parts divided by a lone colon run side by side in one world, ranks numbered through. "
        "Options of the job (--engine, --timeout, --log-dir, --no-bind) stand in the first part."
    )
    parser.add_argument("-n", type=int, required=True, metavar="N", help="how many ranks")
    parser.add_argument(
        "--python", metavar="P", help="the interpreter of this part (default: this one)"
    )
    job = parser.add_argument_group("options of the whole job")
    job.add_argument("--engine", metavar="E", help="the engine that the ranks use")
    job.add_argument(
        "--timeout", type=float, metavar="S", help="seconds that a call may wait for others"
    )
    job.add_argument(
        "--log-dir",
        type=Path,
        metavar="D",
        help="also write each rank's output to D/rank-R.out, .err",
    )
    job.add_argument(
        "--no-bind", action="store_true", help="let ranks share cores even if there are enough"
    )
    # Both take everything that follows, so that the script's own flags are never ours.
    parser.add_argument(
        "-m", nargs=argparse.REMAINDER, dest="module", help="a module to run, and its arguments"
    )
    parser.add_argument(
        "program", nargs=argparse.REMAINDER, help="a script to run, and its arguments"
    )


def read(arguments: argparse.Namespace) -> list[Part]:
    """Make the parts of a job from its first part's arguments; the rest lies in `more`."""
    more: list[argparse.Namespace] = getattr(arguments, "more", [])
    for later in more:
        # Two values for one job: rather than choose, say where the one belongs.
        for name in ("engine", "timeout", "log_dir", "no_bind"):
            value = getattr(later, name)
            if value is not None and value is not False:
                option = "--" + name.replace("_", "-")
                raise ArgumentError(f"{option} is for the whole job; give it in the first part")
    return [_part(one) for one in (arguments, *more)]


def _part(arguments: argparse.Namespace) -> Part:
    program = arguments.program[1:] if arguments.program[:1] == ["--"] else arguments.program
    if arguments.module is not None:
        # argparse gives what follows a `--` among the module's arguments to the other list.
        program = ["-m", *arguments.module, *arguments.program]
    python = sys.executable if arguments.python is None else _found(arguments.python)
    return Part(program, arguments.n, python)


def _found(python: str) -> str:
    path = shutil.which(python)
    if path is None:
        raise LaunchError(f"there is no program {python!r}; give the path of a Python interpreter")
    return path


def check(parts: Sequence[Part]) -> None:
    """Refuse what cannot start, before any rank has."""
    for part in parts:
        if part.n < 1:
            raise ArgumentError(f"the number of ranks is {part.n}; give 1 or more with -n")
        if not part.program or list(part.program) == ["-m"]:
            raise ArgumentError("nothing to run; name a script or -m module")
        script = part.program[0]
        if script != "-m" and not Path(script).exists():
            raise LaunchError(f"there is no script {script!r}; give the path of a Python file")


def commands(parts: Sequence[Part]) -> Iterator[list[str]]:
    """Give the command line of each rank, in rank order."""
    for part in parts:
        for _ in range(part.n):
            yield [part.python, *part.program]
