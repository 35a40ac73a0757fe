"""`barnabas txn …`: shows transactions, and commits or aborts one whose producer is gone."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final, NamedTuple, TypeVar

from cyclopts import App, Parameter

from barnabas.cli.arguments import parse_duration
from barnabas.cli.client_properties import WrongCall
from barnabas.cli.confirmation import Yes, confirm
from barnabas.cli.render import (
    DEFAULT_OUTPUT,
    YELLOW,
    Cell,
    Json,
    Output,
    Report,
    duration,
    known,
    moment,
    named,
    named_some,
    place,
    place_columns,
)
from barnabas.cli.session import DEFAULT_CONNECTION, Connection, client_command, raiser
from barnabas.cli.session import each as each_of
from barnabas.cli.streams import printable
from barnabas.client.admin import Admin, ProducerDescription, TransactionDescription, TransactionListing
from barnabas.client.errors import IllegalState, KafkaError, ResponseError
from barnabas.client.types import TopicPartition

STATES: Final = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
OPEN_STATES: Final = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort"})
IN_FLIGHT_MAX: Final = 50  # requests at the same time

app = App(
    name="txn",
    help_epilogue="Examples:\n\n- `barnabas txn list --state Ongoing`\n- `barnabas txn describe my-transactional-id`\n"
    "- `barnabas txn explain my-transactional-id` tells what happened to it.\n"
    "- `barnabas txn commit my-transactional-id --only 4000:7` commits a prepared transaction whose other participant has committed.",
)


@app.command(
    name=["list", "ls"],
    help_epilogue="Examples:\n\n- `barnabas txn list --state Ongoing`\n- `barnabas txn list --longer-than 15m --json`\n"
    "- `barnabas txn list --watch`",
)
@client_command("txn list")
async def list_(
    *,
    state: Annotated[tuple[str, ...], Parameter(help=f"Only these; may be repeated: {', '.join(STATES)}.")] = (),
    longer_than: Annotated[
        str | None, Parameter(help="Only open transactions that are open for longer: 30s, 15m, 2h, PT1H.")
    ] = None,
    output: Output = DEFAULT_OUTPUT,
    connection: Connection = DEFAULT_CONNECTION,
) -> None:
    """List transactional ids with their producer id, state, and the duration of open transactions."""
    names = {name.lower(): name for name in STATES}
    unknown = [name for name in state if name.lower() not in names]
    if unknown:
        raise WrongCall(f"--state {unknown[0]} must be one of {', '.join(STATES)}")
    try:
        duration_ms = None if longer_than is None else parse_duration(longer_than)
    except ValueError as error:
        raise WrongCall(f"--longer-than: {error}") from None
    async with connection.admin() as admin:

        async def read() -> list[TransactionReport]:
            found = await _listed(admin, [names[name.lower()] for name in state])
            if duration_ms is not None:
                found = [each for each in found if (each.open_ms or 0) > duration_ms]
            return found

        empty = "no transaction matches" if state or longer_than else "there are no transactions"
        await output.show(read, LISTED, empty=empty)


@app.command(
    help_epilogue="Examples:\n\n- `barnabas txn describe my-transactional-id`\n- `barnabas txn describe id-1 id-2 --json`"
)
@client_command("txn describe")
async def describe(
    *transactional_ids: Annotated[str, Parameter(required=True, help="The producers' transactional.id, one or more.")],
    output: Output = DEFAULT_OUTPUT,
    connection: Connection = DEFAULT_CONNECTION,
) -> None:
    """Show transactional ids: epoch, timeout, start, and the partitions of the open transaction."""
    missing: dict[str, KafkaError] = {}
    async with connection.admin() as admin:

        async def read() -> list[TransactionReport]:
            found = []
            for name in dict.fromkeys(transactional_ids):
                try:
                    found.append(await _described(admin, name))
                except ResponseError as error:
                    missing[name] = type(error)(f"{name}: {error.message}", code=error.code)
                    if output.watch:
                        raise missing[name] from error
            return found

        await output.show(read, DESCRIBED, lambda found: "\n".join(map(_text, found)))
        await each_of("txn describe", missing, raiser(missing), connection, "transactional-id")


@app.command(
    help_epilogue="Examples:\n\n- `barnabas txn explain my-transactional-id`\n"
    "- `barnabas txn explain my-transactional-id --trace kafka-traces/test_orders.kafkatrace`"
)
def explain(
    transactional_id: Annotated[str, Parameter(help="The producer's transactional.id.")],
    *,
    trace: Annotated[
        str, Parameter(help="A file that pytest has written with --kafka-trace, instead of a running Kafka.")
    ] = "",
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Explain what happened to one transactional id: its epochs and who raised them, partitions, markers, fences, and what to do now."""
    from barnabas.cli.txn_explain import explain_live, explain_trace

    return explain_trace(transactional_id, trace) if trace else explain_live(transactional_id, connection)


Only = Annotated[str, Parameter(help="PRODUCER_ID:EPOCH, as `describe` shows them: end only this transaction.")]


@app.command(help_epilogue="Examples:\n\n- `barnabas txn commit my-transactional-id --only 4000:7`")
@client_command("txn commit", about="transactional-id:{transactional_id}")
async def commit(
    transactional_id: Annotated[str, Parameter(help="The producer's transactional.id.")],
    *,
    only: Only = "",
    connection: Connection = DEFAULT_CONNECTION,
) -> None:
    """Commit an open transaction in place of its producer, which is fenced.

    For a prepared transaction whose producer is gone and whose other participant has committed. Needs brokers that
    support KIP-939.
    """
    await _check_open(transactional_id, only, connection)
    keeping: dict[str, Any] = {"two_phase_commit": True, "keep_prepared": True}
    async with connection.producer(transactional_id=transactional_id, **keeping) as producer:
        kept = producer.prepared
        if kept is None or only not in ("", str(kept)):
            raise IllegalState(f"the transaction of {transactional_id!r} has already ended")
        await producer.complete(kept)
    print(f"committed {transactional_id} {kept}")


@app.command(
    help_epilogue="Examples:\n\n- `barnabas txn abort my-transactional-id --only 4000:7`\n- `barnabas txn abort --sink invoices`"
)
@client_command("txn abort", about="transactional-id:{transactional_id}")
async def abort(
    transactional_id: Annotated[str, Parameter(help="The producer's transactional.id.")] = "",
    *,
    only: Only = "",
    sink: Annotated[
        str, Parameter(help="All transactions of this sink.id, left by a Spark query that never starts again.")
    ] = "",
    yes: Yes = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> None:
    """Abort an open transaction in place of its producer, which is fenced; with --sink the undecided ones of a sink."""
    if bool(transactional_id) == bool(sink) or (sink and only):
        raise WrongCall("name a transactional id, with or without --only, or a sink by --sink")
    if sink:
        await _abort_sink(sink, yes, connection)
        return
    described = await _check_open(transactional_id, only, connection)
    async with connection.producer(transactional_id=transactional_id):
        pass  # its start sends InitProducerId, which aborts the open transaction
    print(f"aborted {transactional_id} {described.producer_id}:{described.producer_epoch}")


async def _abort_sink(sink_id: str, yes: bool, connection: Connection) -> None:
    async with connection.sink_admin() as admin:
        opened = (await admin.open_of_sinks()).get(sink_id, ())
        if not opened:
            raise IllegalState(f"sink {sink_id!r} has no open transaction")
        partitions = sorted({tp for each in opened for tp in each.partitions})
        held = named_some(partitions)
        confirm(yes, f"abort {len(opened)} transactions of sink {sink_id} ({held})? A running query of it fails.")
        aborted, decided = await admin.abandon_sink(sink_id)
    for part in sorted(aborted):
        print(printable(f"aborted {part.key} {part.token.replace('-', ':')}"))
    if decided:
        shown = decided[0].key, decided[0].token.replace("-", ":")
        raise IllegalState(
            f"{len(decided)} transactions of sink {sink_id!r} stay open: a decision commits them. Start the query "
            f"again, or commit each, as by `barnabas txn commit {shown[0]} --only {shown[1]}`"
        )


async def _check_open(transactional_id: str, only: str, connection: Connection) -> TransactionDescription:
    async with connection.admin() as admin:
        found = await admin.describe_transaction(transactional_id)
    identity = f"{found.producer_id}:{found.producer_epoch}"
    if found.state != "Ongoing":
        raise IllegalState(f"{transactional_id!r} has no open transaction: it is {found.state}")
    if only not in ("", identity):
        raise IllegalState(f"the open transaction of {transactional_id!r} is {identity}, not {only}: nothing was ended")
    return found


# -- reports -----------------------------------------------------------------------------------------------------------


class TransactionReport(NamedTuple):
    """A transactional id; `found` is None if it is not open, or ended after it was listed. `now_ms` is this machine's time."""

    listing: TransactionListing
    found: TransactionDescription | None
    now_ms: int

    @property
    def state(self) -> str:
        return self.listing.state if self.found is None else self.found.state

    @property
    def start_ms(self) -> int | None:
        """When its open transaction began."""
        if self.found is None or self.found.start_time_ms < 0 or self.state not in OPEN_STATES:
            return None
        return self.found.start_time_ms

    @property
    def open_ms(self) -> int | None:
        """For how long its transaction is open."""
        return None if self.start_ms is None else max(self.now_ms - self.start_ms, 0)

    @property
    def timeout(self) -> str | None:
        """Its timeout, as it is printed."""
        if self.found is None:
            return None
        return "none (two-phase commit)" if self.found.is_two_phase else duration(self.found.timeout_ms)


async def _listed(admin: Admin, states: list[str]) -> list[TransactionReport]:
    """The transactional ids of the cluster, with the details of those that have an open transaction."""
    room = asyncio.Semaphore(IN_FLIGHT_MAX)

    async def described(listing: TransactionListing) -> TransactionDescription | None:
        if listing.state not in OPEN_STATES:
            return None
        async with room:
            try:
                return await admin.describe_transaction(listing.transactional_id)
            except KafkaError:  # it ended and was removed after it was listed
                return None

    listings = sorted(await admin.list_transactions(states=states))
    found = await asyncio.gather(*(described(listing) for listing in listings))
    now_ms = round(time.time() * 1000)
    return [TransactionReport(listing, each, now_ms) for listing, each in zip(listings, found, strict=True)]


async def _described(admin: Admin, transactional_id: str) -> TransactionReport:
    """Describes a transactional id. Raises KafkaError (TRANSACTIONAL_ID_NOT_FOUND)."""
    found = await admin.describe_transaction(transactional_id)
    listing = TransactionListing(transactional_id, found.producer_id, found.state)
    return TransactionReport(listing, found, round(time.time() * 1000))


_SUMMARY: Final = (
    Cell[TransactionReport]("transactional id", "transactional_id", lambda t: t.listing.transactional_id, shrinks=True),
    Cell[TransactionReport]("producer", "producer_id", lambda t: t.listing.producer_id),
    Cell[TransactionReport]("state", "state", wrong=lambda t: t.open_ms is not None, colour=YELLOW),
    Cell[TransactionReport]("", "start_time_ms", lambda t: t.start_ms),
    Cell[TransactionReport](
        "open for", "duration_ms", lambda t: t.open_ms, lambda t: None if t.open_ms is None else duration(t.open_ms)
    ),
    Cell[TransactionReport]("timeout", text=lambda t: t.timeout),
    Cell[TransactionReport]("", "is_two_phase", lambda t: None if t.found is None else t.found.is_two_phase),
)
LISTED = Report(*_SUMMARY)
DESCRIBED = Report(
    *_SUMMARY,
    Cell("", "producer_epoch", lambda t: t.found and t.found.producer_epoch),
    Cell("", "timeout_ms", lambda t: None if t.found is None or t.found.is_two_phase else t.found.timeout_ms),
    Cell("", "partitions", lambda t: [place(tp) for tp in sorted(t.found.partitions)] if t.found else []),
)


def _text(report: TransactionReport) -> str:
    """A transactional id as `txn describe` prints it."""
    found = report.found
    lines = [printable(f"{report.listing.transactional_id}  {report.state}")]
    if found is not None:
        timeout = "no timeout (two-phase commit)" if found.is_two_phase else f"timeout {report.timeout}"
        lines.append(f"  producer {found.producer_id} epoch {found.producer_epoch}, {timeout}")
        if report.start_ms is not None and report.open_ms is not None:
            lines.append(f"  open since {moment(report.start_ms)}, for {duration(report.open_ms)}")
        lines += [f"  {named(tp)}" for tp in sorted(found.partitions)]
    return "\n".join(lines)


T = TypeVar("T")


# -- transactions that no coordinator knows (KIP-664): they block read_committed consumers forever

OfTopic = Annotated[str, Parameter(help="Name of the topic.")]
OfPartition = Annotated[int, Parameter(help="Number of the partition.")]


class _Open(NamedTuple):
    """An open transaction, as a partition's leader knows it."""

    partition: TopicPartition
    producer: ProducerDescription


@app.command(
    name="describe-producers",
    help_epilogue="Examples:\n\n- `barnabas txn describe-producers orders --partition 0`",
)
@client_command("txn describe-producers")
async def describe_producers(
    topic: OfTopic, *, partition: OfPartition, json_: Json = False, connection: Connection = DEFAULT_CONNECTION
) -> None:
    """Show the producers that a partition knows, with their open transactions."""
    async with connection.admin() as admin:
        tp = await _existing(admin, topic, partition)
        found = sorted(await admin.describe_producers(tp))
    PRODUCERS.show(found, json_, empty=f"{topic}-{partition} knows no producers")


@app.command(
    name="find-hanging",
    help_epilogue="Examples:\n\n- `barnabas txn find-hanging`\n- `barnabas txn find-hanging --topic orders --older-than 1h`",
)
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


@app.command(
    name="abort-hanging",
    help_epilogue="Examples:\n\n- `barnabas txn abort-hanging orders --partition 0 --start-offset 1234`",
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
