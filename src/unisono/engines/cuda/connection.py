"""One rank's part of a group on a GPU that its ranks share."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from unisono.core.call import Call
from unisono.core.engine import DRAIN_SECONDS
from unisono.engines.cuda.agreement import Agreed, Agreement
from unisono.engines.cuda.announcements import Announcement, Announcer
from unisono.engines.cuda.collectives import Places
from unisono.engines.cuda.gpu.device import Device, Moment
from unisono.engines.cuda.gpu.prepared import PreparedLaunch
from unisono.engines.cuda.signals import BLOCK_BYTES, LEADER, Block, Signals
from unisono.engines.cuda.watchdog import Followed, Watchdog
from unisono.engines.shm.engine import ShmEngine
from unisono.errors import CommTimeout, MismatchError, PeerLost, UnisonoError

__all__ = ["Connection", "StreamStep"]

_CLOSE_SECONDS = 60.0  # that a group which is closed waits for its streams
_SEARCH_SECONDS = 0.1  # between two looks at the other ranks
#: How long a rank that has given up waits for work of the leader that has begun: kernels are short.
_WORK_SECONDS = 1.0


class StreamStep:
    """A call of the group in a stream; it has come to its end when the stream has passed it."""

    __slots__ = ("_connection", "_failure", "_has_passed", "number")

    def __init__(self, connection: Connection, number: int) -> None:
        self._connection = connection
        self._has_passed = connection.signals.has_passed
        self.number = number
        self._failure: UnisonoError | None = None

    def has_come(self) -> bool:
        """Whether the stream has passed it."""
        return self._has_passed(self.number)

    def delay(self, stream: int) -> None:
        """Let another stream go on only after it; from any thread."""
        with self._connection.device.entered():
            self._connection.signals.delay(stream, self.number)

    @property
    def failure(self) -> UnisonoError | None:
        """Why what the call has written is not the result."""
        if self._failure is None:
            self._failure = self._connection.why_failed(self.number)
        return self._failure

    @failure.setter
    def failure(self, error: UnisonoError | None) -> None:
        self._failure = error


class Connection:
    """What its calls need: memory, words, and what the ranks have agreed on."""

    def __init__(
        self,
        host: ShmEngine,
        device: Device,
        watchdog: Watchdog,
        announcer: Announcer,
        processes: Sequence[int],
        places: Sequence[int],
        key: str,
    ) -> None:
        # For what ranks exchange after they have met in a call, which may be in another thread.
        self._host = host.split(range(host.size), key)
        self.device = device
        self._processes = processes
        for process in processes:
            device.imports.join(process)
        blocks = [Block(device.driver, host.map_block(place, BLOCK_BYTES)) for place in places]
        self.signals = Signals(device.driver, blocks, host.rank)
        self._agreement = Agreement(self._host, device, self.signals, announcer)
        self._watchdog = watchdog
        self._steps = 0
        self._failure: UnisonoError | None = None
        self._gave_up = 0.0  # when
        self._first_failed = 0  # the first step that had not passed then

    def check(self) -> None:
        """Raise the error of a group that was given up."""
        if self._failure is not None:
            raise self._failure

    def run(
        self, announcement: Announcement, stream: int, after: Moment | None, in_stream: bool
    ) -> StreamStep:
        """Put a call into a stream, and return when the hosts have met: not when it has run.

        Unless the stream may not wait for other ranks: then the host does, until all is done.
        """
        self.check()
        call, places = announcement.call, announcement.lending.places
        if after is not None:
            after.delay(stream)
        try:
            launches = self._agreement.reach(announcement)
            self._steps += 1
            self._put(call, places, launches, stream, in_stream)
        except BaseException as error:
            self._has_failed(error)
            raise
        return self._follow(call)

    def last(self, call: Call) -> Agreed | None:
        """What `run_again` wants to know of this call, which was the last one."""
        agreed = self._agreement.last(call)
        if agreed is None:
            return None
        places = agreed.lending.places
        for buffer, place in ((call.source, places.source), (call.destination, places.destination)):
            if buffer is not None and buffer.address != place:
                return None  # it goes through scratch
        return agreed

    def run_again(
        self, agreed: Agreed, stream: int, kept: object, number: int
    ) -> StreamStep | None:
        """`run` in the caller's stream, for a call that it has run before; None if it cannot."""
        if self._failure is not None or not self._agreement.may_reach_again(agreed):
            return None
        try:
            launches = self._agreement.reach_again(agreed, number)
            self._steps = step = self._steps + 1
            if self._host.rank != LEADER:
                self.signals.take_part.run(stream, step)
            else:
                self.signals.wait_ready.run(stream, step)
                self._launch(launches, stream)
        except BaseException as error:
            self._has_failed(error)
            raise
        return self._follow(agreed.call, kept)

    def _put(
        self,
        call: Call,
        places: Places,
        launches: Sequence[PreparedLaunch],
        stream: int,
        in_stream: bool,
    ) -> None:
        signals, step, copy = self.signals, self._steps, self.device.driver.copy
        source, destination = call.source, call.destination
        # What is copied to scratch, and back from there.
        given = got = False
        if source is not None:
            given = places.source != source.address and source.nbytes > 0
        if destination is not None:
            got = places.destination != destination.address and destination.nbytes > 0
        if not in_stream:
            self._await(call, lambda: signals.has_passed(step - 1))
        if given:
            signals.delay(stream, step - 1)
            copy(places.source, call.src.address, call.src.nbytes, stream)
        if self._host.rank == LEADER:
            if in_stream:
                signals.wait_ready.run(stream, step)
            else:
                self._await(call, lambda: signals.are_ready(step))
            self._launch(launches, stream)
            return
        if in_stream and not got:
            signals.take_part.run(stream, step)
            return
        if in_stream:
            signals.wait_done.run(stream, step)
        else:
            signals.tell_ready.run(stream, step)
            self._await(call, lambda: signals.is_done(step))
        if got:
            copy(call.dst.address, places.destination, call.dst.nbytes, stream)
        signals.tell_passed.run(stream, step)

    def _launch(self, launches: Sequence[PreparedLaunch], stream: int) -> None:
        """Do the work of all ranks; the last launch tells them."""
        for launch in launches:
            launch.run(stream, self._steps)
        if not launches:
            self.signals.tell_done.run(stream, self._steps)

    def _await(self, call: Call, condition: Callable[[], bool]) -> None:
        """Let the host wait for other ranks."""
        now = time.monotonic()
        until, search, pause = now + call.timeout, now + _SEARCH_SECONDS, 1e-5
        while not condition():
            time.sleep(pause)
            pause = min(1.5 * pause, 1e-3)
            now = time.monotonic()
            if now < search:
                continue
            search = now + _SEARCH_SECONDS
            fault = self._find_fault()
            if fault is None and now > until:
                fault = CommTimeout(f"the GPUs of all ranks have not come after {call.timeout:g} s")
            if fault is not None:
                raise fault

    def _follow(self, call: Call, kept: object = None) -> StreamStep:
        """Look after a call, and keep its memory, until the stream has passed it."""
        step = StreamStep(self, self._steps)
        self._watchdog.follow(Followed(step, call, self._find_fault, self._give_up, kept))
        return step

    def close(self) -> None:
        """Leave the group: let its calls end, or give them up.

        All ranks have made them, so they end when the streams get there, unless a rank is lost.
        """
        with self.device.entered():
            self._close()

    def _close(self) -> None:
        until = time.monotonic() + _CLOSE_SECONDS
        while self._is_underway() and not self._gave_up and time.monotonic() < until:
            time.sleep(1e-4)
        if self._is_underway():
            self._give_up(CommTimeout("the group was closed before the call had ended"))
            until = time.monotonic() + DRAIN_SECONDS  # the watchdog releases it meanwhile
            while self._is_underway() and time.monotonic() < until:
                time.sleep(1e-4)
        try:
            self.signals.close()
            for process in self._processes:
                self.device.imports.leave(process)
        finally:  # the other ranks have to know, whatever the GPU says
            self._host.close()

    def _is_underway(self) -> bool:
        return not self.signals.has_passed(self._steps)

    # ---- faults ----

    def why_failed(self, step: int) -> UnisonoError | None:
        """The error of a call that this rank has given up or the leader has not worked on."""
        if self._gave_up and step >= self._first_failed:
            return self._failure
        if not self.signals.was_skipped(step):
            return None
        if self._failure is None:
            self._failure = self._find_fault() or PeerLost("a rank has given the group up")
        return self._failure

    def _find_fault(self) -> UnisonoError | None:
        lost = self._host.lost_ranks()
        if lost:
            texts = ", ".join(f"rank {rank} {reason}" for rank, reason in lost.items())
            return PeerLost(f"{texts} before all ranks had ended the call", sorted(lost))
        ranks = self.signals.given_up()
        if ranks:
            return PeerLost(f"ranks {ranks} have given the group up", ranks)
        return self.device.failure()

    def _has_failed(self, error: BaseException) -> None:
        """Give the group up, unless ranks only disagree; the caller may then use its memory."""
        if isinstance(error, MismatchError):
            return
        if not isinstance(error, UnisonoError):
            # Ctrl-C, or a kernel that cannot be compiled: the other ranks have counted this step.
            error = UnisonoError(f"this rank has given the group up: {error!r}")
        self._give_up(error)
        time.sleep(1e-3)  # see there
        while self._may_be_written():
            time.sleep(1e-3)

    def _give_up(self, error: UnisonoError) -> None:
        """Let streams go on that wait for other ranks; no call of this group has a result now.

        The watchdog calls it again and again until they have.
        """
        if not self._gave_up:
            self._failure = self._failure or error
            self._first_failed = self.signals.first_not_passed(self._steps)
            self._gave_up = time.monotonic()
            self.signals.give_up()
            # Not released yet: the leader may see that too late, and then it says that it works.
            return
        if not self._may_be_written():
            self.signals.release(self._steps)

    def _may_be_written(self) -> bool:
        """Whether the leader may be writing to memory of this rank, which has given up."""
        return (
            self._host.rank != LEADER
            and self.signals.is_worked_on()
            and time.monotonic() - self._gave_up < _WORK_SECONDS
            and LEADER not in self._host.lost_ranks()
        )
