"""Point-to-point messages over torch's groups: a header of fixed size goes first.

So ranks that disagree on what is sent get an error; torch itself would end the process. The header
goes with the user's tag. The data follow with a tag of their own, which the header names: several
messages of one tag may be under way, and each receive must take the data of its own header.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np

from unisono.core import dtypes
from unisono.core.buffers import Buffer, view
from unisono.core.call import Call
from unisono.engines.torch import c10d
from unisono.errors import MismatchError

__all__ = ["PointToPoint"]

_FIRST_TAG = (1 << 30) + 1  # our own tags; users' are below, and one is c10d's
_TAGS = 1 << 28  # messages that may be under way


class PointToPoint:
    """One rank's messages in one group. Starting a message returns the function that ends it.

    Messages of one tag keep the order in which they start, so the caller's thread starts them;
    ending may be left to another one.
    """

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._numbers = itertools.count()

    def send(self, group: Any, call: Call) -> Callable[[], None]:
        """Start to send; at the end the memory may be used again."""
        source, peer = call.src, call.peer
        number = next(self._numbers) % _TAGS
        header = np.array([source.dtype.code, source.count, number], np.int64)
        if c10d.is_on_device(source):  # backends for GPUs alone cannot move a header
            messages = [(source, call.tag)]
        else:
            messages = [(view(header), call.tag), (source, _FIRST_TAG + number)]
        works = [self._start(group.send, data, tag, peer) for data, tag in messages if data.count]

        def end() -> None:
            for work in works:
                self._end(work, peer, call.timeout)
            messages.clear()  # until here torch reads their memory

        return end

    def recv(self, group: Any, call: Call) -> Callable[[], int]:
        """Start to receive; the end returns the rank that has sent the message."""
        destination, peer = call.dst, call.peer
        header = np.zeros(3, np.int64)
        into = destination if c10d.is_on_device(destination) else view(header)
        if peer is None:
            work = self._start(group.recv_anysource, into, call.tag)
        else:
            work = self._start(group.recv, into, call.tag, peer)

        def end() -> int:
            self._end(work, peer, call.timeout)
            source = int(work._source_rank()) if peer is None else peer
            if into is not destination:
                self._receive_data(group, header.tolist(), destination, source, call.timeout)
            return source

        return end

    def _receive_data(
        self, group: Any, header: Sequence[int], destination: Buffer, source: int, timeout: float
    ) -> None:
        code, count, number = header
        dtype = next(each for each in dtypes.DTYPES if each.code == code)
        fits = (dtype, count) == (destination.dtype, destination.count)
        if count:
            # Data that do not fit are received too, because nobody else will take them.
            into = destination if fits else view(np.empty(count, dtype.numpy))
            work = self._start(group.recv, into, _FIRST_TAG + number, source)
            self._end(work, source, timeout)
        if not fits:
            raise MismatchError(
                f"{self._engine}: rank {source} sent {dtype.name} x {count}, but this rank "
                f"expects {destination.dtype.name} x {destination.count}",
                (source,),
            )

    def _start(
        self, start: Callable[..., Any], data: Buffer, tag: int, peer: int | None = None
    ) -> Any:
        try:
            return start([c10d.bytes_of(data)], *([] if peer is None else [peer]), tag)
        except RuntimeError as error:
            raise c10d.translate_error(error, self._engine, peer) from error

    def _end(self, work: Any, peer: int | None, timeout: float) -> None:
        try:
            work.wait(timedelta(seconds=timeout))
        except RuntimeError as error:
            raise c10d.translate_error(error, self._engine, peer) from error
