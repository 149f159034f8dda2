"""What native/bind.cpp gives to Python."""

class Pending:
    def done(self) -> bool: ...
    def wait(self, seconds: float) -> bool: ...
    def check(self) -> None: ...
    @property
    def source(self) -> int: ...

#: One record: the fields of core.trace.Record, in order.
_Call = tuple[
    int, int, int | None, str, str | None, int | None, str | None, int | None, int | None,
    str | None, int, int | None, str
]  # fmt: skip
#: One rank: pid, state, records, and the world ranks for which its call waits.
_Rank = tuple[int, str, list[_Call], list[int] | None]

class Viewer:
    def __init__(self, fd: int) -> None: ...
    @property
    def size(self) -> int: ...
    def look(self) -> list[_Rank]: ...

class Job:
    def __init__(self, fd: int, rank: int) -> None: ...
    def meet(self) -> None: ...
    def crowded(self) -> bool: ...
    def exit(self) -> None: ...
    def look(self) -> list[_Rank]: ...
    def claim_trace(self) -> bool: ...
    def trace_written(self) -> None: ...
    def trace_is_fresh(self) -> bool: ...
    def world_offset(self) -> int: ...
    def close(self, drain_seconds: float) -> None: ...

class Communicator:
    def __init__(self, job: Job, offset: int, rank: int, size: int) -> None: ...
    def collective(
        self,
        verb: int,
        source: int,
        target: int,
        count: int,
        dtype: int,
        item: int,
        op: int,
        factor: float,
        root: int,
        seconds: float,
        blocking: bool,
        /,
    ) -> Pending | None: ...
    def collective_uneven(
        self,
        verb: int,
        source: int,
        target: int,
        count: int,
        dtype: int,
        item: int,
        op: int,
        factor: float,
        root: int,
        seconds: float,
        blocking: bool,
        sends: list[int],
        receives: list[int],
        /,
    ) -> Pending | None: ...
    def message(
        self,
        sending: bool,
        data: int,
        count: int,
        dtype: int,
        item: int,
        peer: int,
        tag: int,
        seconds: float,
        blocking: bool,
        /,
    ) -> Pending: ...
    def split(self, ranks: list[int], key: int, seconds: float) -> Communicator: ...
    def close(self, drain_seconds: float) -> None: ...

def create(size: int) -> int: ...
def isa() -> str: ...
def tables() -> dict[str, dict[str, int]]: ...
