"""Messages that come before they are received, where there is no memory to keep them."""

from __future__ import annotations

import pytest

from tests.helpers.jobs import Ranks

#: Rank 0 sends a long message and a short one; rank 1 receives the short one first.
EARLY = """
from unisono.torch import distributed as dist
dist.init_process_group()
count, short = 1 << 23, np.zeros(2)
if rank == 0:
    work = dist.isend(np.ones(count), 1, tag=1)
    dist.send(np.ones(2), 1, tag=2)
    work.wait()
else:
    long = np.zeros(count)
    dist.irecv(np.zeros(1), 0, tag=3)  # so that there is a thread
    pages = int(open("/proc/self/statm").read().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    few = pages * resource.getpagesize() + (8 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (few, limits[1]))
    {receive}
    resource.setrlimit(resource.RLIMIT_AS, limits)
    say(short=short.tolist(), **fault(lambda: dist.recv(long, 0, tag=1)))
dist.all_reduce(short)
say(end=short.tolist())
"""


@pytest.mark.parametrize("single_copy", ["0", "65536"], ids=["staged", "read where it is"])
@pytest.mark.parametrize(
    "receive",
    ["dist.recv(short, 0, tag=2)", "dist.irecv(short, 0, tag=2).wait()"],
    ids=["in the call", "in the background"],
)
def test_a_message_that_cannot_be_kept(receive: str, single_copy: str) -> None:
    """Its receive says so, and everything else goes on."""
    body = EARLY.format(receive=receive)
    with Ranks(2, body, UNISONO_SINGLE_COPY=single_copy) as job:
        error = job[1].read()
        assert error["short"] == [1.0, 1.0]
        assert error["kind"] == "OutOfSharedMemory"
        assert "rank 0 sent this message before it was received" in error["text"]
        assert job.read_all() == [{"end": [1.0, 1.0]}] * 2
