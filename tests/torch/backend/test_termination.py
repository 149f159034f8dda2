"""The backend of torch.distributed: ranks that end, die or are interrupted, and jobs that start.

Real processes and real signals: the other ranks get an error that names the lost one, wherever they
wait; none hangs, and nothing is left behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import unisono
from tests.helpers.backend_cases import ForkedRanks, ForkServer
from tests.helpers.paths import ROOT
from tests.helpers.thorough import essential, essential_rows

SOON = 10.0  # seconds; the ranks themselves would wait for ten minutes

Start = Callable[[int, str], ForkedRanks]


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    process = ForkServer()
    yield process
    process.close()


@pytest.fixture
def start(fork_server: ForkServer, tmp_path: Path) -> Start:
    """`start(n, body)` forks n ranks."""
    return lambda n, body: ForkedRanks(fork_server, tmp_path, n, body)


#: Programs and libraries are here; these paths may contain the name "unisono" anywhere.
CODE = (f"{ROOT}/", f"{Path(unisono.__file__).parent}/", f"{sys.prefix}/", f"{sys.base_prefix}/")


def check_nothing_can_be_left(pid: int) -> None:
    """All shared memory and files of the process have lost their names while it lives."""
    files = [str(file.readlink()) for file in Path(f"/proc/{pid}/fd").iterdir()]
    files += [line[73:] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    # The folder for temporary files may be below one of that name too.
    files = [
        file.removeprefix(tempfile.gettempdir()) for file in files if not file.startswith(CODE)
    ]
    shared = [file for file in files if file.startswith("/dev/shm/") or "unisono" in file]
    assert any("(deleted)" in file for file in shared), files
    for file in shared:
        assert "(deleted)" in file, file


# ---- a good end ----------------------------------------------------------------------------------

ENDINGS = {
    "without destroy": "dist.all_reduce(torch.ones(3))",
    "after destroy": "dist.all_reduce(torch.ones(3)); dist.destroy_process_group()",
    "with works": "works = [dist.all_reduce(torch.ones(9), async_op=True) for _ in range(50)]",
    "with a work that nobody answers": """
if rank == 0:
    work = dist.all_reduce(torch.ones(9), async_op=True)
""",
    "with a future that nobody answers": """
if rank == 0:
    future = dist.all_reduce(torch.ones(9), async_op=True).get_future()
    child = future.then(lambda ended: ended.value())
""",
    "with a future of a method that nobody answers": """
if rank == 0:
    future = dist.group.WORLD.allreduce([torch.ones(9)]).get_future()
    child = future.then(lambda ended: ended.value())
""",
    "with a callback that nobody answers": """
dist.all_reduce(torch.ones(9), async_op=True).get_future().then(
    lambda ended: dist.all_reduce(torch.ones(9)) if rank == 0 else None
)
""",
    "with a message that nobody answers": """
if rank == 0:
    work = dist.irecv(torch.ones(9), 1)
    future = work.get_future()
""",
    "with more groups": """
groups = [dist.new_group([0, 1]), dist.new_group([rank], use_local_synchronization=True)]
groups += [dist.new_group(backend="gloo")]
for group in groups:
    dist.all_reduce(torch.ones(3), group=group)
dist.destroy_process_group(groups.pop())  # Gloo's threads may abort a process that ends before them
""",
    "after a child of its own": """
dist.all_reduce(torch.ones(3), async_op=True).get_future().wait()
child = os.fork()
if child == 0:
    sys.exit()
assert os.waitpid(child, 0) == (child, 0)
x = torch.ones(3)
dist.all_reduce(x)
assert x.tolist() == [2, 2, 2]
""",
    "after a fork with a work": """
token = torch.ones(1)
if rank == 1:
    dist.recv(token, 0)
x = torch.ones(9)
work = dist.all_reduce(x, async_op=True)
future = work.get_future()
if rank == 0:
    child = os.fork()
    if child == 0:
        for wait in (work.wait, future.wait, work.result):
            assert "NotReady" in fault(wait)["kinds"]
        sys.exit()
    assert os.waitpid(child, 0) == (child, 0)
    dist.send(token, 1)
assert future.wait()[0].tolist() == [2] * 9
""",
    "with works of a group that is destroyed": """
if rank == 0:
    future = dist.all_reduce(torch.ones(9), async_op=True).get_future()
    child = future.then(lambda ended: ended.value())
dist.destroy_process_group()
if rank == 0:
    for each in (future, child):
        assert "RuntimeError" in fault(each.wait)["kinds"]
""",
    "with a functional collective": """
from torch.distributed import _functional_collectives as functional
pending = functional.all_reduce(torch.ones(3), "sum", dist.group.WORLD)
""",
    "with a model": """
trained = model()
for _ in range(3):
    trained(torch.ones(4, 20)).sum().backward()
""",
}


@pytest.mark.parametrize("ending", essential(1, ENDINGS))
def test_exit(start: Start, ending: str) -> None:
    with start(2, f"enter()\n{ENDINGS[ending]}\nsay(last=True)") as ranks:
        for rank in range(2):
            assert ranks[rank].read() == {"joined": True}
            assert ranks[rank].read() == {"last": True}
        for rank in range(2):
            assert ranks[rank].end() == 0
            # torch itself warns of functional collectives that nobody has waited for.
            assert ranks[rank].errors == "" or "unwaited collective calls" in ranks[rank].errors


# ---- a rank that ends ----------------------------------------------------------------------------

HOOK = """
def hook(state, bucket):
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return future.then(lambda ended: ended.value()[0] / dist.get_world_size())
"""

#: What to prepare, and where a rank then waits for the others.
WAITS = {
    "a blocking call": ("", "dist.all_reduce(torch.ones(3))"),
    "a wait": ("", "dist.all_reduce(torch.ones(3), async_op=True).wait()"),
    "a future": ("", "dist.all_reduce(torch.ones(3), async_op=True).get_future().wait()"),
    "a callback's own call": (
        "ready = dist.all_reduce(torch.ones(3), async_op=True).get_future()",
        "ready.then(lambda ended: dist.all_reduce(torch.ones(3))).wait()",
    ),
    "a receive": ("", "dist.recv(torch.ones(3), 1)"),
    "backward": ("trained = model()", "trained(torch.ones(4, 20)).sum().backward()"),
    "backward with a hook": (
        f"{HOOK}\ntrained = model(hook)",
        "trained(torch.ones(4, 20)).sum().backward()",
    ),
}

WAYS = {
    "killed": ("", -signal.SIGKILL),
    "exits": ("sys.exit()", 0),
    "raises": ("raise ValueError('the cause')", 1),
}


RAISES = ("a blocking call", "backward")  # enough: the others see no difference


@pytest.mark.parametrize(
    ("wait", "way"),
    essential_rows(
        2, [(wait, way) for wait in WAITS for way in WAYS if way != "raises" or wait in RAISES]
    ),
)
def test_rank_that_ends(start: Start, wait: str, way: str) -> None:
    prepare, action = WAITS[wait]
    body = f"""
enter()
{prepare}
dist.barrier()
say(prepared=True)
if rank == 1:
    hear()
    {WAYS[way][0]}
say(**fault(lambda: {action}))
say(alive=sum(range(10)))
"""
    with start(3, body) as ranks:
        for rank in range(3):
            assert [ranks[rank].read() for _ in range(2)] == [{"joined": True}, {"prepared": True}]
        for rank in (0, 2):
            ranks[rank].wait_for_sleep()
            check_nothing_can_be_left(ranks[rank].pid)
        if way == "killed":
            ranks[1].signal(signal.SIGKILL)
        else:
            ranks[1].tell()
        began = time.monotonic()
        for rank in (0, 2):
            error = ranks[rank].read()
            assert "RuntimeError" in error["kinds"], error
            assert "rank 1" in error["text"], error
            if "backward" not in wait:  # C++ keeps the text, and makes its own error of it
                assert error["kinds"][0] == "PeerLost", error
                assert error["ranks"] == [1], error
            assert ranks[rank].read() == {"alive": 45}
        assert time.monotonic() - began < SOON
        assert ranks[1].end() == WAYS[way][1]
        assert ("ValueError: the cause" in ranks[1].errors) == (way == "raises")
        if way == "killed":  # enough: an interpreter with torch needs a second to end
            for rank in (0, 2):
                assert ranks[rank].end() == 0
                assert ranks[rank].errors == ""


# ---- Ctrl-C --------------------------------------------------------------------------------------


#: There torch waits in C++, with any backend, and handles signals when that ends.
WAITS_IN_CPP = ("backward", "backward with a hook")


@pytest.mark.parametrize("wait", essential(2, WAITS))
def test_interrupt(start: Start, wait: str) -> None:
    prepare, action = WAITS[wait]
    body = f"""
enter()
{prepare}
dist.barrier()
say(prepared=True)
if rank == 1:
    hear()
    sys.exit()
say(**fault(lambda: {action}))
say(alive=sum(range(10)))
"""
    with start(2, body) as ranks:
        for rank in range(2):
            assert [ranks[rank].read() for _ in range(2)] == [{"joined": True}, {"prepared": True}]
        ranks[0].wait_for_sleep()
        interrupted = time.monotonic()
        ranks[0].signal(signal.SIGINT)
        if wait in WAITS_IN_CPP:
            ranks[1].tell()
        error = ranks[0].read()
        assert error["kinds"][0] == "KeyboardInterrupt", error
        assert time.monotonic() - interrupted < SOON
        assert ranks[0].read() == {"alive": 45}
        if wait == "a blocking call":
            assert ranks[0].end() == 0


@pytest.mark.parametrize(
    "action",
    essential(
        1,
        [
            "dist.all_reduce(torch.ones(3), async_op=True).wait()",
            "dist.all_reduce(torch.ones(3))",
            "dist.all_reduce(torch.ones(3), async_op=True).get_future().wait()",
        ],
    ),
)
def test_interrupt_of_a_call_that_runs_here(start: Start, action: str) -> None:
    """Who waits for a call may run it: then Ctrl-C ends it, and the group, as a blocking call."""
    body = f"""
enter()
if rank == 1:
    hear()
held = threading.Event()
work = dist.all_reduce(torch.ones(3), async_op=True)
if rank == 0:
    work._call.handle.on_done(held.wait)  # the native thread stays there, and runs nothing else
    say(started=True)
while not work.is_completed():
    time.sleep(0.001)
say(ended=True)
if rank == 1:
    hear()
say(**fault(lambda: {action}))
say(**fault(lambda: dist.all_reduce(torch.ones(3))))
held.set()
"""
    with start(2, body) as ranks:
        for rank in range(2):
            assert ranks[rank].read() == {"joined": True}
        assert ranks[0].read() == {"started": True}
        ranks[1].tell()
        for rank in range(2):
            assert ranks[rank].read() == {"ended": True}
        ranks[0].wait_for_sleep()
        interrupted = time.monotonic()
        ranks[0].signal(signal.SIGINT)
        assert ranks[0].read()["kinds"][0] == "KeyboardInterrupt"
        assert time.monotonic() - interrupted < SOON
        error = ranks[0].read()
        assert error["kinds"][0] == "NotReady" and "interrupted" in error["text"], error
        ranks[1].tell()
        for _ in range(2):
            error = ranks[1].read()
            assert error["kinds"][0] == "PeerLost" and error["ranks"] == [0], error
            assert "interrupted" in error["text"], error
        for rank in range(2):
            assert ranks[rank].end() == 0


@pytest.mark.thorough
def test_interrupt_while_a_rank_is_late(start: Start) -> None:
    """DDP waits in C++ and gets its result after Ctrl-C, which is not lost."""
    body = """
enter()
trained = model()
dist.barrier()
say(prepared=True)
if rank == 1:
    hear()
say(**fault(lambda: [trained(torch.ones(4, 20)).sum().backward(), time.sleep(0.1)]))
x = torch.ones(3)
dist.all_reduce(x)
say(sum=x.tolist())
"""
    with start(2, body) as ranks:
        for rank in range(2):
            assert [ranks[rank].read() for _ in range(2)] == [{"joined": True}, {"prepared": True}]
        ranks[0].wait_for_sleep()
        ranks[0].signal(signal.SIGINT)
        ranks[1].tell()
        assert ranks[0].read()["kinds"][0] == "KeyboardInterrupt"
        assert ranks[1].read()["kinds"] == []
        for rank in range(2):
            assert ranks[rank].read() == {"sum": [2, 2, 2]}
            assert ranks[rank].end() == 0


@pytest.mark.thorough
def test_interrupt_that_ends_a_rank(start: Start) -> None:
    """Nobody catches it: the process ends, and the other rank gets an error."""
    body = """
enter()
if rank == 0:
    dist.recv(torch.ones(3), 1)
say(**fault(lambda: dist.recv(torch.ones(3), 0)))
"""
    with start(2, body) as ranks:
        for rank in range(2):
            assert ranks[rank].read() == {"joined": True}
        for rank in range(2):
            ranks[rank].wait_for_sleep()
        ranks[0].signal(signal.SIGINT)
        error = ranks[1].read()
        assert error["kinds"][0] == "PeerLost" and error["ranks"] == [0], error
        assert ranks[0].end() == -signal.SIGINT
        assert "KeyboardInterrupt" in ranks[0].errors
        assert ranks[1].end() == 0


# ---- ways to start -------------------------------------------------------------------------------

JOB = """
import sys
from pathlib import Path

import torch
import torch.distributed as dist

def main(rank=None, *more):
    if rank is None:
        dist.init_process_group("unisono")
    else:
        dist.init_process_group("unisono", rank=rank, world_size=2, init_method=more[0])
    x = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(x)
    assert x.item() == 3 and dist.get_backend() == "unisono"
    Path(sys.argv[1], f"done-{dist.get_rank()}").touch()
    LEAVE

if __name__ == "__main__":
    BEGIN
"""


def environment(**variables: str) -> dict[str, str]:
    """The environment of this process, with these variables."""
    return {**os.environ, "OMP_NUM_THREADS": "1", **variables}


def check_job(tmp_path: Path, *commands: list[str], **variables: str) -> None:
    """Every command ends well and prints nothing; both ranks have run."""
    jobs = []
    for rank, command in enumerate(commands):
        launch = {"RANK": str(rank), "WORLD_SIZE": "2", **variables} if variables else {}
        jobs.append(
            subprocess.Popen(
                command, env=environment(**launch), stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        )
    for job in jobs:
        out, err = job.communicate(timeout=60)
        assert (job.returncode, out, err) == (0, b"", b"")
    assert sorted(path.name for path in tmp_path.glob("done-*")) == ["done-0", "done-1"]


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., list[str]]:
    """Write the job, and return what follows the interpreter in its command line."""

    def write(begin: str = "main()", leave: str = "dist.destroy_process_group()") -> list[str]:
        path = tmp_path / "job.py"
        path.write_text(JOB.replace("BEGIN", begin).replace("LEAVE", leave))
        return [str(path), str(tmp_path)]

    return write


def test_torchrun(script: Callable[..., list[str]], tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    check_job(tmp_path, [*launcher, "--nproc-per-node", "2", *script(leave="pass")])


@pytest.mark.thorough
def test_unisono_run(script: Callable[..., list[str]], tmp_path: Path) -> None:
    check_job(tmp_path, [sys.executable, "-m", "unisono", "run", "-n", "2", *script()])


@pytest.mark.thorough
def test_plain_variables(script: Callable[..., list[str]], tmp_path: Path, port: str) -> None:
    command = [sys.executable, *script()]
    check_job(tmp_path, command, command, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)


@pytest.mark.thorough
def test_mp_spawn(script: Callable[..., list[str]], tmp_path: Path) -> None:
    begin = f"torch.multiprocessing.spawn(main, ('file://{tmp_path}/store',), 2)"
    check_job(tmp_path, [sys.executable, *script(begin)])


USE = """
import torch.distributed as dist
dist.init_process_group("unisono", store=dist.HashStore(), rank=0, world_size=1)
x = torch.ones(2)
dist.all_reduce(x)
assert x.tolist() == [1, 1] and dist.get_backend() == "unisono"
"""

IMPORTS: dict[str, tuple[str, dict[str, str]]] = {
    "torch alone": ("import torch", {}),
    "the backend first": ("import unisono.torch.backend\nimport torch", {}),
    "torch first": ("import torch, unisono.torch.backend as b\nb.register()\nb.register()", {}),
    "not found by torch": (
        "import torch\nassert 'unisono' not in torch.distributed.Backend.backend_list\n"
        "import unisono.torch.backend",
        {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    ),
    "light": (
        "import sys, torch\nassert 'unisono.torch.backend' in sys.modules\n"
        "heavy = ['core.groups', 'core.dispatch', 'engines', '_native', 'torch.distributed']\n"
        "heavy += ['torch.backend.process_group']\n"
        "assert not [name for name in heavy if f'unisono.{name}' in sys.modules]",
        {},
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("order", essential(1, IMPORTS))
def test_import(order: str) -> None:
    script, variables = IMPORTS[order]
    command = [sys.executable, "-W", "error::UserWarning", "-c", script + USE]
    result = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=60
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
