"""Ranks compare their calls before anything moves, on engines whose own layer does not.

Each rank writes a card: what it is about to do. All see all cards, so all come to one verdict: the
call fails everywhere or nowhere, and after a mismatch the group is still in step. Where the counts
differ by rank, the ranks show each other whole rows of them as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from unisono.core import trace
from unisono.core.dtypes import DType, ReduceOp
from unisono.engines.common.reductions import Array
from unisono.errors import MismatchError

__all__ = ["CARD", "Agreement", "Call"]

CARD = 256  # bytes
_TEXT = 128  # bytes after the count, and whether it holds for all ranks
_PLACE = CARD - 16 - _TEXT  # the rest: where the call was made, which need not be the same


@dataclass(frozen=True)
class Call:
    """One call, as a rank makes it.

    >>> str(Call("reduce", 10, op=ReduceOp.SUM, root=1))
    'reduce sum root 1'
    """

    verb: str
    count: int = 0  # of the smaller buffer: what one rank gives or gets
    dtype: DType | None = None
    op: ReduceOp | None = None
    root: int | None = None
    #: What the rank sends to and receives from each, for verbs whose counts may differ by rank.
    rows: tuple[Sequence[int], Sequence[int]] | None = None
    uneven: bool = False  # the caller gave counts
    place: str = field(default_factory=lambda: trace.place() or "", compare=False)

    def __str__(self) -> str:
        """What must be the same on all ranks."""
        words = [self.verb]
        if self.dtype is not None:
            words.append(self.dtype.name)
        if self.op is not None:
            factor = f"({self.op.factor:g})" if self.op.name == "premul_sum" else ""
            words.append(self.op.name + factor)
        if self.root is not None:
            words.append(f"root {self.root}")
        return " ".join(words)

    def card(self) -> Array:
        """The call in a fixed number of bytes."""
        numbers = np.array([self.count, self.uneven], np.int64).view(np.uint8)
        text = str(self).encode()[:_TEXT].ljust(_TEXT, b"\0")
        place = self.place.encode()[-_PLACE:].ljust(_PLACE, b"\0")
        return np.concatenate([numbers, np.frombuffer(text + place, np.uint8)])


class Agreement:
    """One rank's part in the comparison of calls in one group."""

    def __init__(self, size: int, show: Callable[[str, Array, Array], None]) -> None:
        """`show(verb, mine, all)` gives everybody `mine`, and fills `all` with everybody's."""
        self._size = size
        self._show = show
        self.calls = 0

    def reach(self, call: Call) -> None:
        """Return if all ranks are about to do the same, else raise what they would do."""
        self.calls += 1
        cards = self._shown(call, call.card())
        counts, uneven = cards[:, :16].copy().view(np.int64).T
        texts = [_text(card[16 : 16 + _TEXT]) for card in cards]
        places = [_text(card[16 + _TEXT :]) for card in cards]
        if len(set(texts)) > 1:
            self._disagree(texts, places, counts, uneven)
        if not uneven.any() and len(set(counts.tolist())) == 1:
            return
        if call.rows is None:  # of this verb counts never differ
            self._disagree(texts, places, counts, uneven)
        tables = self._shown(call, np.array(call.rows, np.int64))
        sends, receives = tables[:, 0], tables[:, 1]
        misfits = np.argwhere(sends != receives.T).tolist()
        if misfits:
            wrong = [
                f"rank {giver} sends rank {taker} {sends[giver, taker]} elements, "
                f"which expects {receives[taker, giver]}"
                for giver, taker in misfits[:4]
            ]
            where = f"in call {self.calls} of the group, {texts[0]}"
            givers = sorted({giver for giver, _ in misfits})
            raise MismatchError(f"{where}, {'; '.join(wrong)}", givers)

    def _shown(self, call: Call, mine: Array) -> Array:
        everybodys = np.empty((self._size, *mine.shape), mine.dtype)
        self._show(call.verb, mine, everybodys)
        return everybodys

    def _disagree(
        self, texts: Sequence[str], places: Sequence[str], counts: Array, uneven: Array
    ) -> None:
        sides: dict[str, list[int]] = {}
        for rank, text in enumerate(texts):
            verb, _, rest = text.partition(" ")
            dtype, _, rest = rest.partition(" ")
            words = [verb, dtype, "" if uneven[rank] or not dtype else f"x {counts[rank]}", rest]
            at = f" at {places[rank]}" if places[rank] else ""
            side = f"{' '.join(word for word in words if word)}, call {self.calls}{at}"
            sides.setdefault(side, []).append(rank)
        told = "; ".join(
            f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}: {text}"
            for text, ranks in sides.items()
        )
        raise MismatchError(f"ranks disagree in call {self.calls} of the group; {told}")


def _text(words: Array) -> str:
    return bytes(words).rstrip(b"\0").decode(errors="replace")
