"""The consistency check: ranks compare their calls before anything moves.

Every rank sees what all ranks are about to do, so all come to one verdict: the call fails
everywhere or nowhere, and after a mismatch the group still works. Engine `shm` does the same in
native code (native/group.cpp).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from unisono.core.call import Call
from unisono.errors import MismatchError

__all__ = ["SITE_BYTES", "Descriptor", "check", "compare"]

_Array = np.ndarray[Any, Any]

_TEXT_BYTES = 128
#: Where the call is, in the last bytes of an encoded descriptor: that may differ.
SITE_BYTES = 112


class Descriptor(NamedTuple):
    """What a rank tells the others of its call."""

    # These three must be the same on all ranks; `rest` is the operator, the root and the pass.
    verb: str
    dtype: str
    rest: str
    share: int
    uneven: bool
    site: str

    @classmethod
    def of(cls, call: Call) -> Descriptor:
        """The descriptor of a call."""
        rest = [call.op.text] if call.op is not None else []
        if call.root is not None:
            rest.append(f"root {call.root}")
        if call.backward:
            rest.append("(backward)")
        dtype = call.dtype.name if call.dtype is not None else ""
        return cls(call.verb, dtype, " ".join(rest), call.share, call.uneven, call.site)

    def __str__(self) -> str:
        share = f"x {self.share}" if self.dtype and not self.uneven else ""
        return " ".join(filter(None, [self.verb, self.dtype, share, self.rest]))

    def encoded(self) -> _Array:
        """The descriptor in a fixed number of bytes: two int64, the text and the call site."""
        numbers = np.array([self.share, self.uneven], np.int64).view(np.uint8)
        text = f"{self.verb}|{self.dtype}|{self.rest}".encode()[:_TEXT_BYTES]
        site = self.site.encode()[-SITE_BYTES:]
        padded = text.ljust(_TEXT_BYTES, b"\0") + site.ljust(SITE_BYTES, b"\0")
        return np.concatenate([numbers, np.frombuffer(padded, np.uint8)])

    @classmethod
    def decoded(cls, data: _Array) -> Descriptor:
        """The descriptor that another rank has encoded."""
        share, uneven = data[:16].copy().view(np.int64).tolist()
        verb, dtype, rest = _text(data[16 : 16 + _TEXT_BYTES]).split("|")
        return cls(verb, dtype, rest, share, bool(uneven), _text(data[16 + _TEXT_BYTES :]))


def _text(data: _Array) -> str:
    return bytes(data).rstrip(b"\0").decode(errors="replace")


def compare(
    number: int, descriptors: Sequence[Descriptor], counts: Callable[[], _Array] | None
) -> None:
    """Return if all ranks are about to do the same, else raise what they would do.

    `counts` gives a table: what each rank sends to and receives from each, `[rank, 0 or 1, peer]`.
    It is asked only if shares differ, and None for verbs in which they never may.
    """
    if len({descriptor[:3] for descriptor in descriptors}) > 1:
        raise _mismatch(number, descriptors)
    even = not any(descriptor.uneven for descriptor in descriptors)
    if even and len({descriptor.share for descriptor in descriptors}) == 1:
        return
    if counts is None:
        raise _mismatch(number, descriptors)
    table = counts()
    sends, receives = table[:, 0], table[:, 1]
    differing = np.argwhere(sends != receives.T).tolist()
    if differing:
        pairs = "; ".join(
            f"rank {sender} sends rank {receiver} {sends[sender, receiver]} elements, "
            f"which expects {receives[receiver, sender]}"
            for sender, receiver in differing[:4]
        )
        raise MismatchError(
            f"counts do not match in call {number} of the group; {pairs}; "
            f"{_sides(number, descriptors)}",
            sorted({sender for sender, _ in differing}),
        )


def _mismatch(number: int, descriptors: Sequence[Descriptor]) -> MismatchError:
    return MismatchError(
        f"ranks disagree in call {number} of the group; {_sides(number, descriptors)}"
    )


def _sides(number: int, descriptors: Sequence[Descriptor]) -> str:
    """Which ranks make which call, and from where."""
    sides: dict[str, list[int]] = {}
    for rank, descriptor in enumerate(descriptors):
        at = f" at {descriptor.site}" if descriptor.site else ""
        sides.setdefault(f"{descriptor}, call {number}{at}", []).append(rank)
    return "; ".join(
        f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}: {side}"
        for side, ranks in sides.items()
    )


def check(call: Call, size: int, exchange: Callable[[_Array, _Array], None]) -> None:
    """The same for ranks that first have to show each other their descriptors.

    `exchange(mine, all)` gives all `size` ranks `mine`, and fills `all` with everybody's.
    """

    def from_all(mine: _Array) -> _Array:
        everybodys = np.empty((size, *mine.shape), mine.dtype)
        exchange(mine, everybodys)
        return everybodys

    def counts() -> _Array:
        return from_all(np.array([call.sends, call.receives], np.int64))

    encoded = from_all(Descriptor.of(call).encoded())
    descriptors = [Descriptor.decoded(data) for data in encoded]
    compare(call.number, descriptors, counts if call.sends else None)
