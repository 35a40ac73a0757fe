"""Loggers of a node: names, which are Kafka's where Kafka has them (prefix "barnabas." in Python), and levels.
A line has a constant template: a sentence, then details as `key=%s`, which the output escapes (`runtime/log_lines.py`).
Never log keys, values or headers of records.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Final

PREFIX: Final = "barnabas"
ROOT: Final = "root"
TRACE: Final = 5
# Kafka's names of levels
LEVELS: Final = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": TRACE,
}
# name → what it logs
LOGGERS: Final = {
    ROOT: "every logger without a level of its own",
    "kafka.authorizer.logger": "decisions of the authorizer: what was denied; DEBUG: what was allowed, TRACE: what was only not listed",
    "kafka.cluster.Partition": "the replicas of this node: truncations, records lost, ISR proposals that fail",
    "kafka.controller": "the controller: elections, brokers that are fenced, decisions that failed",
    "kafka.coordinator.group": "the group coordinator: loading, states and members of groups",
    "kafka.coordinator.transaction": "the transaction coordinator: loading, fences, timeouts, markers; DEBUG: every transaction",
    "kafka.log.LogCleaner": "the cleaner of compacted topics: each run",
    "kafka.log.LogManager": "log directories and their recovery, folders of partitions",
    "kafka.log.UnifiedLog": "the log of a partition: retention, damaged segments",
    "kafka.network.SocketServer": "connections that are refused or closed by this node",
    "kafka.raft": "the metadata quorum: votes, leaders, snapshots",
    "kafka.request.logger": "requests that failed inside this node; DEBUG: every request",
    "kafka.server": "the node: start, stop, its session with the controller, its connections to other nodes",
    "kafka.server.ReplicaFetcherThread": "fetches from the leaders of other brokers",
    "kafka.server.metadata": "what changes in the cluster: topics, configurations, brokers, features",
    "state.change.logger": "leaderships of this node, and ISR changes of the partitions that it leads",
}


def logger(name: str) -> logging.Logger:
    """The Python logger of one of LOGGERS. Raises KeyError for another name."""
    if name not in LOGGERS:
        raise KeyError(f"{name!r} is not in barnabas.loggers.LOGGERS")
    return logging.getLogger(python_name(name))


def python_name(name: str) -> str:
    """Name of a logger in Python's logging."""
    return PREFIX if name == ROOT else f"{PREFIX}.{name}"


def shown_name(python: str) -> str:
    """Name in log lines: that of LOGGERS if there is one, else Python's."""
    name = python.removeprefix(f"{PREFIX}.")
    return name if name in LOGGERS else python


class RateLimitedLogger:
    """Writes a line that peers can cause at will once in AGAIN_MS, and at most KEYS_MAX different ones in that time.

    Args:
        now_ms: the monotonic clock.
    """

    AGAIN_MS: Final = 60_000
    KEYS_MAX: Final = 1_000

    def __init__(self, log: logging.Logger, now_ms: Callable[[], int]) -> None:
        self._log = log
        self._now_ms = now_ms
        self._written: dict[Hashable, int] = {}  # key → when it was written; the oldest is first

    def is_due(self, key: Hashable) -> bool:
        """Whether a line with this key may be written now; then it counts as written."""
        now_ms = self._now_ms()
        while self._written and now_ms - next(iter(self._written.values())) >= self.AGAIN_MS:
            del self._written[next(iter(self._written))]
        if key in self._written or len(self._written) >= self.KEYS_MAX:
            return False
        self._written[key] = now_ms
        return True

    def error(self, template: str, *values: object) -> None:
        """Writes a line at level ERROR; its text is its key."""
        if self.is_due(template % values):
            self._log.error(template, *values)
