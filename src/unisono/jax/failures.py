"""The errors of collectives in compiled programs, which JAX wraps in an error of its own."""

from __future__ import annotations

import atexit
import contextlib
from collections import deque
from collections.abc import Iterator

import jax

from unisono.core import groups as _groups  # noqa: F401 - its atexit handler must be the later one
from unisono.errors import UnisonoError
from unisono.jax import internals

__all__ = ["note", "original_errors", "wait_for_programs"]

#: The last errors of collectives that ran in compiled programs, the newest first.
_noted: deque[UnisonoError] = deque(maxlen=16)


def note(error: UnisonoError) -> None:
    """Keep the error of a collective that runs in a compiled program."""
    _noted.appendleft(error)


@contextlib.contextmanager
def original_errors() -> Iterator[None]:
    """Raise the error of a collective in a compiled program as itself: PeerLost, MismatchError.

    JAX raises a `JaxRuntimeError` that has only its text. At its end the block waits for the
    collectives of the programs that it has started, so that their errors come out here. After an
    error, programs can be started again. It is a decorator too: `original_errors()(step)`.
    """
    try:
        yield
        jax.effects_barrier()
    except jax.errors.JaxRuntimeError as wrapped:
        internals.forget_tokens()
        error = _original(wrapped)
        if error is None:
            raise
        raise error from None


def wait_for_programs() -> None:
    """Wait for the collectives of all programs that this thread has started."""
    with original_errors():
        pass


def _original(wrapped: Exception) -> UnisonoError | None:
    """The error whose text JAX has put into its own; None if a collective was not the cause."""
    text = str(wrapped)
    return next((error for error in list(_noted) if str(error) in text), None)


# A program may still be running when the script ends: it is waited for before the world is closed.
atexit.register(wait_for_programs)
