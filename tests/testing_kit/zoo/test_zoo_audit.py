"""Bugs of the zoo in plain tests, without any fault: `--kafka-audit` finds them, and reports nothing of their twins."""

from __future__ import annotations

import pytest

from tests.support.pytest_runs import plugin

pytest_plugins = ("pytester",)
__all__ = ["plugin"]
pytestmark = pytest.mark.clients

for needed in ("aiokafka", "confluent_kafka", "kafka"):
    pytest.importorskip(needed)

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


@pytest.mark.parametrize(
    ("disturbance", "tests"),
    [
        ("redelivery", ["test_payments"]),
        # aiokafka's transactional producer gives up if a leader dies in the midst of a batch, so the copy meets this one alone.
        ("rebalance", ["test_totals", "test_copies"]),
    ],
)
def test_the_audit_finds_them(pytester: pytest.Pytester, disturbance: str, tests: list[str]) -> None:
    """By the disturbance that shows each bug; tests/testing_kit/test_audit.py has the table of all disturbances."""
    pytester.makepyfile(test_it=TESTS)
    run = pytester.runpytest_inprocess("--tb=line", f"--kafka-disturb={disturbance}", "-k", " or ".join(tests), "-rA")
    run.assert_outcomes(passed=len(tests), failed=len(tests))
    shown = set(run.outlines)
    assert {f"PASSED test_it.py::{each}[twin]" for each in tests} <= shown
    assert {each for each in tests if any(line.startswith(f"FAILED test_it.py::{each}[bug]") for line in shown)} == set(
        tests
    )
