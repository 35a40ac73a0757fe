"""The search for planted passwords fails a run that shows one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes.served import ServedBroker
from tests.support.security import planted
from tests.support.security.planted import PLANTED

pytest_plugins = ("pytester",)

OTHER = "other-"  # the prefix in runs inside of this one, which has the hook, too, and captures what they print
ROOT = Path(__file__).parents[3]
SHOWN = {
    "stdout": "print(SECRET)",
    "stderr": "print(SECRET, file=sys.stderr)",
    "log": "logging.warning('user=alice password=%s', SECRET)",
    "setup": "",
    "nothing": "assert SECRET",
}


@pytest.mark.parametrize("where", SHOWN)
def test_a_run_that_shows_a_password_fails(
    where: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeconftest("from tests.support.security.planted import pytest_runtest_makereport\n")
    pytester.makepyfile(
        "import logging, sys, pytest\n"
        f"SECRET = {OTHER!r} + 'word'\n"
        "@pytest.fixture\n"
        f"def before():\n    {'print(SECRET)' if where == 'setup' else 'pass'}\n"
        f"def test_it(before):\n    {SHOWN[where] or 'pass'}\n"
    )
    with monkeypatch.context() as inside:
        inside.setattr(planted, "PLANTED", OTHER)
        result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    if where == "nothing":
        result.assert_outcomes(passed=1)
    else:
        result.assert_outcomes(failed=int(where != "setup"), errors=int(where == "setup"))
        result.stdout.fnmatch_lines([f"*a planted password is in Captured {where.replace('setup', 'stdout setup')}*"])


def test_the_hook_is_in_use(request: pytest.FixtureRequest) -> None:
    names = [
        each.plugin_name
        for each in request.config.pluginmanager.hook.pytest_runtest_makereport.get_hookimpls()
        if each.function.__module__ == "tests.support.security.planted"
    ]
    assert [Path(name) for name in names] == [ROOT / "tests" / "conftest.py"]


def test_a_broker_that_logs_a_password_fails_its_test(tmp_path: Path) -> None:
    broker = ServedBroker(tmp_path / "data")
    broker.stderr_path.write_text(f"INFO kafka.server: Login: user=alice password={PLANTED}word\n")
    with pytest.raises(
        AssertionError, match=r"a planted password is in the log of node 1, where \*\*\* is:\nINFO .* password=\*\*\*"
    ):
        broker.end()
