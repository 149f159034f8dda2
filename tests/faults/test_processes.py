"""One process and its world: forks, threads, closing, exits with work under way, many groups."""

from __future__ import annotations

import json

import pytest

from tests.helpers.jobs import Ranks
from tests.helpers.thorough import essential

# ---- fork ----------------------------------------------------------------------------------------

FORK = """
world = groups.init("shm", 600)
group = world.split([0, 1])
reduce(group)
{before}
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    import json
    faults = [fault(action) for action in (
        lambda: reduce(world),
        lambda: reduce(group, blocking=False),
        lambda: recv(world, 1 - rank),
        lambda: world.split([0, 1]),
        lambda: groups.world(),
        lambda: groups.init("shm"),
    )]
    os.write(writer, json.dumps(faults).encode())
    {ending}
os.close(writer)
answer = b"".join(iter(lambda: os.read(reader, 65536), b""))
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
say(faults=answer.decode(), code=code)
say(sums=[reduce(world), reduce(group), reduce(world, 10_000, False)])
"""


@pytest.mark.parametrize(
    "before",
    ["", "start_reduce(world, np.ones(9)).wait()", "reduce(world); world_kept = world; del group"],
    ids=["idle", "with a thread", "with a group that is not kept"],
)
@pytest.mark.parametrize(
    "ending",
    essential(
        1, ["sys.exit()", "world.close(); sys.exit()", "groups.close(); del world; sys.exit()"]
    ),
)
def test_fork(before: str, ending: str) -> None:
    body = FORK.format(before=before, ending=ending)
    if "del group" in before:
        body = body.replace("reduce(group, blocking=False)", "reduce(world, blocking=False)")
        body = body.replace("reduce(group), ", "")
    with Ranks(2, body) as ranks:
        for rank in range(2):
            told = ranks[rank].read()
            assert told["code"] == 0
            for error in json.loads(told["faults"]):
                assert error["kind"] == "NotReady", error
                assert "forked after init" in error["text"], error
        for rank in range(2):
            assert set(ranks[rank].read()["sums"]) == {3.0}
            assert ranks[rank].end() == 0


# ---- threads -------------------------------------------------------------------------------------

THREADS = """
world = groups.init("shm", 30)
targets = {targets}
failures = []
def work(group, size):
    try:
        for turn in range(300):
            value = reduce(group, 1 + turn % 3 * 5_000 if {mixed} else 1, turn % 2 == 0)
            assert value == size, value
    except BaseException as error:
        failures.append(repr(error))
threads = [threading.Thread(target=work, args=(group, 3)) for group in targets]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
say(failures=failures)
"""


@pytest.mark.parametrize(
    ("targets", "mixed"),
    [("[world.split([0, 1]) for _ in range(4)]", True), ("[world] * 4", False)],
    ids=["a group each", "one group"],
)
def test_threads(targets: str, mixed: bool) -> None:
    with Ranks(2, THREADS.format(targets=targets, mixed=mixed)) as ranks:
        for rank in range(2):
            assert ranks[rank].read() == {"failures": []}
            assert ranks[rank].end() == 0


def test_threads_that_call_different_things_on_one_group() -> None:
    """The ranks may see the calls in different orders: that is an error, or happens to be right."""
    body = """
world = groups.init("shm", 600)
told = []
def work(count):
    for _ in range(50):
        error = fault(lambda: reduce(world, count))
        told.append(error["kind"] or "right")
threads = [threading.Thread(target=work, args=(count,)) for count in (1, 2, 3, 4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
say(kinds=sorted(set(told)), calls=len(told))
"""
    with Ranks(2, body) as ranks:
        for rank in range(2):
            told = ranks[rank].read()
            assert told["calls"] == 200
            assert set(told["kinds"]) <= {"right", "MismatchError"}
            assert ranks[rank].end() == 0


# ---- closing -------------------------------------------------------------------------------------


def test_use_after_close() -> None:
    body = """
world = groups.init("shm", 600)
group = world.split([0, 1])
say(**fault(lambda: groups.init("shm")))
group.close()
group.close()
say(**fault(lambda: reduce(group)))
say(sum=reduce(world))
groups.close()
groups.close()
world.close()
for use in (lambda: reduce(world), lambda: recv(world, 0), lambda: world.split([0, 1]),
            lambda: groups.world()):
    say(**fault(use))
say(ready=groups.is_initialized())
"""
    with Ranks(2, body) as ranks:
        for rank in range(2):
            told = [ranks[rank].read() for _ in range(8)]
            texts = [
                "initialised already",
                "closed",
                None,
                "closed",
                "closed",
                "",
                "no world",
                None,
            ]
            for fields, text in zip(told, texts, strict=True):
                if text is not None:
                    assert fields["kind"] == "NotReady" and text in fields["text"], fields
            assert told[2] == {"sum": 3.0}
            assert told[7] == {"ready": False}
            assert ranks[rank].end() == 0


@pytest.mark.parametrize(
    "recently", essential(1, [True, False]), ids=["with its thread", "without"]
)
def test_close_while_a_thread_waits(recently: bool) -> None:
    """Rank 0 leaves the group in which its own thread waits for rank 1."""
    body = f"""
world = groups.init("shm", 600)
group = world.split([0, 1])
reduce(group, blocking={not recently})
if rank == 0:
    told = []
    thread = threading.Thread(target=lambda: told.append(fault(lambda: reduce(group))))
    thread.start()
    time.sleep(0.2)
    group.close()
    thread.join()
    say(**told[0])
say(sum=reduce(world))
"""
    with Ranks(2, body) as ranks:
        error = ranks[0].read()
        assert error["kind"] == "NotReady" and "closed" in error["text"], error
        for rank in range(2):
            assert ranks[rank].read() == {"sum": 3.0}
            assert ranks[rank].end() == 0


@pytest.mark.thorough
@pytest.mark.parametrize("kept", essential(1, [True, False]), ids=["kept", "dropped"])
def test_exit_with_work_under_way(kept: bool) -> None:
    body = f"""
from unisono.core import buffers, dispatch
world = groups.init("shm", 600)
group = world.split([0, 1])
reduce(world)
if rank == 0:
    works = [start_reduce(world, np.ones(9)), start_reduce(group, np.ones(1 << 18)),
             start_reduce(group, np.ones(9)),
             dispatch.recv(world, buffers.view(np.ones(3)), 1, 0, blocking=False)]
    if not {kept}:
        del works
    sys.exit()
hear()
"""
    with Ranks(2, body) as ranks:
        assert ranks[0].end() == 0
        ranks[1].tell()
        assert ranks[1].end() == 0


# ---- many groups ---------------------------------------------------------------------------------

MANY = """
def usage():
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return len(os.listdir("/proc/self/fd")), int(status["Threads"]), int(status["VmRSS"].split()[0])
world = groups.init("shm", 600)
def make():
    group = world.split([1, 0])
    assert reduce(group) == 3
    return group
for _ in range(50):
    make().close()
say(usage=usage())
kept = []
for turn in range(300):
    group = make()
    if {kept}:
        kept.append(group)
    else:
        group.close()
say(usage=usage())
say(sums=sorted({{reduce(group, 20) for group in kept}} | {{reduce(world)}}))
"""


@pytest.mark.thorough
@pytest.mark.parametrize(("kept", "mebibytes"), [(False, 2), (True, 24)], ids=["destroyed", "kept"])
def test_many_groups(kept: bool, mebibytes: int) -> None:
    with Ranks(2, MANY.format(kept=kept)) as ranks:
        for rank in range(2):
            descriptors, threads, memory = ranks[rank].read()["usage"]
            after = ranks[rank].read()["usage"]
            assert after[:2] == [descriptors, threads]
            assert after[2] - memory < mebibytes * 1024
            assert ranks[rank].read() == {"sums": [3.0]}
            assert ranks[rank].end() == 0
