"""What happens to the other ranks under `unisono run` when one has failed."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.helpers.launcher import run
from tests.helpers.thorough import essential, essential_rows

#: Rank 1 kills itself in a loop of collectives; the others see what they see.
LOSS = """
import os, signal, sys, time
{start}
rank = int(os.environ["RANK"])
x = {tensor}
try:
    for step in range(1000):
        if step == 20 and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        {reduce}
except Exception as error:
    {handle}
"""
FACE = "import numpy as np, unisono.torch.distributed as dist; dist.init_process_group()"
FACE_AND_TORCH = "import torch\n" + FACE
BACKEND = 'import torch, torch.distributed as dist; dist.init_process_group("unisono")'
NUMPY, TORCH = "np.ones(4)", "torch.ones(4)"


def loss(start: str, tensor: str, handle: str) -> str:
    return LOSS.format(start=start, tensor=tensor, reduce="dist.all_reduce(x)", handle=handle)


def write(folder: Path, text: str) -> str:
    path = folder / "script.py"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("again", essential(1, range(3)))
@pytest.mark.parametrize(
    ("start", "tensor"),
    essential_rows(2, [(FACE, NUMPY), (BACKEND, TORCH), (FACE_AND_TORCH, TORCH)]),
    ids=["numpy", "backend", "torch"],
)
def test_survivors_can_tell(start: str, tensor: str, again: int, tmp_path: Path) -> None:
    script = write(tmp_path, loss(start, tensor, "raise"))
    done = run("-n", "3", script, env={**os.environ, "UNISONO_TRACE": str(tmp_path)})
    assert done.returncode == 137
    assert done.stderr.splitlines()[-1] == "unisono: rank 1 of 3 failed: killed by SIGKILL"
    told = re.findall(r"^\[([\d,]+)\] .*PeerLost: rank 1 \(pid ", done.stderr, re.MULTILINE)
    # What they do then, Python's own end above all, may take longer than the grace.
    assert {rank for ranks in told for rank in ranks.split(",")} == {"0", "2"}, done.stderr
    assert len(list(tmp_path.glob("unisono-trace-*.json"))) == 1


GO_ON = """
    import unisono
    assert isinstance(error, unisono.PeerLost), error
    print("lost", *error.ranks)
    dist.shrink_group([])
    for step in range(4):
        y = np.ones(1)
        dist.all_reduce(y)
        time.sleep({seconds})
    print("sum", y[0], "of", dist.get_world_size())
    {end}
"""


def test_a_job_that_shrinks_goes_on_to_its_end(tmp_path: Path) -> None:
    """Longer than the grace: the launcher knows that they have shrunk."""
    handle = GO_ON.format(seconds=0.6, end="")
    done = run("-n", "4", "--grace", "1", write(tmp_path, loss(FACE, NUMPY, handle)))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(
        line for rank in (0, 2, 3) for line in (f"[{rank}] lost 1", f"[{rank}] sum 3.0 of 3")
    )
    assert done.stderr.splitlines() == [
        "unisono: ranks 0, 2, 3 go on without rank 1",
        "unisono: ranks 0, 2, 3 of 4 ended well, without rank 1 (killed by SIGKILL)",
    ]


def test_a_second_loss_is_counted_as_the_launcher_counts(tmp_path: Path) -> None:
    """Ranks are numbered anew after the first; the second shrink leaves rank 3 of the job."""
    end = """
    if rank == 3:
        sys.exit(5)
    try:
        dist.all_reduce(y)
    except unisono.PeerLost:
        dist.shrink_group([])
        dist.all_reduce(y)
        print("left", dist.get_world_size())
"""
    handle = GO_ON.format(seconds=0, end=end)
    done = run("-n", "4", write(tmp_path, loss(FACE, NUMPY, handle)))
    assert done.returncode == 0, done.stderr
    assert {"[0] left 2", "[2] left 2"} < set(done.stdout.splitlines())
    assert done.stderr.splitlines()[-1] == (
        "unisono: ranks 0, 2 of 4 ended well, without rank 1 (killed by SIGKILL), "
        "rank 3 (exit code 5)"
    )


def test_what_fails_after_the_shrink_is_the_cause(tmp_path: Path) -> None:
    end = "if rank == 2: raise ValueError('no more')\n    dist.all_reduce(y)"
    handle = GO_ON.format(seconds=0, end=end)
    done = run("-n", "4", write(tmp_path, loss(FACE, NUMPY, handle)))
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("unisono: rank 2 of 4 failed: ValueError at ")
    assert last.endswith("no more")


def test_others_are_ended_when_the_grace_is_over(tmp_path: Path) -> None:
    script = write(tmp_path, "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(3)\n")
    with open(script, "a") as file:
        file.write("time.sleep(600)")
    done = run("-n", "3", "--grace", "0.5", script)
    assert (done.returncode, done.stderr) == (3, "unisono: rank 1 of 3 failed: exit code 3\n")


def test_they_go_on_if_asked_to(tmp_path: Path) -> None:
    script = write(
        tmp_path,
        "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(3)\n"
        "time.sleep(3); print('done')",
    )
    done = run("-n", "3", "--on-failure", "continue", "--grace", "0", script)
    assert done.returncode == 3
    assert sorted(done.stdout.splitlines()) == ["[0] done", "[2] done"]
    assert done.stderr.splitlines() == [
        "unisono: rank 1 failed: exit code 3; the others go on",
        "unisono: rank 1 of 3 failed: exit code 3",
    ]


@pytest.mark.thorough
def test_a_rank_that_is_stopped_has_not_failed(tmp_path: Path) -> None:
    text = (
        FACE
        + """
import os, signal, subprocess, sys
dist.barrier()
if dist.get_rank() == 1:
    # Somebody else has to wake it.
    wake = f"import os, time; time.sleep(3); os.kill({os.getpid()}, {int(signal.SIGCONT)})"
    subprocess.Popen([sys.executable, "-c", wake])
    os.kill(os.getpid(), signal.SIGSTOP)
dist.barrier()
print("met")
"""
    )
    done = run("-n", "3", "--grace", "0.5", write(tmp_path, text))
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == ["[0] met", "[1] met", "[2] met"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--grace", "-1"], "--grace is -1.0; give seconds, 0 or more"),
        (["--grace", "nan"], "--grace is nan; give seconds, 0 or more"),
        (["--on-failure", "wait"], "invalid choice: 'wait'"),
    ],
)
def test_wrong_options(options: list[str], text: str, tmp_path: Path) -> None:
    done = run("-n", "1", *options, write(tmp_path, "print('ran')"))
    assert (done.returncode, done.stdout) == (2, "")
    assert text in done.stderr
