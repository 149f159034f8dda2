"""The supervisor with real processes: who may go on after a failure, and how ranks are ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers.processes import is_running, wait_until
from unisono.errors import LaunchError
from unisono.launch.outcome import Blame, ErrorSummary
from unisono.launch.supervisor import EndPolicy, Supervisor

SLEEP = "import time; time.sleep(600)"


def command(source: str) -> list[str]:
    return [sys.executable, "-c", source]


def test_codes_of_ranks_that_end_by_themselves() -> None:
    with Supervisor(3, EndPolicy(grace=60.0)) as supervisor:
        for source in ("", "raise SystemExit(3)", "import os; os.kill(os.getpid(), 9)"):
            supervisor.start(command(source))
        supervisor.watch()
    assert supervisor.codes == {0: 0, 1: 3, 2: -signal.SIGKILL}
    assert set(supervisor.failures) == {1, 2}
    assert supervisor.stopped == {}


def test_the_others_are_ended_after_a_failure() -> None:
    with Supervisor(2, EndPolicy(grace=0.2)) as supervisor:
        supervisor.start(command(SLEEP))
        supervisor.start(command("raise SystemExit(3)"))
        supervisor.watch()
    assert supervisor.codes == {0: -signal.SIGTERM, 1: 3}
    assert list(supervisor.failures) == [1]
    assert supervisor.stopped == {0: "was ended because another rank had failed"}


def test_without_time_to_end_there_is_no_sigterm() -> None:
    with Supervisor(2, EndPolicy(grace=0.0, kill_after=0.0)) as supervisor:
        supervisor.start(command(SLEEP))
        supervisor.start(command("raise SystemExit(3)"))
        supervisor.watch()
    assert supervisor.codes[0] == -signal.SIGKILL


def test_sigkill_follows_if_sigterm_does_not_help(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    deaf = f"import signal; signal.signal(15, signal.SIG_IGN); open({str(ready)!r}, 'w')\n{SLEEP}"
    with Supervisor(1, EndPolicy(grace=0.0, kill_after=0.3)) as supervisor:
        supervisor.start(command(deaf))
        wait_until(ready.exists)
        supervisor.stop()
        supervisor.watch()
    assert supervisor.codes == {0: -signal.SIGKILL}


def test_while_only_peers_were_lost_the_cause_gets_more_time() -> None:
    """Rank 0 reports that it has lost a peer; rank 1 fails later, and is still heard."""
    lost = "from unisono.errors import PeerLost; raise PeerLost('rank 1 is gone')"
    late = "import sys, time; sys.stdin.read(); time.sleep(0.5); sys.exit(4)"
    with Supervisor(2, EndPolicy(grace=0.0, grace_without_cause=60.0)) as supervisor:
        first = supervisor.start(command(lost), stderr=subprocess.DEVNULL)
        second = supervisor.start(command(late), stdin=subprocess.PIPE)
        wait_until(lambda: os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT) is not None)
        assert second.stdin is not None
        second.stdin.close()
        supervisor.watch()
    assert supervisor.codes == {0: 1, 1: 4}
    assert supervisor.failures[0].blame == Blame.LOST_A_PEER
    assert supervisor.stopped == {}


@pytest.mark.thorough
def test_survivors_that_left_a_rank_behind_go_on() -> None:
    tell = (
        "from unisono.core.environment import tell_supervisor as tell; tell({'left_behind': [1]})"
    )
    with Supervisor(3, EndPolicy(grace=3.0)) as supervisor:
        supervisor.start(command(f"{tell}; import time; time.sleep(6)"))
        supervisor.start(command("import os; os.kill(os.getpid(), 9)"))
        supervisor.start(command("import time; time.sleep(6)"))
        supervisor.watch()
    assert supervisor.codes == {0: 0, 1: -9, 2: 0}
    assert list(supervisor.failures) == [1] and supervisor.left_behind == {1}
    assert supervisor.unresolved == []


def test_a_later_failure_ends_them_all_the_same() -> None:
    tell = (
        "from unisono.core.environment import tell_supervisor as tell; tell({'left_behind': [1]})"
    )
    with Supervisor(3, EndPolicy(grace=2.0)) as supervisor:
        supervisor.start(command(f"{tell}; {SLEEP}"))
        supervisor.start(command("raise SystemExit(3)"))
        supervisor.start(command("import time; time.sleep(1); raise SystemExit(4)"))
        supervisor.watch()
    assert supervisor.codes == {0: -signal.SIGTERM, 1: 3, 2: 4}
    assert [one.rank for one in supervisor.unresolved] == [2]


def test_a_rank_that_is_stopped_is_waited_for() -> None:
    """It cannot hear; when it goes on, the others' failure is still one."""
    notices: list[str] = []
    with Supervisor(2, EndPolicy(grace=0.2), notice=notices.append) as supervisor:
        stopped = supervisor.start(command(SLEEP))
        stopped.send_signal(signal.SIGSTOP)
        supervisor.start(command("raise SystemExit(3)"))
        supervisor.watch(until=lambda: bool(notices))
        until = time.monotonic() + 1.0
        supervisor.watch(until=lambda: time.monotonic() > until)
        assert supervisor.running == [0]
        stopped.send_signal(signal.SIGCONT)
        supervisor.watch()
    assert supervisor.codes == {0: -signal.SIGTERM, 1: 3}
    assert notices == [
        f"others have failed, but rank 0 (pid {stopped.pid}) is stopped, by a debugger or SIGSTOP, "
        "and is waited for; Ctrl-C ends the job"
    ]


def test_with_an_infinite_grace_the_others_go_on() -> None:
    notices: list[str] = []
    with Supervisor(2, EndPolicy(grace=float("inf")), notice=notices.append) as supervisor:
        supervisor.start(command("import time; time.sleep(1)"))
        supervisor.start(command("raise SystemExit(3)"))
        supervisor.watch()
    assert supervisor.codes == {0: 0, 1: 3}
    assert notices == ["rank 1 failed: exit code 3; the others go on"]


def test_what_a_rank_has_answered_counts_more_than_its_code() -> None:
    with Supervisor(2, EndPolicy(grace=60.0)) as supervisor:
        supervisor.start(command("raise SystemExit(3)"))
        supervisor.start(command(""))
        supervisor.answered(0, None)
        supervisor.answered(1, ErrorSummary("KeyError"))
        supervisor.watch()
    assert supervisor.codes == {0: 3, 1: 0}
    assert list(supervisor.failures) == [1]


def test_an_answer_may_be_read_after_the_end() -> None:
    with Supervisor(2, EndPolicy(grace=1.0)) as supervisor:
        supervisor.start(command("raise SystemExit(3)"))
        supervisor.start(command("import time; time.sleep(2)"))
        supervisor.watch(until=lambda: 0 in supervisor.failures)
        supervisor.answered(0, None)
        supervisor.watch()
    assert supervisor.codes == {0: 3, 1: 0}
    assert (supervisor.failures, supervisor.stopped) == ({}, {})


def test_a_deadline_for_all() -> None:
    with Supervisor(2, EndPolicy(grace=60.0)) as supervisor:
        supervisor.start(command(SLEEP))
        supervisor.start(command(""))
        supervisor.watch(until=lambda: 1 in supervisor.codes)
        supervisor.stop(after=0.2, reason="took too long")
        supervisor.watch()
    assert supervisor.codes == {0: -signal.SIGTERM, 1: 0}
    assert supervisor.stopped == {0: "took too long"}
    assert supervisor.failures == {}


def test_a_child_that_somebody_else_started_and_collected() -> None:
    process = subprocess.Popen(command("raise SystemExit(5)"))
    process.wait()
    with Supervisor(1, EndPolicy(grace=60.0)) as supervisor:
        supervisor.adopt(process.pid, process.wait)
        supervisor.watch()
    assert supervisor.codes == {0: 5}


def test_the_next_rank_inherits_its_variables() -> None:
    before = dict(os.environ)
    with Supervisor(2, EndPolicy(grace=60.0)) as supervisor:
        for expected in ("0", "1"):
            with supervisor.next_rank_inherits() as rank:
                source = f"import os; assert os.environ['RANK'] == {expected!r}"
                process = subprocess.Popen(command(source))
            assert str(rank) == expected
            supervisor.adopt(process.pid, process.wait)
        supervisor.watch()
    assert supervisor.codes == {0: 0, 1: 0}
    assert dict(os.environ) == before


def test_nothing_is_left_when_a_rank_cannot_start() -> None:
    with Supervisor(2, EndPolicy(grace=60.0)) as supervisor:
        first = supervisor.start(command(SLEEP))
        with pytest.raises(LaunchError, match=r"rank 1 of 2 could not be started: .* No such file"):
            supervisor.start(["no-such-program"])
    assert not Path(f"/proc/{first.pid}").exists()


def test_an_ended_rank_can_be_read_for_a_moment() -> None:
    """It is collected while the others go on, but not before they could see how it ended."""
    with Supervisor(2, EndPolicy(grace=60.0)) as supervisor:
        first = supervisor.start(command("raise SystemExit(3)"))
        supervisor.start(command(SLEEP))
        deadline = time.monotonic() + 30.0
        supervisor.watch(until=lambda: 0 in supervisor.codes)
        assert os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT).si_status == 3
        supervisor.watch(
            until=lambda: not Path(f"/proc/{first.pid}").exists() or time.monotonic() > deadline
        )
        assert not Path(f"/proc/{first.pid}").exists()
        assert supervisor.running == [1]


def test_an_error_in_the_program_ends_the_ranks() -> None:
    pids = []

    def program() -> None:
        with Supervisor(1, EndPolicy(grace=60.0)) as supervisor:
            pids.append(supervisor.start(command(SLEEP)).pid)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        program()
    assert not is_running(pids[0])
