"""For pytest: `@pytest.mark.ranks(4)` runs a test function on four ranks.

With engine "threads", the default, the ranks are threads of this process and share the fixtures'
values. With any other engine each rank is a pytest process of its own that runs this one test,
fixtures and all, and sends its reports here; the report of the rank that failed becomes the test's.

Every pytest run of everyone who installed unisono loads this module, so it imports little.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from subprocess import Popen

__all__ = [
    "pytest_cmdline_main",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_load_initial_conftests",
    "pytest_pyfunc_call",
    "pytest_runtest_protocol",
]

_MARKER = (
    "ranks(n, engine='threads', timeout=60): run the test function on n ranks. `engine` says what "
    "they are; `timeout` is how many seconds a rank may wait for others and, where ranks are "
    "processes, how long the test may take."
)
_VARIABLE = "UNISONO_PYTEST_RANK"  # in the process of a rank: where it belongs, as JSON
_GRACE = 2.0  # seconds for the other ranks to end by themselves once one has failed
_TAIL = 4000  # characters of a rank's output that are shown if it ended without a report

#: Options that the parent has followed already, and that would harm in the process of a rank.
_FOLLOWED: dict[str, Any] = {
    **dict.fromkeys(["basetemp", "deselect", "numprocesses", "xmlpath"]),
    **dict.fromkeys(["cacheclear", "failedfirst", "lf", "newfirst", "stepwise", "usepdb"], False),
    **dict.fromkeys(["keyword", "markexpr"], ""),
    "dist": "no",
    "maxfail": 0,
    "tx": [],
}


@dataclass(frozen=True)
class _Ranks:
    """What the marker asks for."""

    n: int
    engine: str = "threads"
    timeout: float = 60.0


_KEY = pytest.StashKey[_Ranks]()


# ---- the marker ----------------------------------------------------------------------------------


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Read the markers; a wrong one is a usage error before any test runs."""
    for item in items:
        marker = item.get_closest_marker("ranks")
        if marker is not None:
            item.stash[_KEY] = _read(item, marker)


def _read(item: pytest.Item, marker: pytest.Mark) -> _Ranks:
    try:
        ranks = _Ranks(*marker.args, **marker.kwargs)
    except TypeError:
        raise _wrong(item, f"got {_call(marker)}") from None
    if type(ranks.n) is not int or ranks.n < 1:
        raise _wrong(item, f"the number of ranks is {ranks.n!r}, not 1 or more")
    if not isinstance(ranks.timeout, int | float) or not ranks.timeout > 0:
        raise _wrong(item, f"the timeout is {ranks.timeout!r}, not a number of seconds")
    installed = _engines()
    if not isinstance(ranks.engine, str) or ranks.engine.partition(":")[0] not in installed:
        names = ", ".join(sorted(installed))
        raise _wrong(item, f"there is no engine {ranks.engine!r}; installed: {names}")
    function = getattr(item, "obj", None)
    if not isinstance(item, pytest.Function) or hasattr(item, "_testcase"):
        raise _wrong(item, "only test functions and methods of plain classes can have ranks")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise _wrong(item, "an async test function cannot have ranks")
    return ranks


def _wrong(item: pytest.Item, what: str) -> pytest.UsageError:
    return pytest.UsageError(
        f"{item.nodeid}: {what}; write @pytest.mark.ranks(4) or "
        "@pytest.mark.ranks(4, engine='shm', timeout=60)"
    )


def _call(marker: pytest.Mark) -> str:
    words = [repr(value) for value in marker.args]
    words += [f"{name}={value!r}" for name, value in marker.kwargs.items()]
    return f"ranks({', '.join(words)})"


@functools.cache
def _engines() -> frozenset[str]:
    from importlib.metadata import entry_points

    return frozenset(point.name for point in entry_points(group="unisono.engines"))


# ---- running a test function on ranks ------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run the function in threads, or, in the process of a rank, run that rank's part."""
    ranks = pyfuncitem.stash.get(_KEY, None)
    if ranks is None:
        return None
    names = pyfuncitem._fixtureinfo.argnames
    call = functools.partial(pyfuncitem.obj, **{name: pyfuncitem.funcargs[name] for name in names})
    if ranks.engine == "threads":
        from unisono.launch.spawn import spawn

        spawn(call, ranks.n, engine="threads", timeout=ranks.timeout)
        return True
    from unisono.core import groups

    # Not claimed: a test that calls init itself gets this world.
    groups.init(ranks.engine, ranks.timeout, claimed=False)
    try:
        call()
    finally:
        groups.close()
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test whose ranks are processes; all other tests go their usual way."""
    ranks = item.stash.get(_KEY, None)
    if ranks is None or ranks.engine == "threads" or _place() is not None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in _run(item, ranks):
        item.ihook.pytest_runtest_logreport(report=report)
    # Fixtures of earlier tests that only this one seemed to need: pytest would end them after it.
    ending = pytest.CallInfo.from_call(
        lambda: item.session._setupstate.teardown_exact(nextitem), when="teardown"
    )
    if ending.excinfo is not None:
        report = item.ihook.pytest_runtest_makereport(item=item, call=ending)
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


# ---- in the process of a rank --------------------------------------------------------------------


@functools.cache
def _place() -> dict[str, Any] | None:
    """Who we are, if we were started as a rank."""
    text = os.environ.get(_VARIABLE)
    return None if text is None else json.loads(text)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Before anything of the user's runs, make sure that we die with the parent."""
    place = _place()
    if place is not None:
        from unisono.launch.process import die_with_parent

        die_with_parent(place["parent"])


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Drop the options that are the parent's business."""
    if _place() is not None:
        for name, value in _FOLLOWED.items():
            if hasattr(config.option, name):
                setattr(config.option, name, value)


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known and, in the process of a rank, send reports to the parent."""
    config.addinivalue_line("markers", _MARKER)
    place = _place()
    if place is not None:
        config.pluginmanager.register(_Reporter(config, Path(place["reports"])))


class _Reporter:
    """Writes each report as a line of JSON."""

    def __init__(self, config: pytest.Config, path: Path) -> None:
        self._config = config
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._write(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(report)

    def _write(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        with self._path.open("a") as stream:
            print(json.dumps(data, default=str), file=stream)


# ---- in the parent: the processes ----------------------------------------------------------------


def _run(item: pytest.Item, ranks: _Ranks) -> list[pytest.TestReport]:
    """Run the test on processes and return its reports, one for each phase."""
    import subprocess

    from unisono.launch.process import Job

    job = Job(ranks.n)
    show = item.config.getoption("capture") == "no"
    with tempfile.TemporaryDirectory(prefix="unisono-pytest-") as name:
        folder = Path(name)
        processes: list[Popen[bytes]] = []
        try:
            for rank in range(ranks.n):
                place = {"parent": os.getpid(), "reports": str(folder / f"{rank}.reports")}
                with (folder / f"{rank}.output").open("wb") as output:
                    process = subprocess.Popen(
                        _command(item),
                        cwd=item.config.invocation_params.dir,
                        env={**os.environ, **job.variables(rank), _VARIABLE: json.dumps(place)},
                        stdin=subprocess.DEVNULL,
                        stdout=None if show else output,
                        stderr=None if show else subprocess.STDOUT,
                    )
                processes.append(process)
            stopped = _watch(processes, ranks.timeout)
        finally:
            _end(processes)
        outcomes = [
            _Outcome.read(item, folder, rank, process.returncode, stopped.get(rank))
            for rank, process in enumerate(processes)
        ]
        return list(_merge(outcomes))


def _command(item: pytest.Item) -> list[str]:
    """A pytest with the parent's options and configuration that runs this test only."""
    config = item.config
    paths = set(config.option.file_or_dir)
    options = [str(word) for word in config.invocation_params.args if str(word) not in paths]
    place = [f"--rootdir={config.rootpath}"]
    if config.inipath is not None:
        place.append(f"--config-file={config.inipath}")
    _, _, within = item.nodeid.partition("::")
    return [sys.executable, "-m", "pytest", *options, *place, f"{item.path}::{within}"]


def _watch(processes: list[Popen[bytes]], timeout: float) -> dict[int, str]:
    """Wait for all; returns the ranks that have to be ended, with the reason."""
    deadline = time.monotonic() + timeout
    reason = f"was still running after {timeout:g} s"
    failed = False
    while True:
        codes = [process.poll() for process in processes]
        alive = [rank for rank, code in enumerate(codes) if code is None]
        if not failed and any(codes):
            failed = True
            patience = time.monotonic() + _GRACE
            if patience < deadline:
                deadline, reason = patience, "was ended because another rank had failed"
        if not alive or time.monotonic() > deadline:
            return dict.fromkeys(alive, reason)
        time.sleep(0.02)


def _end(processes: list[Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()


# ---- in the parent: many reports become one ------------------------------------------------------


@dataclass
class _Outcome:
    """What came back from one rank."""

    rank: int
    reports: dict[str, pytest.TestReport]
    stopped: bool

    @classmethod
    def read(
        cls, item: pytest.Item, folder: Path, rank: int, code: int, reason: str | None
    ) -> _Outcome:
        """Read the reports; for a rank that did not come to its end, write the one it owes."""
        reports: dict[str, pytest.TestReport] = {}
        path = folder / f"{rank}.reports"
        for line in path.read_text().splitlines() if path.exists() else []:
            try:
                data = json.loads(line)
            except ValueError:
                break  # ended while it wrote this
            report = item.config.hook.pytest_report_from_serializable(config=item.config, data=data)
            if isinstance(report, pytest.TestReport):
                report.nodeid, report.location = item.nodeid, item.location
                reports[report.when] = report
            else:
                reports["setup"] = _failure(item, "setup", report.longrepr)
        owes = "teardown" not in reports and not any(report.failed for report in reports.values())
        if owes:
            from unisono.launch.process import ending

            when = "call" if "setup" in reports else "setup"
            output = (folder / f"{rank}.output").read_text(errors="replace")[-_TAIL:]
            text = f"rank {rank} {reason or 'ended without a report: ' + ending(code)}"
            reports[when] = _failure(item, when, f"{text}\n{output}".rstrip())
        # One that was stopped after its reports, while it tidied up, has told its own story.
        return cls(rank, reports, owes and reason is not None)

    def blame(self, when: str) -> int:
        """How likely this rank is the cause: the lower the likelier."""
        if self.stopped:
            return 2
        return int("PeerLost" in _crash(self.reports[when]))


def _failure(item: pytest.Item, when: Any, text: Any) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome="failed",
        longrepr=text,
        when=when,
    )


def _crash(report: pytest.TestReport) -> str:
    """The last line of an error, as the short summary shows it."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(report.longrepr) if crash is None else str(crash.message)
    return text.partition("\n")[0]


def _merge(outcomes: list[_Outcome]) -> Iterator[pytest.TestReport]:
    """For each phase the report of the rank that failed, else that skipped, else of rank 0."""
    size = len(outcomes)
    for when in ("setup", "call", "teardown"):
        present = [outcome for outcome in outcomes if when in outcome.reports]
        if not present:
            continue
        failed = [outcome for outcome in present if outcome.reports[when].failed]
        skipped = [outcome for outcome in present if outcome.reports[when].skipped]
        failed.sort(key=lambda outcome: (outcome.blame(when), outcome.rank))
        if skipped and failed and failed[0].blame(when):
            failed = []  # they only miss the rank that skipped
        chosen = (failed or skipped or present)[0]
        report = chosen.reports[when]
        report.sections = [(f"{name} (rank {chosen.rank})", text) for name, text in report.sections]
        if failed:
            _sign(report, chosen.rank, size)
            others = [
                f"rank {outcome.rank}: {_crash(outcome.reports[when])}"
                for outcome in failed
                if outcome is not chosen
            ]
            if others:
                report.sections.append(("the other ranks that failed", "\n".join(others)))
        yield report
        if when == "setup" and not report.passed:
            return


def _sign(report: pytest.TestReport, rank: int, size: int) -> None:
    """Put the rank into the report, where the failure and where the summary shows it."""
    label = f"on rank {rank} of {size}"
    representation: Any = report.longrepr
    if hasattr(representation, "addsection"):
        representation.addsection(label, "", "_")
    else:
        report.longrepr = f"{label}: {representation}"
    crash = getattr(representation, "reprcrash", None)
    if crash is not None:
        crash.message = f"{label}: {crash.message}"
