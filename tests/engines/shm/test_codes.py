"""The numbers that Python and C++ share are the same on both sides."""

from __future__ import annotations

import pytest

from unisono import _native
from unisono.core.dtypes import DTYPES, ReduceOp
from unisono.engines.shm import engine as shm


def test_dtypes_have_the_same_codes() -> None:
    assert _native.codes()["dtypes"] == {dtype.name: dtype.code for dtype in DTYPES}


def test_operators_have_the_same_codes() -> None:
    assert _native.codes()["operators"] == {op.name: op.code for op in ReduceOp.ALL}


@pytest.mark.parametrize("verb", sorted(set(_native.codes()["verbs"]) - {"send", "recv"}))
def test_verbs_have_the_same_codes(verb: str) -> None:
    assert getattr(shm, f"_{verb.upper()}") == _native.codes()["verbs"][verb]


def test_too_many_ranks_are_refused() -> None:
    with pytest.raises(Exception, match="1 to 512 are possible"):
        _native.create_job_memory(100_000)
