"""For pytest: `@pytest.mark.ranks(4)` runs a test function on four ranks.

With engine "threads", the default, the ranks are threads of this process and share the values of
fixtures. With any other engine each rank is a separate pytest process that runs this one test,
fixtures included, and sends its reports here; the report of the rank that caused a failure becomes
the report of the test.

Every pytest run of everyone who has installed unisono loads this module, so it imports little.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from unisono.launch.outcome import RankOutcome

__all__ = [
    "pytest_cmdline_main",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_load_initial_conftests",
    "pytest_pyfunc_call",
    "pytest_runtest_protocol",
]

_DESCRIPTION = (
    "ranks(n, engine='threads', timeout=60): run the test function on n ranks. `engine` is the "
    "engine that connects them; `timeout` is how many seconds a rank may wait for others and, "
    "where ranks are processes, how long the test may take."
)
_VARIABLE = "UNISONO_PYTEST_RANK"  # set in the process of a rank: its settings, as JSON
_SETTLE = 2.0  # seconds for the other ranks to end by themselves once one has failed
_TAIL = 4000  # characters of a rank's output that are shown if it ended without a report

#: Options that the parent has applied already and that would do harm in the process of a rank.
_PARENT_OPTIONS: dict[str, Any] = {
    **dict.fromkeys(["basetemp", "deselect", "numprocesses", "xmlpath"]),
    **dict.fromkeys(["cacheclear", "failedfirst", "lf", "newfirst", "stepwise", "usepdb"], False),
    **dict.fromkeys(["keyword", "markexpr"], ""),
    "dist": "no",
    "maxfail": 0,
    "tx": [],
}


@dataclass(frozen=True)
class _Marker:
    """The arguments of the marker."""

    n: int
    engine: str = "threads"
    timeout: float = 60.0


_MARKER_KEY = pytest.StashKey[_Marker]()


# ---- the marker ----------------------------------------------------------------------------------


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Read the markers, so that a wrong one is a usage error before any test runs."""
    for item in items:
        marker = item.get_closest_marker("ranks")
        if marker is not None:
            item.stash[_MARKER_KEY] = _read(item, marker)


def _read(item: pytest.Item, marker: pytest.Mark) -> _Marker:
    try:
        ranks = _Marker(*marker.args, **marker.kwargs)
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
    arguments = [repr(value) for value in marker.args]
    arguments += [f"{name}={value!r}" for name, value in marker.kwargs.items()]
    return f"ranks({', '.join(arguments)})"


@functools.cache
def _engines() -> frozenset[str]:
    from importlib.metadata import entry_points

    return frozenset(point.name for point in entry_points(group="unisono.engines"))


# ---- running a test function on ranks ------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run the function in threads or, in the process of a rank, as that rank."""
    marker = pyfuncitem.stash.get(_MARKER_KEY, None)
    if marker is None:
        return None
    names = pyfuncitem._fixtureinfo.argnames
    call = functools.partial(pyfuncitem.obj, **{name: pyfuncitem.funcargs[name] for name in names})
    if marker.engine == "threads":
        from unisono.launch.spawn import spawn

        spawn(call, marker.n, engine="threads", timeout=marker.timeout)
        return True
    from unisono.core import groups

    # Not claimed, so that a test that calls init itself gets this world.
    groups.init(marker.engine, marker.timeout, claimed=False)
    try:
        call()
    finally:
        groups.close()
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test whose ranks are processes; leave all other tests to pytest."""
    marker = item.stash.get(_MARKER_KEY, None)
    if marker is None or marker.engine == "threads" or _settings() is not None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in _run(item, marker):
        item.ihook.pytest_runtest_logreport(report=report)
    # End the fixtures of earlier tests that no later test needs, as pytest does after each test.
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
def _settings() -> dict[str, Any] | None:
    """Return what our parent told us, if we were started as a rank."""
    text = os.environ.get(_VARIABLE)
    return None if text is None else json.loads(text)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Make sure that we die with the parent, before any code of the user runs."""
    settings = _settings()
    if settings is not None:
        from unisono.launch.process import die_with_parent

        die_with_parent(settings["parent"])


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Drop the options that are only for the parent."""
    if _settings() is not None:
        for name, value in _PARENT_OPTIONS.items():
            if hasattr(config.option, name):
                setattr(config.option, name, value)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker and, in the process of a rank, send reports to the parent."""
    config.addinivalue_line("markers", _DESCRIPTION)
    settings = _settings()
    if settings is not None:
        config.pluginmanager.register(_Reporter(config, Path(settings["reports"])))


class _Reporter:
    """Writes each report as a line of JSON, together with a summary of the error as data."""

    def __init__(self, config: pytest.Config, path: Path) -> None:
        self._config = config
        self._path = path

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
        made = yield
        if call.excinfo is not None:
            from unisono.launch.outcome import ErrorSummary

            made.get_result().unisono_error = ErrorSummary.of(call.excinfo.value).to_data()

    def pytest_exception_interact(self, call: pytest.CallInfo[Any], report: Any) -> None:
        """With --pdb, let the first rank that fails by itself have the terminal."""
        first = self._path.with_name("debugger")
        if call.excinfo is None or not (_settings() or {}).get("pdb"):
            return
        from unisono.core.debugging.debugger import post_mortem
        from unisono.errors import LaunchError
        from unisono.launch.outcome import Blame, ErrorSummary

        if ErrorSummary.of(call.excinfo.value).blame == Blame.FAILED:
            with contextlib.suppress(FileExistsError, LaunchError):  # no terminal, no debugger
                first.touch(exist_ok=False)
                rank = os.environ["RANK"]
                label = f"\n{report.nodeid} failed on rank {rank}; here is pdb (q ends it)"
                post_mortem(call.excinfo.tb, f"{report.longreprtext}\n{label}")

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


def _run(item: pytest.Item, marker: _Marker) -> list[pytest.TestReport]:
    """Run the test on processes and return its reports, one for each phase."""
    import subprocess

    from unisono.launch.supervisor import EndPolicy, Supervisor

    show = item.config.getoption("capture") == "no"
    debugs = bool(item.config.getoption("usepdb", False))
    # Ranks are pytest processes, which have nothing to save: no SIGTERM comes before SIGKILL. One
    # in a debugger has no deadline.
    policy = EndPolicy(grace=float("inf") if debugs else _SETTLE, kill_after=0.0)
    with tempfile.TemporaryDirectory(prefix="unisono-pytest-") as name:
        folder = Path(name)
        with Supervisor(marker.n, policy, has_threads=True) as supervisor:
            for rank in range(marker.n):
                settings = {
                    "parent": os.getpid(),
                    "reports": str(folder / f"{rank}.reports"),
                    "pdb": debugs,
                }
                with (folder / f"{rank}.output").open("wb") as output:
                    supervisor.start(
                        _command(item),
                        {_VARIABLE: json.dumps(settings)},
                        cwd=item.config.invocation_params.dir,
                        stdin=subprocess.DEVNULL,
                        stdout=None if show else output,
                        stderr=None if show else subprocess.STDOUT,
                    )
            if not debugs:
                supervisor.stop(marker.timeout, f"was still running after {marker.timeout:g} s")
            supervisor.watch()
        ranks = [
            _RankReports.read(
                item, folder, rank, supervisor.codes[rank], supervisor.stopped.get(rank)
            )
            for rank in range(marker.n)
        ]
        return list(_merge(ranks))


def _command(item: pytest.Item) -> list[str]:
    """A pytest with the parent's options and configuration that runs this test only."""
    config = item.config
    paths = set(config.option.file_or_dir)
    options = [str(word) for word in config.invocation_params.args if str(word) not in paths]
    configuration = [f"--rootdir={config.rootpath}"]
    if config.inipath is not None:
        configuration.append(f"--config-file={config.inipath}")
    _, _, within = item.nodeid.partition("::")
    return [sys.executable, "-m", "pytest", *options, *configuration, f"{item.path}::{within}"]


# ---- in the parent: many reports become one ------------------------------------------------------


@dataclass
class _RankReports:
    """The reports of one rank, by phase; `missing` says how it ended if it owes us one."""

    rank: int
    reports: dict[str, pytest.TestReport]
    missing: RankOutcome | None

    @classmethod
    def read(
        cls, item: pytest.Item, folder: Path, rank: int, code: int, stopped: str | None
    ) -> _RankReports:
        """Read the reports; if the rank did not finish its test, write the one that is missing."""
        reports: dict[str, pytest.TestReport] = {}
        path = folder / f"{rank}.reports"
        for line in path.read_text().splitlines() if path.exists() else []:
            try:
                data = json.loads(line)
            except ValueError:
                break  # the rank ended while it wrote this
            report = item.config.hook.pytest_report_from_serializable(config=item.config, data=data)
            if isinstance(report, pytest.TestReport):
                report.nodeid, report.location = item.nodeid, item.location
                reports[report.when] = report
            else:
                reports["setup"] = _failure(item, "setup", report.longrepr)
        # A rank that was ended after its reports, while it cleaned up, has told us all we need.
        if "teardown" in reports or any(report.failed for report in reports.values()):
            return cls(rank, reports, None)
        from unisono.launch.outcome import RankOutcome, exit_text

        when = "call" if "setup" in reports else "setup"
        output = (folder / f"{rank}.output").read_text(errors="replace")[-_TAIL:]
        text = f"rank {rank} {stopped or 'ended without a report: ' + exit_text(code)}"
        reports[when] = _failure(item, when, f"{text}\n{output}".rstrip())
        return cls(rank, reports, RankOutcome(rank, code, None, stopped))

    def outcome(self, when: str) -> RankOutcome:
        """How the rank failed in this phase."""
        from unisono.launch.outcome import ErrorSummary, RankOutcome

        if self.missing is not None:
            return self.missing
        error = getattr(self.reports[when], "unisono_error", None)
        return RankOutcome(self.rank, None, error and ErrorSummary.from_data(error))


def _failure(item: pytest.Item, when: Any, text: Any) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome="failed",
        longrepr=text,
        when=when,
    )


def _error_line(report: pytest.TestReport) -> str:
    """Return the first line of an error's text, as pytest's short summary shows it."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(report.longrepr) if crash is None else str(crash.message)
    return text.partition("\n")[0]


def _merge(ranks: list[_RankReports]) -> Iterator[pytest.TestReport]:
    """Choose for each phase the report of a rank that failed, or skipped, or of rank 0."""
    for when in ("setup", "call", "teardown"):
        present = [one for one in ranks if when in one.reports]
        if not present:
            continue
        failed = _failed(present, when)
        skipped = [one for one in present if one.reports[when].skipped]
        chosen = (failed or skipped or present)[0]
        report = chosen.reports[when]
        report.sections = [(f"{name} (rank {chosen.rank})", text) for name, text in report.sections]
        if failed:
            _name_rank(report, chosen.rank, len(ranks))
            others = [
                f"rank {one.rank}: {_error_line(one.reports[when])}"
                for one in failed
                if one is not chosen
            ]
            if others:
                report.sections.append(("the other ranks that failed", "\n".join(others)))
        yield report
        if when == "setup" and not report.passed:
            return


def _failed(present: list[_RankReports], when: str) -> list[_RankReports]:
    """Return the ranks that failed in this phase, the likely cause first."""
    from unisono.launch.outcome import Blame, by_blame

    failed = {one.rank: one for one in present if one.reports[when].failed}
    outcomes = by_blame(one.outcome(when) for one in failed.values())
    has_skipped = any(one.reports[when].skipped for one in present)
    if has_skipped and outcomes and outcomes[0].blame > Blame.FAILED:
        return []  # they only miss the rank that skipped
    return [failed[outcome.rank] for outcome in outcomes]


def _name_rank(report: pytest.TestReport, rank: int, size: int) -> None:
    """Put the rank into the report, where the failure and where the summary show it."""
    label = f"on rank {rank} of {size}"
    representation: Any = report.longrepr
    if hasattr(representation, "addsection"):
        representation.addsection(label, "", "_")
    else:
        report.longrepr = f"{label}: {representation}"
    crash = getattr(representation, "reprcrash", None)
    if crash is not None:
        crash.message = f"{label}: {crash.message}"
