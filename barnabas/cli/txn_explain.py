"""`barnabas txn explain`: the timeline of a transactional id, from a running Kafka or a trace of the test kit, which also knows the clients."""

from __future__ import annotations

import difflib
import sys
import time
from pathlib import Path
from typing import Final

from barnabas.cli.session import Connection, worked
from barnabas.cli.streams import printable
from barnabas.client import TopicPartition
from barnabas.client.admin import TransactionDescription
from barnabas.client.errors import IllegalState, KafkaError
from barnabas.errors import RemoteProtocolError
from barnabas.protocol.internal_topics import TRANSACTION_STATE_TOPIC
from barnabas.testing.errors import KitError
from barnabas.testing.history.core.final_state import TransactionStep
from barnabas.testing.history.log_reader import LogReader, logged, transaction_steps
from barnabas.testing.history.story import Now, TransactionStory, ids_of, story
from barnabas.testing.history.trace import HeldMarker, read_trace

NEAREST: Final = 3
MARKER_RECORDS_MAX: Final = 200_000  # of a partition, from its end back, in which markers are looked for
PARTITIONS_MAX: Final = 100


def explain_trace(transactional_id: str, path: str) -> int:
    """Prints the history from a trace; returns the exit code."""
    try:
        trace = read_trace(Path(path))
    except KitError as error:
        print(f"barnabas txn explain: {error}", file=sys.stderr)
        return 1
    known = ids_of(trace.steps, trace.events)
    if transactional_id not in known:
        print(printable(f"barnabas txn explain: {path}: {_unknown(transactional_id, known)}"), file=sys.stderr)
        return 1
    print(f"{transactional_id}  in test {trace.header.get('test', '?')} ({trace.header.get('outcome', '?')})")
    _print(story(transactional_id, trace.steps, trace.events, trace.markers, None))
    if trace.header.get("forgotten") or trace.left_out:
        print("\nthis trace is not complete: the oldest events, or its end, are missing")
    return 0


def explain_live(transactional_id: str, connection: Connection) -> int:
    """Prints the history from a running Kafka; returns the exit code."""
    return worked("txn explain", connection, _live(transactional_id, connection), check=True)


async def _live(transactional_id: str, connection: Connection) -> None:
    async with LogReader(
        bootstrap_servers=connection.bootstrap,
        request_timeout_ms=connection.timeout_ms,
        client_id="barnabas-txn-explain",
    ) as reader:
        try:
            described = await reader.describe_transaction(transactional_id)
        except KafkaError as error:
            known = [each.transactional_id for each in await reader.list_transactions()]
            if transactional_id in known:
                raise
            raise IllegalState(_unknown(transactional_id, known)) from error
        steps, unread = await _steps(reader, transactional_id)
        places = {each for step in steps for each in step.partitions} | set(described.partitions)
        producer_ids = {each.producer_id for each in steps} | {described.producer_id}
        markers = await _markers(reader, [TopicPartition(*each) for each in sorted(places)], producer_ids)
        now = await _now(reader, described)
    print(f"{transactional_id}  {described.state}, producer {described.producer_id} epoch {described.producer_epoch}")
    if unread:
        print(f"  {unread}: the story begins with what the coordinator says now")
    _print(story(transactional_id, steps, (), markers, now))


def _print(told: TransactionStory) -> None:
    for line in told.lines:
        print(printable(f"  {line}"))
    if told.advice:
        print("what to do")
        for line in told.advice:
            print(printable(f"  {line}"))


def _unknown(transactional_id: str, known: list[str]) -> str:
    text = f"transactional id '{transactional_id}' is unknown"
    near = difflib.get_close_matches(transactional_id, known, NEAREST, 0.4)
    if near:
        return f"{text}; did you mean {' or '.join(repr(each) for each in near)}?"
    if not known:
        return f"{text}; no transactional id is known there"
    return f"{text}; {len(known)} others are known, for example '{known[0]}'"


async def _steps(reader: LogReader, transactional_id: str) -> tuple[list[TransactionStep], str]:
    """The steps in the coordinator's log, and why they cannot be read."""
    found: list[TransactionStep] = []
    try:
        for tp, (start, end) in (await reader.bounds([TRANSACTION_STATE_TOPIC])).items():
            async for batch in reader.batches(tp, start, end):
                found += [each for each in transaction_steps(batch) if each.transactional_id == transactional_id]
            if found:  # all steps of one id are in one partition
                return found, ""
    except (KafkaError, RemoteProtocolError) as error:
        return found, f"{TRANSACTION_STATE_TOPIC} cannot be read: {error}"
    return found, f"{TRANSACTION_STATE_TOPIC} has no record of it"


async def _markers(reader: LogReader, partitions: list[TopicPartition], producer_ids: set[int]) -> list[HeldMarker]:
    found: list[HeldMarker] = []
    for tp in partitions[:PARTITIONS_MAX]:
        try:
            start, end = (await reader.bounds([tp.topic]))[tp]
            async for batch in reader.batches(tp, max(start, end - MARKER_RECORDS_MAX), end):
                held = logged(batch)
                if held.marker and held.producer_id in producer_ids:
                    found.append(
                        HeldMarker(
                            *tp, held.base_offset, held.producer_id, held.producer_epoch, held.marker, held.at_ms
                        )
                    )
        except (KafkaError, RemoteProtocolError, KeyError):  # deleted, or not to be read by this client
            continue
    return found


async def _now(reader: LogReader, described: TransactionDescription) -> Now:
    holds = []
    for tp in described.partitions[:PARTITIONS_MAX]:
        try:
            producers = await reader.describe_producers(tp, timeout_ms=2_000)
        except KafkaError:
            continue
        begun = [each for each in producers if each.transaction_start_offset >= 0]
        first = min(begun, key=lambda each: each.transaction_start_offset, default=None)
        if first is not None and first.producer_id == described.producer_id:
            holds.append(f"{tp.topic}-{tp.partition} at offset {first.transaction_start_offset}")
    return Now(
        described.state,
        described.producer_id,
        described.producer_epoch,
        described.timeout_ms,
        described.start_time_ms,
        tuple(f"{each.topic}-{each.partition}" for each in described.partitions),
        tuple(holds),
        round(time.time() * 1000),
    )
