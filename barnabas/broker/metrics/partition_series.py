"""Partition series: kafka.cluster:type=Partition, kafka.log:type=Log, and kafka.server:type=ReplicaManager sums."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.metrics_core import Metric

from barnabas.broker.metrics.column_table import ColumnTable, Page
from barnabas.broker.metrics.exposition import Collected
from barnabas.broker.metrics.families import counter, gauge
from barnabas.broker.metrics.line_table import Series, partition_labels
from barnabas.broker.replica.alter_partition import IsrChanges
from barnabas.broker.replica.core.machine import Replica
from barnabas.broker.replica.log_dirs import LogDirectories
from barnabas.broker.replica.replicas import Replicas

PAGES_PER_SLICE: Final = 4

PARTITION_SERIES: Final = tuple(
    Series(name, "gauge", doc)
    for name, doc in (
        ("kafka_cluster_partition_underreplicated", "1 if this leader has replicas that are not in sync."),
        ("kafka_cluster_partition_underminisr", "1 if this leader has fewer in sync than min.insync.replicas."),
        ("kafka_cluster_partition_atminisr", "1 if this leader has just min.insync.replicas in sync."),
        ("kafka_cluster_partition_insyncreplicascount", "Replicas in sync; 0 on a follower."),
        ("kafka_cluster_partition_replicascount", "Replicas; 0 on a follower."),
        ("kafka_cluster_partition_laststableoffsetlag", "Offsets from the last stable offset to the high watermark."),
        ("kafka_log_log_size", "Bytes of the log's segments."),
        ("kafka_log_log_numlogsegments", "Segments of the log."),
        ("kafka_log_log_logstartoffset", "The first offset of the log."),
        ("kafka_log_log_logendoffset", "The offset after the last one of the log."),
    )
)
LEADER_SERIES: Final = 5  # the first ones follow from leader and ISR
LAG, SIZE, SEGMENTS, START, END = range(LEADER_SERIES, len(PARTITION_SERIES))
UNDER_REPLICATED, UNDER_MIN_ISR, AT_MIN_ISR = range(3)


class _Known:
    """The last known values of a page."""

    __slots__ = ("high_watermarks", "leaders", "states", "sums")

    def __init__(self, states: list[tuple[int, int, int]], leaders: int, sums: list[int]) -> None:
        self.states = states  # of the replicas, for leader and ISR
        self.leaders = leaders  # number of leading replicas
        self.sums = sums  # of the first series, up to AT_MIN_ISR
        self.high_watermarks: list[int] = []  # of the replicas


class PartitionSeries:
    """Reads each page of replicas at each scrape; remakes its text only after a change."""

    def __init__(self, replicas: Replicas, isr_changes: IsrChanges, log_dirs: LogDirectories) -> None:
        self._replicas = replicas
        self._isr_changes = isr_changes
        self._log_dirs = log_dirs
        self._table: ColumnTable[Replica] = ColumnTable(PARTITION_SERIES, _labels)

    def collect(self) -> Iterator[Collected]:
        open_replicas = [each for each in self._replicas.all() if not each.failed]
        yield None
        yield from self._table.follow(open_replicas)
        yield None
        sums = [0] * (AT_MIN_ISR + 1)
        leaders = 0
        for count, page in enumerate(self._table.pages, 1):
            known = _brought_up_to_date(page)
            leaders += known.leaders
            sums = [one + other for one, other in zip(sums, known.sums, strict=True)]
            if count % PAGES_PER_SLICE == 0:
                yield None
        yield self._table
        yield from self._sums(len(open_replicas), leaders, sums)

    def _sums(self, partitions: int, leaders: int, sums: list[int]) -> Iterator[Metric]:
        offline = sum(
            replica.failed for directory in self._log_dirs if not directory.online for replica in directory.replicas
        )
        prefix = "kafka_server_replicamanager_"
        for name, doc, value in (
            ("leadercount", "Partitions that this broker leads.", leaders),
            ("partitioncount", "Partitions of this broker.", partitions + offline),
            ("offlinereplicacount", "Partitions of this broker in log directories that have failed.", offline),
            ("underreplicatedpartitions", "Partitions led here with replicas out of sync.", sums[UNDER_REPLICATED]),
            ("underminisrpartitioncount", "Partitions led here below min.insync.replicas.", sums[UNDER_MIN_ISR]),
            ("atminisrpartitioncount", "Partitions led here with just min.insync.replicas.", sums[AT_MIN_ISR]),
        ):
            yield gauge(prefix + name, doc, value)
        changes = self._isr_changes
        yield counter(f"{prefix}isrshrinks_total", "ISRs that this leader made smaller.", changes.shrinks)
        yield counter(f"{prefix}isrexpands_total", "ISRs that this leader made larger.", changes.expansions)
        yield counter(f"{prefix}failedisrupdates_total", "ISR changes that failed or were refused.", changes.failed)
        yield gauge(
            "kafka_log_logmanager_offlinelogdirectorycount",
            "Log directories that have failed.",
            sum(not directory.online for directory in self._log_dirs),
        )


def _brought_up_to_date(page: Page[Replica]) -> _Known:
    replicas = page.keys
    known = page.known
    states = [(each.in_sync.partition_epoch, each.leader_id, each.min_insync_replicas) for each in replicas]
    if not isinstance(known, _Known) or known.states != states:
        rows = [_leader_row(each) for each in replicas]
        columns = [list(column) for column in zip(*rows, strict=True)]
        for number, column in enumerate(columns):
            page.put(number, column)
        leaders = sum(each.is_leader for each in replicas)
        known = page.known = _Known(states, leaders, [sum(column) for column in columns[: AT_MIN_ISR + 1]])
    logs = [each.log for each in replicas]
    marks = [each.high_watermark for each in replicas]
    changed = page.put(END, [log.log_end_offset for log in logs])
    changed |= page.put(SIZE, [log.size_bytes for log in logs])
    changed |= page.put(START, [log.log_start_offset for log in logs])
    if changed or marks != known.high_watermarks:
        known.high_watermarks = marks
        page.put(LAG, _lags(replicas))
        page.put(SEGMENTS, [len(log.segments) for log in logs])
    return known


def _lags(replicas: list[Replica]) -> list[int]:
    """From the last stable offset to the high watermark. Most partitions have no transaction: they need no call."""
    return [
        each.high_watermark - each.last_stable_offset
        if (producers := each.log.producers).ongoing or producers.unreplicated
        else 0
        for each in replicas
    ]


def _leader_row(replica: Replica) -> tuple[int, ...]:
    """Values of one replica that follow from leader and ISR, in the order of PARTITION_SERIES."""
    in_sync = replicas = 0
    under_replicated = under_min_isr = at_min_isr = False
    if replica.is_leader:
        in_sync, replicas = len(replica.isr), len(replica.in_sync.followers) + 1
        under_replicated = in_sync < replicas
        under_min_isr = in_sync < replica.min_insync_replicas
        at_min_isr = in_sync == replica.min_insync_replicas
    return int(under_replicated), int(under_min_isr), int(at_min_isr), in_sync, replicas


def _labels(replica: Replica) -> str:
    return partition_labels(replica.topic, replica.partition)
