"""Expiry of unused transactional ids after `transactional.id.expiration.ms`."""

from __future__ import annotations

from functools import partial
from typing import Any

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.coordinator.shard_host import ShardHost
from barnabas.broker.coordinator.transactions.shard import TransactionShard
from barnabas.broker.scheduling.reactor import Reactor
from barnabas.errors import BrokerError

TOMBSTONES_PER_BATCH = 500  # about 20 ms of the loop
PAUSE_MS = 50


class TransactionalIdExpiry:
    """Deletes the unused transactional ids of the shards of a node."""

    def __init__(self, reactor: Reactor, config: BrokerConfig, host: ShardHost[TransactionShard]) -> None:
        self._reactor = reactor
        self._config = config
        self._host = host
        self._timer: Any = None

    def start(self) -> None:
        interval_ms = self._config.get_int("transaction.remove.expired.transaction.cleanup.interval.ms")
        self._timer = self._reactor.call_later(interval_ms, partial(self._expire_from, 0))

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def expire_batch(self) -> int:
        """Writes one batch of tombstones now; returns the number of ids."""
        return self._write_batch(0)[1]

    def _expire_from(self, first: int) -> None:
        """Writes one batch of tombstones; continues with this or the next partition after a pause."""
        partition, written = self._write_batch(first)
        if written:
            again = partition if written == TOMBSTONES_PER_BATCH else partition + 1
            self._timer = self._reactor.call_later(PAUSE_MS, partial(self._expire_from, again))
        else:
            self.start()

    def _write_batch(self, first: int) -> tuple[int, int]:
        """Writes the tombstones of one partition, from `first` on. Returns the partition and their number."""
        before_ms = self._reactor.clock.now_ms() - self._config.get_int("transactional.id.expiration.ms")
        for partition, shard in self._host.active_shards():
            expirable = shard.expirable(before_ms)[:TOMBSTONES_PER_BATCH] if partition >= first else []
            for transactional_id in expirable:
                self._expire(partition, transactional_id, before_ms)
            if expirable:
                return partition, len(expirable)
        return first, 0

    def _expire(self, partition: int, transactional_id: str, before_ms: int) -> None:
        self._host.write(partition, lambda shard, _now_ms: shard.expire(transactional_id, before_ms), _ignore)


def _ignore(_outcome: BrokerError | None) -> None:
    """The next check finds an id that could not be deleted."""
