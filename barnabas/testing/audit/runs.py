"""Runs the tests that have used `kafka` again, once under each disturbance, by pytest's own steps: function-scoped fixtures are new.
Only passed tests run again. docs/adr/0004-test-kit.md has the reasons.
"""

from __future__ import annotations

import copy
import faulthandler
import os
import signal
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, NoReturn

import pytest
from _pytest.runner import runtestprotocol  # as plugins that repeat tests do: pytest has no public name for it

from barnabas.testing.audit.disturbances import DISTURBANCES
from barnabas.testing.errors import patience, unknown
from barnabas.testing.history.reporting import failure_text
from barnabas.testing.stash import AUDITED, DISTURBANCE, DISTURBED, FAILED

MarkedLine = tuple[str, dict[str, bool]]


class Outcome(NamedTuple):
    """Outcome of a test under one disturbance."""

    disturbance: str
    result: str  # "passed", "failed" or "skipped"
    done: list[str]  # a sentence for each disturbance; empty: not reached
    reason: str  # of a failure, or why the disturbance was not possible

    @property
    def failed(self) -> bool:
        return self.result == "failed"

    def __str__(self) -> str:
        if self.result == "skipped":
            return self.result
        if self.failed:
            return "FAILED" if self.done else "FAILED undisturbed"
        return "passed" if self.done else "not reached"


def audit_lines(outcomes: Mapping[str, list[Outcome]]) -> Iterator[MarkedLine]:
    """The table, the failures and a one-line summary."""
    if not outcomes:
        yield "no test has run under a disturbance: none that uses `kafka` has passed", {}
        return
    yield from _table(outcomes)
    yield from _failures(outcomes)
    fragile = sum(any(each.failed for each in found) for found in outcomes.values())
    reached = [each for found in outcomes.values() for each in found if each.done]
    of = sum(map(len, outcomes.values()))
    tests = "1 test" if len(outcomes) == 1 else f"{len(outcomes)} tests"
    passes = "1 passes" if fragile == 1 else f"{fragile} pass"
    text = f"{tests}: {passes} only without a disturbance; {len(reached)} of {of} disturbances were reached"
    yield text, {"red": True, "bold": True} if fragile else {"green": True}


def _table(outcomes: Mapping[str, list[Outcome]]) -> Iterator[MarkedLine]:
    width = max(len("test"), *map(len, outcomes))
    columns = {name: max(len(title), len("FAILED undisturbed")) for name, title in DISTURBANCES.items()}
    head = "  ".join(title.ljust(columns[name]) for name, title in DISTURBANCES.items())
    yield f"{'test'.ljust(width)}  {head}".rstrip(), {"bold": True}
    for test, found in outcomes.items():
        told = {each.disturbance: str(each) for each in found}
        row = "  ".join(told.get(name, "-").ljust(size) for name, size in columns.items())
        yield f"{test.ljust(width)}  {row}".rstrip(), {"red": True} if any(each.failed for each in found) else {}


def _failures(outcomes: Mapping[str, list[Outcome]]) -> Iterator[MarkedLine]:
    for test, found in outcomes.items():
        for each in found:
            if not each.failed and not each.reason:
                continue
            yield "", {}
            yield f"{test}, {DISTURBANCES[each.disturbance]}: {each.reason}", {"red": True}
            for sentence in each.done:
                yield f"  {sentence}", {}
            if each.failed:
                yield f"  to see it: pytest --kafka-disturb={each.disturbance} '{test}'", {}
    yield "", {}


LIMIT_S: Final = 60  # of a test's body under a disturbance, unless its first run took longer than a tenth of that
LIMIT_FACTOR: Final = 10
HANG_S: Final = 15.0  # later the run ends: the test, with its fixtures, hangs where no signal reaches it
REASON_CHARS_MAX: Final = 300


def begin_audit(config: pytest.Config) -> None:
    """Checks the options and registers the audit if requested."""
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
        config.pluginmanager.register(Audit(config), "kafka-audit")
    elif not config.getoption("usepdb"):
        config.pluginmanager.register(Limit(disturbance), "kafka-audit-limit")


class Limit:
    """Limits the time of disturbed tests, which may wait for what the disturbance removed; `disturbance` "": none."""

    def __init__(self, disturbance: str = "") -> None:
        self._disturbance = disturbance
        self._limit_s = LIMIT_S * patience()
        self._outcomes: dict[str, list[Outcome]] = {}  # by node id of the test
        self._terminal = os.dup(2)  # before pytest captures it

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Ends the run if a test with its fixtures hangs."""
        with self._watched(item, self._disturbance):
            return (yield)

    @contextmanager
    def _watched(self, item: pytest.Item, disturbance: str) -> Iterator[None]:
        """Ends the process if a test hangs where no signal reaches it, as in C code."""
        limit_s = self._limit_s + HANG_S * patience()
        watchdog = threading.Timer(limit_s, self._end_run, (item, disturbance, limit_s))
        watchdog.daemon = True
        watchdog.start()
        try:
            yield
        finally:
            watchdog.cancel()

    def _end_run(self, item: pytest.Item, disturbance: str, limit_s: float) -> NoReturn:
        test, reason = item.nodeid, f"the test hangs; the run ends after {limit_s:g} s, because no signal ends it"
        done, _ = item.stash.get(DISTURBED, ([], ""))
        os.write(self._terminal, f"\n\n{test}, {DISTURBANCES[disturbance]}: {reason}\n".encode())
        faulthandler.dump_traceback(self._terminal, all_threads=True)
        told = {**self._outcomes, test: [*self._outcomes.get(test, []), Outcome(disturbance, "failed", done, reason)]}
        lines = ["", failure_text(test, None), *(line for line, _ in audit_lines(told)), ""]
        os.write(self._terminal, "\n".join(lines).encode(errors="replace"))
        os._exit(pytest.ExitCode.INTERRUPTED)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        if not (self._disturbance or DISTURBANCE in item.stash):
            return (yield)
        with _limited(self._limit_s):
            return (yield)


class Audit(Limit):
    """The pytest plugin that repeats tests."""

    def __init__(self, config: pytest.Config) -> None:
        super().__init__()
        self._strict: bool = config.getoption("--kafka-audit-strict")
        self._config = config
        self._again: list[pytest.TestReport] | None = None  # of subtests of a test that runs again: they log themselves

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(  # type: ignore[override]  # pytest calls hooks by the names of their arguments
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool:
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        outcomes: list[Outcome] = []
        for report in reports[:-1]:
            item.ihook.pytest_runtest_logreport(report=report)
        try:
            if len(reports) == 3 and all(each.passed for each in reports) and item.stash.get(AUDITED, False):
                longest_s = max(each.duration for each in reports)
                self._limit_s = max(LIMIT_S * patience(), LIMIT_FACTOR * longest_s)
                self._outcomes[item.nodeid] = outcomes
                for name in DISTURBANCES:
                    self._show(f"{item.nodeid}, {DISTURBANCES[name]} … ")
                    outcomes.append(self._run_again(item, nextitem, name))
                    self._show(f"{outcomes[-1]}\n")
        finally:
            if outcomes:
                vars(reports[-1])["kafka_audit"] = [each._asdict() for each in outcomes]
                reports[-1].user_properties += [(f"kafka-audit-{each.disturbance}", str(each)) for each in outcomes]
            item.ihook.pytest_runtest_logreport(report=reports[-1])
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _run_again(self, item: pytest.Item, nextitem: pytest.Item | None, name: str) -> Outcome:
        if isinstance(item, pytest.Function) and getattr(item, "_instance", None) is not None:
            item._obj = None  # so pytest makes a new instance of the test's class, as it does for each test
            del item._instance
        item.stash[DISTURBANCE], item.stash[FAILED] = name, False
        item.stash[DISTURBED] = [], ""
        self._again = []
        try:
            with self._watched(item, name):
                reports = runtestprotocol(item, nextitem=nextitem, log=False)
            failed = next((each for each in [*self._again, *reports] if each.failed), None)
        finally:
            del item.stash[DISTURBANCE]
            self._again = None
        done, problem = item.stash[DISTURBED]
        if failed is not None:
            return Outcome(name, "failed", done, _reason(failed))
        return Outcome(name, "skipped" if any(each.skipped for each in reports) else "passed", done, problem)

    def _show(self, text: str) -> None:
        """Shows progress unless this is an xdist worker, which has no terminal."""
        terminal: pytest.TerminalReporter | None = self._config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None:
            if not text.endswith("\n"):
                terminal.ensure_newline()
            terminal.write(text, flush=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collects outcomes, including those of workers. A subtest that fails in a repetition does not fail the session."""
        if self._again is not None:
            if report.failed:
                self._again.append(copy.copy(report))
                report.outcome, report.longrepr = "passed", None
            return
        found: list[dict[str, Any]] = vars(report).get("kafka_audit", [])
        if found and report.nodeid not in self._outcomes:  # of a worker
            self._outcomes[report.nodeid] = [Outcome(**each) for each in found]
            for each in self._outcomes[report.nodeid]:
                self._show(f"{report.nodeid}, {DISTURBANCES[each.disturbance]} … ")
                self._show(f"{each}\n")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if (
            self._strict
            and session.exitstatus == pytest.ExitCode.OK
            and any(map(_fails_disturbed, self._outcomes.values()))
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("kafka audit")
        for line, markup in audit_lines(self._outcomes):
            terminalreporter.write_line(line, **markup)


def _fails_disturbed(outcomes: list[Outcome]) -> bool:
    return any(each.failed for each in outcomes)


def _reason(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(report.longrepr) if crash is None else crash.message
    where = "" if report.when == "call" else f"at {report.when}: "
    return f"{where}{text.strip().partition(chr(10))[0]}"[:REASON_CHARS_MAX]


@contextmanager
def _limited(limit_s: float) -> Iterator[None]:
    """Fails the test after `limit_s`. No limit outside the main thread or if the timer signal is already in use."""
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
