"""Writes of many offsets: OffsetCommit, TxnOffsetCommit, OffsetDelete and DeleteGroups write them in parts, one in each turn of the loop.

A part is one decision of the group and one batch of its log. Its size is bounded, because a decision, the encoding of its records and
their append happen in one turn. Requests of up to RECORDS_AT_ONCE offsets have one part, as in Kafka. Between two parts of a longer
one the group may change or the broker may crash: then some offsets are committed, and the request is refused or has no answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from barnabas.broker.api.call import AnyPending, Done
from barnabas.broker.coordinator.groups.committing import Committer
from barnabas.broker.coordinator.groups.effects import At
from barnabas.broker.coordinator.groups.records import AnyRecord, OffsetRecord
from barnabas.broker.coordinator.groups.shard import GroupShard
from barnabas.broker.coordinator.host.decision import Decision, ProducerStamp
from barnabas.broker.scheduling.slices import WorkResult, advance
from barnabas.errors import BrokerError, ErrorCode
from barnabas.limits import TOPIC_NAME_LENGTH_MAX
from barnabas.work import SLICE, Steps, Work

if TYPE_CHECKING:
    from barnabas.broker.coordinator.group_coordinator import GroupCoordinator
    from barnabas.broker.scheduling.slices import Slices

RECORDS_AT_ONCE: Final = 256  # 2 ms
BYTES_AT_ONCE: Final = 256 * 1024  # far below the default of max.message.bytes
UNITS_OF_SIZES: Final = 5  # of work, to add up the sizes of one part
RECORD_BYTES: Final = 45  # of an offset in the log, without group, topic and metadata

A = TypeVar("A")
GroupDecide = Callable[[GroupShard, At], Decision[A, AnyRecord]]


def commit_in_parts(
    groups: GroupCoordinator,
    committer: Committer,
    records: Sequence[OffsetRecord],
    producer: ProducerStamp | None,
    done: Done[None],
) -> Work:
    """Commits offsets.

    Args:
        producer: of the transaction, None outside of one.
        done: gets None once all parts are committed, or the first error of a part; later parts are not written then.
    """

    def decide_on(part: Sequence[OffsetRecord]) -> GroupDecide[None]:
        def decide(shard: GroupShard, at: At) -> Decision[None, AnyRecord]:
            shard.group(committer.group_id).check_commit(committer, part, at)
            return Decision(None, part, producer)

        return decide

    def all_done(outcome: list[None] | BrokerError) -> None:
        done(outcome if isinstance(outcome, BrokerError) else None)

    parts, size_bytes = yield from _parts(records)
    if len(parts) > 1:
        try:
            size_bytes_max = groups.host.batch_bytes_max(committer.group_id)
        except BrokerError as error:
            done(error)
            return
        if size_bytes > size_bytes_max:
            done(BrokerError(ErrorCode.INVALID_COMMIT_OFFSET_SIZE))
            return
    yield from write_in_parts(groups, committer.group_id, [decide_on(part) for part in parts], all_done)


def write_in_parts(
    groups: GroupCoordinator, group_id: str, decisions: Sequence[GroupDecide[A]], done: Done[list[A]]
) -> Work:
    """Writes decisions about one group, one in each turn, without waiting for the commit of the one before.

    Args:
        done: gets the answers of all, or the first error; later decisions are not made then.
    """
    answers: list[A] = []
    failed = False

    def one_done(outcome: A | BrokerError) -> None:
        nonlocal failed
        if failed:
            return
        if isinstance(outcome, BrokerError):
            failed = True
            done(outcome)
            return
        answers.append(outcome)
        if len(answers) == len(decisions):
            done(answers)

    for decide in decisions:
        if failed:
            return
        groups.write(group_id, decide, one_done)
        if decide is not decisions[-1]:
            yield SLICE


def delete_group_in_parts(groups: GroupCoordinator, group_id: str, done: Done[None]) -> Work:
    """Deletes a group and its offsets; the group itself with the last offsets.

    Args:
        done: gets None once all is deleted, or the first error of a part; later parts are not written then.
    """
    at_once = offsets_at_once(group_id, "t" * TOPIC_NAME_LENGTH_MAX)
    complete = failed = False

    def decide(shard: GroupShard, _at: At) -> Decision[bool, AnyRecord]:
        nonlocal complete
        decision = shard.delete_group(group_id, at_once)
        complete = decision.answer
        return decision

    def one_done(outcome: bool | BrokerError) -> None:
        nonlocal failed
        if failed:
            return
        if isinstance(outcome, BrokerError):
            failed = True
            done(outcome)
        elif outcome:
            done(None)

    while not failed:
        groups.write(group_id, decide, one_done)
        if complete or failed:
            return
        yield SLICE


def write_to_the_end(slices: Slices, writing: Work, pending: AnyPending) -> None:
    """Writes all parts, also after the connection has ended, as Kafka does. Until the last one it counts as a large request,
    so that clients that leave cannot have more of them decoded at once than clients that stay.

    Args:
        pending: blocks the later requests of its connection until all parts are written.
    """

    def failed(error: BaseException) -> None:
        pending.effected()
        raise error

    rest = advance(writing)
    if isinstance(rest, WorkResult):
        pending.effected()
    else:
        slices.go_on(rest, lambda _: pending.effected(), failed, line=slices.requests)


def offsets_at_once(group_id: str, topic: str) -> int:
    """Returns how many offsets without metadata one part may have."""
    return max(min(RECORDS_AT_ONCE, BYTES_AT_ONCE // (len(group_id) + len(topic) + RECORD_BYTES)), 1)


def _parts(records: Sequence[OffsetRecord]) -> Steps[tuple[list[Sequence[OffsetRecord]], int]]:
    """Returns the parts, and the size of all records in bytes, or less: characters count as one byte."""
    parts: list[Sequence[OffsetRecord]] = []
    first = size_bytes = of_part = 0
    for at, record in enumerate(records):
        of_record = RECORD_BYTES + len(record.group_id) + len(record.topic)
        if record.value is not None:
            of_record += len(record.value.metadata)
        if at - first == RECORDS_AT_ONCE or (at > first and of_part + of_record > BYTES_AT_ONCE):
            parts.append(records[first:at])
            first, of_part = at, 0
            yield UNITS_OF_SIZES
        of_part += of_record
        size_bytes += of_record
    parts.append(records[first:])
    return parts, size_bytes
