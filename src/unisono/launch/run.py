"""Start ranks on this host: the command `unisono run`, and `unisono.spawn`."""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from unisono.core import environment
from unisono.errors import ArgumentError, LaunchError
from unisono.launch.job_spec import Part, check, commands, configure, read
from unisono.launch.output import Output
from unisono.launch.process import Job, core_blocks, die_with_parent, ended, ending
from unisono.launch.spawn import spawn

__all__ = ["configure", "main", "run", "spawn"]

#: Seconds between SIGTERM and SIGKILL.
_GRACE = 5.0
#: Failures within this many seconds count as simultaneous.
_MOMENT = 0.1
#: Seconds to wait for the culprit when all who have failed only lost a peer.
_PATIENCE = 2.0

#: Seconds for which a rank that has ended is not collected, so that others can read how it ended.
_WAKE = 1.0

_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD}
_PEER_LOST = re.compile(r"(unisono\.errors\.)?PeerLost\b")


def main(arguments: argparse.Namespace) -> int:
    """Run the command and return the exit code of the job."""
    return run(
        read(arguments),
        engine=arguments.engine,
        timeout=arguments.timeout,
        log_dir=arguments.log_dir,
        bind=not arguments.no_bind,
    )


def run(
    parts: Sequence[Part],
    *,
    engine: str | None = None,
    timeout: float | None = None,
    log_dir: Path | None = None,
    bind: bool = True,
) -> int:
    """Start the ranks of all parts as one job, wait for them, and return the job's exit code.

    That is 0, the code of the rank that failed first, or 128 + a signal. It must be called in the
    main thread, for it takes over this process's signals until the job has ended.
    """
    check(parts)
    words = list(commands(parts))
    extra = {"PYTHONUNBUFFERED": "1"}
    if engine is not None:
        from unisono.core import registry  # brings NumPy, which a job without --engine need not

        if engine.partition(":")[0] not in registry.names():
            raise ArgumentError(f"no engine {engine!r}; there are {', '.join(registry.names())}")
        extra["UNISONO_ENGINE"] = engine
    if timeout is not None:
        extra["UNISONO_TIMEOUT"] = str(environment.timeout(timeout))
    # Under nohup SIGHUP is ignored, and it must stay so for us and for the ranks.
    signals = {s for s in _SIGNALS if s != signal.SIGHUP or signal.getsignal(s) != signal.SIG_IGN}
    # If we were started with SIGCHLD ignored the kernel would throw away how ranks ended.
    child_handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        output = Output(log_dir)
        job = Job(len(words))  # holds the ranks' port until they have ended
        ranks = _start(job, words, extra, output, core_blocks(job.size) if bind else None)
        output.start()
        watch = _Watch(ranks, output, signals)
        watch.until_all_ended()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGCHLD, child_handler)
    output.finish()
    return watch.report()


def _start(
    job: Job,
    words: Sequence[Sequence[str]],
    extra: dict[str, str],
    output: Output,
    blocks: list[set[int]] | None,
) -> list[subprocess.Popen[bytes]]:
    """Start one rank for each command line, or none."""
    launcher = os.getpid()

    def prepare(cores: set[int] | None) -> None:
        # Runs in the child between fork and exec; we have no other thread yet.
        die_with_parent(launcher)
        if cores is not None:
            os.sched_setaffinity(0, cores)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, set())

    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for rank, command in enumerate(words):
            cores = blocks[rank] if blocks else None
            # No new session and no new process group: a terminal's Ctrl-C must reach the ranks, and
            # sched_yield hands the core only to processes of one session.
            process = subprocess.Popen(
                command,
                env={**os.environ, **extra, **job.variables(rank)},
                stdin=None if rank == 0 else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                preexec_fn=lambda cores=cores: prepare(cores),
            )
            ranks.append(process)
            assert process.stdout is not None and process.stderr is not None
            output.add(rank, process.stdout, process.stderr)
    except (OSError, subprocess.SubprocessError) as error:
        for process in ranks:
            process.kill()
            process.wait()
        raise LaunchError(
            f"rank {len(ranks)} of {job.size} could not be started: {error}"
        ) from error
    return ranks


class _Watch:
    """Follows the ranks and our signals until no rank is left.

    It decides who is to blame for a failure, and when the others have to go.
    """

    def __init__(
        self, ranks: list[subprocess.Popen[bytes]], output: Output, signals: set[signal.Signals]
    ) -> None:
        self._ranks = ranks
        self._output = output
        self._signals = signals
        self._alive = set(range(len(ranks)))
        self._codes: dict[int, int] = {}  # of those that have ended
        self._unburied: dict[int, float] = {}  # ended and not collected: since when
        self._failed: list[int] = []  # in the order of their ends, until we end the rest
        self._failed_at = 0.0
        self._ended_by: signal.Signals | None = None  # what we were told, if that came first
        self._kill_at: float | None = None

    def until_all_ended(self) -> None:
        """Return when every rank has ended, which a failure or a signal makes sure of."""
        while self._alive:
            hurried = self._failed or self._kill_at is not None
            # SIGCHLD wakes us at once; the timeout is for our own deadlines.
            patience = 0.02 if hurried else _WAKE if self._unburied else 3600.0
            info = signal.sigtimedwait(self._signals, patience)
            if info is not None and info.si_signo != signal.SIGCHLD:
                self._obey(signal.Signals(info.si_signo), from_kernel=info.si_code > 0)
            self._notice()
            now = time.monotonic()
            self._bury(now)
            if self._kill_at is not None and now >= self._kill_at:
                self._send(signal.SIGKILL)
            elif self._failed and self._kill_at is None and self._is_time(now):
                self._send(signal.SIGTERM)
                self._kill_at = now + _GRACE
        self._bury(float("inf"))

    def report(self) -> int:
        """Say who failed, last of all, and return the exit code of the job."""
        if self._ended_by is not None:
            word = "interrupted" if self._ended_by == signal.SIGINT else "ended"
            _say(f"{word} by {self._ended_by.name}")
            return 128 + self._ended_by
        if not self._failed:
            return 0
        culprit = self._culprit()
        others = sorted(set(self._failed) - {culprit})
        if others:
            endings = ", ".join(f"rank {rank} ({self._ending(rank)})" for rank in others)
            _say(f"failed as well: {endings}")
        _say(f"rank {culprit} of {len(self._ranks)} failed: {self._ending(culprit)}")
        tail = self._output.tail(culprit)
        if tail:
            _say(f"the last lines of rank {culprit} on stderr:")
            sys.stderr.write("".join(f"    {line}\n" for line in tail))
        sys.stderr.flush()
        code = self._codes[culprit]
        return code if code > 0 else 128 - code

    def _obey(self, number: signal.Signals, from_kernel: bool) -> None:
        if self._ended_by is None and not self._failed:
            self._ended_by = number
            # A terminal has sent its Ctrl-C to the ranks as well; a second one would disturb
            # them while they clean up.
            if number != signal.SIGINT or not from_kernel:
                self._send(number)
            if number != signal.SIGINT:
                self._kill_at = time.monotonic() + _GRACE
        elif number == signal.SIGINT:
            self._send(signal.SIGKILL)
        else:
            self._send(number)
            self._kill_at = self._kill_at or time.monotonic() + _GRACE

    def _notice(self) -> None:
        """See who has ended since we last looked."""
        for rank in sorted(self._alive):
            code = ended(self._ranks[rank].pid)
            if code is None:
                continue
            self._alive.discard(rank)
            self._codes[rank] = code
            self._unburied[rank] = time.monotonic()
            # Whoever ends after we have sent SIGTERM ended because of it.
            if code != 0 and self._kill_at is None:
                self._failed_at = self._failed_at or time.monotonic()
                self._failed.append(rank)

    def _bury(self, now: float) -> None:
        """Collect those that ended some time ago."""
        for rank, since in list(self._unburied.items()):
            if now - since >= _WAKE:
                self._ranks[rank].wait()
                del self._unburied[rank]

    def _is_time(self, now: float) -> bool:
        """Whether the ranks that are left have to go, now that some have failed."""
        waited = now - self._failed_at
        if self._ended_by is not None:
            return waited > _GRACE  # they were interrupted too, and may be saving their work
        if waited <= _MOMENT:
            return False
        # A rank that raises tells its peers before it has ended, so they may be gone before it.
        return waited > _PATIENCE or not all(self._lost_a_peer(rank) for rank in self._failed)

    def _culprit(self) -> int:
        """The first to fail, but rather by a signal than by an error, and a survivor last."""
        return min(
            self._failed,
            key=lambda rank: (self._lost_a_peer(rank), self._codes[rank] > 0),
        )

    def _lost_a_peer(self, rank: int) -> bool:
        tail = self._output.tail(rank)
        return self._codes[rank] > 0 and any(_PEER_LOST.match(line) for line in tail)

    def _ending(self, rank: int) -> str:
        return ending(self._codes[rank])

    def _send(self, number: signal.Signals) -> None:
        for rank in self._alive:
            os.kill(self._ranks[rank].pid, number)  # it is ours until we have collected it


def _say(text: str) -> None:
    print(f"unisono: {text}", file=sys.stderr, flush=True)
