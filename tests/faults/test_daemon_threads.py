"""Threads that are in a call, or make one after the other, while the interpreter ends."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.helpers.jobs import Ranks
from tests.helpers.thorough import essential

#: The main thread ends, and its four daemon threads go on.
ENDS = """
from unisono.errors import UnisonoError
from unisono.torch import distributed as dist
dist.init_process_group()
{setup}
def go_on(group):
    x = make()
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
    with Ranks(2, ENDS.format(setup="make = lambda: np.ones(8)", call=CALLS[name])) as job:
        assert [job[rank].end() for rank in range(2)] == [0, 0]


#: An interpreter within the process imports unisono and ends.
INNER = """
import _xxsubinterpreters as interpreters
from unisono.torch import distributed as dist
dist.init_process_group()
inner = interpreters.create()
interpreters.run_string(inner, "import unisono._native")
interpreters.destroy(inner)
x = np.ones(2)
thread = threading.Thread(target=dist.all_reduce, args=(x,), daemon=True)
thread.start()
thread.join(10)
say(values=x.tolist(), alive=thread.is_alive())
"""


@pytest.mark.skipif(find_spec("_xxsubinterpreters") is None, reason="it has another name here")
def test_the_end_of_an_interpreter_within_the_process() -> None:
    """Threads of the process go on."""
    with Ranks(2, INNER) as job:
        assert job.read_all() == [{"values": [2.0, 2.0], "alive": False}] * 2


@pytest.mark.skipif(find_spec("torch") is None, reason="there is no torch")
@pytest.mark.parametrize("turn", essential(1, range(5)))
@pytest.mark.parametrize("name", ["collectives", "works"])
def test_the_end_with_threads_in_calls_on_torch_tensors(name: str, turn: int) -> None:
    """To read a tensor lets go of Python's lock in torch's code, where nobody can count it."""
    setup = "import torch; make = lambda: torch.ones(8)"
    with Ranks(2, ENDS.format(setup=setup, call=CALLS[name])) as job:
        assert [job[rank].end() for rank in range(2)] == [0, 0]
