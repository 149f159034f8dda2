"""Rank and size from the variables of every launcher, made up and real."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.helpers.start_cases import find_mpiexec
from unisono.core import environment, rendezvous
from unisono.errors import ArgumentError, LaunchError

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node0.example",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "abc",
    "TORCHELASTIC_RESTART_COUNT": "0",
}
MSRUN = {
    "MS_ROLE": "MS_WORKER",
    "MS_WORKER_NUM": "4",
    "MS_NODE_ID": "2",
    "RANK_ID": "0",
    "DEVICE_ID": "2",
    "MS_SCHED_HOST": "127.0.0.1",
    "MS_SCHED_PORT": "8118",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_RANK": "1",
    "PMIX_NAMESPACE": "prterun-host-77@1",
}
PMI = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
SLURM = {
    "SLURM_JOB_ID": "99",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "7",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
}
UNISONO = {
    "UNISONO_RANK": "1",
    "UNISONO_SIZE": "2",
    "UNISONO_LOCAL_RANK": "1",
    "UNISONO_LOCAL_SIZE": "2",
    "UNISONO_JOB": "job",
    "UNISONO_SECRET": "00ff",
}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (UNISONO, (1, 2, 1, 2, "unisono")),
        ({"UNISONO_RANK": "1", "UNISONO_SIZE": "2", "UNISONO_JOB": "j"}, (1, 2, 1, 2, "unisono")),
        (TORCHRUN, (3, 4, 1, 2, "torchrun")),
        (MSRUN, (2, 4, 2, 4, "msrun")),
        ({**MSRUN, "UNISONO_LOCAL_SIZE": "3"}, (2, 4, 2, 3, "msrun")),
        (OPEN_MPI, (1, 4, 1, 4, "Open MPI")),
        (PMI, (1, 2, 1, 2, "PMI")),
        (SLURM, (5, 7, 1, 2, "Slurm")),
        ({**SLURM, "SLURM_STEP_NUM_NODES": "1", "SLURM_LOCALID": "5"}, (5, 7, 5, 7, "Slurm")),
        ({**SLURM, "PMI_RANK": "5", "PMI_SIZE": "7"}, (5, 7, 1, 2, "Slurm")),
        ({**SLURM, "PMIX_RANK": "5", "WORLD_SIZE": "7"}, (5, 7, 1, 2, "Slurm")),
        ({}, (0, 1, 0, 1, "alone")),
        ({"RANK": "", "UNISONO_SIZE": ""}, (0, 1, 0, 1, "alone")),
        ({"RANK": "0", "WORLD_SIZE": "1"}, (0, 1, 0, 1, "environment")),
    ],
)
def test_rank_and_size(environ: dict[str, str], expected: tuple[int, int, int, int, str]) -> None:
    launch = environment.find(environ)
    found = (launch.rank, launch.size, launch.local_rank, launch.local_size, launch.source)
    assert found == expected
    assert launch.one_host == (launch.size == launch.local_size)


def test_order_of_launchers() -> None:
    everything: dict[str, str] = {}
    sources = []
    for variables in (SLURM, PMI, OPEN_MPI, MSRUN, TORCHRUN, UNISONO):
        everything |= variables
        sources.append(environment.find(everything).source)
    # PMI beside a Slurm step is srun's own.
    assert sources == ["Slurm", "Slurm", "Open MPI", "msrun", "torchrun", "unisono"]


@pytest.mark.parametrize(
    ("environ", "texts"),
    [
        ({"RANK": "1"}, ["RANK is '1'", "WORLD_SIZE is not set"]),
        ({"WORLD_SIZE": "2"}, ["WORLD_SIZE is '2'", "RANK is not set"]),
        ({"RANK": "0", "WORLD_SIZE": "2"}, ["MASTER_ADDR is not set"]),
        ({**TORCHRUN, "RANK": "4"}, ["RANK is 4", "WORLD_SIZE is 4"]),
        ({**TORCHRUN, "RANK": "one"}, ["RANK is 'one'", "whole number"]),
        ({**TORCHRUN, "RANK": "-1"}, ["RANK is '-1'"]),
        ({**TORCHRUN, "LOCAL_RANK": "2"}, ["LOCAL_RANK is 2", "LOCAL_WORLD_SIZE is 2"]),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "5"}, ["LOCAL_WORLD_SIZE is 5", "a job of 4"]),
        ({"UNISONO_RANK": "0"}, ["UNISONO_RANK is '0'", "UNISONO_SIZE is not set"]),
        ({"UNISONO_SIZE": "2"}, ["UNISONO_SIZE is '2'", "UNISONO_RANK is not set"]),
        ({"UNISONO_RANK": "0", "UNISONO_SIZE": "2"}, ["UNISONO_JOB is not set"]),
        ({**MSRUN, "MS_NODE_ID": ""}, ["MS_NODE_ID", "--node_rank"]),
        ({**MSRUN, "MS_ROLE": "MS_SERVER"}, ["MS_ROLE is 'MS_SERVER'"]),
        ({**MSRUN, "MS_SCHED_HOST": "192.0.2.1"}, ["UNISONO_LOCAL_SIZE is not set"]),
        ({**PMI, "PMI_SIZE": ""}, ["PMI_RANK is '1'", "PMI_SIZE is not set"]),
        ({"PMIX_RANK": "1"}, ["PMIX_RANK is '1'", "UNISONO_SIZE"]),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "two"}, ["SLURM_STEP_TASKS_PER_NODE is 'two'"]),
        ({**SLURM, "SLURM_NODEID": "4"}, ["SLURM_NODEID is 4"]),
    ],
)
def test_wrong_variables_are_named(environ: dict[str, str], texts: list[str]) -> None:
    with pytest.raises(LaunchError) as caught:
        environment.find(environ)
    for text in texts:
        assert text in str(caught.value)


def test_secret() -> None:
    assert environment.find(UNISONO).secret == b"\x00\xff"
    assert environment.find(TORCHRUN).secret == b""
    assert "00ff" not in repr(environment.find(UNISONO)) and "xff" not in repr(
        environment.find(UNISONO)
    )
    with pytest.raises(LaunchError, match="UNISONO_SECRET") as caught:
        environment.find({**UNISONO, "UNISONO_SECRET": "no hex"})
    assert "no hex" not in str(caught.value)


def test_alone_is_a_job_of_its_own() -> None:
    first, second = environment.find({}), environment.find({})
    assert first.job != second.job
    assert len(first.secret) == 32 and first.secret != second.secret


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        (TORCHRUN, "MASTER_PORT"),
        (TORCHRUN, "TORCHELASTIC_RUN_ID"),
        (TORCHRUN, "TORCHELASTIC_RESTART_COUNT"),
        (MSRUN, "MS_SCHED_PORT"),
        (OPEN_MPI, "PMIX_NAMESPACE"),
        (SLURM, "SLURM_JOB_ID"),
        (SLURM, "SLURM_STEP_ID"),
    ],
)
def test_jobs_differ(variables: dict[str, str], name: str) -> None:
    assert environment.find(variables).job == environment.find(dict(variables)).job
    other = {**variables, name: variables[name] + "1"}
    assert environment.find(variables).job != environment.find(other).job


def test_the_parent_names_a_job_only_on_one_host() -> None:
    here = {**TORCHRUN, "LOCAL_WORLD_SIZE": "4"}
    assert environment.find(here).job.endswith(f"-{os.getppid()}")
    assert not environment.find(TORCHRUN).job.endswith(f"-{os.getppid()}")


@pytest.mark.parametrize("step", ["", str(0xFFFFFFFA), str(0xFFFFFFFB)])
def test_shells_of_slurm_are_not_ranks(step: str) -> None:
    assert environment.find({**SLURM, "SLURM_STEP_ID": step}).source == "alone"


def test_the_scheduler_of_msrun_leaves() -> None:
    with pytest.raises(SystemExit) as caught:
        environment.find({**MSRUN, "MS_ROLE": "MS_SCHED"})
    assert caught.value.code == 0


def test_timeout() -> None:
    assert environment.timeout(3, {"UNISONO_TIMEOUT": "7"}) == 3.0
    assert environment.timeout(None, {"UNISONO_TIMEOUT": "7.5"}) == 7.5
    assert environment.timeout(None, {}) == environment.DEFAULT_TIMEOUT == 1800.0


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf"), "5", True])
def test_wrong_timeout_argument(wrong: float) -> None:
    with pytest.raises(ArgumentError, match="timeout is"):
        environment.timeout(wrong, {})


@pytest.mark.parametrize("wrong", ["0", "-3", "nan", "soon"])
def test_wrong_timeout_variable(wrong: str) -> None:
    with pytest.raises(ArgumentError, match=f"UNISONO_TIMEOUT is '{wrong}'"):
        environment.timeout(None, {"UNISONO_TIMEOUT": wrong})


# ---- real launchers ------------------------------------------------------------------------------

SCRIPT = """
import dataclasses, json, sys
from pathlib import Path
from unisono.core import rendezvous
from unisono.core import environment, rendezvous
launch = environment.find()
found = [launch.rank, launch.size, launch.local_rank, launch.local_size, launch.source, launch.job]
Path(sys.argv[1], f"{launch.rank}.json").write_text(json.dumps(found))
"""


def launches(directory: Path) -> list[list[object]]:
    return [json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))]


def start(command: list[str], directory: Path) -> list[list[object]]:
    directory.mkdir()
    done = subprocess.run([*command, str(directory)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return launches(directory)


@pytest.mark.thorough
@pytest.mark.skipif(find_spec("torch") is None, reason="torchrun comes with torch")
def test_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    first, second = start([*launcher, str(script)], tmp_path / "out")
    assert first[:5] == [0, 2, 0, 2, "torchrun"]
    assert second[:5] == [1, 2, 1, 2, "torchrun"]
    assert first[5] == second[5]


@pytest.mark.skipif(find_mpiexec() is None, reason="there is no mpiexec")
@pytest.mark.parametrize("shell", [False, True], ids=["direct", "a shell per rank"])
def test_mpiexec(tmp_path: Path, shell: bool) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    program = [sys.executable, str(script)]
    if shell:
        # The second command keeps the shell from turning into the rank.
        program = ["sh", "-c", f'{sys.executable} {script} "$0"; exit $?']
    jobs = []
    for name in ("one", "two"):
        first, second = start([str(find_mpiexec()), "-n", "2", *program], tmp_path / name)
        assert first[:4] == [0, 2, 0, 2]
        assert second[:4] == [1, 2, 1, 2]
        assert first[5] == second[5]
        jobs.append(first[5])
    assert jobs[0] != jobs[1]


def identity(*prefix: str) -> str:
    """What a new process thinks which host it is on."""
    code = "from unisono.core import rendezvous; print(rendezvous.identity())"
    done = subprocess.run(
        [*prefix, sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_processes_of_one_host_agree_on_it():
    assert identity() == rendezvous.identity() + "\n"
    assert not re.search(r"\s", rendezvous.identity())  # it stands between spaces


@pytest.mark.parametrize("space", ["--net", "--pid"])
def test_namespaces_of_their_own_are_other_hosts(space):
    command = ["unshare", "--user", "--map-root-user", "--fork", space]
    try:
        python = [sys.executable, "-S", "-c", "pass"]
        subprocess.run([*command, *python], check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("namespaces are not allowed here, or this Python cannot be run in one")
    assert identity(*command) != identity()
