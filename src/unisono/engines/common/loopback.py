"""Messages of a rank to itself, for engines whose transport has none."""

from __future__ import annotations

import threading
from collections import defaultdict, deque

from unisono.core.call import Call
from unisono.core.engine import DONE, Work
from unisono.engines.common.executor import DeferredWork
from unisono.engines.common.reductions import Array
from unisono.errors import CommTimeout, MismatchError

__all__ = ["Loopback"]


class Loopback:
    """What one rank has sent to itself and not received yet, by tag."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._changed = threading.Condition()
        self._messages: dict[int, deque[Array]] = defaultdict(deque)

    def send(self, call: Call) -> Work:
        """Keep a copy, so that the source may be written again at once."""
        with self._changed:
            self._messages[call.tag].append(call.src.array.copy())
            self._changed.notify_all()
        return DONE

    def recv(self, call: Call) -> Work:
        """Take the oldest message with this tag, as soon as there is one."""
        work = DeferredWork(lambda: self._receive(call))
        work.source = self._rank
        if call.blocking:
            work.run()
        else:
            threading.Thread(target=work.run, name="unisono message", daemon=True).start()
        return work

    def _receive(self, call: Call) -> None:
        destination = call.dst
        messages = self._messages[call.tag]
        with self._changed:
            if not self._changed.wait_for(lambda: messages, call.timeout):
                text = f"no message came from rank {self._rank} itself in {call.timeout:g} s"
                raise CommTimeout(text, (self._rank,))
            data = messages[0]
            if (data.dtype, data.size) != (destination.dtype.numpy, destination.count):
                raise MismatchError(
                    f"rank {self._rank} sent itself {data.dtype} x {data.size}, but receives "
                    f"{destination.dtype.name} x {destination.count}",
                    (self._rank,),
                )
            messages.popleft()
        destination.array[:] = data
