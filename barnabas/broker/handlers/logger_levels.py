"""Levels of the loggers of this process, as the resource BROKER_LOGGER shows and changes them (KIP-412).

A level that is set here holds until the process ends; it is in no log of the cluster. A logger without a level of its own has that of the
logger whose name is the beginning of its own, else that of `root`. Nodes that share a process share its loggers.

Follows Kafka's LoggingController: its checks, their order and their texts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Final

from barnabas.broker.config.entries import ConfigEntry
from barnabas.broker.config.key import ConfigSource
from barnabas.broker.controller.core.configs import ConfigOperation
from barnabas.errors import BrokerError, ErrorCode
from barnabas.loggers import LEVELS, LOGGERS, ROOT, python_name
from barnabas.protocol.messages.admin import AlterableConfig

_UNKNOWN_TYPE: Final = 0  # of a configuration key
_NAMES: Final = sorted(LEVELS.items(), key=lambda pair: -pair[1])

_levels_before: dict[str, int] = {}  # Python's name of a logger → its own level before the first change here


def level_of(name: str) -> str:
    """Returns Kafka's name of the level that a logger of LOGGERS has, also if it is another's."""
    level = logging.getLogger(python_name(name)).getEffectiveLevel()
    return next((known for known, number in _NAMES if number <= level), "TRACE")


def logger_entries() -> Iterable[ConfigEntry]:
    """Returns every logger with its level, by name."""
    source = ConfigSource.DYNAMIC_BROKER_LOGGER
    for name in sorted(LOGGERS):
        yield ConfigEntry(
            name=name,
            value=level_of(name),
            source=source,
            effective_source=source,
            read_only=False,
            sensitive=False,
            type=_UNKNOWN_TYPE,
            doc=LOGGERS[name],
            synonyms=(),
        )


def alter_levels(changes: Sequence[AlterableConfig], *, validate_only: bool) -> None:
    """Sets or removes levels: all of them, or none.

    Raises:
        BrokerError: INVALID_CONFIG: an unknown logger or level. INVALID_REQUEST: an operation that levels do not have.
    """
    changes = changes[: len(LOGGERS) + 1]  # more than there are loggers: the beginning has a repeated or an unknown one
    if len({change.name for change in changes}) < len(changes):
        raise BrokerError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    for change in changes:
        if change.value is None and change.config_operation != ConfigOperation.DELETE:
            raise BrokerError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {change.name}")
    for change in changes:
        _check(change)
    if validate_only:
        return
    for change in changes:
        sets = change.config_operation == ConfigOperation.SET and change.value is not None
        level = LEVELS[change.value] if sets and change.value is not None else logging.NOTSET
        changed = logging.getLogger(python_name(change.name))
        _levels_before.setdefault(changed.name, changed.level)
        changed.setLevel(level)


def restore_levels() -> None:
    """Gives each logger the level that it had before `alter_levels` changed it. For a process that outlives its nodes."""
    while _levels_before:
        name, level = _levels_before.popitem()
        logging.getLogger(name).setLevel(level)


def _check(change: AlterableConfig) -> None:
    operation, name = change.config_operation, change.name
    if operation in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
        verb = ConfigOperation(operation).name
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"{verb} operation is not allowed for the BROKER_LOGGER resource")
    if operation not in (ConfigOperation.SET, ConfigOperation.DELETE):
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"Unknown config operation {operation}")
    if name not in LOGGERS:
        raise BrokerError(ErrorCode.INVALID_CONFIG, f"Logger {name} does not exist!")
    if operation == ConfigOperation.DELETE:
        if name == ROOT:
            raise BrokerError(ErrorCode.INVALID_REQUEST, "Removing the log level of the root logger is not allowed")
    elif change.value not in LEVELS:
        raise BrokerError(
            ErrorCode.INVALID_CONFIG,
            f"Cannot set the log level of {name} to {change.value} as it is not a supported log level. "
            f"Valid log levels are {', '.join(sorted(LEVELS))}",
        )
