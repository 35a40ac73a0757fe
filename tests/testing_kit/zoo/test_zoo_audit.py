"""Bugs of the zoo in plain tests, without any fault: `--kafka-audit` finds them, and reports nothing of their twins."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ("pytester",)
pytestmark = pytest.mark.clients

for needed in ("confluent_kafka", "kafka"):
    pytest.importorskip(needed)

ROOT = Path(__file__).parents[3]
TESTS = """
    import pytest
    import asyncio
    from tests.testing_kit.zoo import evicted_within_transaction, retry_without_idempotence, state_kept_over_rebalance
    from tests.testing_kit.zoo.keeper import Zoo, same

    pytestmark = [
        pytest.mark.kafka(topics={"in": 1, "out": 1}),
        pytest.mark.parametrize("correct", [True, False], ids=["twin", "bug"]),
    ]

    def test_payments(kafka, correct):
        retry_without_idempotence.save(kafka.bootstrap_servers, correct)
        same(Zoo(kafka).written("out"), [b"10 EUR"])

    def test_totals(kafka, correct):
        Zoo(kafka).fill("in", b"1", b"1", b"1")
        totals = state_kept_over_rebalance.Totals(kafka.bootstrap_servers, correct)
        totals.run()
        assert totals.saved == 3

    def test_copies(kafka, correct):
        Zoo(kafka).fill("in", b"0", b"1", b"end")
        asyncio.run(asyncio.wait_for(evicted_within_transaction.copy(kafka.bootstrap_servers, correct), 60))
        same(Zoo(kafka).written("out"), [b"0", b"1", b"end"])
"""


def test_the_audit_finds_them(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makepyfile(test_it=TESTS)
    # Before CPython 3.11.8 two threads cannot call ast.parse at once (gh-106905): pytest does for long tracebacks, logging for others.
    options = ("-p", "barnabas.testing.plugin", "-p", "no:cacheprovider", "--tb=line", "--kafka-audit")
    run = pytester.runpytest_subprocess(*options)
    run.assert_outcomes(passed=6)
    rows = [line.removeprefix("test_it.py::") for line in run.outlines if line.startswith("test_it.py::test_")]
    told = {row.split()[0]: [each.strip() for each in row.split("  ")[1:] if each] for row in rows if "," not in row}
    # aiokafka's transactional producer gives up if a leader dies in the midst of a batch, so the copy is judged by its own disturbance.
    assert [told.pop(f"test_copies[{which}]")[2] for which in ("twin", "bug")] == ["not reached", "FAILED"]
    assert told == {
        "test_payments[twin]": ["passed", "not reached", "not reached", "passed"],
        "test_payments[bug]": ["FAILED", "not reached", "not reached", "FAILED"],
        "test_totals[twin]": ["passed", "passed", "passed", "passed"],
        "test_totals[bug]": ["passed", "passed", "FAILED", "passed"],
    }
    run.stdout.fnmatch_lines(["6 tests: * pass only without a disturbance; * of 24 disturbances were reached"])
