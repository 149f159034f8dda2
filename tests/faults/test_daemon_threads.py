"""Threads that are in a call, or make one after the other, while the interpreter ends."""

from __future__ import annotations

import pytest

from tests.helpers.jobs import Ranks
from tests.helpers.thorough import essential

#: The main thread ends, and its four daemon threads go on.
ENDS = """
from unisono.errors import UnisonoError
from unisono.torch import distributed as dist
dist.init_process_group()
def go_on(group):
    x = np.ones(8)
    while True:
        try:
            {call}
        except UnisonoError:
            pass
threads = [threading.Thread(target=go_on, args=(dist.new_group(),), daemon=True) for _ in range(4)]
for thread in threads:
    thread.start()
time.sleep(0.02 + 0.01 * rank)
"""

CALLS = {
    "collectives": "dist.all_reduce(x, group=group)",
    "the general way": "dist.all_reduce(x[::2], group=group)",
    "works": "dist.all_reduce(x, group=group, async_op=True).wait()",
    "a call that waits": "dist.barrier(group) if rank == 0 else time.sleep(60)",
    "messages": "dist.send(x, 1, group) if rank == 0 else dist.recv(x, 0, group)",
}


@pytest.mark.parametrize("turn", essential(1, range(5)))
@pytest.mark.parametrize("name", CALLS)
def test_the_end_with_threads_in_calls(name: str, turn: int) -> None:
    with Ranks(2, ENDS.format(call=CALLS[name])) as job:
        assert [job[rank].end() for rank in range(2)] == [0, 0]
