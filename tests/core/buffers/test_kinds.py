"""What is no tensor is refused by name."""

from __future__ import annotations

import pytest

from unisono.core.buffers import is_tensor, view
from unisono.errors import ArgumentTypeError


@pytest.mark.parametrize(
    "thing",
    [[1.0, 2.0], 1.5, 3, None, "text", {}, (1,), object()],
    ids=lambda it: type(it).__name__,
)
def test_things_that_are_no_tensors(thing):
    with pytest.raises(ArgumentTypeError, match="expected a tensor") as caught:
        view(thing)
    assert type(thing).__qualname__ in str(caught.value)
    assert not is_tensor(thing)
