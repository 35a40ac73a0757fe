"""Levels of loggers at run time; tests/oracle/test_admin_diff.py compares the answers with Kafka's."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from barnabas.broker.controller.core.configs import ConfigOperation
from barnabas.broker.handlers.logger_levels import alter_levels, level_of, logger_entries
from barnabas.errors import BrokerError, ErrorCode
from barnabas.loggers import LOGGERS, logger, python_name
from barnabas.protocol.messages.admin import AlterableConfig

SET, DELETE = ConfigOperation.SET, ConfigOperation.DELETE


@pytest.fixture(autouse=True)
def levels() -> Iterator[None]:
    before = {name: logging.getLogger(python_name(name)).level for name in LOGGERS}
    yield
    for name, level in before.items():
        logging.getLogger(python_name(name)).setLevel(level)


def change(name: str, value: str | None, operation: ConfigOperation = SET) -> AlterableConfig:
    return AlterableConfig(name=name, value=value, config_operation=operation)


def test_a_level_reaches_the_loggers_below_it() -> None:
    alter_levels([change("root", "ERROR"), change("kafka.server", "DEBUG")], validate_only=False)
    assert level_of("kafka.server.metadata") == "DEBUG"
    assert level_of("kafka.raft") == "ERROR"
    assert logger("kafka.server.metadata").isEnabledFor(logging.DEBUG)
    assert not logger("kafka.raft").isEnabledFor(logging.WARNING)
    alter_levels([change("kafka.server", None, DELETE)], validate_only=False)
    assert level_of("kafka.server.metadata") == "ERROR"
    assert [entry.name for entry in logger_entries()] == sorted(LOGGERS)


def test_all_changes_or_none() -> None:
    alter_levels([change("root", "WARN")], validate_only=False)
    with pytest.raises(BrokerError) as refused:
        alter_levels([change("kafka.raft", "DEBUG"), change("nope", "DEBUG")], validate_only=False)
    assert refused.value.code == ErrorCode.INVALID_CONFIG
    alter_levels([change("kafka.raft", "DEBUG")], validate_only=True)
    assert level_of("kafka.raft") == "WARN"


def test_very_many_changes_cost_no_more_than_a_few() -> None:
    with pytest.raises(BrokerError, match=r"Logger x0 does not exist"):
        alter_levels([change(f"x{number}", "INFO") for number in range(99_000)], validate_only=False)
    with pytest.raises(BrokerError, match="duplicate"):
        alter_levels([change(name, "INFO") for name in LOGGERS] * 2, validate_only=False)


def test_an_unknown_logger_is_no_logger() -> None:
    with pytest.raises(KeyError):
        logger("kafka.nope")
