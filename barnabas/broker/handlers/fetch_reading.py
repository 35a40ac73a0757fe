"""PartitionReader: reads the partitions of one Fetch request.

A follower's fetch offset acknowledges everything below it. Consumers read up to the high watermark or the last stable
offset, from the nearest replica if they name a rack (KIP-392). Follows KIP-73 (throttles), KIP-320 (leader epochs),
KIP-392, KIP-595 (divergence).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from barnabas.broker.handlers.fetch_partitions import UNSENT, ReadableTopics, replica_of
from barnabas.broker.handlers.needs import Needs
from barnabas.broker.replica.core.machine import Replica
from barnabas.broker.replica.core.nearest import LEADER, nearest_replica
from barnabas.broker.replica.core.throttle import is_throttled
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.fetch import AbortedTransaction, FetchRequest, PartitionData
from barnabas.storage.long_reads import ReadAhead

if TYPE_CHECKING:
    from barnabas.broker.api.call import Call
    from barnabas.broker.replica.core.fetch_sessions import WantedPartition

READ_COMMITTED: Final = 1
FIRST_WITH_RACKS: Final = 11

# The replica itself if there is nothing to read and no error; one of UNSENT for an unknown partition, or one that the client may not read.
Found = PartitionData | Replica | ErrorCode


def count_traffic(
    parts: Sequence[tuple[WantedPartition, PartitionData | Replica | ErrorCode]], *, follows: bool
) -> None:
    """Counts the partitions of an answer, and the bytes of their records."""
    for wanted, found in parts:
        replica = wanted.replica
        counts = None if replica is None else replica.traffic
        if counts is None:
            continue
        code = 0
        if isinstance(found, PartitionData):
            code = found.error_code
            size = len(found.records or b"")
            if follows:
                counts.replication_bytes_out += size
            else:
                counts.bytes_out += size
        counts.on_read(code)


class PartitionReader:
    """Reads partitions for the peer of one request.

    Attributes:
        committed: only records of completed transactions are read (read_committed).
        readable: the topics that the peer may read.
        urgent: a partition has an error, a divergence or another replica to name: the answer must not wait.
    """

    __slots__ = (
        "_broker_epoch",
        "_call",
        "_follower_id",
        "_from_leader",
        "_needs",
        "_rack_id",
        "committed",
        "readable",
        "urgent",
    )

    def __init__(self, needs: Needs, call: Call[FetchRequest]) -> None:
        request = call.request
        self._needs = needs
        self._call = call
        self._follower_id, self._broker_epoch = replica_of(call)
        self._from_leader = self._follower_id >= 0 or call.version < FIRST_WITH_RACKS
        self._rack_id = "" if self._from_leader or not needs.fetch_sessions.reads_by_rack else request.rack_id
        self.committed = request.isolation_level == READ_COMMITTED and self._follower_id < 0
        self.urgent = False
        self.readable = ReadableTopics(call, needs.replicas)

    @property
    def follows(self) -> bool:
        """Whether the peer is a follower."""
        return self._follower_id >= 0

    def _find(self, wanted: WantedPartition) -> Replica:
        """The replica of a requested partition.

        Raises:
            BrokerError: the peer may not read the topic, this node has no such replica, or it belongs to another topic.
        """
        if not self.readable.all and (wanted.topic or wanted.topic_id) not in self.readable:
            raise BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        replica = wanted.replica
        if replica is not None:
            if not replica.failed:
                return replica
            wanted.unwatch()
        replicas = self._needs.replicas
        name = wanted.topic or replicas.topic_name(wanted.topic_id)
        if name is None:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_ID)
        replica = replicas.get(name, wanted.partition)
        if replica is None:
            raise BrokerError(replicas.absence(name, wanted.partition))
        if not wanted.topic and replica.topic_id != wanted.topic_id:
            raise BrokerError(ErrorCode.INCONSISTENT_TOPIC_ID)
        wanted.attach(replica)
        return replica

    def read(self, wanted: WantedPartition, left: int, *, at_least_one: bool, ahead: ReadAhead) -> Found:
        """Reads at most `left` bytes of one partition; a first batch of any size with `at_least_one`. Raises LongRead."""
        offset = wanted.fetch_offset
        follows = self._follower_id >= 0
        wanted.drained = False
        try:
            replica = self._find(wanted)
            replica.check_epoch(wanted.current_leader_epoch, leads=self._from_leader)
            if self._rack_id and replica.is_leader:
                brokers = self._needs.current_image.image.brokers
                nearest = nearest_replica(replica, offset, self._rack_id, brokers, self._call.listener)
                if nearest != LEADER:
                    return self._elsewhere(replica, wanted, nearest)
            if wanted.last_fetched_epoch >= 0:
                diverging = replica.log.divergence(wanted.last_fetched_epoch, offset)
                if diverging is not None:
                    return self._diverging(replica, wanted, diverging)
            log = replica.log
            if follows:
                if wanted.named:
                    if not log.log_start_offset <= offset <= log.log_end_offset:
                        raise BrokerError(ErrorCode.OFFSET_OUT_OF_RANGE)
                    replica.on_follower_fetch(
                        self._follower_id, self._broker_epoch, offset, wanted.log_start_offset, wanted
                    )
                    wanted.named = False
                end = log.log_end_offset
            else:
                end = replica.last_stable_offset if self.committed else replica.high_watermark
            if offset == end:
                if follows and wanted.lacks_high_watermark(replica):
                    self.urgent = True
                return replica
            throttled = follows and is_throttled(
                log.config.leader_replication_throttled_replicas, replica.partition, self._needs.node_id
            )
            if throttled and self._waits_for_quota(replica):
                return self.without_records(replica, wanted)  # its records remain for the next request
            part = replica.read(
                offset,
                min(left, wanted.max_bytes),
                committed=self.committed,
                replicates=follows,
                at_least_one=at_least_one,
                ahead=ahead,
            )
            aborted = replica.aborted_transactions(offset, part.next_offset) if self.committed and part.records else []
        except BrokerError as error:
            return self._refused(wanted, _unless_replaced(wanted.replica, error))
        data = self.without_records(replica, wanted)
        if part.records:
            data.records = part.records
            if throttled:
                self._needs.throttles.leader.record(len(part.records), self._needs.reactor.clock.monotonic_ms())
            if self.committed:
                data.aborted_transactions = [
                    AbortedTransaction(producer_id=one.producer_id, first_offset=one.first_offset) for one in aborted
                ]
        else:
            wanted.drained = offset > end
        return data

    def _refused(self, wanted: WantedPartition, error: BrokerError) -> Found:
        self.urgent = True
        if error.code in UNSENT:
            return error.code
        return PartitionData(
            partition_index=wanted.partition,
            error_code=error.code,
            high_watermark=-1,
            aborted_transactions=None,
            records=b"",
        )

    def _waits_for_quota(self, replica: Replica) -> bool:
        """Whether the replication throttle delays this fetch; never for a follower in sync (KIP-73)."""
        now_ms = self._needs.reactor.clock.monotonic_ms()
        return self._follower_id not in replica.isr and self._needs.throttles.leader.exceeded(now_ms)

    def without_records(self, replica: Replica, wanted: WantedPartition) -> PartitionData:
        """An answer without records."""
        return PartitionData(
            partition_index=wanted.partition,
            high_watermark=replica.high_watermark,
            last_stable_offset=replica.last_stable_offset,
            log_start_offset=replica.log.log_start_offset,
            aborted_transactions=[] if self.committed else None,
            records=b"",
        )

    def _diverging(self, replica: Replica, wanted: WantedPartition, diverging: tuple[int, int]) -> PartitionData:
        """The answer that names the end of the peer's last epoch in this log (KIP-595)."""
        data = self.without_records(replica, wanted)
        data.diverging_epoch.epoch, data.diverging_epoch.end_offset = diverging
        self.urgent = True
        return data

    def _elsewhere(self, replica: Replica, wanted: WantedPartition, nearest: int) -> PartitionData:
        """The answer that names the nearest replica instead of records (KIP-392)."""
        data = self.without_records(replica, wanted)
        data.preferred_read_replica = nearest
        data.aborted_transactions = None
        self.urgent = True
        return data


def _unless_replaced(replica: Replica | None, error: BrokerError) -> BrokerError:
    """The refusal of an offset or epoch that this log does not have: NOT_LEADER_OR_FOLLOWER if another broker may lead by now.

    Its log may have them. For OFFSET_OUT_OF_RANGE consumers would go back to the beginning, or on to the end.
    """
    if error.code is ErrorCode.OFFSET_OUT_OF_RANGE and replica is not None and replica.is_leader:
        try:
            replica.check_leads(by_followers=False)
        except BrokerError as refusal:
            return refusal
    return error
