"""A program that a test starts and reads: for ranks on hosts.py's hosts."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence

__all__ = ["Program"]


class Program:
    """A program on a host. What it writes goes to files, so that it never waits for a reader."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        self._out = tempfile.TemporaryFile()  # noqa: SIM115
        self._err = tempfile.TemporaryFile()  # noqa: SIM115
        self._taken = 0  # lines that have been asked for
        self.process = subprocess.Popen(
            argv,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
            start_new_session=True,
        )

    @property
    def out(self) -> str:
        """What it has written so far."""
        return self._text(self._out.fileno())

    @property
    def err(self) -> str:
        """What it has written to standard error so far."""
        return self._text(self._err.fileno())

    def line(self, timeout: float = 20.0) -> str:
        """Wait for the next whole line that it writes, and return it."""
        end = time.monotonic() + timeout
        while self.out.count("\n") <= self._taken:
            assert time.monotonic() < end and self.process.poll() is None, (
                f"it wrote no more (code {self.process.poll()}):\n{self.out}\n{self.err}"
            )
            time.sleep(0.005)
        self._taken += 1
        return self.out.splitlines()[self._taken - 1]

    def wait(self, timeout: float) -> int:
        """Wait for its end and return its code."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"still running after {timeout:g} s; it said:\n{self.out}\n{self.err}"
            ) from None

    def close(self) -> None:
        """Close its files; its host has ended it."""
        self.process.kill()
        self.process.wait()
        self._out.close()
        self._err.close()

    @staticmethod
    def _text(descriptor: int) -> str:
        # Not by seeking: the program writes at the position that it shares with us.
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")
