"""How soon ranks hear of a death, and of a mismatch: `make bench-faults`.

Jobs of 2 to 8 ranks reduce without end. One rank after the other is killed at a random moment; the
others note when their call fails, shrink their group and go on. Then launchers are killed, and no
rank may stay. Last, ranks that disagree at random: all of them must be told, and the group must
work afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from subprocess import DEVNULL, PIPE

from tests.helpers.jobs import Ranks
from tests.helpers.leftovers import Leftovers
from tests.helpers.paths import with_tests
from tests.helpers.processes import wait_until

_KILLS = """
group = groups.init("shm")
say(pid=os.getpid())
calls = 0
while True:
    array = np.full(random.choice([1, 1000, 300_000]), 1.0)
    try:
        start_reduce(group, array, blocking=calls % 2 == 0).wait()
    except PeerLost as error:
        heard = time.monotonic()
        group = group.shrink()
        assert reduce(group) == group.size * (group.size + 1) / 2
        say(calls=calls, lost=error.ranks, heard=heard, ready=time.monotonic())
        hear()
        random.seed(calls)
        continue
    calls += 1
"""

_MISMATCHES = """
group = groups.init("shm")
say(pid=os.getpid())
while True:
    kind, seed = sys.stdin.readline().split()
    odd = random.Random(seed).randrange(group.size) == group.rank
    array = np.ones(8, "float64" if odd and kind == "dtype" else "float32")
    operator = ReduceOp.MAX if odd and kind == "operator" else ReduceOp.SUM
    memory = buffers.view(array[:4] if odd and kind == "count" else array)
    if odd and kind == "collective":
        action = lambda: dispatch.barrier(group)
    elif kind == "root":
        action = lambda: dispatch.broadcast(group, memory, memory, int(odd))
    else:
        action = lambda: dispatch.all_reduce(group, memory, memory, operator)
    began = time.monotonic()
    told = fault(action)
    heard = time.monotonic()
    assert reduce(group) == group.size * (group.size + 1) / 2
    say(kind=told["kind"], began=began, heard=heard)
"""

_PREFACE = """
import random
from unisono.core import buffers, dispatch
from unisono.core.dtypes import ReduceOp
from unisono.errors import PeerLost
random.seed(0)
"""


def kills(
    count: int, chance: random.Random, pause: float, **variables: str
) -> tuple[list[float], list[float]]:
    """Seconds from each of `count` deaths to the errors of the others, and from there to work."""
    notices: list[float] = []
    recoveries: list[float] = []
    done = 0
    while done < count:
        size = chance.randint(2, 8)
        with Ranks(size, _PREFACE + _KILLS, **variables) as ranks:
            for rank in range(size):
                ranks[rank].read()
            alive = list(range(size))
            while len(alive) > 1 and done < count:
                time.sleep(chance.uniform(0.05, pause))
                victim = alive.pop(chance.randrange(len(alive)))
                killed = time.monotonic()
                ranks[victim].process.kill()
                told = [ranks[rank].read() for rank in alive]
                assert len({one["calls"] for one in told}) == 1, f"not one outcome: {told}"
                notices += [one["heard"] - killed for one in told]
                began = max(one["heard"] for one in told)
                recoveries.append(max(one["ready"] for one in told) - began)
                done += 1
                for rank in alive:
                    ranks[rank].tell()
    return notices, recoveries


def launched(count: int, chance: random.Random) -> list[float]:
    """Seconds from each of `count` deaths to the errors of the others, below `unisono run`."""
    notices: list[float] = []
    variables = {**os.environ, "PYTHONPATH": with_tests()}
    for _ in range(count):
        size = chance.randint(2, 8)
        with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
            script.write(f"from tests.helpers.rank_side import *\n{_PREFACE}{_KILLS}")
            script.flush()
            command = [sys.executable, "-m", "unisono", "run", "-n", str(size), script.name]
            job = subprocess.Popen(command, env=variables, stdout=PIPE, stderr=DEVNULL)
            assert job.stdout is not None
            told = (json.loads(line.partition(b"] ")[2]) for line in job.stdout)
            pids = [next(told)["pid"] for _ in range(size)]
            time.sleep(chance.uniform(0.05, 0.3))
            killed = time.monotonic()
            os.kill(chance.choice(pids), signal.SIGKILL)
            heard = [next(told)["heard"] for _ in range(size - 1)]
            job.terminate()
            job.communicate()
        notices += [one - killed for one in heard]
    return notices


def killed_launchers(count: int, chance: random.Random) -> list[float]:
    """Seconds from each of `count` deaths of `unisono run` until all its ranks are gone."""
    seconds: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.py"
        script.write_text(
            "from tests.helpers.rank_side import *\n"
            "world = groups.init()\nwhile True: reduce(world)"
        )
        temporary = Path(folder) / "temporary"
        temporary.mkdir()
        leftovers = Leftovers(temporary)
        variables = {**os.environ, "PYTHONPATH": with_tests(), **leftovers.variables}
        for _ in range(count):
            size = str(chance.randint(2, 4))
            command = [sys.executable, "-m", "unisono", "run", "-n", size, str(script)]
            job = subprocess.Popen(command, env=variables, stdout=DEVNULL, stderr=DEVNULL)
            time.sleep(chance.uniform(0, 0.8))  # before there are ranks, or long after
            job.kill()
            killed = time.monotonic()
            job.wait()
            wait_until(lambda: not leftovers.processes())
            seconds.append(time.monotonic() - killed)
        leftovers.check()
    return seconds


def mismatches(count: int, chance: random.Random) -> list[float]:
    """Seconds from the last rank's call to each rank's error, of `count` mismatches."""
    seconds: list[float] = []
    for size in (2, 3, 4, 8):
        with Ranks(size, _PREFACE + _MISMATCHES) as ranks:
            everyone = [ranks[rank] for rank in range(size)]
            for rank in everyone:
                rank.read()
            for _ in range(count // 4):
                kind = chance.choice(["dtype", "operator", "count", "collective", "root"])
                line = f"{kind} {chance.random()}\n".encode()
                for rank in everyone:
                    assert rank.process.stdin is not None
                    rank.process.stdin.write(line)
                    rank.process.stdin.flush()
                told = [rank.read() for rank in everyone]
                assert {one["kind"] for one in told} == {"MismatchError"}, (kind, told)
                last = max(one["began"] for one in told)
                seconds += [one["heard"] - last for one in told]
    return seconds


def spread(seconds: list[float]) -> str:
    ordered = sorted(1000 * each for each in seconds)
    half, most = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
    return f"median {half:.1f} ms, p99 {most:.1f} ms, worst {ordered[-1]:.1f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--launchers", type=int, default=200)
    parser.add_argument("--mismatches", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    chance = random.Random(options.seed)
    # A trace file is written once a second; so that most deaths see one, they have to be apart.
    notices, recoveries = kills(options.kills, chance, 2)
    print(f"{options.kills} kills: noticed after {spread(notices)}", flush=True)
    print(f"   shrunk, and a right sum: after another {spread(recoveries)}", flush=True)
    notices, _ = kills(options.kills, chance, 0.4, UNISONO_TRACE="0")
    print(f"{options.kills} kills, no trace file: noticed after {spread(notices)}", flush=True)
    notices = launched(options.kills // 4, chance)
    print(
        f"{options.kills // 4} kills below `unisono run`: noticed after {spread(notices)}",
        flush=True,
    )
    gone = killed_launchers(options.launchers, chance)
    print(f"{options.launchers} launchers killed: all ranks gone after {spread(gone)}", flush=True)
    found = mismatches(options.mismatches, chance)
    print(f"{options.mismatches} mismatches, all caught by all: after {spread(found)}")


if __name__ == "__main__":
    main()
