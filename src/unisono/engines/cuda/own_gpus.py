"""Ranks with a GPU each: nccl moves their data, through engine `torch`.

The hosts compare each call first, as they do where ranks share a GPU, because nccl cannot. nccl's
own rendezvous is a file without a name, which the first rank keeps open.
"""

from __future__ import annotations

import os
import time

import numpy as np

from unisono.core import registry
from unisono.core.buffers import devices, view
from unisono.core.call import Call
from unisono.core.engine import Engine, Work
from unisono.core.environment import Launch
from unisono.core.rendezvous import own_host
from unisono.engines.common.inner_calls import broadcast_bytes, inner_caller
from unisono.engines.common.reductions import Array
from unisono.engines.cuda.agreement import compare_counts
from unisono.engines.cuda.announcements import Announcement, Told
from unisono.engines.cuda.gpu.device import Device, Moment
from unisono.engines.shm.engine import ShmEngine
from unisono.errors import MismatchError, PeerLost, UnisonoError, Unsupported

__all__ = ["ENGINE", "OwnGpus"]

#: What joins these ranks.
ENGINE = "torch:nccl"

_SEARCH_SECONDS = 0.1  # between two looks at the other ranks
_POLL_SECONDS = 1e-4  # between two looks at a call


class OwnGpus:
    """One rank's part of such a group; the ranks make it together."""

    def __init__(self, host: ShmEngine, device: Device, key: str) -> None:
        # For what ranks exchange after they have met in a call, which may be in another thread.
        self._host = host.split(range(host.size), key)
        self._device = device
        self._failure: UnisonoError | None = None
        self._file = -1
        try:
            self._check_available()
            self._engine = self._open()
        except BaseException:
            self._leave()
            raise

    def _check_available(self) -> None:
        reason = registry.load(ENGINE).unavailable()
        lacking = np.flatnonzero(self._from_all(np.array([reason is not None]))).tolist()
        if lacking:
            raise Unsupported(
                f"the ranks' tensors are on {self._host.size} GPUs, and {ENGINE!r}, which joins "
                f"them, does not run on ranks {lacking}" + (f": {reason}" if reason else "")
            )

    def _open(self) -> Engine:
        import torch.distributed as dist

        rank, size = self._host.rank, self._host.size
        if rank == 0:
            self._file = os.memfd_create("unisono nccl")
        place = f"/proc/{os.getpid()}/fd/{self._file}".encode()
        store = dist.FileStore(broadcast_bytes(self._host, place, 0).decode(), size)
        hosts = (own_host(),) * size
        launch = Launch(rank, size, rank, size, "own GPUs", "engine 'cuda'", b"", store, hosts)
        return registry.load(ENGINE).open(launch, self._host.timeout)

    # ---- calls ----

    def run(
        self, announcement: Announcement, stream: int, after: Moment | None, in_stream: bool
    ) -> Moment:
        """Make a call in a stream, as `Connection.run`; the host waits until it has run."""
        if after is not None:
            after.delay(stream)
        self._compare(announcement)
        call = announcement.call
        buffer = call.source or call.destination
        assert buffer is not None
        with devices.in_stream(buffer, stream):
            verb = getattr(self._engine, call.verb)
            self._wait(verb(call._replace(blocking=False, checked=False)))
        return Moment(self._device, stream)

    def message(self, call: Call) -> Work:
        """Send or receive, in the caller's stream."""
        self.check()
        work: Work = getattr(self._engine, call.verb)(call)
        return work

    def check(self) -> None:
        """Raise the error of a group that was given up."""
        if self._failure is not None:
            raise self._failure

    def _compare(self, announcement: Announcement) -> None:
        self.check()
        try:
            rows = Told.every(announcement.table())
            compare_counts(self._host, announcement.call, rows)
        except UnisonoError as error:
            if not isinstance(error, MismatchError):
                self._failure = error
            raise

    def _wait(self, work: Work) -> None:
        """Wait for a call, and look whether all ranks are there: nccl does not tell."""
        search = time.monotonic() + _SEARCH_SECONDS
        while not work.is_completed():
            time.sleep(_POLL_SECONDS)
            if time.monotonic() < search:
                continue
            lost = self._host.lost_ranks()
            if lost:
                texts = ", ".join(f"rank {rank} {reason}" for rank, reason in lost.items())
                text = f"{texts} before all ranks had ended the call"
                self._failure = PeerLost(text, sorted(lost))
                raise self._failure
            search = time.monotonic() + _SEARCH_SECONDS
        try:
            work.wait()
        except Unsupported:
            raise  # on all ranks, which can go on
        except UnisonoError as error:
            self._failure = error
            raise

    def _from_all(self, own: Array) -> Array:
        every = np.empty((self._host.size, *own.shape), own.dtype)
        parts = view(own.reshape(-1)), view(every.reshape(-1))
        self._host.all_gather(Call.all_gather(inner_caller(self._host), *parts))
        return every

    # ---- the end ----

    def close(self) -> None:
        """Leave the group."""
        self._engine.close()
        self._leave()

    def _leave(self) -> None:
        self._host.close()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
