"""NumPy arrays in the memory of the job: NumPy's own allocator, for a while (NEP 49)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unisono import _native

__all__ = ["shared_arrays"]


@contextlib.contextmanager
def shared_arrays(job: _native.SharedJob, minimum: int) -> Iterator[None]:
    """Let NumPy put arrays of at least `minimum` bytes where the other ranks can read them.

    Which allocator is in use belongs to the context (`contextvars`): other threads are not
    affected. A MemoryError gets a note that says what the shared memory lacked.
    """
    from unisono import _native

    _native.take_refusal()
    before = _native.set_array_handler(job.array_handler(minimum))
    try:
        yield
    except MemoryError as error:
        refusal = _native.take_refusal()
        if refusal is not None:
            error.add_note(refusal)
        raise
    finally:
        _native.set_array_handler(before)
