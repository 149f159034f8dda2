"""Device memory that processes share: what this one has exported, and what it has opened.

A tensor is a part of a block that an allocator keeps (torch's and CuPy's hand out pieces of large
blocks), and blocks are what CUDA shares. Exporting and opening a block take long, so both are
remembered. A block that was freed is forgotten on both sides: while others have it open, its memory
is not free, and its address may be that of another block later. Its number tells the two apart.
CUDA opens no block while an older one is open that was at the same addresses of its owner.
"""

from __future__ import annotations

import secrets
import struct
import threading
from typing import NamedTuple

from unisono.engines.cuda.gpu.driver import HANDLE_BYTES, Driver

__all__ = ["EXPORT_BYTES", "NOTHING", "Export", "Exports", "Imports"]

_FORMAT = struct.Struct(f"<QQQQQ{HANDLE_BYTES}s")
#: Bytes of an encoded `Export`.
EXPORT_BYTES = _FORMAT.size


class Export(NamedTuple):
    """Memory of one process, as it tells others of it."""

    #: Which process; 0 for no memory at all.
    process: int
    number: int
    #: Where the block is in that process, and how long it is.
    base: int
    nbytes: int
    offset: int
    handle: bytes

    def encoded(self) -> bytes:
        """In `EXPORT_BYTES` bytes."""
        return _FORMAT.pack(*self)

    @classmethod
    def decoded(cls, data: bytes) -> Export:
        """What another rank has encoded."""
        return cls(*_FORMAT.unpack(data))


#: What a rank tells that has no memory in a call.
NOTHING = Export(0, 0, 0, 0, 0, b"")


_NONE_FOUND = 0, NOTHING
_REMEMBERED = 4096  # addresses


class _Block(NamedTuple):
    base: int
    handle: bytes


class Exports:
    """The blocks of this process that others may have open."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.process = secrets.randbits(63) + 1
        self._lock = threading.Lock()
        self._blocks: dict[int, _Block] = {}
        self._found: dict[int, tuple[int, Export]] = {}  # numbers and exports, by address
        #: Numbers of blocks that were freed, in the order in which that was noticed. Each group
        #: tells its members of those that it has not told them yet.
        self.freed: list[int] = []

    def find(self, address: int) -> Export | None:
        """What to tell others of this address; None if its block cannot be shared."""
        number, export = self._found.get(address, _NONE_FOUND)
        if number and number == self._driver.number_of(address):
            return export
        return self._find(address)

    def _find(self, address: int) -> Export | None:
        allocation = self._driver.allocation_of(address)
        with self._lock:
            block = self._blocks.get(allocation.number)
            if block is None:
                self._forget_freed()
                handle = self._driver.export_handle(allocation.base)
                if handle is None:
                    return None
                block = self._blocks[allocation.number] = _Block(allocation.base, handle)
            if len(self._found) >= _REMEMBERED:
                self._found.clear()
            base, nbytes, number = allocation
            export = Export(self.process, number, base, nbytes, address - base, block.handle)
            self._found[address] = number, export
        return export

    def address_of(self, export: Export) -> int:
        """Where memory is that this process has exported itself."""
        with self._lock:
            return self._blocks[export.number].base + export.offset

    def _forget_freed(self) -> None:
        """Look which blocks are gone; done when a new one shows that allocators were at work."""
        for number, block in list(self._blocks.items()):
            if not self._driver.is_allocated(block.base, number):
                del self._blocks[number]
                self.freed.append(number)


class _Opened(NamedTuple):
    address: int  # here
    export: Export


class Imports:
    """The blocks of other processes that this one has open."""

    def __init__(self, driver: Driver, exports: Exports) -> None:
        self._driver = driver
        self._own = exports.process
        self._lock = threading.Lock()
        self._opened: dict[tuple[int, int], _Opened] = {}  # by process and number
        self._groups: dict[int, int] = {}  # how many groups each process is with us in

    def join(self, process: int) -> None:
        """Count a group that this process and another one are in."""
        with self._lock:
            self._groups[process] = self._groups.get(process, 0) + 1

    def leave(self, process: int) -> None:
        """Count it no longer; without a group, the other's blocks are closed."""
        with self._lock:
            self._groups[process] -= 1
            if self._groups[process]:
                return
            del self._groups[process]
            numbers = [number for owner, number in self._opened if owner == process]
        for number in numbers:
            self.close(process, number)

    def open(self, export: Export) -> int:
        """The address here of what another process has exported."""
        assert export.process != self._own
        key = export.process, export.number
        with self._lock:
            if key not in self._opened:
                for older, (_, other) in list(self._opened.items()):
                    if other.process == export.process and _overlap(other, export):
                        self._close(older)  # its owner has freed it, and we have not heard yet
                self._opened[key] = _Opened(self._driver.open_handle(export.handle), export)
            return self._opened[key].address + export.offset

    def close(self, process: int, number: int) -> None:
        """Forget a block, which its owner has freed: so nobody uses it any more."""
        with self._lock:
            self._close((process, number))

    def _close(self, key: tuple[int, int]) -> None:
        opened = self._opened.pop(key, None)
        if opened is not None:
            self._driver.close_handle(opened.address)

    def __len__(self) -> int:
        return len(self._opened)


def _overlap(one: Export, other: Export) -> bool:
    return one.base < other.base + other.nbytes and other.base < one.base + one.nbytes
