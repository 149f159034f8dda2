"""What tests that start jobs share: a rank that joins, where its rank 0 listens, launchers."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
from pathlib import Path

from tests.helpers.jobs import Ranks
from tests.helpers.processes import DEADLINE, wait_until
from unisono.core.environment import Launch
from unisono.engines.shm import handshake
from unisono.launch.process import JobEnvironment

__all__ = ["START", "WAITING", "address_of", "check_started", "connect", "find_mpiexec"]

#: A rank that joins, makes some calls, waits until it is told, and makes one more.
WAITING = """
world = groups.init("shm", 60)
group = world.split([0, 1])
reduce(group, 300_000)
say(ready=1)
hear()
say(sum=reduce(world, 1000))
"""

#: A rank that joins a job on engine `shm` and reports how that went.
START = """
error = fault(lambda: groups.init("shm"))
say(**error)
if error["kind"] is None:
    say(sum=reduce(groups.world(), 1000))
"""


def check_started(ranks: Ranks, n: int) -> None:
    """Check that all ranks have joined, and that the sum is right."""
    for rank in range(n):
        assert ranks[rank].read()["kind"] is None
        assert ranks[rank].read() == {"sum": n * (n + 1) / 2}
        assert ranks[rank].end() == 0


def address_of(job: JobEnvironment, index: int = 0) -> bytes:
    """Return one of the addresses at which rank 0 of a job may listen."""
    return handshake.address(Launch(0, job.size, 0, job.size, job.name, "test"), index)


def connect(address: bytes) -> socket.socket:
    """Connect as soon as somebody listens."""
    stranger = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stranger.settimeout(DEADLINE)

    def connected() -> bool:
        with contextlib.suppress(ConnectionRefusedError, BlockingIOError):  # the queue may be full
            stranger.connect(address)
            return True
        return False

    wait_until(connected)
    return stranger


def find_mpiexec() -> str | None:
    """Return the mpiexec next to this Python, or on the path."""
    return shutil.which("mpiexec", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH')}")
