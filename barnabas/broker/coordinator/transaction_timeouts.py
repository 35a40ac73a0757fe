"""Transaction timeouts (`transaction.timeout.ms`), by the monotonic clock from when this coordinator knows the transaction."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

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
