"""Hot calls in native code beside other threads of the process."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.helpers.jobs import Ranks

#: Another thread empties the lists of a call while the call waits for rank 1.
EMPTIED = """
from unisono.torch import distributed as dist
dist.init_process_group()
count = 1 << 18  # memory that goes back to the kernel as soon as nobody has it
mine, parts = np.full(count, rank + 1.0), [np.zeros(count) for _ in range(2)]
def empty():
    time.sleep(0.2)  # the call has begun
    parts.clear()
    say(emptied=True)
if rank == 0:
    threading.Thread(target=empty).start()
else:
    hear()
{call}
say(done=True)
"""

#: A group is closed while other threads call it.
CLOSED = """
from unisono.errors import NotReady
from unisono.mindspore.communication import comm_func
from unisono.torch import distributed as dist
import torch
sys.setswitchinterval(1e-5)
dist.init_process_group()
x, parts = torch.ones(64), [torch.ones(64)]
calls = [
    lambda group: dist.all_reduce(x, group=group),
    lambda group: dist.all_reduce(x, group=group, async_op=True),
    lambda group: dist.all_gather(parts, x, group),
    lambda group: comm_func.all_reduce(x, group=group),
]
def go_on(call, group):
    try:
        while True:
            call(group)
    except NotReady:
        pass
for turn in range(100):
    group = dist.new_group([0])
    threads = [threading.Thread(target=go_on, args=(call, group)) for call in calls]
    for thread in threads:
        thread.start()
    time.sleep(turn % 10 * 0.0003)
    dist.destroy_process_group(group)
    for thread in threads:
        thread.join()
say(done=True)
"""


@pytest.mark.parametrize(
    "call",
    [
        "dist.all_gather(parts, mine)",
        "dist.gather(mine, parts if rank == 0 else None, 0)",
        "dist.all_to_all(parts, [mine, mine])",
    ],
    ids=["all_gather", "gather", "all_to_all"],
)
def test_lists_that_another_thread_empties(call: str) -> None:
    with Ranks(2, EMPTIED.format(call=call)) as job:
        assert job[0].read() == {"emptied": True}
        job[1].tell()
        assert job.read_all() == [{"done": True}] * 2


@pytest.mark.skipif(find_spec("torch") is None, reason="there is no torch")
def test_groups_that_another_thread_closes() -> None:
    with Ranks(1, CLOSED) as job:
        assert job.read_all() == [{"done": True}]
