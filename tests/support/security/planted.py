"""A search for passwords of tests in all that a run shows: reports of tests, output of commands, logs of brokers.

Passwords in tests begin with PLANTED. Driven by: pytest (tests/conftest.py registers the hook), and the code that reads logs and output.
Emits: failed tests. It costs a search for a short text in what is captured anyway.
"""

from __future__ import annotations

import re
from collections.abc import Generator

import pytest

PLANTED = "planted-"
# aiokafka and kafka-python write every request to their debug log, with the password of a login.
_OTHERS = re.compile(r"^DEBUG +(aiokafka|kafka\.net|kafka\.protocol)[.:].*$", re.MULTILINE)
AROUND = 400  # characters before and after it in an error


def without_secrets(text: str, where: str) -> str:
    """Returns the text. Raises AssertionError if it holds a password of a test."""
    found = text.find(PLANTED)
    if found >= 0:
        around = re.sub(rf"{PLANTED}[\w-]*", "***", text[max(0, found - AROUND) : found + AROUND])
        raise AssertionError(f"a planted password is in {where}, where *** is:\n{around}")
    return text


@pytest.hookimpl(wrapper=True, tryfirst=True)  # outside of hooks that add sections
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fails a test whose captured output or log has a planted password."""
    report = yield
    if report.outcome == "passed":  # a failed test shows its source, too
        try:
            for title, content in report.sections:
                if not title.startswith("Captured ") or title.endswith(report.when):  # others were seen before
                    without_secrets(_OTHERS.sub("", content) if PLANTED in content else content, title)
        except AssertionError as error:
            report.outcome, report.longrepr = "failed", f"{item.nodeid}: {error}"
    return report
