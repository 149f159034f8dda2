"""Native code finds torch's options in memory, or leaves them to Python."""

from __future__ import annotations

from typing import Any

import pytest

from unisono.torch.backend import direct
from unisono.torch.backend.direct import option_examples

pytestmark = pytest.mark.skipif(direct.native is None, reason="there is no native module")


@pytest.mark.parametrize("name", option_examples.CLASSES)
def test_all_classes_of_options_are_found(name: str) -> None:
    assert direct.native.learn_options(list(option_examples.examples(name)))


@pytest.mark.parametrize("field", range(1, 5))
def test_a_field_that_does_not_fit_is_not_found(field: int) -> None:
    """One wrong value among all examples is enough: nothing is guessed."""
    given: list[Any] = list(option_examples.examples("ReduceOptions"))
    wrong = list(given[7])
    wrong[field] = not wrong[field] if field == 1 else wrong[field] + 1
    given[7] = tuple(wrong)
    assert not direct.native.learn_options(given)


def test_a_field_that_could_be_elsewhere_is_not_found() -> None:
    """Examples that are all alike fit many places."""
    alike = [
        each for each in option_examples.examples("AllreduceOptions") if each[1:4] == (True, -1, 0)
    ]
    assert alike
    assert not direct.native.learn_options(alike)


def test_objects_that_are_not_options_are_left_alone() -> None:
    assert not direct.native.learn_options([])
    assert not direct.native.learn_options([(object(), True, -1, None, None)])
