"""How errors of ranks reach the program that started them, and which of them it gets."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Collection
from typing import Any

from unisono.errors import RankFailed
from unisono.launch.outcome import RankOutcome, culprit

__all__ = ["pack_error", "raise_cause"]


def raise_cause(
    errors: dict[int, BaseException], failures: Collection[RankOutcome], n: int
) -> None:
    """Raise the error that caused the others; nothing if no rank failed."""
    __tracebackhide__ = True  # IPython and pytest leave this frame out
    if not failures:
        return
    rank = culprit(failures).rank
    cause = errors[rank]
    cause.add_note(f"on rank {rank} of {n}")
    others = ", ".join(
        f"rank {other} ({type(error).__name__})"
        for other, error in sorted(errors.items())
        if other != rank
    )
    if others:
        cause.add_note(f"raised as well: {others}")
    raise cause


def pack_error(
    error: BaseException, rank: int, dumps: Callable[[Any], bytes] = pickle.dumps
) -> bytes:
    """Pickle an error, or one that stands for it, with its traceback as a note; no result."""
    trace = "".join(traceback.format_exception(error)).rstrip()
    error.add_note(f"traceback in the process of rank {rank}:\n{trace}")
    try:
        answer = dumps((error, None))
        pickle.loads(answer)
    except Exception as reason:
        stand_in = RankFailed(
            f"rank {rank} raised {type(error).__name__}, which cannot be pickled ({reason})", [rank]
        )
        stand_in.add_note(f"traceback in the process of rank {rank}:\n{trace}")
        answer = pickle.dumps((stand_in, None))
    return answer
