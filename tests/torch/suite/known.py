"""The known failures, and what a run says against them."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.torch.suite.runner import Outcome

FILE = Path(__file__).with_name("known.toml")


@dataclass(frozen=True)
class Known:
    """What one backend is known to fail in, and how many tests run at each world size."""

    reasons: dict[tuple[str, int], str]
    tests_that_run: dict[int, int]

    def complaints(
        self, world_size: int, outcomes: Iterable[Outcome], everything: bool
    ) -> list[str]:
        """What is not as it should be after a run; `everything` says that no test was left out."""
        found = {outcome.test: outcome for outcome in outcomes}
        said = []
        for outcome in found.values():
            is_known = (outcome.test, world_size) in self.reasons
            if outcome.status == "failed" and not is_known:
                said.append(f"{outcome.test} fails and is not in {FILE.name}\n{outcome.detail}")
            if outcome.status != "failed" and is_known:
                said.append(f"{outcome.test} is in {FILE.name}, but: {outcome.status}")
        expected = self.tests_that_run.get(world_size)
        running = sum(outcome.ran for outcome in found.values())
        if everything and expected is not None and running != expected:
            said.append(f"{running} tests ran, and {FILE.name} says {expected}")
        return said

    def unknown_tests(self, tests: Iterable[str]) -> list[str]:
        """Complaints about entries that name none of the tests of the suite."""
        names = sorted({test for test, _ in self.reasons} - set(tests))
        return [f"{name} is in {FILE.name}, but the suite has no such test" for name in names]


def load(backend: str, path: Path = FILE) -> Known:
    """Read what is known about a backend."""
    table = tomllib.loads(path.read_text())
    reasons: dict[tuple[str, int], str] = {}
    for entry in table["failure"]:
        for test in entry["tests"]:
            for size in entry["world_sizes"]:
                if not entry["reason"].strip():
                    raise ValueError(f"{path.name}: {test} has no reason")
                if entry["backend"] != backend:
                    continue
                if (test, size) in reasons:
                    raise ValueError(f"{path.name}: {test} is there twice for world size {size}")
                reasons[test, size] = entry["reason"]
    return Known(reasons, {int(size): n for size, n in table["tests_that_run"].items()})
