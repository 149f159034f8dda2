"""Messages over torch's groups: an envelope of fixed size first, so that ranks that disagree on
what is in it are told. torch itself would end the process.

The envelope goes with the user's tag. What is in it follows with a tag of its own, which the
envelope tells: several messages of one tag may be under way, and nobody may take the wrong one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np

from unisono.core import dtypes
from unisono.core.buffers import Buffer, view
from unisono.engines.torch import c10d
from unisono.errors import MismatchError

__all__ = ["Letters"]

_FIRST = (1 << 30) + 1  # our own tags; users' are below, and one is c10d's
_MOST = 1 << 28  # letters that may be under way


class Letters:
    """One rank's messages in one group. What begins a message returns what ends it.

    Messages of one tag keep the order in which they begin, so that is up to the caller's thread;
    ending may be left to another one.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._numbers = itertools.count()

    def send(
        self, group: Any, src: Buffer, peer: int, tag: int, timeout: float
    ) -> Callable[[], None]:
        """Begin to send; at the end the memory may be used again."""
        number = next(self._numbers) % _MOST
        envelope = np.array([src.dtype.code, src.count, number], np.int64)
        if c10d.is_elsewhere(src):  # backends for GPUs alone cannot move an envelope
            letters = [(src, tag)]
        else:
            letters = [(view(envelope), tag), (src, _FIRST + number)]
        works = [
            self._begun(group.send, letter, each, peer) for letter, each in letters if letter.count
        ]

        def end() -> None:
            for work in works:
                self._end(work, peer, timeout)
            letters.clear()  # until here torch reads their memory

        return end

    def recv(
        self, group: Any, dst: Buffer, peer: int | None, tag: int, timeout: float
    ) -> Callable[[], int]:
        """Begin to receive; the end tells who has sent it."""
        envelope = np.zeros(3, np.int64)
        into = dst if c10d.is_elsewhere(dst) else view(envelope)
        if peer is None:
            work = self._begun(group.recv_anysource, into, tag)
        else:
            work = self._begun(group.recv, into, tag, peer)

        def end() -> int:
            self._end(work, peer, timeout)
            source = int(work._source_rank()) if peer is None else peer
            if into is not dst:
                self._open(group, envelope.tolist(), dst, source, timeout)
            return source

        return end

    def _open(
        self, group: Any, envelope: Sequence[int], dst: Buffer, source: int, timeout: float
    ) -> None:
        code, count, number = envelope
        kind = next(each for each in dtypes.DTYPES if each.code == code)
        fits = (kind, count) == (dst.dtype, dst.count)
        if count:
            # What does not fit is taken out all the same, for nobody else will.
            into = dst if fits else view(np.empty(count, kind.numpy))
            self._end(self._begun(group.recv, into, _FIRST + number, source), source, timeout)
        if not fits:
            raise MismatchError(
                f"{self._name}: rank {source} sent {kind.name} x {count}, but this rank expects "
                f"{dst.dtype.name} x {dst.count}",
                (source,),
            )

    def _begun(
        self, start: Callable[..., Any], letter: Buffer, tag: int, peer: int | None = None
    ) -> Any:
        try:
            return start([c10d.bytes_of(letter)], *([] if peer is None else [peer]), tag)
        except RuntimeError as error:
            raise c10d.understood(error, self._name, peer) from error

    def _end(self, work: Any, peer: int | None, timeout: float) -> None:
        try:
            work.wait(timedelta(seconds=timeout))
        except RuntimeError as error:
            raise c10d.understood(error, self._name, peer) from error
