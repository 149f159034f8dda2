"""UNISONO_ISA chooses the kernels; a value that is wrong is an error that says so."""

from __future__ import annotations

import pytest

from tests.helpers.jobs import Ranks
from tests.helpers.start_cases import START, check_started

REPORT = """
from unisono import _native
groups.init("shm")
say(isa=_native.instruction_set())
"""


def test_a_known_instruction_set_is_used() -> None:
    with Ranks(2, REPORT, UNISONO_ISA="baseline") as ranks:
        assert [ranks[rank].read() for rank in range(2)] == [{"isa": "baseline"}] * 2


def test_an_empty_value_means_the_best_one() -> None:
    with Ranks(2, START, UNISONO_ISA="") as ranks:
        check_started(ranks, 2)


@pytest.mark.parametrize("value", ["avx3", "AVX2", "avx2 "])
def test_an_unknown_instruction_set_is_an_error(value: str) -> None:
    with Ranks(2, START, UNISONO_ISA=value) as ranks:
        for rank in range(2):
            error = ranks[rank].read()
            assert error["kind"] == "LaunchError", error
            assert f"UNISONO_ISA is '{value}'" in error["text"], error
            assert "baseline" in error["text"], error


def test_an_unknown_instruction_set_on_one_rank() -> None:
    with Ranks(2, START, only=[0]) as ranks:
        error = ranks.start(1, UNISONO_ISA="avx3").read()
        assert error["kind"] == "LaunchError" and "UNISONO_ISA is 'avx3'" in error["text"], error
        error = ranks[0].read()
        assert error["kind"] == "LaunchError" and error["ranks"] == [1], error
