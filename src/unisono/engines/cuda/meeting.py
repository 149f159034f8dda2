"""Ranks meet at their first call on the GPU, and make together what joins them."""

from __future__ import annotations

from unisono.core.call import Call
from unisono.engines.cuda.announcements import Announcement, Announcer, Told
from unisono.engines.cuda.connection import Connection
from unisono.engines.cuda.gpu.device import Device
from unisono.engines.cuda.gpu.kernels import MAX_RANKS
from unisono.engines.cuda.own_gpus import OwnGpus
from unisono.engines.cuda.watchdog import Watchdog
from unisono.engines.shm.engine import ShmEngine
from unisono.errors import UnisonoError, Unsupported

__all__ = ["Meeting"]


class Meeting:
    """Ranks tell each other which GPU they are on. That decides what joins them."""

    def __init__(self, host: ShmEngine, device: Device, watchdog: Watchdog) -> None:
        if host.size > MAX_RANKS:
            raise Unsupported(f"{host.size} ranks share a GPU; engine 'cuda' has up to 64")
        self._host = host
        self._device = device
        self._watchdog = watchdog
        self._announcer = Announcer(host, device)
        #: What joins the ranks, as soon as all have come.
        self.joined: Connection | OwnGpus | None = None
        self._failure: UnisonoError | None = None  # why nothing does

    def check_device(self, device: Device) -> None:
        """Raise an error if a tensor is on another GPU than those of the calls before."""
        if device is not self._device:
            raise Unsupported(
                "this rank has called the group with tensors on another GPU before; engine 'cuda' "
                "has one for each rank and group"
            )

    def announce(self, call: Call) -> Announcement:
        """What the other ranks have to know of a call."""
        if self._failure is not None:
            raise self._failure
        if self.joined is not None:
            self.joined.check()
        return self._announcer.announce(call)

    def connection(self, announcement: Announcement) -> Connection | OwnGpus:
        """What joins the ranks, once all have come to a call on the GPU."""
        if self._failure is not None:
            raise self._failure
        if self.joined is None:
            announcement.table()  # a mismatch lets the next call be the first one
            try:
                self.joined = self._join(announcement)
            except BaseException as error:
                self._failure = (
                    error
                    if isinstance(error, UnisonoError)
                    else UnisonoError(f"this rank left while ranks were being joined: {error!r}")
                )
                raise
            self._announcer.lends = isinstance(self.joined, Connection)
        return self.joined

    def _join(self, announcement: Announcement) -> Connection | OwnGpus:
        rows = Told.every(announcement.table())
        gpus, places = {row.gpu for row in rows}, [row.place for row in rows]
        key = f"cuda {places}"
        if len(gpus) == 1:
            processes = [row.process for row in rows]
            watchdog, announcer = self._watchdog, self._announcer
            return Connection(self._host, self._device, watchdog, announcer, processes, places, key)
        if len(gpus) == len(rows):
            return OwnGpus(self._host, self._device, key)
        raise Unsupported(
            f"the {len(rows)} ranks' tensors are on {len(gpus)} GPUs; engine 'cuda' joins "
            "ranks that are all on one, or have one each: let ranks use another GPU, or start "
            "fewer"
        )

    def close(self) -> None:
        """Leave what joins the ranks, if there is something."""
        if self.joined is not None:
            self.joined.close()
        with self._device.entered():
            self._announcer.close()
