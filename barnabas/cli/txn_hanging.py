"""`barnabas txn describe-producers`, `find-hanging`, `abort-hanging`: transactions that no coordinator knows (KIP-664). They block read_committed
consumers forever.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final, NamedTuple, TypeVar

from cyclopts import Parameter

from barnabas.cli.arguments import parse_duration
from barnabas.cli.client_properties import WrongCall
from barnabas.cli.render import Cell, Json, Report, duration, known, moment, place_columns
from barnabas.cli.session import DEFAULT_CONNECTION, Connection, client_command
from barnabas.client.admin import Admin, ProducerDescription
from barnabas.client.errors import IllegalState, KafkaError
from barnabas.client.types import TopicPartition

T = TypeVar("T")

IN_FLIGHT_MAX: Final = 50  # DescribeProducers requests at the same time

OfTopic = Annotated[str, Parameter(help="Name of the topic.")]
OfPartition = Annotated[int, Parameter(help="Number of the partition.")]


class _Open(NamedTuple):
    """An open transaction, as a partition's leader knows it."""

    partition: TopicPartition
    producer: ProducerDescription


@client_command("txn describe-producers")
async def describe_producers(
    topic: OfTopic, *, partition: OfPartition, json_: Json = False, connection: Connection = DEFAULT_CONNECTION
) -> None:
    """Show the producers that a partition knows, with their open transactions."""
    async with connection.admin() as admin:
        tp = await _existing(admin, topic, partition)
        found = sorted(await admin.describe_producers(tp))
    PRODUCERS.show(found, json_, empty=f"{topic}-{partition} knows no producers")


@client_command("txn find-hanging")
async def find_hanging(
    *,
    topic: Annotated[tuple[str, ...], Parameter(help="Only these topics [default: all].")] = (),
    partition: Annotated[tuple[int, ...], Parameter(help="Only these partitions of the topics.")] = (),
    older_than: Annotated[
        str, Parameter(help="Only transactions without a write for longer: the cluster's transaction.max.timeout.ms.")
    ] = "15m",
    json_: Json = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> None:
    """Find transactions that are open in a partition and unknown to every coordinator."""
    try:
        older_ms = parse_duration(older_than)
    except ValueError as error:
        raise WrongCall(f"--older-than: {error}") from None
    async with connection.admin() as admin:
        names = topic or await admin.list_topics(include_internal=True)
        missing: dict[str, KafkaError] = {}
        topics = await admin.describe_topics(names, refused=missing)
        if topic and missing:
            raise next(iter(missing.values()))
        led = [
            TopicPartition(each.name, p.partition)
            for each in topics.values()
            for p in each.partitions
            if p.leader >= 0 and (not partition or p.partition in partition)
        ]
        quiet = [each for each in await _open(admin, led) if _quiet_ms(each.producer) > older_ms]
        hanging = await _unknown(admin, quiet)
    HANGING.show(hanging, json_, empty="there are no hanging transactions")
    if hanging and not json_:
        one = hanging[0]
        sys.stdout.flush()
        print(
            f"abort one: `barnabas txn abort-hanging {one.partition.topic} --partition {one.partition.partition} "
            f"--start-offset {one.producer.transaction_start_offset}`",
            file=sys.stderr,
        )


@client_command("txn abort-hanging")
async def abort_hanging(
    topic: OfTopic,
    *,
    partition: OfPartition,
    start_offset: Annotated[int, Parameter(help="The first offset of the transaction, as find-hanging shows it.")],
    connection: Connection = DEFAULT_CONNECTION,
) -> None:
    """Abort a transaction in one partition that no coordinator knows."""
    async with connection.admin() as admin:
        tp = await _existing(admin, topic, partition)
        found = [each for each in await _open(admin, [tp]) if each.producer.transaction_start_offset == start_offset]
        if not found:
            raise IllegalState(f"{topic}-{partition} has no open transaction that begins at offset {start_offset}")
        owners = await _owners(admin, found)
        if owner := owners.get((tp, found[0].producer.producer_id)):
            raise IllegalState(
                f"it is a transaction of {owner!r}, whose coordinator knows it: nothing was aborted; "
                f"`barnabas txn abort {owner}` ends it"
            )
        await admin.abort_transaction(tp, found[0].producer)
    print(f"aborted the transaction of producer {found[0].producer.producer_id} in {topic}-{partition}")


async def _existing(admin: Admin, topic: str, partition: int) -> TopicPartition:
    info = (await admin.describe_topics([topic]))[topic]
    if partition not in {p.partition for p in info.partitions}:
        raise IllegalState(f"{topic} has no partition {partition}: it has {len(info.partitions)}, from 0 on")
    return TopicPartition(topic, partition)


async def _open(admin: Admin, partitions: Iterable[TopicPartition]) -> list[_Open]:
    """The open transactions in partitions."""
    room = asyncio.Semaphore(IN_FLIGHT_MAX)

    async def one(tp: TopicPartition) -> list[_Open]:
        async with room:
            producers = await admin.describe_producers(tp)
        return [_Open(tp, each) for each in sorted(producers) if each.transaction_start_offset >= 0]

    return [each for found in await asyncio.gather(*(one(tp) for tp in partitions)) for each in found]


async def _unknown(admin: Admin, opened: list[_Open]) -> list[_Open]:
    owners = await _owners(admin, opened)
    return [each for each in opened if (each.partition, each.producer.producer_id) not in owners]


async def _owners(admin: Admin, opened: list[_Open]) -> dict[tuple[TopicPartition, int], str]:
    """The transactional ids whose coordinators know these transactions, by partition and producer id."""
    ids = sorted({each.producer.producer_id for each in opened})
    if not ids:
        return {}
    found: dict[tuple[TopicPartition, int], str] = {}
    for listing in await admin.list_transactions(producer_ids=ids):
        try:
            described = await admin.describe_transaction(listing.transactional_id)
        except KafkaError as error:
            if error.code is None:
                raise
            continue  # it was removed after it was listed
        for tp in described.partitions:
            found[tp, listing.producer_id] = listing.transactional_id
    return found


def _quiet_ms(producer: ProducerDescription) -> float:
    return time.time() * 1000 - producer.last_timestamp


def _columns(of: Callable[[T], ProducerDescription]) -> tuple[Cell[T], ...]:
    def value(name: str) -> Callable[[T], Any]:
        return lambda row: known(name)(of(row))

    def last_write(row: T) -> str | None:
        at = of(row).last_timestamp
        return None if at < 0 else moment(at)

    return (
        Cell("producer", "producer_id", value("producer_id")),
        Cell("epoch", "producer_epoch", value("producer_epoch")),
        Cell("sequence", "last_sequence", value("last_sequence")),
        Cell("last write", "last_timestamp_ms", value("last_timestamp"), last_write),
        Cell("open from", "transaction_start_offset", value("transaction_start_offset")),
        Cell("coordinator", "coordinator_epoch", value("coordinator_epoch")),
    )


PRODUCERS: Final = Report[ProducerDescription](*_columns(lambda producer: producer))
HANGING: Final = Report[_Open](
    *place_columns(lambda each: each.partition),
    *_columns(lambda each: each.producer),
    Cell("no write for", text=lambda each: duration(_quiet_ms(each.producer))),
)
