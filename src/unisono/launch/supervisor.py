"""The supervisor of a job: starts its ranks as processes of this host, watches them, ends them.

Everything that starts ranks uses it: `unisono run`, `unisono.spawn`, the pytest plugin and
`unisono bench`. It keeps three promises. No rank outlives it. A rank that has ended can be read by
the others for a moment, so that they can say how it ended. When a rank fails, the others get some
time to end by themselves (`EndPolicy`), then SIGTERM, then SIGKILL; unless they have shrunk their
group to go on without it.

    with Supervisor(2, EndPolicy(grace=1.0)) as supervisor:
        for _ in range(2):
            supervisor.start([sys.executable, "train.py"])
        supervisor.watch()
    print(supervisor.failures)
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unisono.errors import LaunchError
from unisono.launch.cores import bind_to, core_blocks
from unisono.launch.outcome import (
    Blame,
    ErrorSummary,
    RankOutcome,
    exit_code,
    exit_text,
    name_ranks,
)
from unisono.launch.process import (
    JobEnvironment,
    die_with_parent,
    ensure_open_files,
    inherited,
    is_stopped,
)
from unisono.launch.report import VARIABLE, ErrorReports

__all__ = ["EndPolicy", "Supervisor"]

#: Seconds for which a rank that has ended is not collected, so that others can read how it ended.
_READABLE = 1.0
#: Seconds between two looks at the ranks, where nothing tells us that one has ended.
_POLL = 0.02
#: Seconds between two looks at ranks that are stopped.
_STOPPED_POLL = 0.2
_NEVER = float("inf")


@dataclass(frozen=True)
class EndPolicy:
    """How many seconds the other ranks get once one has failed; infinite: they go on.

    `grace` is for them to end by themselves. While all that failed have only lost a peer, the rank
    that they lost has not ended yet, and they get `grace_without_cause` instead, if that is given.
    `kill_after` lies between SIGTERM and SIGKILL; with 0 there is no SIGTERM.
    """

    grace: float
    grace_without_cause: float | None = None
    kill_after: float = 5.0


@dataclass(frozen=True)
class _Child:
    """A process that is a rank; `collect` waits for its end and returns its exit code."""

    pid: int
    collect: Callable[[], int]


class Supervisor:
    """Starts, watches and ends the ranks of one job.

    `failures` holds the ranks that failed by themselves, in the order in which they did; `codes`
    the exit codes of all that have ended; `stopped` those that we ended, with the reason;
    `left_behind` those without which others have gone on, by `shrink`. `bind` is how ranks are
    bound to cores, one of `cores.BINDINGS`. A process with other threads must not run Python code
    in its children before they execute their program: with `has_threads` ranks are not bound to
    cores, and have to call `die_with_parent` themselves. `notice` is told what a user may want to
    know while the job runs.
    """

    def __init__(
        self,
        size: int,
        policy: EndPolicy,
        *,
        bind: str = "share",
        has_threads: bool = False,
        notice: Callable[[str], None] = lambda text: None,
    ) -> None:
        ensure_open_files(size)
        self.job = JobEnvironment(size)  # holds the ranks' port until they have ended
        self.policy = policy
        self.failures: dict[int, RankOutcome] = {}
        self.codes: dict[int, int] = {}
        self.stopped: dict[int, str] = {}
        self.left_behind: set[int] = set()
        self._notice = notice
        self._blocks = core_blocks(size, bind)
        self._has_threads = has_threads
        self._reports = ErrorReports(size)
        self._children: list[_Child] = []
        self._uncollected: dict[int, float] = {}  # ended ranks, with the time of their end
        self._answers: dict[int, ErrorSummary | None] = {}
        self._failed_at: dict[int, float] = {}  # when each failure was seen
        self._not_before = 0.0  # a rank that is stopped by a debugger or a signal is waited for
        self._told_of_stop = False
        self._stop_at, self._stop_reason = _NEVER, ""
        self._kill_at = _NEVER  # when SIGKILL follows; set once the ranks have been told to end

    # ---- starting --------------------------------------------------------------------------------

    def start(
        self, command: Sequence[str], variables: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[Any]:
        """Start the next rank; `variables` and `options` are for its environment and for Popen."""
        rank = len(self._children)
        environment = {**os.environ, **(variables or {}), **self.job.variables(rank)}
        environment[VARIABLE] = self._reports.destination(rank)
        if not self._has_threads:
            options["preexec_fn"] = self._preparation(rank)
        try:
            # No new session and no new process group: a terminal's Ctrl-C must reach the ranks, and
            # sched_yield gives the core only to processes of one session.
            process: subprocess.Popen[Any] = subprocess.Popen(command, env=environment, **options)
        except (OSError, subprocess.SubprocessError) as error:
            raise LaunchError(
                f"rank {rank} of {self.job.size} could not be started: {error}"
            ) from error
        self._children.append(_Child(process.pid, process.wait))
        return process

    @contextlib.contextmanager
    def next_rank_inherits(self) -> Iterator[int]:
        """Let a child that is started inside the block by other means be the next rank.

        `adopt` has to follow. The value is the number of the rank.
        """
        rank = len(self._children)
        cores = self._blocks[rank] if self._blocks else None
        variables = {**self.job.variables(rank), VARIABLE: self._reports.destination(rank)}
        with inherited(variables, cores):
            yield rank

    def adopt(self, pid: int, collect: Callable[[], int]) -> None:
        """Supervise a child of this process as the next rank; `collect` waits for its exit code."""
        self._children.append(_Child(pid, collect))

    def _preparation(self, rank: int) -> Callable[[], None]:
        """Make what a child runs between fork and exec."""
        parent = os.getpid()
        cores = self._blocks[rank] if self._blocks else None

        def prepare() -> None:
            die_with_parent(parent)
            bind_to(cores)
            # Whatever we inherited or set for ourselves. SIGHUP stays: nohup is for the ranks too.
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, set())

        return prepare

    # ---- watching --------------------------------------------------------------------------------

    @property
    def running(self) -> list[int]:
        """The ranks that have not ended, as far as we have looked."""
        return [rank for rank in range(len(self._children)) if rank not in self.codes]

    @property
    def is_ending(self) -> bool:
        """Whether the ranks have been told to end."""
        return self._kill_at < _NEVER

    def watch(
        self,
        pause: Callable[[float], object] | None = None,
        until: Callable[[], bool] = lambda: False,
    ) -> None:
        """Return when all ranks have ended, or when `until` says so; end them after a failure.

        `pause` waits for what the caller wants to know of, at most the seconds that it is given,
        and no longer than it takes until a rank has ended, if it can tell.
        """
        while self.running and not until():
            (pause or _sleep)(max(0.0, self._next_deadline() - time.monotonic()))
            self.check()
        if not self.running:
            self._look_for_survivors()
            self._collect(_NEVER)

    def check(self) -> None:
        """See which ranks have ended, and do what is due by now."""
        now = time.monotonic()
        for rank in self.running:
            code = self._exit_code(rank)
            if code is not None:
                self.codes[rank] = code
                self._uncollected[rank] = now
                self._note_end(rank, code)
        self._collect(now - _READABLE)
        if now >= self._kill_at:
            self.send(signal.SIGKILL)
            self._kill_at = now + 1.0
        elif not self.is_ending and now >= self._due():
            self._end_unless_they_go_on(now)

    def answered(self, rank: int, error: ErrorSummary | None) -> None:
        """Note what a rank itself says about its work; then its exit code does not count."""
        self._answers[rank] = error
        if error is not None:
            self._note_failure(rank, self.codes.get(rank), error)
        else:
            self.failures.pop(rank, None)
            self._failed_at.pop(rank, None)

    def _exit_code(self, rank: int) -> int | None:
        child = self._children[rank]
        try:
            return exit_code(child.pid)
        except ChildProcessError:  # its starter has collected it: multiprocessing does
            return child.collect()

    def _note_end(self, rank: int, code: int) -> None:
        if rank not in self._answers and code != 0:
            self._note_failure(rank, code, self._reports.read(rank))

    def _note_failure(self, rank: int, code: int | None, error: ErrorSummary | None) -> None:
        # A rank that fails after we have told it to end fails because of that.
        if rank not in self.stopped:
            self._failed_at.setdefault(rank, time.monotonic())
            self.failures[rank] = RankOutcome(rank, code, error)
            if self.policy.grace == _NEVER and code is not None and self.running:
                self._notice(f"rank {rank} failed: {exit_text(code)}; the others go on")

    @property
    def unresolved(self) -> list[RankOutcome]:
        """The failures of ranks that nobody has left behind, in the order in which they came."""
        return [one for rank, one in self.failures.items() if rank not in self.left_behind]

    def _look_for_survivors(self) -> None:
        """Read which ranks others have left behind."""
        before = len(self.left_behind)
        for rank in range(len(self._children)):
            self.left_behind |= self._reports.left_behind(rank)
        lost = self.left_behind.intersection(self.failures)
        if len(self.left_behind) > before and lost and self.running:
            self._notice(f"{name_ranks(self.running)} go on without {name_ranks(lost)}")

    def _settled_at(self) -> float:
        """When the ranks that are left have to go, because others have failed."""
        failed = self.unresolved
        if not failed:
            return _NEVER
        seconds = self.policy.grace
        longer = self.policy.grace_without_cause
        # A rank that raises tells its peers before it has ended, so they may be gone before it.
        if longer is not None and all(one.blame >= Blame.LOST_A_PEER for one in failed):
            seconds = longer
        return max(self._not_before, min(self._failed_at[one.rank] for one in failed) + seconds)

    def _due(self) -> float:
        return min(self._stop_at, self._settled_at())

    def _next_deadline(self) -> float:
        collect_at = min(self._uncollected.values(), default=_NEVER) + _READABLE
        due = self._kill_at if self.is_ending else self._due()
        # Not infinite, because what waits may not take that.
        return min(collect_at, due, time.monotonic() + 3600.0)

    # ---- ending ----------------------------------------------------------------------------------

    def stop(self, after: float = 0.0, reason: str = "was told to end") -> None:
        """End all ranks, at the latest in `after` seconds; `watch` does it."""
        at = time.monotonic() + after
        if at < self._stop_at:
            self._stop_at, self._stop_reason = at, reason

    def end_by(self, number: signal.Signals, reason: str) -> None:
        """Send a signal that ends the ranks; SIGKILL follows if they do not."""
        for rank in self.running:
            self.stopped.setdefault(rank, reason)
        self.send(number)
        self._kill_at = min(self._kill_at, time.monotonic() + self.policy.kill_after)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the ranks that are running."""
        for rank in self.running:
            # Its number cannot have passed to another process before somebody collects it.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._children[rank].pid, number)

    def _end_unless_they_go_on(self, now: float) -> None:
        """End all ranks; but after a failure not those that have shrunk their group, or stand."""
        reason = self._stop_reason
        if now < self._stop_at:
            self._look_for_survivors()
            if now < self._settled_at():
                return
            stopped = [rank for rank in self.running if is_stopped(self._children[rank].pid)]
            if stopped:
                self._wait_for(stopped, now)
                return
            reason = "was ended because another rank had failed"
        self.end_by(signal.SIGTERM if self.policy.kill_after > 0 else signal.SIGKILL, reason)

    def _wait_for(self, stopped: Sequence[int], now: float) -> None:
        """Give a rank that somebody has stopped as much time as it takes: it cannot end."""
        self._not_before = now + _STOPPED_POLL
        if not self._told_of_stop:
            self._told_of_stop = True
            named = ", ".join(f"{rank} (pid {self._children[rank].pid})" for rank in stopped)
            self._notice(
                f"others have failed, but rank {named} is stopped, by a debugger or SIGSTOP, and "
                "is waited for; Ctrl-C ends the job"
            )

    def _collect(self, before: float) -> None:
        """Collect the ranks that ended before this time."""
        for rank, since in list(self._uncollected.items()):
            if since <= before:
                self._children[rank].collect()
                del self._uncollected[rank]

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *_: object) -> None:
        """End and collect whatever is left."""
        self.stop()
        self.watch()
        self._reports.close()


def _sleep(seconds: float) -> None:
    time.sleep(min(seconds, _POLL))
