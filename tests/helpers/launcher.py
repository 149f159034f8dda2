"""`unisono run` as a command, with its output in pipes or on a terminal of its own."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.helpers.processes import DEADLINE

__all__ = ["UNISONO", "Start", "Terminal", "run", "screen_of"]

UNISONO = [sys.executable, "-c", "import sys; from unisono.cli import main; sys.exit(main())"]

#: Starts a job with these arguments, and does not wait for its end.
Start = Callable[..., subprocess.Popen[str]]

#: Takes its stdin as its terminal and becomes another program: code before exec is not safe here.
_OWN_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)


def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a job to its end."""
    return subprocess.run(
        [*UNISONO, "run", *arguments],
        capture_output=True,
        text=True,
        timeout=options.pop("timeout", 2 * DEADLINE),
        **options,
    )


def screen_of(text: str) -> list[str]:
    """The lines that a terminal shows after a text; knows the control sequences that we write.

    >>> screen_of("one\\ntwo\\x1b[1A\\r\\x1b[Jthree")
    ['three']
    """
    lines, row, column = [""], 0, 0
    for piece in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", text):
        if piece == "\r":
            column = 0
        elif piece == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif piece.endswith("A"):
            row -= int(piece[2:-1])
        elif piece.endswith("J"):
            lines[row:] = [lines[row][:column]]
        elif not piece.startswith("\x1b"):
            line = lines[row].ljust(column)
            lines[row] = line[:column] + piece + line[column + len(piece) :]
            column += len(piece)
    return [line.rstrip() for line in lines]


class Terminal:
    """A program with a terminal of its own, whose other end we hold."""

    def __init__(self, *command: str, cwd: Path | None = None, size: tuple[int, int] = (24, 80)):
        self._master, end = pty.openpty()
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-c", _OWN_TERMINAL, *command],
            stdin=end,
            stdout=end,
            stderr=end,
            start_new_session=True,
            cwd=cwd,
            env={**os.environ, "TERM": "xterm"},
        )
        os.close(end)
        self.seen = ""
        self.all = ""

    def wait_for(self, text: str, seconds: float = 2 * DEADLINE) -> None:
        """Read until a text has appeared behind what was waited for before."""
        deadline = time.monotonic() + seconds
        while text not in self.seen:
            assert self._read(max(0.0, deadline - time.monotonic())), (
                f"no {text!r} in {self.seen!r}"
            )
        self.seen = self.seen.partition(text)[2]

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def settings(self) -> list[Any]:
        """What the terminal does with what is typed and written."""
        return termios.tcgetattr(self._master)

    def end(self) -> int:
        """Read until the program has ended; return its exit code."""
        while self._read(2 * DEADLINE):
            continue
        return self.process.wait(DEADLINE)

    def _read(self, seconds: float) -> bool:
        if not select.select([self._master], [], [], seconds)[0]:
            return False
        try:
            piece = os.read(self._master, 65536).decode(errors="replace")
        except OSError:
            return False  # the terminal ends with its last process
        self.seen += piece
        self.all += piece
        return bool(piece)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)
