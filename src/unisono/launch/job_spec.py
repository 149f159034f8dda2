"""The arguments of `unisono run`: one or more programs, separated by a lone colon, as one job.

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
from unisono.launch.cores import BINDINGS

__all__ = [
    "GRACE",
    "ON_FAILURE",
    "ProgramSpec",
    "check_programs",
    "command_lines",
    "configure",
    "read_programs",
    "split_at_colons",
]

#: What the ranks that are left do when one has failed.
ON_FAILURE = ("stop", "continue")
#: Seconds that they have to say what happened: torch alone may take two of them to end.
GRACE = 5.0
_OF_THE_JOB = ("engine", "timeout", "log_dir", "bind", "on_failure", "grace", "tty")


@dataclass(frozen=True)
class ProgramSpec:
    """A program and the number of ranks that run it; their ranks are consecutive."""

    program: Sequence[str]
    n: int
    python: str = sys.executable
    patch: str | None = None


def split_at_colons(arguments: Sequence[str]) -> list[list[str]]:
    """Split a command line at lone colons, so a script cannot get one as an argument.

    >>> split_at_colons(["-n", "1", "a.py", ":", "-n", "1", "b.py", "x:y"])
    [['-n', '1', 'a.py'], ['-n', '1', 'b.py', 'x:y']]
    """
    found: list[list[str]] = [[]]
    for argument in arguments:
        if argument == ":":
            found.append([])
        else:
            found[-1].append(argument)
    return found


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of one program; everything from the script's name on is for the script."""
    parser.usage = (
        "unisono run -n N [--python P] [--patch F] [--engine E] [--timeout S] [--log-dir D] "
        "[--bind B] [--on-failure A] [--grace S] [--tty RANK] script.py | -m module ... "
        "[: -n N [--python P] [--patch F] script.py | -m module ...]..."
    )
    parser.epilog = (
        "Programs separated by a lone colon run as one job, in one world; their ranks are "
        "numbered in order. The options of the whole job go before the first colon."
    )
    parser.add_argument("-n", type=int, required=True, metavar="N", help="the number of ranks")
    parser.add_argument(
        "--python", metavar="P", help="the interpreter that runs this program (default: this one)"
    )
    parser.add_argument(
        "--patch",
        metavar="F",
        help="a framework that uses unisono in this program: mindspore or torch",
    )
    job = parser.add_argument_group("options of the whole job")
    job.add_argument(
        "--engine", metavar="E", help="the engine that the ranks use (`unisono doctor` lists them)"
    )
    job.add_argument(
        "--timeout",
        type=float,
        metavar="S",
        help="how many seconds a call may wait for other ranks",
    )
    job.add_argument(
        "--log-dir",
        type=Path,
        metavar="D",
        help="also write the output of each rank R to D/rank-R.out and D/rank-R.err",
    )
    job.add_argument(
        "--bind",
        choices=BINDINGS,
        metavar="B",
        help="the cores of each rank: share (an equal part of all cores, with room for threads of "
        "torch and NumPy; all cores if there are fewer of them than ranks; the default), core (one "
        "core), or none (all cores)",
    )
    job.add_argument(
        "--on-failure",
        choices=ON_FAILURE,
        metavar="A",
        help="what the others do when a rank has failed: stop (they have --grace seconds to end by "
        "themselves or to shrink their group, and go on if they have shrunk it; the default), or "
        "continue (they go on in any case)",
    )
    job.add_argument(
        "--grace",
        type=float,
        metavar="S",
        help=f"how many seconds they have for that (default: {GRACE:g})",
    )
    job.add_argument(
        "--tty",
        type=int,
        metavar="RANK",
        help="give this rank the terminal, for a debugger or input(); its output has no label "
        "(default: rank 0 reads standard input, and all output has labels)",
    )
    # Both take everything that follows, so that we never read the script's own options.
    parser.add_argument(
        "-m", nargs=argparse.REMAINDER, dest="module", help="the module to run, and its arguments"
    )
    parser.add_argument(
        "program", nargs=argparse.REMAINDER, help="the script to run, and its arguments"
    )


def read_programs(arguments: argparse.Namespace) -> list[ProgramSpec]:
    """Read the programs of a job; the arguments of all but the first are in `more`."""
    more: list[argparse.Namespace] = getattr(arguments, "more", [])
    for later in more:
        # There would be two values for one job: do not choose, say where it belongs.
        for name in _OF_THE_JOB:
            if getattr(later, name) is not None:
                option = "--" + name.replace("_", "-")
                raise ArgumentError(
                    f"{option} is for the whole job; give it before the first colon"
                )
    return [_program(one) for one in (arguments, *more)]


def _program(arguments: argparse.Namespace) -> ProgramSpec:
    program = arguments.program[1:] if arguments.program[:1] == ["--"] else arguments.program
    if arguments.module is not None:
        # argparse gives what follows a `--` among the module's arguments to the other list.
        program = ["-m", *arguments.module, *arguments.program]
    python = sys.executable if arguments.python is None else _found(arguments.python)
    return ProgramSpec(program, arguments.n, python, arguments.patch)


def _found(python: str) -> str:
    path = shutil.which(python)
    if path is None:
        raise LaunchError(f"there is no program {python!r}; give the path of a Python interpreter")
    return path


def check_programs(programs: Sequence[ProgramSpec]) -> None:
    """Refuse what cannot start, before any rank has started."""
    for spec in programs:
        if spec.n < 1:
            raise ArgumentError(f"the number of ranks is {spec.n}; give 1 or more with -n")
        if not spec.program or list(spec.program) == ["-m"]:
            raise ArgumentError("nothing to run; name a script or -m module")
        script = spec.program[0]
        if script != "-m" and not Path(script).exists():
            raise LaunchError(f"there is no script {script!r}; give the path of a Python file")


def command_lines(programs: Sequence[ProgramSpec]) -> Iterator[list[str]]:
    """Give the command line of each rank, in rank order."""
    for spec in programs:
        for _ in range(spec.n):
            yield [spec.python, *spec.program]
