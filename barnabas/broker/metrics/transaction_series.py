"""Transaction series: open and prepared ones by coordinator, time to complete, and open ones by partition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from barnabas.broker.coordinator.transaction_coordinator import TransactionCoordinator
from barnabas.broker.coordinator.transactions.answer_counts import BOUNDS_MS, AnswerCounts
from barnabas.broker.coordinator.transactions.state import TransactionState
from barnabas.broker.metrics.exposition import Collected
from barnabas.broker.metrics.line_table import LineTable, Series, labels_text
from barnabas.broker.replica.core.machine import Replica
from barnabas.broker.replica.replicas import Replicas
from barnabas.broker.scheduling.reactor import Reactor

CHECKED_PER_SLICE: Final = 2_000  # transactional ids, or replicas
PREFIX: Final = "barnabas_transactions_"
OPEN_BY_PARTITION: Final = tuple(
    Series(f"barnabas_partition_{name}", "gauge", doc)
    for name, doc in (
        ("last_stable_offset_lag", "Offsets from the last stable offset to the high watermark."),
        ("open_transactions", "Open transactions of the partition."),
        (
            "oldest_transaction_seconds",
            "How long the oldest open transaction is open, from the first scrape that shows it.",
        ),
    )
)


class TransactionSeries:
    """An open two-phase transaction counts as kept once a later producer takes it over (KIP-939).

    Its age by partition begins with the first scrape that shows it, because timestamps of records are the client's; its age at the
    coordinator begins with the transaction.
    """

    def __init__(self, reactor: Reactor, transactions: TransactionCoordinator, replicas: Replicas) -> None:
        self._reactor = reactor
        self._transactions = transactions
        self._replicas = replicas
        self._table: LineTable[Replica] = LineTable(
            OPEN_BY_PARTITION, lambda each: labels_text(topic=each.topic, partition=str(each.partition))
        )
        self._oldest: dict[Replica, tuple[int, int]] = {}  # first offset of the oldest one, and since when it is shown

    def collect(self) -> Iterator[Collected]:
        yield from self._coordinated()
        coordinator = self._transactions
        yield GaugeMetricFamily(
            f"{PREFIX}markers_waiting",
            "Decided transactions whose markers are not in all partitions yet.",
            len(coordinator.markers),
        )
        yield CounterMetricFamily(
            f"{PREFIX}concurrent_answers", "Requests answered CONCURRENT_TRANSACTIONS.", coordinator.counts.concurrent
        )
        yield _histogram(coordinator.counts)
        yield from self._partitions()
        yield self._table

    def _coordinated(self) -> Iterator[Metric | None]:
        now_ms = self._reactor.clock.now_ms()
        counts = {"false": 0, "true": 0}
        oldest_ms = {"false": now_ms, "true": now_ms}
        ids = kept = cost = 0
        for _, shard in self._transactions.host.active_shards():
            for each in list(shard.transactions.values()):
                ids += 1
                cost += 1
                if each.state is TransactionState.ONGOING:
                    two_phase = "true" if each.is_two_phase else "false"
                    counts[two_phase] += 1
                    oldest_ms[two_phase] = min(oldest_ms[two_phase], each.started_ms)
                    kept += each.is_kept
                if cost >= CHECKED_PER_SLICE:
                    cost = 0
                    yield None
        yield GaugeMetricFamily("barnabas_transactional_ids", "Transactional ids that are coordinated here.", ids)
        opened = GaugeMetricFamily(f"{PREFIX}open", "Open transactions.", labels=["two_phase"])
        ages = GaugeMetricFamily(
            f"{PREFIX}oldest_open_seconds", "Age of the oldest open transaction; 0 without one.", labels=["two_phase"]
        )
        for two_phase, count in counts.items():
            opened.add_metric([two_phase], count)
            ages.add_metric([two_phase], (now_ms - oldest_ms[two_phase]) / 1000)
        yield opened
        yield ages
        yield GaugeMetricFamily(
            f"{PREFIX}prepared", "Prepared transactions that a later producer has taken over.", kept
        )

    def _partitions(self) -> Iterator[None]:
        now_ms = self._reactor.clock.monotonic_ms()
        found: dict[Replica, tuple[int, int]] = {}
        replicas = list(self._replicas.all())
        with_open: list[Replica] = []
        for start in range(0, len(replicas), CHECKED_PER_SLICE):
            with_open += [each for each in replicas[start : start + CHECKED_PER_SLICE] if each.log.producers.ongoing]
            yield None
        for at, replica in enumerate(with_open, 1):
            first = replica.log.producers.first_undecided_offset
            if first is not None and replica.is_leader and not replica.failed:
                known = self._oldest.get(replica)
                found[replica] = shown = known if known is not None and known[0] == first else (first, now_ms)
                lag = replica.high_watermark - replica.last_stable_offset
                count = replica.log.producers.ongoing_count
                self._table.put(replica, (lag, count, (now_ms - shown[1]) / 1000))
            if at % CHECKED_PER_SLICE == 0:
                yield None
        for replica in self._oldest:
            if replica not in found:
                self._table.drop(replica)
        self._oldest = found


def _histogram(counts: AnswerCounts) -> Metric:
    buckets: list[tuple[str, float]] = []
    passed = 0
    for bound_ms, count in zip((*BOUNDS_MS, None), counts.completed, strict=True):
        passed += count
        buckets.append(("+Inf" if bound_ms is None else str(bound_ms / 1000), passed))
    doc = "From the decision about a transaction to its completion: all its partitions have the outcome."
    return HistogramMetricFamily(
        f"{PREFIX}completion_seconds", doc, buckets=buckets, sum_value=counts.completion_ms / 1000
    )
