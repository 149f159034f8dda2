"""Words by which the streams of ranks wait for each other."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

from unisono.engines.cuda.signals import Block


class SlowDriver:
    """Takes long to register memory, and does so once, as CUDA."""

    def __init__(self) -> None:
        self.registered: list[int] = []

    def register_host(self, address: int, nbytes: int) -> int:
        assert address not in self.registered, "CUDA registers memory once"
        self.registered.append(address)
        time.sleep(0.1)
        return address + 0x1000


def test_several_threads_use_a_block_first():
    block = Block(SlowDriver(), SimpleNamespace(address=0x10000))
    together = threading.Barrier(4)

    def ask(word: int) -> int:
        together.wait()
        return block.address_of(word)

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(ask, [3] * 4)) == {0x1100C}
