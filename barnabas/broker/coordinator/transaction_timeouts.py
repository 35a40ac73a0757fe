"""Transaction timeouts (`transaction.timeout.ms`), by the monotonic clock from when this coordinator knows the transaction, and expiry of
unused transactional ids (`transactional.id.expiration.ms`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.coordinator.host.decision import Decision
from barnabas.broker.coordinator.shard_host import ShardHost
from barnabas.broker.coordinator.transactions.producer_ids import ProducerIds
from barnabas.broker.coordinator.transactions.records import TransactionRecord
from barnabas.broker.coordinator.transactions.shard import TransactionAnswer, TransactionShard
from barnabas.broker.coordinator.transactions.state import TransactionMetadata
from barnabas.broker.scheduling.reactor import Reactor
from barnabas.errors import BrokerError
from barnabas.loggers import logger

log = logger("kafka.coordinator.transaction")

ABORT_RETRY_MS = 1_000  # pause after an abort that failed
TOMBSTONES_PER_BATCH = 500  # about 20 ms of the loop
PAUSE_MS = 50


class TransactionTimeouts:
    """Aborts timed-out transactions of a node. `transaction_version`: () → finalized level of the feature."""

    def __init__(
        self,
        reactor: Reactor,
        host: ShardHost[TransactionShard],
        producer_ids: ProducerIds,
        transaction_version: Callable[[], int],
    ) -> None:
        self._time = reactor.client_time
        self._host = host
        self._producer_ids = producer_ids
        self._transaction_version = transaction_version
        self._timer: Any = None
        self._due_ms = 0
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def set_deadline(self, deadline_ms: int) -> None:
        """Looks for transactions to abort at this monotonic time in ms, or earlier."""
        if self._stopped or (self._timer is not None and self._due_ms <= deadline_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due_ms = deadline_ms
        delay_ms = max(deadline_ms - self._time.clock.monotonic_ms(), 0)
        self._timer = self._time.call_later(delay_ms, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now_ms = self._time.clock.monotonic_ms()
        next_ms: int | None = None
        for partition, shard in self._host.active_shards():
            for timed_out in shard.timed_out(now_ms):
                self._abort(partition, timed_out)
            deadline_ms = shard.next_deadline_ms()
            if deadline_ms is not None:
                deadline_ms = deadline_ms if deadline_ms > now_ms else now_ms + ABORT_RETRY_MS
                next_ms = deadline_ms if next_ms is None else min(next_ms, deadline_ms)
        if next_ms is not None:
            self.set_deadline(next_ms)

    def _abort(self, partition: int, timed_out: TransactionMetadata) -> None:
        write = partial(self._write_abort, partition, timed_out)
        if timed_out.is_epoch_exhausted:
            self._producer_ids.when_available(write)
        else:
            write(None)

    def _write_abort(self, partition: int, timed_out: TransactionMetadata, error: BrokerError | None) -> None:
        if error is not None:
            return  # the next try follows after ABORT_RETRY_MS

        def decide(shard: TransactionShard, now_ms: int) -> Decision[TransactionAnswer, TransactionRecord]:
            return shard.abort_timed_out(timed_out, self._producer_ids.take, self._transaction_version(), now_ms)

        self._host.write(partition, decide, partial(_log_abort, timed_out))


def _log_abort(timed_out: TransactionMetadata, outcome: TransactionAnswer | BrokerError) -> None:
    if not isinstance(outcome, BrokerError):
        log.info(
            "Transaction timed out and is aborted: transactional_id=%s timeout_ms=%d",
            timed_out.transactional_id,
            timed_out.timeout_ms,
        )


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
