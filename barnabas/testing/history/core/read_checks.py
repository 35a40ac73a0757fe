"""Checks of deliveries against the log. Pure. Under read_uncommitted, records of aborted transactions are reported too: the application may have
acted on them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from barnabas.testing.history.core.events import Batch, Delivered
from barnabas.testing.history.core.evidence import Anomaly, Evidence, clock, offsets, who
from barnabas.testing.history.core.final_state import HeldLog, LoggedBatch


def delivered(event: Delivered) -> str:
    """The sentence about a delivery."""
    group = f" for group '{event.group}'" if event.group else ""
    return (
        f"{clock(event.at_ms)} broker {event.broker} delivered {offsets(event.first_offset, event.last_offset)} of "
        f"{event.topic}-{event.partition} to {who(event)}{group}, {event.isolation}"
    )


def reads(evidence: Evidence, log: HeldLog) -> Iterator[Anomaly]:
    """The anomalies of the deliveries of one partition, one for each delivery."""
    for event in evidence.delivered.get((log.topic, log.partition), ()):
        found = next(_of_delivery(event, log), None)
        if found is not None:
            name, what, *story = found
            yield Anomaly(name, str(log), what, (delivered(event), *story))


def _of_delivery(event: Delivered, log: HeldLog) -> Iterator[tuple[str, ...]]:
    yield from _order(event)
    committed = event.isolation == "read_committed"
    if committed and 0 <= event.last_stable_offset <= event.last_offset and event.batches:
        yield (
            "precommitted-read",
            f"{offsets(event.first_offset, event.last_offset)} were delivered, and the last stable offset was "
            f"{event.last_stable_offset}",
        )
    for batch in event.batches:
        base, last = batch[:2]
        if last < log.start_offset:
            continue
        held = log.batch_at(base)
        if base >= log.end_offset or (log.exact and (held is None or held.base_offset != base)):
            yield "phantom-read", f"{offsets(base, last)} were delivered, and the log does not hold them"
        elif held is not None and held.base_offset == base:
            yield from _outcome(event, batch, held, log, committed)
    yield from _skips(event, log)


def _order(event: Delivered) -> Iterator[tuple[str, ...]]:
    for before, after in pairwise(event.batches):
        if after[0] <= before[1]:
            yield "nonmonotonic-poll", f"offset {after[0]} was delivered after offset {before[1]}, in one answer"


def _outcome(
    event: Delivered, batch: Batch, held: LoggedBatch, log: HeldLog, committed: bool
) -> Iterator[tuple[str, ...]]:
    base, last, producer_id, _, transactional, control = batch
    segment = log.segment_of(held) if transactional and not control else None
    if segment is None:
        return
    where = offsets(base, last)
    if segment.outcome == "abort":
        named = any(producer_id == each[0] and each[1] <= base for each in event.aborted)
        ended = f"producer {producer_id}'s transaction from offset {segment.first_offset} was aborted at {segment.marker_offset}"
        if not committed:
            advice = "isolation.level=read_committed leaves such records out"
            yield (
                "aborted-read",
                f"{where} were delivered to a reader under read_uncommitted and aborted",
                ended,
                advice,
            )
        elif not named:
            yield "aborted-read", f"{where} were aborted, and the answer did not say so", ended
    elif committed and (segment.outcome == "open" or segment.marker_offset >= event.high_watermark > 0):
        yield "precommitted-read", f"{where} were delivered before their transaction was committed"


def _skips(event: Delivered, log: HeldLog) -> Iterator[tuple[str, ...]]:
    """Batches of the log between those of an answer, or between the requested offset and the first one."""
    ends = [(event.fetch_offset, event.first_offset)] if event.fetch_offset >= 0 else []
    ends += [(before[1] + 1, after[0]) for before, after in pairwise(event.batches)]
    for start, end in ends:
        left_out = next(log.between(max(start, log.start_offset), end), None) if start < end else None
        if left_out is not None:
            yield "poll-skip", f"{offsets(left_out.base_offset, left_out.last_offset)} were left out of the answer"
