"""Checks of writes: lost, duplicate, reordered. Pure. Equal batches (producer id, epoch and sequence, else checksum, count and size) are duplicates only
if the client cannot have received the first response.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from barnabas.testing.history.core.describe import or_null
from barnabas.testing.history.core.events import Produced
from barnabas.testing.history.core.evidence import Anomaly, Evidence, clock, offsets, who
from barnabas.testing.history.core.final_state import HeldLog, LoggedBatch

SEQUENCES: int = 2**31
Content = tuple[int, int, int]


def lost_writes(evidence: Evidence, log: HeldLog) -> Iterator[Anomaly]:
    """Acknowledged records that the log does not hold."""
    for each in evidence.produced.get((log.topic, log.partition), ()):
        if each.error or each.base_offset < log.start_offset:
            continue
        why = _missing(each, log)
        if why:
            yield Anomaly(
                "lost-write",
                str(log),
                f"{offsets(each.base_offset, each.last_offset)} were acknowledged, and {why}",
                (acknowledged(each), f"the log of {log} has offsets {log.start_offset} to {log.end_offset - 1}"),
            )


def _missing(event: Produced, log: HeldLog) -> str:
    if event.last_offset >= log.end_offset:
        return f"the log ends before offset {log.end_offset}"
    if not log.exact:
        return ""
    found = log.batch_at(event.base_offset)
    if found is None:
        return "the log has no batch there"
    if _same(event, found):
        return ""
    return f"another batch is there, {_named(found)}"


def _same(event: Produced, batch: LoggedBatch) -> bool:
    if event.producer_id >= 0:
        sent = event.producer_id, event.producer_epoch, event.base_sequence
        return sent == (batch.producer_id, batch.producer_epoch, batch.base_sequence)
    return event.crc == batch.crc


def _named(batch: LoggedBatch) -> str:
    if batch.producer_id < 0:
        return "without a producer id"
    return f"of producer {batch.producer_id} epoch {batch.producer_epoch}, sequence {batch.base_sequence}"


def acknowledged(event: Produced) -> str:
    """The sentence about a write."""
    acks = "all" if event.acks == -1 else event.acks
    sent = ", ".join(f"{or_null(key)}: {or_null(value)}" for key, value in event.records[:3])
    more = ", …" if event.count > 3 and event.records else ""
    return (
        f"{clock(event.at_ms)} broker {event.broker} acknowledged {offsets(event.base_offset, event.last_offset)} of "
        f"{event.topic}-{event.partition} to {who(event)} (acks={acks}){f': {sent}{more}' if sent else ''}"
    )


def duplicates(evidence: Evidence, log: HeldLog) -> Iterator[Anomaly]:
    """Batches that are in the log twice though they were sent to be there once."""
    seen: dict[tuple[int, int, int], LoggedBatch] = {}
    for batch in log.batches:
        if batch.producer_id < 0 or batch.marker:
            continue
        key = batch.producer_id, batch.producer_epoch, batch.base_sequence
        first = seen.setdefault(key, batch)
        if first is not batch:
            yield Anomaly(
                "duplicate",
                str(log),
                f"offsets {first.base_offset} and {batch.base_offset} hold the same batch, {_named(batch)}",
            )
    by_content: dict[Content, list[Produced]] = defaultdict(list)
    for each in evidence.produced.get((log.topic, log.partition), ()):
        if each.producer_id < 0 and not each.error and each.base_offset >= 0:
            by_content[each.crc, each.count, each.size_bytes].append(each)
    for same in by_content.values():
        for earlier, later in pairwise(same):
            why = evidence.unheard(earlier, later) if earlier.client == later.client else ""
            if why and later.base_offset > earlier.base_offset:
                yield Anomaly(
                    "duplicate",
                    str(log),
                    f"{offsets(earlier.base_offset, earlier.last_offset)} and "
                    f"{offsets(later.base_offset, later.last_offset)} hold the same records: the client sent them again",
                    (
                        acknowledged(earlier),
                        f"the client may not have got this answer: {why}",
                        acknowledged(later),
                        "an idempotent producer (enable.idempotence=true) repeats nothing",
                    ),
                )


def inversions(evidence: Evidence, log: HeldLog) -> Iterator[Anomaly]:
    """Records of one producer that are in another order than it sent them."""
    last: dict[tuple[int, int], LoggedBatch] = {}
    for batch in log.batches:
        if batch.producer_id < 0 or batch.marker or batch.base_sequence < 0:
            continue
        before = last.get((batch.producer_id, batch.producer_epoch))
        last[batch.producer_id, batch.producer_epoch] = batch
        if before is not None and 0 < (before.base_sequence - batch.base_sequence) % SEQUENCES < SEQUENCES // 2:
            yield Anomaly(
                "order-inversion",
                str(log),
                f"offset {batch.base_offset} has sequence {batch.base_sequence} of producer {batch.producer_id} epoch "
                f"{batch.producer_epoch}, and sequence {before.base_sequence} comes before it, at offset {before.base_offset}",
            )
    yield from _overtaken(evidence, log)


def _overtaken(evidence: Evidence, log: HeldLog) -> Iterator[Anomaly]:
    """Batches without a producer id whose first attempt failed, so that a later one of the same connection came before them."""
    first: dict[tuple[str, Content], Produced] = {}  # by client and content: the first attempt
    failed: list[Produced] = []  # first attempts that have had no effect
    written: list[Produced] = []
    for each in evidence.produced.get((log.topic, log.partition), ()):
        if each.producer_id >= 0 or not each.count:
            continue
        content = each.crc, each.count, each.size_bytes
        attempt = first.setdefault((each.client, content), each)
        if each.error:
            if attempt is each:
                failed.append(each)
        elif each.base_offset >= 0:
            if attempt in failed:
                yield from _overtaker(evidence, log, attempt, each, written)
                failed.remove(attempt)
            written.append(each)


def _overtaker(
    evidence: Evidence, log: HeldLog, attempt: Produced, repeated: Produced, written: list[Produced]
) -> Iterator[Anomaly]:
    sent = evidence.places[id(attempt)]
    connection = attempt.broker, attempt.connection, attempt.address
    for other in written:
        if evidence.places[id(other)] > sent and connection == (other.broker, other.connection, other.address):
            yield Anomaly(
                "order-inversion",
                str(log),
                f"{offsets(repeated.base_offset, repeated.last_offset)} were sent before "
                f"{offsets(other.base_offset, other.last_offset)}, which came before them",
                (
                    f"{clock(attempt.at_ms)} broker {attempt.broker} refused a batch of {who(attempt)}: {attempt.error}",
                    acknowledged(other),
                    acknowledged(repeated),
                    "an idempotent producer (enable.idempotence=true) keeps the order",
                ),
            )
            return
