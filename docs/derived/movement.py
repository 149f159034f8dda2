"""What each collective moves between four ranks: the data of the pictures.

Rank r begins with 10 r, 10 r + 1, and so on, so that a number tells where it comes from. The tests
run the collectives of both dialects on these numbers and compare.
"""

from __future__ import annotations

from dataclasses import dataclass

from derived.running import RANKS

__all__ = ["ROOT", "Movement", "movements", "source_of"]

#: The rank that sends or receives where only one does; not 0, so that a forgotten argument shows.
ROOT = 1

Row = tuple[int, ...]


@dataclass(frozen=True)
class Movement:
    """The numbers of each rank before a collective and after it; none where it gets no result."""

    before: tuple[Row, ...]
    after: tuple[Row, ...]

    @property
    def has_sums(self) -> bool:
        """Tell whether a number comes from all ranks."""
        return any(source_of(number) is None for row in self.after for number in row)


def source_of(number: int) -> int | None:
    """Tell which rank a number comes from; None for a sum.

    >>> source_of(23), source_of(60)
    (2, None)
    """
    rank, index = divmod(number, 10)
    return rank if rank < RANKS and index < RANKS else None


def movements() -> dict[str, Movement]:
    """Return what moves, by the name of the collective.

    >>> movements()["reduce_scatter"].after
    ((60,), (64,), (68,), (72,))
    """
    full = tuple(tuple(10 * rank + i for i in range(RANKS)) for rank in range(RANKS))
    first = tuple(row[:1] for row in full)
    everything = tuple(row[0] for row in full)
    total = tuple(sum(row[i] for row in full) for i in range(RANKS))

    def on_root(row: Row) -> tuple[Row, ...]:
        return tuple(row if rank == ROOT else () for rank in range(RANKS))

    return {
        "all_gather": Movement(first, (everything,) * RANKS),
        "all_reduce": Movement(full, (total,) * RANKS),
        "all_to_all": Movement(full, tuple(zip(*full, strict=True))),
        "broadcast": Movement(on_root(full[ROOT]), (full[ROOT],) * RANKS),
        "gather": Movement(first, on_root(everything)),
        "reduce": Movement(full, on_root(total)),
        "reduce_scatter": Movement(full, tuple((number,) for number in total)),
        "scatter": Movement(on_root(full[ROOT]), tuple((number,) for number in full[ROOT])),
        "send_recv": Movement(full, tuple(full[rank - 1] for rank in range(RANKS))),
    }
