"""Ranks in one group of real torch, which the tests of a module share; `RANKS` says how many."""

from __future__ import annotations

import functools

import pytest

from tests.helpers.backend_cases import PooledRanks


@pytest.fixture(scope="module")
def ranks(request, tmp_path_factory):
    with PooledRanks(request.module.RANKS, tmp_path_factory.mktemp("store")) as pooled:
        yield pooled


@pytest.fixture
def run(ranks, tmp_path):
    """`run(function, *args)` calls `function(rank, folder, *args)` on all ranks of the group."""
    return functools.partial(ranks.run, tmp_path)
