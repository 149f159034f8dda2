"""Hot calls in native code in a process that can have no more threads."""

from __future__ import annotations

from tests.helpers.jobs import Ranks

#: Calls that do not block, while the process may not have more memory for the stack of a thread.
NO_THREADS = """
from unisono.torch import distributed as dist
dist.init_process_group()
x, peer = np.ones(4), 1 - rank
pages = int(open("/proc/self/statm").read().split()[0])
limits = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (2 << 20), limits[1]))
say(**fault(lambda: dist.all_reduce(x, async_op=True)))
say(**fault(lambda: dist.irecv(x, peer)))
dist.all_reduce(x)
resource.setrlimit(resource.RLIMIT_AS, limits)
dist.all_reduce(x, async_op=True).wait()
received = np.zeros(4)
work = dist.irecv(received, peer)  # what was refused before must not take this message
dist.send(x, peer)
work.wait()
say(values=x.tolist() + received.tolist())
"""


def test_without_threads_only_calls_that_block() -> None:
    with Ranks(2, NO_THREADS) as job:
        for _ in range(2):
            for error in job.read_all():
                assert error["kind"] == "LaunchError", error
                assert "let the call block" in error["text"]
        assert job.read_all() == [{"values": [4.0] * 8}] * 2
