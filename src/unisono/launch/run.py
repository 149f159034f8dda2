"""The command `unisono run`: start a script on several ranks of this host and wait for them."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from unisono.core import environment
from unisono.errors import ArgumentError
from unisono.launch.job_spec import (
    GRACE,
    ON_FAILURE,
    ProgramSpec,
    check_programs,
    command_lines,
    configure,
    read_programs,
)
from unisono.launch.outcome import name_ranks
from unisono.launch.output.labelled import LabelledOutput
from unisono.launch.patch import check_patch, patch_variables
from unisono.launch.process import ensure_open_files
from unisono.launch.supervisor import EndPolicy, Supervisor
from unisono.launch.verdict import Verdict, judge

__all__ = ["configure", "main", "run"]

#: Seconds that a cause that is still to come gets, however short the grace is.
_WITHOUT_CAUSE = 2.0
#: Seconds between SIGTERM and SIGKILL, and for ranks to save their work after Ctrl-C.
_KILL_AFTER = 5.0

#: Lets `breakpoint()` on any rank have the terminal.
_BREAKPOINT = "unisono.core.debugging.debugger.stop_here"
_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD}


def main(arguments: argparse.Namespace) -> int:
    """Run the command and return the exit code of the job."""
    return run(
        read_programs(arguments),
        engine=arguments.engine,
        timeout=arguments.timeout,
        log_dir=arguments.log_dir,
        bind=arguments.bind or "share",
        on_failure=arguments.on_failure or "stop",
        grace=GRACE if arguments.grace is None else arguments.grace,
        tty=arguments.tty,
    )


def run(
    programs: Sequence[ProgramSpec],
    *,
    engine: str | None = None,
    timeout: float | None = None,
    log_dir: Path | None = None,
    bind: str = "share",
    on_failure: str = "stop",
    grace: float = GRACE,
    tty: int | None = None,
) -> int:
    """Start the ranks of all programs as one job, wait for them, and return the job's exit code.

    That is 0, the code of the rank that caused a failure, or 128 + a signal. It is also 0 if ranks
    failed and all others went on without them, by `shrink`, and ended well. Call it in the main
    thread, because it takes over the signals of this process until the job has ended.
    """
    check_programs(programs)
    ensure_open_files(sum(spec.n for spec in programs))  # before a list of so many is made
    commands = list(command_lines(programs))
    policy = _policy(on_failure, grace)
    _check_tty(tty, len(commands))
    variables = _variables(engine, timeout)
    patches = _patches(programs, variables.get("UNISONO_ENGINE"))
    with _blocked_signals() as signals:
        output = LabelledOutput(log_dir, live=tty is None)
        with Supervisor(len(commands), policy, bind=bind, notice=output.say) as supervisor:
            for rank, command in enumerate(commands):
                pipe = None if rank == tty else subprocess.PIPE
                process = supervisor.start(
                    command,
                    {**variables, **patches[rank]},
                    stdin=None if rank == (tty or 0) else subprocess.DEVNULL,
                    stdout=pipe,
                    stderr=pipe,
                )
                if process.stdout is not None and process.stderr is not None:
                    output.add(rank, process.stdout, process.stderr)
            output.start()
            control = _SignalControl(supervisor, signals, output.say)
            supervisor.watch(control.wait)
    verdict = judge(list(supervisor.failures.values()), supervisor.left_behind, len(commands))
    output.finish(verdict.rank)
    if control.ended_by is not None:
        verb = "interrupted" if control.ended_by == signal.SIGINT else "ended"
        _say(f"{verb} by {control.ended_by.name}")
        return 128 + control.ended_by
    return _report(verdict, output)


def _policy(on_failure: str, grace: float) -> EndPolicy:
    """How long ranks go on when another has failed."""
    if not grace >= 0:
        raise ArgumentError(f"--grace is {grace}; give seconds, 0 or more")
    if on_failure not in ON_FAILURE:
        raise ArgumentError(f"--on-failure is {on_failure!r}; give one of {', '.join(ON_FAILURE)}")
    if on_failure == "continue":
        return EndPolicy(float("inf"), kill_after=_KILL_AFTER)
    return EndPolicy(grace, max(grace, _WITHOUT_CAUSE), _KILL_AFTER)


def _check_tty(tty: int | None, size: int) -> None:
    if tty is not None and not 0 <= tty < size:
        raise ArgumentError(f"--tty is {tty}; give a rank from 0 to {size - 1}")


def _variables(engine: str | None, timeout: float | None) -> dict[str, str]:
    """Give what the ranks find in their environment because of our options."""
    variables = {"PYTHONUNBUFFERED": "1"}
    if os.environ.get("PYTHONBREAKPOINT") is None:
        variables["PYTHONBREAKPOINT"] = _BREAKPOINT
    variables.update(_terminal_size())
    if engine is not None:
        from unisono.core import registry  # brings NumPy, which a job without --engine need not

        if engine.partition(":")[0] not in registry.names():
            raise ArgumentError(f"no engine {engine!r}; there are {', '.join(registry.names())}")
        variables["UNISONO_ENGINE"] = engine
    if timeout is not None:
        variables["UNISONO_TIMEOUT"] = str(environment.timeout(timeout))
    return variables


def _terminal_size() -> dict[str, str]:
    """Tell programs that draw bars into a pipe how wide our terminal is, less the label."""
    if not sys.stderr.isatty() or "COLUMNS" in os.environ:
        return {}
    columns, lines = os.get_terminal_size(sys.stderr.fileno())
    return {"COLUMNS": str(max(20, columns - 6)), "LINES": str(lines)} if columns else {}


def _patches(programs: Sequence[ProgramSpec], engine: str | None) -> list[dict[str, str]]:
    """Give the variables of each rank because of `--patch`, and say what is patched."""
    engine = engine or os.environ.get("UNISONO_ENGINE") or "shm"
    found: list[dict[str, str]] = []
    told: set[str] = set()
    for spec in programs:
        variables: dict[str, str] = {}
        if spec.patch is not None:
            told.add(check_patch(spec.patch, spec.python))
            variables = patch_variables(spec.patch)
        found += [variables] * spec.n
    for what in sorted(told):
        _say(f"{what} (engine {engine})")
    return found


@contextmanager
def _blocked_signals() -> Iterator[set[signal.Signals]]:
    """Block the signals that we wait for, so that none is lost between two waits."""
    # Under nohup SIGHUP is ignored, and it must stay so for us and for the ranks.
    ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else set()
    # If we were started with SIGCHLD ignored the kernel would throw away how ranks ended.
    child_handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS - ignored)
    try:
        yield _SIGNALS - ignored
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGCHLD, child_handler)


class _SignalControl:
    """Passes signals that we get on to the ranks."""

    def __init__(
        self,
        supervisor: Supervisor,
        signals: Iterable[signal.Signals],
        say: Callable[[str], None],
    ) -> None:
        self.ended_by: signal.Signals | None = None  # if a signal came before any failure
        self._supervisor = supervisor
        self._signals = signals
        self._say = say
        self._remind_at = float("inf")  # the time to say that ranks go on after Ctrl-C

    def wait(self, seconds: float) -> None:
        """Wait for a signal and act on it; SIGCHLD wakes us when a rank has ended."""
        if time.monotonic() >= self._remind_at:
            self._remind_at = float("inf")
            left = name_ranks(self._supervisor.running)
            self._say(f"still running after Ctrl-C: {left}; Ctrl-C again kills what still runs")
        until = self._remind_at - time.monotonic()
        info = signal.sigtimedwait(self._signals, max(0.0, min(seconds, until)))
        if info is not None and info.si_signo != signal.SIGCHLD:
            self._pass_on(signal.Signals(info.si_signo), from_kernel=info.si_code > 0)

    def _pass_on(self, number: signal.Signals, from_kernel: bool) -> None:
        supervisor = self._supervisor
        is_first = self.ended_by is None and not supervisor.failures
        if is_first:
            self.ended_by = number
        if number != signal.SIGINT:
            supervisor.end_by(number, f"was sent {number.name}")
        elif not is_first:
            supervisor.send(signal.SIGKILL)
        else:
            # The ranks may be saving their work, so the first to end gives the others more time.
            supervisor.policy = EndPolicy(_KILL_AFTER, kill_after=_KILL_AFTER)
            self._remind_at = time.monotonic() + _KILL_AFTER
            # A terminal has sent its Ctrl-C to the ranks as well; a second one would disturb
            # them while they clean up.
            if not from_kernel:
                supervisor.send(number)


def _report(verdict: Verdict, output: LabelledOutput) -> int:
    """Say who failed, last of all, and return the exit code of the job."""
    if verdict.others:
        _say(f"failed as well: {verdict.others}")
    if verdict.rank is not None:
        lines = output.tail(verdict.rank)
        if lines:
            _say(f"the last lines of rank {verdict.rank} on stderr:")
            sys.stderr.write("".join(f"    {line}\n" for line in lines))
    if verdict.text:
        _say(verdict.text)
    return verdict.code


def _say(text: str) -> None:
    print(f"unisono: {text}", file=sys.stderr, flush=True)
