"""What is recognised of a tensor without a closer look."""

from __future__ import annotations

import numpy as np
import pytest

from unisono.core.buffers import devices


def test_a_fingerprint_is_that_of_plain_memory_only():
    torch = pytest.importorskip("torch")
    plain = torch.arange(6.0)
    known = devices.fingerprint(plain)
    assert known == (plain.data_ptr(), 6, torch.float32)
    assert devices.fingerprint(plain.view(2, 3)) == known
    assert devices.fingerprint(plain.view(torch.int32)) != known
    others = [
        plain[::2],
        torch.zeros(3, requires_grad=True),
        torch.nn.Parameter(plain, requires_grad=False),
        torch.eye(2).to_sparse(),
        torch.ones(2, dtype=torch.complex64).conj(),
        torch.ones(2, dtype=torch.complex64).conj().imag,
        np.ones(2),
        [1.0],
    ]
    assert [devices.fingerprint(other) for other in others] == [None] * len(others)
