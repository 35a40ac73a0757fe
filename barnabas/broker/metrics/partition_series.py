"""The series of partitions: kafka.cluster:type=Partition, kafka.log:type=Log, and their sums of kafka.server:type=ReplicaManager.

Driven by: `Exposition`. Emits: a table with a row for each open replica of this node, and gauges.

A row is made again only if the state of its replica has changed since the last scrape. The sums follow the rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.metrics_core import Metric

from barnabas.broker.metrics.families import counter, gauge
from barnabas.broker.metrics.line_table import LineTable, Series, labels_text
from barnabas.broker.replica.alter_partition import IsrChanges
from barnabas.broker.replica.directories import LogDirectories
from barnabas.broker.replica.machine import Replica
from barnabas.broker.replica.replicas import Replicas

__all__ = ["PARTITION_SERIES", "PartitionSeries"]

CHECKED_PER_SLICE: Final = 2_000  # replicas; one that has changed counts as CHANGED_COST of them
CHANGED_COST: Final = 6

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
_State = tuple[int, int, int, int, int, int, int]
ISR_STATE_AT: Final = 4  # from here on a state is that of leader and ISR, before of the log
ISR_SERIES: Final = 5
_NO_ROW: Final = (0,) * len(PARTITION_SERIES)


class PartitionSeries:
    """See the module."""

    def __init__(self, replicas: Replicas, isr_changes: IsrChanges, log_dirs: LogDirectories) -> None:
        self._replicas = replicas
        self._isr_changes = isr_changes
        self._log_dirs = log_dirs
        self._table: LineTable[Replica] = LineTable(PARTITION_SERIES, _labels)
        self._states: dict[Replica, _State] = {}
        self._rows: dict[Replica, tuple[int, ...]] = {}
        self._under_replicated = self._under_min_isr = self._at_min_isr = 0

    def collect(self) -> Iterator[Metric | LineTable[Replica] | None]:
        """The table, and the gauges of all replicas."""
        states = self._states
        open_replicas = {each: None for each in self._replicas.all() if not each.failed}
        yield None
        cost = leaders = 0
        for replica in open_replicas:
            log, in_sync = replica.log, replica.in_sync
            leads = replica.leader_id == replica.node_id
            state = (
                log.log_end_offset,
                log.size_bytes,
                log.log_start_offset,
                replica.high_watermark,
                in_sync.partition_epoch,
                replica.leader_id,
                replica.min_insync_replicas,
            )
            leaders += leads
            cost += 1
            former = states.get(replica)
            if former != state:
                states[replica] = state
                if former is not None and former[ISR_STATE_AT:] == state[ISR_STATE_AT:]:  # only the log has changed
                    row = self._rows[replica] = self._rows[replica][:ISR_SERIES] + _log_row(replica)
                    self._table.put(replica, row)
                else:
                    self._put(replica, _row(replica, leads=leads))
                cost += CHANGED_COST
            if cost >= CHECKED_PER_SLICE:
                cost = 0
                yield None
        if len(states) > len(open_replicas):
            for replica in [each for each in states if each not in open_replicas]:
                self._put(replica, None)
                del states[replica]
        yield self._table
        yield from self._sums(len(open_replicas), leaders)

    def _put(self, replica: Replica, row: tuple[int, ...] | None) -> None:
        """Sets or drops a row, and brings the sums up to date."""
        former, new = self._rows.pop(replica, _NO_ROW), row or _NO_ROW
        self._under_replicated += new[0] - former[0]
        self._under_min_isr += new[1] - former[1]
        self._at_min_isr += new[2] - former[2]
        if row is None:
            self._table.drop(replica)
        else:
            self._rows[replica] = row
            self._table.put(replica, row)

    def _sums(self, partitions: int, leaders: int) -> Iterator[Metric]:
        offline = sum(
            replica.failed for directory in self._log_dirs if not directory.online for replica in directory.replicas
        )
        prefix = "kafka_server_replicamanager_"
        for name, doc, value in (
            ("leadercount", "Partitions that this broker leads.", leaders),
            ("partitioncount", "Partitions of this broker.", partitions + offline),
            ("offlinereplicacount", "Partitions of this broker in log directories that have failed.", offline),
            ("underreplicatedpartitions", "Partitions led here with replicas out of sync.", self._under_replicated),
            ("underminisrpartitioncount", "Partitions led here below min.insync.replicas.", self._under_min_isr),
            ("atminisrpartitioncount", "Partitions led here with just min.insync.replicas.", self._at_min_isr),
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


def _row(replica: Replica, *, leads: bool) -> tuple[int, ...]:
    """The values of one replica, in the order of PARTITION_SERIES."""
    in_sync = replicas = 0
    under_replicated = under_min_isr = at_min_isr = False
    if leads:
        in_sync, replicas = len(replica.isr), len(replica.in_sync.followers) + 1
        under_replicated = in_sync < replicas
        under_min_isr = in_sync < replica.min_insync_replicas
        at_min_isr = in_sync == replica.min_insync_replicas
    return (int(under_replicated), int(under_min_isr), int(at_min_isr), in_sync, replicas, *_log_row(replica))


def _log_row(replica: Replica) -> tuple[int, ...]:
    """The values that the log alone decides: those after the first ISR_SERIES."""
    log = replica.log
    return (
        replica.high_watermark - replica.last_stable_offset,
        log.size_bytes,
        len(log.segments),
        log.log_start_offset,
        log.log_end_offset,
    )


def _labels(replica: Replica) -> str:
    return labels_text(topic=replica.topic, partition=str(replica.partition))
