"""Ranks meet at their first call on the GPU, and make together what joins them."""

from __future__ import annotations

import struct

import numpy as np

from unisono.core.buffers import view
from unisono.core.call import Call
from unisono.core.engine import Work
from unisono.engines.common.inner_calls import inner_caller
from unisono.engines.cuda.connection import Connection
from unisono.engines.cuda.gpu.device import Device
from unisono.engines.cuda.gpu.kernels import MAX_RANKS
from unisono.engines.cuda.own_gpus import OwnGpus
from unisono.engines.cuda.signals import BLOCK_BYTES
from unisono.engines.cuda.watchdog import Watchdog
from unisono.engines.shm.engine import ShmEngine
from unisono.errors import Unsupported

__all__ = ["Meeting"]

_GREETING = struct.Struct("<32sQQ")  # the GPU, the process, the place of its block of words


class Meeting:
    """Ranks tell each other which GPU they are on. That decides what joins them.

    It begins where the caller makes the call, so that it is in order with the group's calls on the
    CPU: ranks of which some call with device memory and some without get a mismatch.
    """

    def __init__(self, host: ShmEngine, device: Device, watchdog: Watchdog, timeout: float) -> None:
        if host.size > MAX_RANKS:
            raise Unsupported(f"{host.size} ranks share a GPU; engine 'cuda' has up to 64")
        self._host = host
        self._device = device
        self._watchdog = watchdog
        place = host.allocate_block(BLOCK_BYTES)
        process = device.exports.process
        self._own = _GREETING.pack(device.driver.identity.encode(), process, place)
        self._greetings = np.empty((host.size, len(self._own)), np.uint8)
        self._work: Work | None = self._greet(timeout)
        #: What joins the ranks, as soon as all have come.
        self.joined: Connection | OwnGpus | None = None
        self._refusal: Unsupported | None = None

    def _greet(self, timeout: float) -> Work:
        """Begin to tell each other."""
        caller = inner_caller(self._host, timeout, blocking=False)
        own = np.frombuffer(self._own, np.uint8)
        call = Call.all_gather(caller, view(own), view(self._greetings.reshape(-1)))
        return self._host.all_gather(call)

    def check_device(self, device: Device) -> None:
        """Raise an error if a tensor is on another GPU than those of the calls before."""
        if device is not self._device:
            raise Unsupported(
                "this rank has called the group with tensors on another GPU before; engine 'cuda' "
                "has one for each rank and group"
            )

    def connection(self, timeout: float) -> Connection | OwnGpus:
        """What joins the ranks, once all have come."""
        if self._refusal is not None:
            raise self._refusal
        if self.joined is None:
            work, self._work = self._work or self._greet(timeout), None
            work.wait()  # if some rank has made another call, the next one begins anew
            self._work = work
            try:
                self.joined = self._join()
            except Unsupported as error:  # on all ranks
                self._refusal = error
                raise
        return self.joined

    def _join(self) -> Connection | OwnGpus:
        greetings = [_GREETING.unpack(row.tobytes()) for row in self._greetings]
        gpus, processes, places = (list(each) for each in zip(*greetings, strict=True))
        key = f"cuda {places}"
        if len(set(gpus)) == 1:
            return Connection(self._host, self._device, self._watchdog, processes, places, key)
        if len(set(gpus)) == len(gpus):
            return OwnGpus(self._host, self._device, key)
        raise Unsupported(
            f"the {len(gpus)} ranks' tensors are on {len(set(gpus))} GPUs; engine 'cuda' joins "
            "ranks that are all on one, or have one each: let ranks use another GPU, or start "
            "fewer"
        )

    def close(self) -> None:
        """Leave what joins the ranks, if there is something."""
        if self.joined is not None:
            self.joined.close()
