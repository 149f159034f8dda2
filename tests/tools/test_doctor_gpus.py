"""What `unisono doctor` says of GPUs: nvidia-smi is a stand-in here, MPS's pipe is a real one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from unisono.tools.doctor import gpus

FIRST, SECOND = "GPU-11111111-aaaa", "GPU-22222222-bbbb"
#: What it is asked for, in the form in which the driver's own answers.
ANSWERS = f"""\
case "$1" in
--query-gpu=uuid,name,memory.total,memory.free)
    echo "{FIRST}, NVIDIA H200, 143771, 143000"
    echo "{SECOND}, NVIDIA H200, 143771, 71885" ;;
--query-compute-apps=gpu_uuid,pid)
    echo "{SECOND}, 4242"
    echo "{SECOND}, 41" ;;
esac
"""


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`smi(script)` puts a program nvidia-smi on the path."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))

    def put(script: str) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{script}")
        program.chmod(0o755)

    return put


def test_gpus_and_who_shares_them(smi) -> None:
    smi(ANSWERS)
    found = gpus.examine()
    assert found["reason"] is None
    assert [(one["uuid"], one["processes"]) for one in found["devices"]] == [
        (FIRST, []),
        (SECOND, [41, 4242]),
    ]
    assert list(gpus.rows(found))[:2] == [
        ("GPU", "0", "NVIDIA H200, 140 GiB free of 140 GiB; no process is there"),
        ("GPU", "1", "NVIDIA H200, 70.2 GiB free of 140 GiB; processes there: 41, 4242"),
    ]


def test_a_gpu_without_memory_of_its_own(smi) -> None:
    smi(f'case "$1" in --query-gpu*) echo "{FIRST}, NVIDIA GB10, [N/A], [N/A]" ;; esac')
    first, _mps = gpus.rows(gpus.examine())
    assert first == ("GPU", "0", "NVIDIA GB10; no process is there")


def test_mps_runs_while_somebody_reads_its_pipe(smi, tmp_path: Path) -> None:
    smi(ANSWERS)
    assert not gpus.examine()["mps"]
    pipe = tmp_path / "control"
    os.mkfifo(pipe)
    assert not gpus.examine()["mps"]  # what a daemon that has ended leaves
    reader = subprocess.Popen(["cat", pipe], stdout=subprocess.DEVNULL)
    try:
        writer = os.open(pipe, os.O_WRONLY)  # waits for the reader
        found = gpus.examine()
        os.close(writer)
    finally:
        reader.kill()
        reader.wait()
    assert found["mps"] and "at the same time" in list(gpus.rows(found))[-1][2]
    assert "nvidia-cuda-mps-control -d" in list(gpus.rows({**found, "mps": False}))[-1][2]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'NVIDIA-SMI has failed: no driver'; exit 9", "nvidia-smi failed: NVIDIA-SMI has"),
        ("exit 6", "nvidia-smi failed: code 6"),
    ],
)
def test_no_gpus(smi, script: str, reason: str) -> None:
    smi(script)
    ((kind, name, text),) = gpus.rows(gpus.examine())
    assert (kind, name) == ("GPU", "none") and text.startswith(reason)


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    ((_, _, text),) = gpus.rows(gpus.examine())
    assert text == "nvidia-smi, which comes with the driver of NVIDIA, is not there"
