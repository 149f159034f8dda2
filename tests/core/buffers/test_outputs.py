"""New tensors for results."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from unisono.core import buffers
from unisono.core.buffers import view


def test_output_like_numpy():
    tensor = np.zeros((2, 3), ml_dtypes.bfloat16)
    for made, shape in (
        (buffers.output_like(tensor).finish(), (2, 3)),
        (buffers.output_like(tensor, [4]).finish(), (4,)),
    ):
        assert type(made) is np.ndarray
        assert (made.dtype, made.shape) == (tensor.dtype, shape)
        assert not buffers.overlap(view(made), view(tensor))
