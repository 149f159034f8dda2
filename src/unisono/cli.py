"""The command line: `unisono run`, `demo`, `bench`, `diff`, `doctor`, `top`, `trace`."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Sequence

import unisono
from unisono.errors import UnisonoError
from unisono.launch.job_spec import split_at_colons

__all__ = ["main"]

#: Each command: the module that has its `configure(parser)` and `main(arguments)`, and its help.
_COMMANDS = {
    "run": ("launch.run", "start a script on several ranks of this host"),
    "demo": ("tools.demo.command", "show the collectives in both dialects on four ranks"),
    "bench": (
        "tools.bench.command",
        "measure collectives, faces or DDP, beside their peers",
    ),
    "diff": ("tools.diff.command", "show one collective in both dialects, side by side"),
    "doctor": (
        "tools.doctor.command",
        "tell which engines and frameworks run here, and why not",
    ),
    "top": (
        "tools.top.command",
        "show a running job: where each rank is, and for whom it waits",
    ),
    "trace": ("tools.trace.command", "show a recorded run: who came late, and a timeline"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 fine, 1 found something, 2 wrong usage."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="unisono", description="Collectives in PyTorch's words or MindSpore's."
    )
    parser.add_argument("--version", action="version", version=f"unisono {unisono.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    # Only the command that is asked for is imported, so that help comes at once.
    asked = next((word for word in words if not word.startswith("-")), None)
    for name, (module_name, text) in _COMMANDS.items():
        # Abbreviations would take flags that somebody meant for a script.
        command = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        if name == asked:
            module = importlib.import_module(f"unisono.{module_name}")
            module.configure(command)
            command.set_defaults(main=module.main)
    # A job may have several parts, divided by lone colons; argparse sees one at a time.
    parts = split_at_colons(words) if asked == "run" else [words]
    arguments = parser.parse_args(parts[0])
    arguments.more = [parser.parse_args(["run", *part]) for part in parts[1:]]
    try:
        code: int = arguments.main(arguments)
        sys.stdout.flush()
    except UnisonoError as error:
        print(f"unisono: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read us has seen enough, as `head` does; Python must not complain at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return code
