"""What is asked of flat memory, whatever it belongs to."""

from __future__ import annotations

import numpy as np
import pytest

from unisono.core import buffers
from unisono.core.buffers import view


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((0, 4), (4, 4), False),
        ((0, 5), (4, 4), True),
        ((2, 2), (0, 8), True),
        ((3, 0), (0, 8), False),
    ],
    ids=["side by side", "by one", "inside", "empty"],
)
def test_overlap(first, second, expected):
    whole = np.zeros(8)
    one, two = (view(whole[start : start + count]) for start, count in (first, second))
    assert buffers.overlap(one, two) is expected
    assert buffers.overlap(two, one) is expected
