"""What the programs of a test leave behind: processes, shared memory and temporary files.

A socket, a port or memory without a name is gone as soon as no process holds it, so it is enough to
look for processes and for files. What other programs of this host have does not count, so another
job may run beside the test.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from tests.helpers.processes import is_running, wait_until

__all__ = ["Leftovers"]

_SHARED = Path("/dev/shm")


class Leftovers:
    """Give the programs `variables`; then `check()` waits until nothing of them is there."""

    def __init__(self, temporary: Path) -> None:
        self._mark = f"UNISONO_TEST_MARK={secrets.token_hex(16)}"
        self._temporary = temporary
        self._before = set(_SHARED.iterdir())
        name, _, value = self._mark.partition("=")
        self.variables = {name: value, "TMPDIR": str(temporary)}

    def check(self) -> None:
        """Wait until no process, no shared memory and no file of the programs is left."""
        wait_until(lambda: not self.processes())
        wait_until(lambda: not self._shared_files())
        assert list(self._temporary.iterdir()) == []

    def processes(self) -> list[int]:
        """The processes that were started with `variables`, and those that they started."""
        return [pid for pid in _pids() if is_running(pid) and self._has_mark(pid)]

    def _has_mark(self, pid: int) -> bool:
        return self._mark in _read(pid, "environ").split("\0")

    def _shared_files(self) -> set[Path]:
        """Files in /dev/shm that have come since, but for those that other programs use."""
        new = set(_SHARED.iterdir()) - self._before
        if new:  # to look at every process takes a while
            others = [pid for pid in _pids() if not self._has_mark(pid)]
            new -= {path for pid in others for path in _used_by(pid)}
        return new


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:  # it has ended, or is another user's
        return ""


def _used_by(pid: int) -> set[Path]:
    """The files in /dev/shm that a process has open or mapped."""
    found = {line.split(maxsplit=5)[-1] for line in _read(pid, "maps").splitlines()}
    try:
        found |= {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:
        return set()
    return {Path(name) for name in found if name.startswith(f"{_SHARED}/")}
