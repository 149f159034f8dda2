"""The native module: native/bind.cpp."""

from collections.abc import Callable, Sequence
from typing import Any

class CallHandle:
    def done(self) -> bool: ...
    def wait(self, seconds: float) -> bool: ...
    def check(self) -> None: ...
    def on_done(self, function: Callable[[], None], /) -> None: ...
    @property
    def source(self) -> int: ...

#: One record: the fields of core.trace.Record, in order.
_Record = tuple[
    int, int, int | None, str, str | None, int | None, str | None, int | None, int | None,
    str | None, int, int | None, str
]  # fmt: skip
#: One rank: pid, state, records, and the world ranks that its call waits for.
_Rank = tuple[int, str, list[_Record], list[int] | None]

class JobInspector:
    def __init__(self, fd: int) -> None: ...
    @property
    def size(self) -> int: ...
    def snapshot(self) -> list[_Rank]: ...

class SharedBlock:
    @property
    def address(self) -> int: ...

class SharedJob:
    def __init__(self, fd: int, rank: int) -> None: ...
    def connect_peers(self) -> None: ...
    def announce_exit(self) -> None: ...
    def snapshot(self) -> list[_Rank]: ...
    def claim_trace_write(self) -> bool: ...
    def finish_trace_write(self) -> None: ...
    def trace_is_written(self) -> bool: ...
    def array_handler(self, minimum: int) -> object: ...
    def array_bytes(self) -> tuple[int, int]: ...
    def world_offset(self) -> int: ...
    def allocate_block(self, nbytes: int) -> int: ...
    def map_block(self, offset: int, nbytes: int) -> SharedBlock: ...
    def exit_reason(self, rank: int) -> str | None: ...
    def close(self, drain_seconds: float) -> None: ...

class Communicator:
    def __init__(self, job: SharedJob, offset: int, rank: int, size: int) -> None: ...
    def collective(
        self,
        verb: int,
        source: int,
        target: int,
        count: int,
        dtype: int,
        item_bytes: int,
        op: int,
        factor: float,
        root: int,
        seconds: float,
        backward: bool,
        /,
    ) -> None: ...
    def start(
        self,
        verb: int,
        source: int,
        target: int,
        count: int,
        dtype: int,
        item_bytes: int,
        op: int,
        factor: float,
        root: int,
        seconds: float,
        backward: bool,
        used: object,
        sends: Sequence[int],
        receives: Sequence[int],
        /,
    ) -> CallHandle: ...
    def finish(self, handle: CallHandle, /) -> bool: ...
    @staticmethod
    def tensor_extractor(
        tensor_type: type, failure_type: type, otherwise: Callable[[Any], Any]
    ) -> Callable[[Any], Any]: ...
    def collective_uneven(
        self,
        verb: int,
        source: int,
        target: int,
        count: int,
        dtype: int,
        item_bytes: int,
        op: int,
        factor: float,
        root: int,
        seconds: float,
        backward: bool,
        sends: Sequence[int],
        receives: Sequence[int],
        /,
    ) -> None: ...
    def tell(
        self,
        verb: int,
        count: int,
        dtype: int,
        op: int,
        factor: float,
        root: int,
        backward: bool,
        source: int,
        target: int,
        nbytes: int,
        seconds: float,
        blocking: bool,
        /,
    ) -> CallHandle | None: ...
    def point_to_point(
        self,
        sending: bool,
        data: int,
        count: int,
        dtype: int,
        item_bytes: int,
        peer: int,
        tag: int,
        seconds: float,
        blocking: bool,
        /,
    ) -> CallHandle: ...
    seconds: float
    def split(self, ranks: list[int], key: int, seconds: float) -> Communicator: ...
    def shrink(self, exclude: list[int], seconds: float) -> Communicator: ...
    @property
    def world_ranks(self) -> list[int]: ...
    def close(self, drain_seconds: float) -> None: ...

#: See core.fast.
fast: Any

def create_job_memory(size: int) -> int: ...
def set_array_handler(handler: object) -> object: ...
def take_refusal() -> str | None: ...
def instruction_set() -> str: ...
def codes() -> dict[str, dict[str, int]]: ...
