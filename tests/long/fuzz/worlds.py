"""The worlds of a fuzz run: processes that make calls, watched for crashes and hangs."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tests.helpers.paths import with_tests
from tests.long.fuzz.calls import Call
from unisono.launch.process import JobEnvironment

__all__ = ["SILENCE", "World"]

#: Seconds without an answer that mean a hang: far more than any deadline of a call.
SILENCE = 30.0
_START = 120.0


class _Process:
    """One process and what it says."""

    def __init__(self, world: str, number: int, size: int, variables: dict[str, str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in end()
        # The process is killed, so its temporary files are ours to remove.
        self._folder = tempfile.TemporaryDirectory(prefix="fuzz-")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.long.fuzz.rank", world, str(number), str(size)],
            env={
                **os.environ,
                **variables,
                "PYTHONPATH": with_tests(),
                "TMPDIR": self._folder.name,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self._unread = b""

    def tell(self, command: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()

    def read(self, timeout: float) -> list[dict[str, Any]]:
        """The answers of the ranks in this process; what it died of, or that it hangs."""
        assert self._process.stdout is not None
        end = time.monotonic() + timeout
        while b"\n" not in self._unread:
            left = max(0.0, end - time.monotonic())
            if not select.select([self._process.stdout], [], [], left)[0]:
                self._process.send_signal(signal.SIGUSR1)  # it shows where each thread is
                time.sleep(1)
                return [{"kind": "hang", "text": "", "bad": True, "trace": self._stderr()}]
            more = os.read(self._process.stdout.fileno(), 1 << 16)
            if not more:
                code = self._process.wait()
                text = signal.Signals(-code).name if code < 0 else f"exit code {code}"
                return [{"kind": "crash", "text": text, "bad": True, "trace": self._stderr()}]
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        return json.loads(line)

    def _stderr(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")[-4000:]

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            assert stream is not None
            try:
                stream.close()
            except BrokenPipeError:
                continue
        self._folder.cleanup()


class World:
    """Ranks that get calls: `kind` is threads or shm, or none for a process that has no world."""

    def __init__(self, kind: str, size: int, timeout: float) -> None:
        self.kind = kind
        self.size = size
        self._variables = {"FUZZ_TIMEOUT": str(timeout), "UNISONO_TIMEOUT": "1"}
        self._processes: list[_Process] = []
        self._doubtful = False

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def run(self, calls: Sequence[Call]) -> list[dict[str, Any]]:
        """Let rank i make call i, and tell how each ended."""
        if not self._processes:
            self._start()
        self._tell({"do": "call", "calls": [asdict(call) for call in calls]})
        answers = self._read(SILENCE)
        if any(answer["kind"] in ("crash", "hang", "harness") for answer in answers):
            self._end()
        elif any(answer.get("stale") for answer in answers):
            self._renew()
        elif any(answer["kind"] in ("CommTimeout", "PeerLost") for answer in answers):
            self._doubtful = True  # a rank may have given up a call that others are in
        return answers

    def check(self) -> list[dict[str, Any]]:
        """Make a right call; an error is in order only after a call that ended in a timeout."""
        if not self._processes:
            return []
        # A world that works must not fail because the host is busy. One whose ranks are in
        # different calls fails in any case.
        self._tell({"do": "check", "timeout": 0.2 if self._doubtful else SILENCE / 2})
        answers = self._read(SILENCE)
        for answer in answers:
            if answer["kind"] not in ("result", "wrong sum") and not self._doubtful:
                answer["bad"] = True
        if any(answer["kind"] in ("crash", "hang", "harness") for answer in answers):
            self._end()
        elif any(answer["kind"] != "result" for answer in answers):
            self._renew()
        return answers

    def _start(self) -> None:
        if self.kind == "threads":
            self._processes = [_Process("threads", 0, self.size, self._variables)]
        else:
            self._job = JobEnvironment(self.size)  # holds the ranks' port
            self._processes = [
                _Process(
                    self.kind,
                    rank,
                    self.size,
                    {
                        **self._variables,
                        **({} if self.kind == "none" else self._job.variables(rank)),
                    },
                )
                for rank in range(self.size)
            ]
        self._renew()

    def _renew(self) -> None:
        self._doubtful = False
        self._tell({"do": "renew"})
        answers = self._read(_START)
        if any(answer.get("bad") for answer in answers):
            self._end()
            raise AssertionError(f"a world cannot be made again: {answers}")

    def _tell(self, command: dict[str, Any]) -> None:
        for rank, process in enumerate(self._processes):
            mine = dict(command)
            if "calls" in command and self.kind != "threads":
                mine["call"] = command["calls"][rank]
                del mine["calls"]
            process.tell(mine)

    def _read(self, timeout: float) -> list[dict[str, Any]]:
        return [answer for process in self._processes for answer in process.read(timeout)]

    def _end(self) -> None:
        for process in self._processes:
            process.end()
        self._processes = []
