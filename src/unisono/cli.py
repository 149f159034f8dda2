"""The command line: `unisono run`, `patch`, `check`, `port`, and more."""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

import unisono
from unisono.errors import UnisonoError
from unisono.launch.job_spec import split_at_colons
from unisono.launch.output.plain_text import use_plain_text

__all__ = ["main"]

#: Each command: the module that has its `configure(parser)` and `main(arguments)`, and its help.
_COMMANDS = {
    "run": ("launch.run", "start a script on several ranks of this host"),
    "patch": ("launch.patch", "run a command in which a framework uses unisono"),
    "demo": ("tools.demo.command", "show the collectives in both dialects on four ranks"),
    "bench": (
        "tools.bench.command",
        "measure collectives, faces or DDP, and compare with other libraries",
    ),
    "diff": ("tools.diff.command", "show one collective in both dialects, side by side"),
    "check": (
        "tools.check.command",
        "list the distributed calls of a program, and what would become of each",
    ),
    "port": ("tools.port.command", "rewrite a program for the other dialect, or for unisono"),
    "doctor": (
        "tools.doctor.command",
        "show which engines and frameworks work here, and why others do not",
    ),
    "top": (
        "tools.top.command",
        "show a running job: the call of each rank, and which ranks it waits for",
    ),
    "trace": (
        "tools.trace.command",
        "show a recorded or running job: a timeline, and which ranks were late",
    ),
}


class _Parser(argparse.ArgumentParser):
    """Reports wrong usage in one line, as every other error of the command line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 fine, 1 found something, 2 wrong usage."""
    argv = list(sys.argv[1:] if argv is None else argv)
    _open_closed_streams()
    use_plain_text()
    parser = _Parser(prog="unisono", description="Collectives in PyTorch's dialect or MindSpore's.")
    parser.add_argument("--version", action="version", version=f"unisono {unisono.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    # Only the command that is asked for is imported, so that help appears without delay.
    asked = next((argument for argument in argv if not argument.startswith("-")), None)
    of_command: dict[str, argparse.ArgumentParser] = {}
    for name, (module_name, text) in _COMMANDS.items():
        # Abbreviations would take options that were meant for a script.
        command = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        of_command[name] = command
        if name == asked:
            module = importlib.import_module(f"unisono.{module_name}")
            module.configure(command)
            command.set_defaults(main=module.main)
    # A job may have several programs, separated by lone colons; argparse sees one at a time.
    first, *more = split_at_colons(argv) if asked == "run" else [argv]
    arguments, *arguments_of_more = [
        _parse(parser, of_command, one) for one in (first, *(["run", *one] for one in more))
    ]
    arguments.more = arguments_of_more
    try:
        code: int = arguments.main(arguments)
        sys.stdout.flush()
    except UnisonoError as error:
        print(f"unisono: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader has closed the pipe, as `head` does; Python must not complain at exit either.
        _write_to_nowhere()
        return 128 + signal.SIGPIPE
    except OSError as error:
        # A file would have a name: this is standard output.
        if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        _write_to_nowhere()
        print(f"unisono: cannot write the output: {error.strerror}", file=sys.stderr)
        return 2
    return code


def _parse(
    parser: argparse.ArgumentParser,
    of_command: Mapping[str, argparse.ArgumentParser],
    argv: Sequence[str],
) -> argparse.Namespace:
    """Parse a command line; what is left over is an error of the command, not of `unisono`."""
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        of_command[arguments.command].error(f"unrecognized arguments: {' '.join(unknown)}")
    return arguments


def _open_closed_streams() -> None:
    """Where we were started without standard output or error (`>&-`), write to nowhere."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, "w"))  # noqa: SIM115


def _write_to_nowhere() -> None:
    """Throw away what is still to be written, which Python would complain about at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
