"""Follower's log: appends fetched batches, truncates where it diverges from the leader's (KIP-101, KIP-279, KIP-595)."""

from __future__ import annotations

from collections.abc import Callable

from barnabas.broker.replica.core.machine import Replica
from barnabas.loggers import logger
from barnabas.ports import Buffer
from barnabas.storage.log_config import INT64_MAX
from barnabas.storage.replay import stored_batch
from barnabas.work import Steps, discarded

log = logger("kafka.cluster.Partition")

BASE_OFFSET_SIZE = 8  # at the beginning of a batch
UNITS_OF_A_CUT = 30  # a file is truncated and a checkpoint written


def on_fetched(
    replica: Replica,
    leader_epoch: int,
    offset: int,
    records: Buffer,
    high_watermark: int,
    log_start_offset: int,
    segments_max: int = INT64_MAX,
) -> bool:
    """Appends the answer of the leader of `leader_epoch` to a fetch of `offset`. Returns whether the answer was still valid.

    Begins at most `segments_max` segments; the records after them are fetched again. Raises BrokerError: CORRUPT_MESSAGE, or
    UNKNOWN_SERVER_ERROR for offsets that do not follow the log's end: the log is unchanged; KAFKA_STORAGE_ERROR: the disk failed; after a
    passing error the fetch is repeated.
    """
    partition_log = replica.log
    if not _follows(replica, leader_epoch) or offset != partition_log.log_end_offset:
        return False
    cut = False
    try:
        if records:
            base_offset = int.from_bytes(records[:BASE_OFFSET_SIZE], "big")
            cut = base_offset < offset and offset == partition_log.log_start_offset
            if cut:  # the leader's log start lies within a batch (DeleteRecords): an empty log takes all of it
                partition_log.truncate_fully_and_start_at(base_offset)
            partition_log.append_as_follower(records, now_ms=replica.clock.now_ms(), segments_max=segments_max)
        shown = replica.high_watermark
        replica.high_watermark = max(shown, min(high_watermark, partition_log.log_end_offset))
        partition_log.producers.on_high_watermark(replica.high_watermark)
        if partition_log.log_start_offset < log_start_offset <= replica.high_watermark:
            partition_log.delete_records_before(log_start_offset)
            shown = -1
    except OSError as error:
        raise replica.broken(error, cut=cut) from error
    if records:
        replica.durability.request_sync()
        if replica.traffic is not None:
            replica.traffic.replication_bytes_in += len(records)
    if replica.high_watermark != shown:
        replica.progressed()  # consumers may read from this follower
    return True


def on_fetched_long(
    replica: Replica,
    leader_epoch: int,
    offset: int,
    records: Buffer,
    high_watermark: int,
    log_start_offset: int,
    segments_max: int,
) -> Steps[bool]:
    """Appends an answer as `on_fetched` does, after it has reserved space for its records."""
    first = stored_batch(records, 0, 0)
    if first is not None and _follows(replica, leader_epoch) and offset == replica.log.log_end_offset:
        yield from replica.reserve(len(records), first.max_timestamp)
    return on_fetched(replica, leader_epoch, offset, records, high_watermark, log_start_offset, segments_max)


def on_diverged(replica: Replica, leader_epoch: int, epoch: int, end_offset: int) -> Steps[bool]:
    """The leader's log diverges at `end_offset` of `epoch` or before: truncates. Returns whether the answer was valid to the end."""
    _, own_end_offset = replica.log.epochs.end_offset_for_epoch(epoch, replica.log.log_end_offset)
    target = end_offset if own_end_offset < 0 else min(own_end_offset, end_offset)
    offset = max(min(target, replica.log.log_end_offset), replica.log.log_start_offset)
    return _cutting(replica, _validity(replica, leader_epoch), offset)


def on_out_of_range(replica: Replica, leader_epoch: int, log_start_offset: int, log_end_offset: int) -> Steps[bool]:
    """The leader's log [log_start_offset, log_end_offset) does not reach this log's end. As `on_diverged`."""
    is_valid = _validity(replica, leader_epoch)
    if replica.log.log_start_offset <= log_end_offset < replica.log.log_end_offset:
        return _cutting(replica, is_valid, log_end_offset)
    return _restarting(replica, is_valid, log_start_offset)


def _follows(replica: Replica, leader_epoch: int) -> bool:
    return leader_epoch == replica.leader_epoch and replica.leader_id != replica.node_id and not replica.failed


def _validity(replica: Replica, leader_epoch: int) -> Callable[[], bool]:
    """Returns a predicate: the leader, its epoch and the log are unchanged; else later records may have been acknowledged."""

    def state() -> tuple[object, ...]:
        partition_log = replica.log
        return partition_log, partition_log.cuts, partition_log.log_start_offset, partition_log.log_end_offset

    then = state()
    return lambda: state() == then and _follows(replica, leader_epoch)


def _restarting(replica: Replica, is_valid: Callable[[], bool], offset: int) -> Steps[bool]:
    """Removes all records. Returns False, without a change, if the answer is not valid any more."""
    yield UNITS_OF_A_CUT
    if not is_valid():
        return False
    log.warning(
        "Follower restarts where the leader's log begins: partition=%s log_end_offset=%d leader_log_start_offset=%d",
        replica,
        replica.log.log_end_offset,
        offset,
    )
    removed = replica.log.producers.entries
    try:
        replica.log.on_records_lost()
        replica.log.truncate_fully_and_start_at(offset)
    except OSError as error:
        raise replica.broken(error, cut=True) from error
    replica.high_watermark = offset
    replica.durability.on_cut()
    replica.progressed()
    yield from discarded(removed)
    return True


def _cutting(replica: Replica, is_valid: Callable[[], bool], offset: int) -> Steps[bool]:
    """Truncates the log. Returns False, without a change, if the answer is not valid any more.

    First rebuilds the producers in slices, which may read a whole segment. Until then the log is unchanged: it may be read, saved, closed,
    and this replica may become the leader.
    """
    yield UNITS_OF_A_CUT
    if not is_valid():
        return False
    partition_log = replica.log
    try:
        producers = yield from partition_log.producers_before(offset)
    except OSError as error:
        raise replica.broken(error) from error
    if producers is None or not is_valid():
        return False
    cuts, replaced = partition_log.cuts, partition_log.producers.entries
    try:
        if offset < replica.high_watermark:
            log.warning(
                "Follower is truncated below its high watermark: partition=%s offset=%d high_watermark=%d",
                replica,
                offset,
                replica.high_watermark,
            )
            partition_log.on_records_lost()  # before the truncation: a crash may come between
            producers.complete = False
        partition_log.truncate_to(offset, producers)
    except OSError as error:
        raise replica.broken(error, cut=True) from error
    if partition_log.cuts != cuts:
        if partition_log.log_end_offset < replica.high_watermark:
            partition_log.on_records_lost()
        replica.high_watermark = min(replica.high_watermark, partition_log.log_end_offset)
        replica.durability.on_cut()
        replica.progressed()
    if partition_log.producers.entries is not replaced:
        yield from discarded(replaced)
    return True
