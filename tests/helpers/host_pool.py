"""Ranks on several hosts, for the conformance suite of engine `hybrid`: a pool as in worlds.py."""

from __future__ import annotations

import contextlib
import sys

from tests.helpers.hosts import Hosts
from tests.helpers.mpi_pool import SocketPool
from tests.helpers.programs import Program

__all__ = ["HostsPool"]

_GRACE = 10.0  # seconds for all ranks to leave


class HostsPool(SocketPool):
    """n ranks that have joined one world and run what they are sent.

    Two on each host, but never all on one: 4 ranks are 2 hosts x 2, 6 are 3 x 2, 3 are 2 and 1.
    """

    def launch(self, n: int, *command: str) -> None:
        """Start the ranks, one host after the other, so that neighbours are on different hosts."""
        self._stack = contextlib.ExitStack()
        hosts = self._stack.enter_context(Hosts(max(2, (n + 1) // 2)))
        hosts_of_ranks = [rank % len(hosts.names) for rank in range(n)]
        self._programs: list[Program] = hosts.ranks(hosts_of_ranks, [sys.executable, *command])

    def code(self) -> int | None:
        """The exit code of the first rank that has failed, if one has; 0 if all have ended."""
        codes = [program.process.poll() for program in self._programs]
        failed = [code for code in codes if code]
        return failed[0] if failed else None if None in codes else 0

    def end(self) -> None:
        """Wait for the ranks, and end those that do not."""
        for program in self._programs:
            with contextlib.suppress(AssertionError):
                program.wait(_GRACE)
        self._stack.close()
