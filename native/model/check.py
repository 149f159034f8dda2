"""Check the models of the shared memory's protocol with spin, and that spin finds planted bugs.

    python native/model/check.py            everything; ten minutes or more on one core
    python native/model/check.py --quick    a few seconds
    python native/model/check.py --keep D   keeps the trails of errors in folder D

Needs spin and gcc (`apt-get install spin gcc`). Exit code: 0: all as expected, 1: a model fails
or a planted bug is not found, 2: spin or gcc is missing.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
MEMORY = 6000  # MB that one search may use


@dataclass(frozen=True)
class Check:
    """One search: a model, its bounds, and the expected result."""

    model: str
    about: str
    defines: str  # separated by spaces: NAME or NAME=VALUE
    finds: bool = False  # whether spin must find an error: a planted bug or a known weakness
    how: str = "safety"  # safety: assertions, deadlocks; ltl: every run ends; bitstate: a sample
    quick: bool = False

    def bound(self, name: str, default: str) -> str:
        for word in self.defines.split():
            if word.startswith(f"{name}="):
                return word.partition("=")[2]
        return default

    def bounds(self) -> list[str]:
        """Return ranks, rounds and deaths, as the table shows them."""
        if self.model == "worker":
            return ["threads", self.bound("CALLERS", "2") + "+" + self.bound("STARTS", "2"), "-"]
        rounds = self.bound("CALLS", self.bound("ROUNDS", "any"))  # shrink repeats until it ends
        return [self.bound("RANKS", "3"), rounds, self.bound("DEATHS", "0")]


def right(model: str, about: str, defines: str, how: str = "safety", quick: bool = False) -> Check:
    return Check(model, about, defines, False, how, quick)


def wrong(model: str, about: str, defines: str, quick: bool = False) -> Check:
    return Check(model, about, defines, True, "safety", quick)


RIGHT = [
    right("wait", "post() loses no wake-up, without slices", "RANKS=3 ROUNDS=3", quick=True),
    right("wait", "post() loses no wake-up, without slices", "RANKS=4 ROUNDS=3"),
    right("wait", "ring() loses no wake-up, without slices", "RANKS=4 ROUNDS=2 RING"),
    right(
        "wait",
        "death, giving up: one slice is enough",
        "RANKS=4 ROUNDS=2 DEATHS=1 GIVE_UPS=1 SLICES=1",
    ),
    right("wait", "every wait ends", "RANKS=3 ROUNDS=3 DEATHS=1 GIVE_UPS=1 SLICES=1", "ltl"),
    right("group", "one outcome", "RANKS=2 CALLS=3 DEATHS=1 ONE_OUTCOME", quick=True),
    right("group", "one outcome", "RANKS=3 CALLS=3 DEATHS=1 ONE_OUTCOME"),
    right("group", "one outcome", "RANKS=3 CALLS=3 DEATHS=2 ONE_OUTCOME"),
    right("group", "one outcome", "RANKS=4 CALLS=1 ONE_OUTCOME"),
    right("group", "one outcome, two steps a call", "RANKS=3 CALLS=1 STEPS=2 DEATHS=1 ONE_OUTCOME"),
    right("group", "one outcome, sliced", "RANKS=3 CALLS=2 SLICED DEATHS=1 ONE_OUTCOME"),
    right("group", "one outcome, direct", "RANKS=2 CALLS=2 DIRECT DEATHS=1 QUITS=1 ONE_OUTCOME"),
    right("group", "one outcome, direct", "RANKS=3 CALLS=2 DIRECT DEATHS=1 ONE_OUTCOME"),
    right("group", "direct, deadlines", "RANKS=3 CALLS=1 DIRECT DEATHS=1 QUITS=1 ONE_OUTCOME"),
    right("group", "mismatch: one result", "RANKS=3 CALLS=2 ODD=1 DEATHS=1 ONE_OUTCOME"),
    right("group", "close, no memory", "RANKS=3 CALLS=2 CLOSES=1 SHORTAGES=1 ONE_OUTCOME"),
    right(
        "group",
        "all of it but deadlines",
        "RANKS=2 CALLS=3 CLOSES=1 SHORTAGES=1 ODD=1 DEATHS=1 ONE_OUTCOME",
    ),
    right("group", "one outcome, deadlines", "RANKS=3 CALLS=3 QUITS=1 DEATHS=1 ONE_OUTCOME"),
    right("group", "one outcome, deadlines", "RANKS=3 CALLS=1 QUITS=2 DEATHS=1 ONE_OUTCOME"),
    right("group", "every call ends", "RANKS=2 CALLS=3 DEATHS=1 QUITS=1", "ltl"),
    right("group", "every call ends", "RANKS=3 CALLS=1 DEATHS=1 QUITS=1", "ltl"),
    right("group", "one outcome", "RANKS=4 CALLS=3 DEATHS=2 ONE_OUTCOME", "bitstate"),
    right(
        "group",
        "one outcome, deadlines",
        "RANKS=4 CALLS=2 DEATHS=1 QUITS=1 ONE_OUTCOME",
        "bitstate",
    ),
    right("shrink", "one new group", "RANKS=3 DEATHS=1", quick=True),
    right("shrink", "one new group", "RANKS=3 DEATHS=2"),
    right("shrink", "one new group", "RANKS=4 DEATHS=2"),
    right("shrink", "one new group; close, deadline", "RANKS=3 DEATHS=2 LEAVERS=1 QUITS=1"),
    right("shrink", "every shrink ends", "RANKS=3 DEATHS=2", "ltl"),
    right("worker", "one call at a time, all end", "CALLERS=2 STARTS=2 CLOSERS=1"),
    right("worker", "no notice is lost", "CALLERS=2 STARTS=2 CLOSERS=0 IDLE_ONLY"),
    right("worker", "close() notices every end", "DRAIN_FOREVER IDLE_ONLY"),
    right("worker", "two threads close at the same time", "CALLERS=1 STARTS=1 CLOSERS=2"),
]

#: What the code does not guarantee, shown by a trail; and the change that would.
WEAK = [
    wrong("wait", "weak: give_up() wakes only with slices", "RANKS=3 ROUNDS=2 GIVE_UPS=1"),
    wrong("shrink", "weak: deadline of shrink after the mark", "RANKS=3 DEATHS=1 SHRINK_QUITS=1"),
    right("shrink", "fixed: word with a version", "RANKS=3 DEATHS=2 SHRINK_QUITS=1 VERSIONED"),
]

BUGS = [
    wrong("wait", "sleeper checks only once", "RANKS=3 ROUNDS=2 BUG_NO_SECOND_LOOK", quick=True),
    wrong("wait", "futex without compare", "RANKS=3 ROUNDS=2 BUG_NO_COMPARE"),
    wrong("wait", "post() looks for sleepers first", "RANKS=3 ROUNDS=2 BUG_WAKE_BEFORE_VALUE"),
    wrong("wait", "no death check", "RANKS=3 ROUNDS=2 DEATHS=1 SLICES=1 BUG_NO_DEATH_CHECK"),
    wrong("group", "turn before data", "RANKS=2 CALLS=2 BUG_TURN_BEFORE_DATA", quick=True),
    wrong("group", "one slot instead of two", "RANKS=2 CALLS=2 BUG_ONE_SLOT"),
    wrong("group", "no closing barrier", "RANKS=2 CALLS=2 DIRECT BUG_NO_CLOSING_BARRIER"),
    wrong("group", "no death check", "RANKS=2 CALLS=2 DEATHS=1 BUG_NO_DEATH_CHECK"),
    wrong(
        "group", "no check after a death", "RANKS=2 CALLS=2 DEATHS=1 ONE_OUTCOME BUG_NO_SECOND_LOOK"
    ),
    wrong("group", "give up without shutting out", "RANKS=2 CALLS=1 QUITS=1 BUG_NO_SHUT_OUT"),
    wrong("group", "result from the neighbour only", "RANKS=3 CALLS=1 ODD=1 BUG_NEIGHBOUR_VERDICT"),
    wrong("worker", "start() does not notify", "CLOSERS=0 IDLE_ONLY BUG_NO_NOTIFY"),
    wrong("worker", "thread ends without a check", "CLOSERS=0 BUG_END_WITHOUT_LOOK"),
    wrong("shrink", "no takeover", "RANKS=3 DEATHS=2 BUG_NO_TAKEOVER"),
    wrong("shrink", "publish by plain store", "RANKS=3 DEATHS=2 BUG_PLAIN_STORE"),
    wrong("shrink", "publish before prepare", "RANKS=3 DEATHS=1 BUG_PUBLISH_BEFORE_PREPARE"),
    wrong("shrink", "no wait for marks", "RANKS=3 DEATHS=1 BUG_NO_WAIT_FOR_MARKS"),
    wrong("shrink", "gave_up taken for left", "RANKS=3 DEATHS=1 BUG_GAVE_UP_IS_LEFT"),
    wrong("shrink", "dead ranks in the list", "RANKS=3 DEATHS=2 BUG_DEAD_IN_LIST"),
]


@dataclass(frozen=True)
class Found:
    """The result of one search."""

    error: str  # "" if there was none
    states: int
    seconds: float
    complete: bool


def search(check: Check, folder: Path) -> Found:
    """Run one search in an empty folder; raise if spin, gcc or the search itself fails."""
    defines = [f"-D{word}" for word in check.defines.split()]
    model = HERE / f"{check.model}.pml"
    compile_flags = {
        "safety": ["-DSAFETY", "-DNOCLAIM", "-DCOLLAPSE"],
        "ltl": ["-DCOLLAPSE"],
        "bitstate": ["-DSAFETY", "-DNOCLAIM", "-DBITSTATE"],
    }[check.how]
    # -w: 2 to this power slots of the table, or bits of the bit state; -Q: minutes at most
    run_flags = {"safety": ["-w24"], "ltl": ["-a", "-w22"], "bitstate": ["-w32", "-Q3"]}[check.how]
    began = time.monotonic()
    run(["spin", "-a", *defines, str(model)], folder)
    level = (
        "-O0" if check.finds or check.quick else "-O2"
    )  # for short searches compiling would take longer
    run(["gcc", level, f"-DMEMLIM={MEMORY}", *compile_flags, "-o", "pan", "pan.c"], folder)
    text = run(["./pan", "-m100000", *run_flags], folder)
    states = re.search(r"^\s*(\d+(?:\.\d+)?(?:e\+\d+)?) states, stored", text, re.MULTILINE)
    errors = re.search(r"errors: (\d+)", text)
    if states is None or errors is None:
        raise RuntimeError(f"pan printed no numbers for {check}:\n{text}")
    first = re.search(r"^pan:1: (.*?)\s*(?:\(at depth.*)?$", text, re.MULTILINE)
    return Found(
        error="" if errors[1] == "0" else first[1] if first else "unknown",
        states=int(float(states[1])),
        seconds=time.monotonic() - began,
        complete="Search not completed" not in text and "max search depth too small" not in text,
    )


def in_own_folder(check: Check, keep: Path | None) -> Found:
    """Search in a temporary folder; keep the trail, if there is one, in `keep`."""
    with tempfile.TemporaryDirectory(prefix="unisono-model-") as name:
        found = search(check, Path(name))
        trail = Path(name) / f"{check.model}.pml.trail"
        if keep and trail.exists():
            keep.mkdir(parents=True, exist_ok=True)
            shutil.copy(trail, keep / f"{check.model} {check.defines}.trail".replace(" ", "-"))
    return found


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def verdict(check: Check, found: Found) -> tuple[bool, str]:
    """Return whether the result is the expected one, and a text for it."""
    if check.finds:
        return bool(found.error), f"found: {short(found.error)}" if found.error else "NOT FOUND"
    if found.error:
        return False, f"FAILS: {short(found.error)}"
    if check.how == "bitstate":
        return True, "no error in the sample"
    return found.complete, "holds" if found.complete else "NOT COMPLETE"


def short(error: str) -> str:
    return error if len(error) <= 40 else error[:37] + "..."


def missing_tools() -> str:
    """Return what is missing and how to install it; empty if nothing is."""
    missing = [tool for tool in ("spin", "gcc") if shutil.which(tool) is None]
    if not missing:
        return ""
    return f"{' and '.join(missing)} not found: install with `apt-get install {' '.join(missing)}`"


def row(*cells: str) -> str:
    widths = (6, 40, 7, 6, 6, 8, 11, 7)
    return " | ".join([*(f"{c:<{w}}" for c, w in zip(cells, widths, strict=False)), cells[-1]])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="only the searches that take seconds")
    parser.add_argument("--only", default="", help="only checks whose row contains this text")
    parser.add_argument("--jobs", type=int, default=1, help="searches at a time")
    parser.add_argument("--keep", type=Path, help="folder for trails of what was found")
    options = parser.parse_args(arguments)
    if problem := missing_tools():
        print(problem, file=sys.stderr)
        return 2
    checks = [check for check in RIGHT + WEAK + BUGS if check.quick or not options.quick]
    checks = [check for check in checks if options.only in f"{check.model} {check.about}"]
    os.nice(10)
    print(
        row("model", "what", "ranks", "rounds", "deaths", "search", "states", "seconds", "result")
    )
    failures = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        outcomes = pool.map(lambda check: in_own_folder(check, options.keep), checks)
        for check, found in zip(checks, outcomes, strict=True):
            good, text = verdict(check, found)
            failures += not good
            figures = [f"{found.states:,}", f"{found.seconds:.1f}", text]
            print(row(check.model, check.about, *check.bounds(), check.how, *figures), flush=True)
    print(f"{len(checks)} searches, {failures} not as expected")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
