"""How cores are found and divided, on machines that are not this one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from unisono.errors import ArgumentError
from unisono.launch.cores import allowed_cores, core_blocks, divide

#: Four cores with two hardware threads each, numbered as Linux does.
EIGHT_THREADS = [[0, 4], [1, 5], [2, 6], [3, 7]]


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (1, [{0, 1, 2, 3, 4, 5, 6, 7}]),
        (3, [{0, 4}, {1, 5}, {2, 6}]),  # whole cores; one is left over
        (4, [{0, 4}, {1, 5}, {2, 6}, {3, 7}]),
        (5, [{0}, {4}, {1}, {5}, {2}]),  # too many for whole cores
        (8, [{0}, {4}, {1}, {5}, {2}, {6}, {3}, {7}]),
        (9, None),
    ],
)
def test_shares(n: int, expected: list[set[int]] | None) -> None:
    assert divide(EIGHT_THREADS, n, "share") == expected


def test_one_core_each() -> None:
    assert divide(EIGHT_THREADS, 3, "core") == [{0, 4}, {1, 5}, {2, 6}]
    assert divide(EIGHT_THREADS, 6, "core") == [{0}, {4}, {1}, {5}, {2}, {6}]
    with pytest.raises(ArgumentError, match="a core for each of 9 ranks, and there are 8"):
        divide(EIGHT_THREADS, 9, "core")


def test_ways_to_bind() -> None:
    assert core_blocks(1, "none") is None
    assert core_blocks(1) == [os.sched_getaffinity(0)]
    with pytest.raises(ArgumentError, match="--bind is 'tightly'; give one of share, core, none"):
        core_blocks(1, "tightly")


def test_topology(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Even processors are in socket 1, odd ones in socket 0; n and n + 4 are one core.
    for thread in range(8):
        topology = tmp_path / f"cpu{thread}" / "topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{(thread + 1) % 2}\n")
        (topology / "thread_siblings_list").write_text(f"{thread % 4},{thread % 4 + 4}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 4, 5, 7})
    assert allowed_cores(tmp_path) == [[1, 5], [3, 7], [0, 4], [2]]
    assert allowed_cores(tmp_path / "nowhere") == [[0], [1], [2], [3], [4], [5], [7]]
