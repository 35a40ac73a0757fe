"""Audit: runs the tests that have used `kafka` again, once under each disturbance.

Driven by: pytest's hooks, where `--kafka-audit` or `--kafka-audit-strict` is given. Emits: the reports of the first run of each test,
as without the audit; the last of them carries the outcomes of the other runs, also from a worker of xdist; the table; with
`--kafka-audit-strict` the exit status 1 if a test fails under a disturbance.

A test is run again by pytest's own steps, as pytest-rerunfailures does it, so all its fixtures of scope "function" are new. Only a test
that has passed runs again: what fails undisturbed tells nothing about disturbances. docs/adr/0004-test-kit.md has the reasons.
"""

from __future__ import annotations

import copy
import signal
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from _pytest.runner import runtestprotocol  # as plugins that repeat tests do: pytest has no public name for it

from barnabas.testing.audit.disturbances import DISTURBANCES
from barnabas.testing.audit.table import Outcome, audit_lines
from barnabas.testing.errors import unknown
from barnabas.testing.stash import AUDITED, DISTURBANCE, DISTURBED, FAILED

__all__ = ["Audit", "begin_audit"]

LIMIT_S: Final = 60  # of a test's body under a disturbance, unless its first run took longer than a tenth of that
LIMIT_FACTOR: Final = 10
REASON_CHARS_MAX: Final = 300


def begin_audit(config: pytest.Config) -> None:
    """Checks the options; registers the audit if it is wanted."""
    disturbance = config.getoption("--kafka-disturb")
    if disturbance and disturbance not in DISTURBANCES:
        raise pytest.UsageError(f"--kafka-disturb: {unknown('disturbance', disturbance, DISTURBANCES)}")
    audit = config.getoption("--kafka-audit") or config.getoption("--kafka-audit-strict")
    if config.getoption("--kafka-bootstrap"):
        raise pytest.UsageError(
            "--kafka-audit and --kafka-disturb disturb brokers of the kit, and --kafka-bootstrap names a running Kafka: "
            "leave one of them out"
        )
    if audit and disturbance:
        raise pytest.UsageError(
            "--kafka-audit runs tests under every disturbance, --kafka-disturb under one: leave one out"
        )
    if audit:
        config.pluginmanager.register(Audit(strict=config.getoption("--kafka-audit-strict")), "kafka-audit")


class Audit:
    """See the module.

    Args:
        strict: whether the run fails if a test fails under a disturbance.
    """

    def __init__(self, strict: bool) -> None:
        self._strict = strict
        self._limit_s = float(LIMIT_S)
        self._again: list[pytest.TestReport] | None = None  # of subtests of a test that runs again: they log themselves
        self._outcomes: dict[str, list[Outcome]] = {}  # by node id of the test

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Runs a test as it is, and then under each disturbance."""
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        outcomes: list[Outcome] = []
        for report in reports[:-1]:
            item.ihook.pytest_runtest_logreport(report=report)
        try:
            if len(reports) == 3 and all(each.passed for each in reports) and item.stash.get(AUDITED, False):
                self._limit_s = max(LIMIT_S, LIMIT_FACTOR * max(each.duration for each in reports))
                for name in DISTURBANCES:
                    outcomes.append(self._run_again(item, nextitem, name))
        finally:
            if outcomes:
                vars(reports[-1])["kafka_audit"] = [each._asdict() for each in outcomes]
                reports[-1].user_properties += [(f"kafka-audit-{each.disturbance}", str(each)) for each in outcomes]
            item.ihook.pytest_runtest_logreport(report=reports[-1])
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _run_again(self, item: pytest.Item, nextitem: pytest.Item | None, name: str) -> Outcome:
        """Runs a test with new fixtures under a disturbance."""
        if isinstance(item, pytest.Function) and getattr(item, "_instance", None) is not None:
            item._obj = None  # so pytest makes a new instance of the test's class, as it does for each test
            del item._instance
        item.stash[DISTURBANCE], item.stash[FAILED] = name, False
        item.stash[DISTURBED] = [], ""
        self._again = []
        try:
            reports = runtestprotocol(item, nextitem=nextitem, log=False)
            failed = next((each for each in [*self._again, *reports] if each.failed), None)
        finally:
            del item.stash[DISTURBANCE]
            self._again = None
        done, problem = item.stash[DISTURBED]
        if failed is not None:
            return Outcome(name, "failed", done, _reason(failed))
        return Outcome(name, "skipped" if any(each.skipped for each in reports) else "passed", done, problem)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        """Limits the time of a disturbed test: it may wait for what the disturbance has removed."""
        if DISTURBANCE not in item.stash:
            return (yield)
        with _limited(self._limit_s):
            return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collects the outcomes, also those of workers. A subtest that fails in a later run is no failure of the session."""
        if self._again is not None:
            if report.failed:
                self._again.append(copy.copy(report))
                report.outcome, report.longrepr = "passed", None
            return
        found: list[dict[str, Any]] = vars(report).get("kafka_audit", [])
        if found:
            self._outcomes[report.nodeid] = [Outcome(**each) for each in found]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Sets the exit status."""
        if (
            self._strict
            and session.exitstatus == pytest.ExitCode.OK
            and any(map(_fails_disturbed, self._outcomes.values()))
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Shows the table."""
        terminalreporter.section("kafka audit")
        for line, markup in audit_lines(self._outcomes):
            terminalreporter.write_line(line, **markup)


def _fails_disturbed(outcomes: list[Outcome]) -> bool:
    return any(each.failed for each in outcomes)


def _reason(report: pytest.TestReport) -> str:
    """One line about a failure."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(report.longrepr) if crash is None else crash.message
    where = "" if report.when == "call" else f"at {report.when}: "
    return f"{where}{text.strip().partition(chr(10))[0]}"[:REASON_CHARS_MAX]


@contextmanager
def _limited(limit_s: float) -> Iterator[None]:
    """Fails the test when its time is over. Works only in the main thread, if no one else uses its timer; otherwise there is no limit."""
    free = (
        hasattr(signal, "setitimer")
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    )
    if not free:
        yield
        return

    def over(*_: object) -> None:
        pytest.fail(f"the test took longer than {limit_s:g} s under the disturbance")

    signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
