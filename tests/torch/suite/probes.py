"""Tests that end badly in one rank only: they prove that the runner notices."""

from __future__ import annotations

import os
import time

from tests.torch.suite.suite import TorchSuite


class Probes(TorchSuite):
    """Rank 0 is always content: upstream would call each of these passed, or wait."""

    @property
    def deadline(self) -> float:
        """Short where it is meant to pass."""
        return 4.0 if self._testMethodName == "test_probe_rank_one_hangs" else super().deadline

    def test_probe_everybody_is_content(self) -> None:
        assert int(self.world_size) > self.rank

    def test_probe_rank_one_raises(self) -> None:
        assert self.rank != 1, "rank 1 is not content"

    def test_probe_rank_one_is_gone(self) -> None:
        if self.rank == 1:
            os._exit(3)

    def test_probe_rank_one_hangs(self) -> None:
        if self.rank == 1:
            time.sleep(1000)

    def test_probe_rank_one_skips(self) -> None:
        if self.rank == 1:
            self.skipTest("only here")
