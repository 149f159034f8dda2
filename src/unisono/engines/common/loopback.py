"""Messages of a rank to itself, for engines whose transport has none."""

from __future__ import annotations

import threading
from collections import defaultdict, deque

from unisono.core.buffers import Buffer
from unisono.core.engine import DONE, Work
from unisono.engines.common.executor import Deferred
from unisono.engines.common.reductions import Array
from unisono.errors import CommTimeout, MismatchError

__all__ = ["Letterbox"]


class Letterbox:
    """What one rank has sent to itself and not received yet, by tag."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._changed = threading.Condition()
        self._letters: dict[int, deque[Array]] = defaultdict(deque)

    def send(self, src: Buffer, tag: int) -> Work:
        """Keep a copy; the source is free at once."""
        with self._changed:
            self._letters[tag].append(src.array.copy())
            self._changed.notify_all()
        return DONE

    def recv(self, dst: Buffer, tag: int, timeout: float, blocking: bool) -> Work:
        """Take the oldest letter with this tag, as soon as there is one."""

        def job() -> None:
            with self._changed:
                if not self._changed.wait_for(lambda: self._letters[tag], timeout):
                    text = f"no message came from rank {self._rank} itself in {timeout:g} s"
                    raise CommTimeout(text, (self._rank,))
                letter = self._letters[tag][0]
                if (letter.dtype, letter.size) != (dst.dtype.numpy, dst.count):
                    raise MismatchError(
                        f"rank {self._rank} sent itself {letter.dtype} x {letter.size}, but "
                        f"receives {dst.dtype.name} x {dst.count}",
                        (self._rank,),
                    )
                self._letters[tag].popleft()
            dst.array[:] = letter

        work = Deferred(job)
        work.source = self._rank
        if blocking:
            work.run()
        else:
            threading.Thread(target=work.run, name="unisono message", daemon=True).start()
        return work
