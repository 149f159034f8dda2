"""Which tracebacks are equal, and when they are shown."""

from __future__ import annotations

from unisono.launch.output.tracebacks import TracebackFolder

START = b"Traceback (most recent call last):"


def lines_of(rank: int, torch: bool = False) -> list[bytes]:
    lines = [
        START,
        b'  File "train.py", line 8, in <module>',
        b"unisono.errors.PeerLost: rank 3 was killed, which ended 0.%d s ago" % rank,
        b"in barrier (call 2) on group 'world', rank %d of 4" % rank,
    ]
    return [b"[rank%d]: " % rank + line for line in lines] if torch else lines


def test_other_lines_pass() -> None:
    folder = TracebackFolder()
    assert folder.take(0, [b"a", b"b"], 0.0) == [b"a", b"b"]
    assert folder.take(0, [b"c", START, b"  File"], 0.0) == [b"c"]
    assert folder.holds(0) and not folder.holds(1)
    assert folder.take(0, [b"Error: x"], 0.1) == []
    assert folder.take(1, [b"d"], 0.1) == [b"d"]


def test_equal_ones_are_one() -> None:
    folder = TracebackFolder()
    for rank in (2, 0, 1):
        folder.take(rank, lines_of(rank, torch=True), 0.0)
        folder.end(rank, 0.0)
    folder.take(3, [START, b"ValueError: the cause"], 0.0)
    folder.end(3, 0.0)
    assert folder.due(0.2) == []
    assert 0.2 < folder.due_at() < 1.0
    both = folder.due(folder.due_at(), last=0)
    assert [one.ranks for one in both] == [[3], [0, 1, 2]]
    assert both[1].lines[0] == START
    assert both[1].lines[-1] == b"in barrier (call 2) on group 'world' of 4 ranks"
    assert folder.due_at() == float("inf")


def test_one_alone_stays_as_it_was() -> None:
    folder = TracebackFolder()
    folder.take(1, lines_of(1, torch=True), 0.0)
    (found,) = folder.due(0.0, everything=True)
    assert (found.ranks, found.lines) == ([1], lines_of(1, torch=True))


def test_a_rank_that_goes_on_is_not_held_for_ever() -> None:
    folder = TracebackFolder()
    folder.take(0, [START, b"ValueError: handled"], 0.0)
    now = folder.due_at()
    assert folder.due(now) == []  # complete now, but others may come
    assert [one.ranks for one in folder.due(folder.due_at())] == [[0]]
    assert folder.take(0, [b"on with it"], now) == [b"on with it"]


def test_endless_ones_pass() -> None:
    folder = TracebackFolder()
    folder.take(0, [START], 0.0)
    assert len(folder.take(0, [b"  line"] * 3000, 0.0)) == 3001
