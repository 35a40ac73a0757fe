"""A test that ends its own `kafka`, and logger levels that a test has changed: the next test does not notice."""

from __future__ import annotations

import pytest

from tests.support.pytest_runs import plugin

pytest_plugins = ("pytester",)
__all__ = ["plugin"]


ENDS = """
import logging
import pytest
from barnabas.testing import KitError

def test_one(kafka, kafka_producer, kafka_consumer):
    kafka.stop()

@pytest.mark.kafka(brokers=3)
def test_three(kafka):
    kafka.stop()

@pytest.mark.kafka(brokers=3)
def test_three_again(kafka):
    assert kafka.create_topic("orders", partitions=3) == "orders"

@pytest.mark.kafka(isolation="process")
def test_process(kafka):
    kafka.stop()

def test_start_again(kafka):
    kafka.stop()
    kafka.start()
    kafka.create_topic("orders")

@pytest.mark.kafka(isolation="namespace")
def test_shared(kafka):
    with pytest.raises(KitError, match="other tests use these brokers"):
        kafka.stop()

@pytest.mark.kafka(isolation="namespace")
def test_shared_again(kafka):
    kafka.create_topic("orders")
"""

LEVELS = """
import logging
import pytest
from barnabas.client import Admin
from barnabas.client.admin import ConfigResource

LOGGER = logging.getLogger("barnabas.kafka.controller")

def change(kafka):
    async def alter():
        async with Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
            await admin.alter_config_resource(ConfigResource("broker-logger", "1"), {"kafka.controller": "TRACE"})
    kafka.wait(alter())
    assert LOGGER.level == 5

@pytest.mark.kafka(isolation="ISOLATION", brokers=BROKERS)
def test_change(kafka):
    change(kafka)

@pytest.mark.kafka(isolation="ISOLATION", brokers=BROKERS)
def test_next(kafka):
    assert LOGGER.level == logging.WARNING
"""


def _run(pytester: pytest.Pytester, source: str, passed: int) -> None:
    pytester.makepyfile(source)
    pytester.runpytest_inprocess().assert_outcomes(passed=passed)


def test_a_test_may_end_its_own_kafka(pytester: pytest.Pytester) -> None:
    _run(pytester, ENDS, 7)


@pytest.mark.parametrize(("isolation", "brokers"), [("namespace", 1), ("cluster", 1), ("cluster", 2)])
def test_levels_of_loggers_are_those_of_one_test(pytester: pytest.Pytester, isolation: str, brokers: int) -> None:
    source = LEVELS.replace("ISOLATION", isolation).replace("BROKERS", str(brokers))
    _run(pytester, "import logging\nlogging.getLogger('barnabas.kafka.controller').setLevel('WARNING')\n" + source, 2)


def test_levels_are_restored_with_the_end_of_the_last_cluster(pytester: pytest.Pytester) -> None:
    tail = """
def test_plain():
    from barnabas.testing import Broker
    LOGGER.setLevel("WARNING")
    with Broker() as other:
        with Broker() as kafka:
            change(kafka)
        assert LOGGER.level == 5
    assert LOGGER.level == logging.WARNING
"""
    _run(pytester, LEVELS.partition("\n@pytest.mark")[0] + tail, 1)
