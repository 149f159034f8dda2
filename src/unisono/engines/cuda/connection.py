"""What a group needs for calls on the GPU; its ranks make it together, at their first such call."""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence

import numpy as np

from unisono.core.buffers import view
from unisono.core.call import Call
from unisono.core.engine import DRAIN_SECONDS, Work
from unisono.engines.common.inner_calls import inner_caller
from unisono.engines.cuda.agreement import Agreement
from unisono.engines.cuda.collectives import COLLECTIVES, STEPS, Pass
from unisono.engines.cuda.gpu.device import Device, Moment
from unisono.engines.cuda.gpu.kernels import MAX_SOURCES
from unisono.engines.cuda.scratch import Scratch
from unisono.engines.cuda.signals import BLOCK_BYTES, Block, Signals
from unisono.engines.cuda.watchdog import Followed, Watchdog
from unisono.engines.shm.engine import ShmEngine
from unisono.errors import MismatchError, PeerLost, UnisonoError, Unsupported

__all__ = ["Connection", "Meeting"]

_GREETING = struct.Struct("<32sQQ")  # the GPU, the process, the place of its block of words


class Meeting:
    """Ranks tell each other which GPU they are on.

    It begins where the caller makes the call, so that it is in order with the group's calls on the
    CPU: ranks of which some call with device memory and some without get a mismatch.
    """

    def __init__(self, host: ShmEngine, device: Device, watchdog: Watchdog, timeout: float) -> None:
        if host.size > MAX_SOURCES:
            raise Unsupported(f"{host.size} ranks share a GPU; engine 'cuda' has up to 64")
        self._host = host
        self._device = device
        self._watchdog = watchdog
        place = host.allocate_block(BLOCK_BYTES)
        process = device.exports.process
        greeting = _GREETING.pack(device.driver.identity.encode(), process, place)
        self._greetings = np.empty((host.size, len(greeting)), np.uint8)
        own = np.frombuffer(greeting, np.uint8)
        caller = inner_caller(host, timeout, blocking=False)
        call = Call.all_gather(caller, view(own), view(self._greetings.reshape(-1)))
        self._work: Work = host.all_gather(call)
        self._connection: Connection | None = None

    def connection(self) -> Connection:
        """The connection, once all ranks have come."""
        if self._connection is None:
            self._work.wait()
            greetings = [_GREETING.unpack(row.tobytes()) for row in self._greetings]
            gpus = [greeting[0].decode() for greeting in greetings]
            if len(set(gpus)) > 1:
                raise Unsupported(
                    f"the ranks' tensors are on {len(set(gpus))} GPUs; engine 'cuda' joins ranks "
                    "that share one, and across GPUs it has never been run: use 'torch:nccl'"
                )
            processes = [greeting[1] for greeting in greetings]
            places = [greeting[2] for greeting in greetings]
            self._connection = Connection(
                self._host, self._device, self._watchdog, processes, places
            )
        return self._connection

    def close(self) -> None:
        """Leave the connection, if there is one."""
        if self._connection is not None:
            self._connection.close()


class Connection:
    """One rank's part of a group on the GPU."""

    def __init__(
        self,
        host: ShmEngine,
        device: Device,
        watchdog: Watchdog,
        processes: Sequence[int],
        places: Sequence[int],
    ) -> None:
        # Apart from the group's calls on the CPU, which are in no order with these.
        self._host = host.split(range(host.size), f"cuda {places}")
        self.device = device
        self._processes = processes
        for process in processes:
            device.imports.join(process)
        blocks = [Block(device.driver, host.map_block(place, BLOCK_BYTES)) for place in places]
        self._signals = Signals(blocks, host.rank)
        self._scratch = Scratch(device, self._signals)
        self._agreement = Agreement(self._host, device, processes)
        self._watchdog = watchdog
        self._steps = 0
        self._underway: list[Moment] = []  # ends of calls, in order; the last one stays here
        self._failure: UnisonoError | None = None

    def run(self, call: Call, stream: int, after: Moment | None = None) -> Moment:
        """Put a call into a stream, and return when the hosts have met: not when it has run."""
        if self._failure is not None:
            raise self._failure
        for moment in (after, *self._underway[-1:]):
            if moment is not None:
                moment.delay(stream)
        rank, size = self._host.rank, self._host.size
        way = Pass(self.device, self._signals, self._scratch, rank, size, stream, self._steps)
        self._steps += STEPS
        try:
            lending = way.lend(call)
            if size > 1:
                way.lendings, way.counts = self._agreement.reach(call, lending)
            COLLECTIVES[call.verb](way, call)
        except MismatchError:
            self._scratch.lend((), 0)  # nobody reads it, but the stream may still copy there
            self._follow(stream, call)
            raise
        except UnisonoError as error:
            self._give_up(error)
            raise
        return self._follow(stream, call)

    def _follow(self, stream: int, call: Call) -> Moment:
        """Look after a call, and keep its memory, until the stream is here."""
        end = Moment(self.device, stream)
        end.failure = self._failure
        self._underway = [one for one in self._underway if not one.has_come()]
        self._underway.append(end)
        self._watchdog.follow(
            Followed(end, call.timeout, str(call), self._find_fault, self._give_up, call)
        )
        return end

    def close(self) -> None:
        """Leave the group: let its calls end, or give them up."""
        self.device.driver.enter()
        stream = self.device.take_stream()
        for moment in self._underway[-1:]:
            moment.delay(stream)
        self._scratch.await_readers(stream)
        end = self._follow(stream, Call.barrier(inner_caller(self._host, DRAIN_SECONDS)))
        until = time.monotonic() + 2 * DRAIN_SECONDS  # the watchdog gives it up meanwhile
        while not end.has_come() and time.monotonic() < until:
            time.sleep(1e-4)
        self.device.give_stream(stream, end)
        self._scratch.close()
        self._signals.close()
        for process in self._processes:
            self.device.imports.leave(process)
        self._host.close()

    # ---- faults ----

    def _find_fault(self) -> UnisonoError | None:
        lost = self._host.lost_ranks()
        if lost:
            texts = ", ".join(f"rank {rank} {reason}" for rank, reason in lost.items())
            return PeerLost(f"{texts} before all ranks had ended the call", sorted(lost))
        ranks = self._signals.given_up()
        if ranks:
            return PeerLost(f"ranks {ranks} have given the group up", ranks)
        return None

    def _give_up(self, error: UnisonoError) -> None:
        """Let streams go on that wait for other ranks; no call of this group has a result now."""
        if self._failure is None:
            self._failure = error
        for moment in self._underway:
            if moment.failure is None and not moment.has_come():
                moment.failure = error
        self._signals.give_up()
        self._signals.release(self._steps)
