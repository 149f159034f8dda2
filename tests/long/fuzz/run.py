"""Fuzz every function of both faces: `python -m tests.long.fuzz.run [--cases N] [--seed S]`.

Prints a table of what the calls came to, and each bad one with the shortest call that showed it.
Ends with 1 if there is a bad one.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.long.fuzz.calls import Call, calls, functions, pairs
from tests.long.fuzz.worlds import World

__all__ = ["PLANS", "Report", "fuzz", "main"]


@dataclass(frozen=True)
class Plan:
    """One part of a run: on which world, how much of all calls, and how long a call may wait."""

    name: str
    kind: str
    size: int
    share: float
    timeout: float
    differing: bool = False


PLANS = (
    Plan("one rank", "shm", 1, 0.40, 0.1),
    Plan("no world", "none", 1, 0.10, 0.1),
    Plan("two threads, same call", "threads", 2, 0.20, 0.2),
    Plan("two processes, same call", "shm", 2, 0.15, 0.2),
    Plan("two threads, different calls", "threads", 2, 0.08, 0.15, True),
    Plan("two processes, different calls", "shm", 2, 0.07, 0.15, True),
)
#: Calls between two right ones that must still be right.
_BATCH = 10


@dataclass
class Report:
    """What came of all calls, by function; and what was bad, by what it looked like."""

    kinds: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    bad: dict[tuple[str, ...], tuple[str, dict[str, Any], int]] = field(default_factory=dict)
    cases: int = 0
    slowest: tuple[float, str] = (0.0, "")

    def note(self, where: str, made: Sequence[Call], answers: Sequence[dict[str, Any]]) -> None:
        self.cases += 1
        for call, answer in zip(made, answers, strict=False):
            self.kinds[call.path][answer["kind"]] += 1
        for answer in answers:
            if answer.get("bad"):
                text = "  |  ".join(dict.fromkeys(map(str, made)))
                self.note_bad(where, made[0].path, text, answer)

    def note_bad(self, where: str, path: str, text: str, answer: dict[str, Any]) -> None:
        """Keep the shortest call of each kind of badness; the same line of ours is the same bug."""
        line = answer.get("line")
        key = (answer["kind"], line) if line else (answer["kind"], path, answer.get("text", ""))
        shortest, first, times = self.bad.get(key, (None, answer, 0))
        if shortest is None or len(text) < len(shortest):
            shortest, first = f"[{where}] {text}", answer
        self.bad[key] = (shortest, first, times + 1)

    def table(self) -> str:
        """One line for each function, and the sum."""
        every = Counter[str]()
        for found in self.kinds.values():
            every.update(found)
        columns = [kind for kind, _ in every.most_common()]
        lines = [["function", "calls", *columns]]
        for path in sorted(self.kinds):
            found = self.kinds[path]
            lines.append([path, str(found.total()), *[str(found[c] or "") for c in columns]])
        lines.append(["all", str(every.total()), *[str(every[c]) for c in columns]])
        widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if at == 0 else cell.rjust(width)
                for at, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
            for line in lines
        )

    def badness(self, traces: bool = True) -> str:
        """What was bad, one paragraph for each."""
        parts = []
        for key, (call, answer, times) in sorted(self.bad.items(), key=str):
            text = (
                f"{' '.join(map(str, key))} ({times} times): {answer.get('text', '')}\n    {call}"
            )
            trace = answer.get("trace", "") if traces else ""
            parts.append(text + "".join(f"\n        {line}" for line in trace.splitlines()[-40:]))
        return "\n\n".join(parts)


def fuzz(cases: int, start: int, plans: Sequence[Plan] = PLANS) -> Report:
    """Make this many calls; the number `start` makes the same ones again."""
    report = Report()
    for number, plan in enumerate(plans):
        _fuzz_one(plan, max(1, round(cases * plan.share)), start + number, report)
    return report


def _fuzz_one(plan: Plan, cases: int, start: int, report: Report) -> None:
    strategy = pairs() if plan.differing else calls()
    recent: list[str] = []
    with World(plan.kind, plan.size, plan.timeout) as world:

        @seed(start)
        @settings(
            max_examples=cases,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(strategy)
        def one(drawn: Any) -> None:
            made = list(drawn) if plan.differing else [drawn] * plan.size
            began = time.monotonic()
            report.note(plan.name, made, world.run(made))
            report.slowest = max(report.slowest, (time.monotonic() - began, str(made[-1])))
            recent.append("  |  ".join(dict.fromkeys(map(str, made))))
            if len(recent) == _BATCH:
                check()

        def check() -> None:
            for answer in world.check():
                if answer.get("bad"):
                    batch = "\n        ".join(recent)
                    answer = {**answer, "kind": f"then {answer['kind']}", "trace": batch}
                    report.note_bad(plan.name, "a right all_reduce", recent[-1], answer)
            recent.clear()

        one()
        check()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--only", default="", help="only the worlds whose name has this in it")
    options = parser.parse_args(arguments)
    chosen = [plan for plan in PLANS if options.only in plan.name]
    print(
        f"{options.cases} calls of {len(functions())} functions, --seed {options.seed}", flush=True
    )
    report = Report()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for number, plan in enumerate(PLANS):
            if plan not in chosen:
                continue
            began, before = time.monotonic(), report.cases
            cases = max(1, round(options.cases * plan.share))
            _fuzz_one(plan, cases, options.seed + number, report)
            spent = time.monotonic() - began
            print(f"{plan.name}: {report.cases - before} cases, {spent:.0f} s", flush=True)
            print(f"    slowest so far: {report.slowest[0]:.1f} s, {report.slowest[1]}", flush=True)
    except KeyboardInterrupt:
        print("interrupted; this is what there was until then")
    print(report.table())
    print(f"{report.cases} cases, {len(report.bad)} bad ones; --seed {options.seed}")
    print(report.badness())
    return 1 if report.bad else 0


if __name__ == "__main__":
    sys.exit(main())
