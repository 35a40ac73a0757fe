"""`barnabas topic …`: create, list, describe, change and delete topics."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import App, Parameter

from barnabas.cli.key_values import Settings, key_values
from barnabas.cli.output import Every, Json, Watch, shown, table
from barnabas.cli.session import (
    DEFAULT_CONNECTION,
    Connection,
    each,
    worked,
    wrong_call,
)
from barnabas.cli.topic_report import (
    TopicReport,
    found_topics,
    reported_topics,
    topic_document,
    topic_summary,
    topic_text,
)
from barnabas.client.admin import NewTopic
from barnabas.client.errors import KafkaError, TopicAlreadyExists, UnknownTopicOrPartition
from barnabas.client.net.metadata import TopicInfo

__all__ = ["app"]

app = App(
    name="topic",
    help_epilogue="Examples:\n\n`barnabas topic create orders --partitions 3`\n\n`barnabas topic list --long`\n\n"
    "`barnabas topic describe orders`",
)
Internal = Annotated[bool, Parameter(negative=(), help="Also the brokers' own topics.")]
IfExists = Annotated[bool, Parameter(negative=(), help="A topic that does not exist is no error.")]
_OR = "; with other filters, partitions that match any of them."
UnderReplicated = Annotated[bool, Parameter(negative=(), help=f"Only partitions with replicas out of sync{_OR}")]
Unavailable = Annotated[bool, Parameter(negative=(), help=f"Only partitions without a leader{_OR}")]
UnderMinIsr = Annotated[
    bool, Parameter(negative=(), help=f"Only partitions with fewer in sync than min.insync.replicas{_OR}")
]
AtMinIsr = Annotated[bool, Parameter(negative=(), help=f"Only partitions with just min.insync.replicas in sync{_OR}")]


@app.command(
    help_epilogue="Examples:\n\n`barnabas topic create orders --partitions 3 --config retention.ms=3600000`\n\n"
    "`barnabas topic create orders payments --if-not-exists`\n\n"
    "`barnabas topic create orders --replica-assignment 1:2,2:3` makes two partitions, led by brokers 1 and 2."
)
def create(
    *topics: Annotated[str, Parameter(help="Names of the topics.")],
    partitions: Annotated[int, Parameter(help="Number of partitions; -1 takes the broker's num.partitions.")] = -1,
    replication_factor: Annotated[
        int, Parameter(help="Number of replicas; -1 takes the broker's default.replication.factor.")
    ] = -1,
    replica_assignment: Annotated[
        str | None,
        Parameter(help="Brokers of each partition instead: ':' between brokers, ',' between partitions."),
    ] = None,
    config: Settings = (),
    if_not_exists: Annotated[bool, Parameter(negative=(), help="A topic that exists is no error.")] = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Create topics."""
    configs = key_values("topic create", config)
    if not topics:
        return wrong_call("topic create", "name a topic")
    if replica_assignment is not None and (partitions, replication_factor) != (-1, -1):
        return wrong_call("topic create", "--replica-assignment excludes --partitions and --replication-factor")
    try:
        assignment = {} if replica_assignment is None else _assignment(replica_assignment)
    except ValueError:
        text = (
            f"--replica-assignment {replica_assignment!r} is not as in 1:2,2:3: brokers of partition 0, of partition 1"
        )
        return wrong_call("topic create", text)

    async def work() -> None:
        async with connection.admin() as admin:

            async def one(topic: str) -> None:
                try:
                    await admin.create_topics([NewTopic(topic, partitions, replication_factor, configs, assignment)])
                except TopicAlreadyExists:
                    if not if_not_exists:
                        raise
                    print(f"{topic} exists")
                    return
                found = (await admin.describe_topics([topic]))[topic].partitions
                count = "1 partition" if len(found) == 1 else f"{len(found)} partitions"
                print(f"created {topic} with {count}, replication factor {len(found[0].replicas)}")

            await each("topic create", dict.fromkeys(topics), one)

    return worked("topic create", connection, work())


@app.command(
    name="list",
    help_epilogue="Examples:\n\n`barnabas topic list --internal`\n\n`barnabas topic list --long`\n\n"
    "`barnabas topic list --json`",
)
def list_(
    *,
    internal: Internal = False,
    long: Annotated[bool, Parameter(negative=(), help="Show the partitions and replicas of each topic.")] = False,
    json_: Json = False,
    watch: Watch = False,
    every: Every = 1.0,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """List topics."""

    def long_text(topics: list[TopicInfo]) -> str:
        header = ("topic", "partitions", "replicas", "under-replicated", "unavailable")
        keys = ("partition_count", "replication_factor", "under_replicated_partitions", "unavailable_partitions")
        return table(header, [(t.name, *(topic_summary(t)[key] for key in keys)) for t in topics])

    async def work() -> None:
        async with connection.admin() as admin:
            if not (long or json_ or watch):
                names = await admin.list_topics(include_internal=internal)
                print("\n".join(names)) if names else print("there are no topics", file=sys.stderr)
                return

            async def read() -> list[TopicInfo]:
                return await found_topics(admin, await admin.list_topics(include_internal=internal), {})

            await shown(
                read,
                document=lambda topics: [topic_summary(t) for t in topics],
                text=long_text,
                json_=json_,
                watch=watch,
                every=every,
            )

    return worked("topic list", connection, work())


@app.command(
    help_epilogue="Examples:\n\n`barnabas topic describe orders`\n\n`barnabas topic describe --under-replicated --watch`"
    " shows what replicas still have to catch up with.\n\n`barnabas topic describe orders --json`"
)
def describe(
    *topics: Annotated[str, Parameter(help="Names of the topics [default: all].")],
    internal: Internal = False,
    under_replicated: UnderReplicated = False,
    unavailable: Unavailable = False,
    under_min_isr: UnderMinIsr = False,
    at_min_isr: AtMinIsr = False,
    if_exists: IfExists = False,
    json_: Json = False,
    watch: Watch = False,
    every: Every = 1.0,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Show topics: partitions with leaders, replicas and offsets, and the configs set on the topic."""
    filters = {
        "under-replicated": under_replicated,
        "unavailable": unavailable,
        "under-min-isr": under_min_isr,
        "at-min-isr": at_min_isr,
    }
    chosen = [name for name, wanted in filters.items() if wanted]
    missing: dict[str, KafkaError] = {}

    async def work() -> None:
        async with connection.admin() as admin:

            async def read() -> list[TopicReport]:
                names = topics or await admin.list_topics(include_internal=internal)
                missing.clear()
                found = await found_topics(admin, names, missing)
                if watch and topics and missing:
                    raise next(iter(missing.values()))
                reports = await reported_topics(admin, found)
                if chosen:
                    reports = [left for each in reports if (left := each.only(chosen)).info.partitions]
                    if not reports and not watch:
                        print(f"no partition is {' or '.join(chosen)}", file=sys.stderr)
                return reports

            await shown(
                read,
                document=lambda reports: [topic_document(each) for each in reports],
                text=lambda reports: "\n".join(topic_text(each) for each in reports),
                json_=json_,
                watch=watch,
                every=every,
            )
            await each("topic describe", missing, refused)

    async def refused(name: str) -> None:
        if not (if_exists and isinstance(missing[name], UnknownTopicOrPartition)):
            raise missing[name]

    return worked("topic describe", connection, work())


@app.command(
    help_epilogue="Examples:\n\n`barnabas topic alter orders --partitions 6 --config retention.ms=1000 --unset cleanup.policy`"
)
def alter(
    topic: Annotated[str, Parameter(help="Name of the topic.")],
    *,
    partitions: Annotated[int | None, Parameter(help="Raise the number of partitions to this total.")] = None,
    config: Settings = (),
    unset: Annotated[tuple[str, ...], Parameter(negative=(), help="A config to reset to its default.")] = (),
    if_exists: IfExists = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Change a topic's configs or raise its number of partitions."""
    changes: dict[str, str | None] = {**key_values("topic alter", config), **dict.fromkeys(unset)}
    if not changes and partitions is None:
        return wrong_call("topic alter", "give a change: --partitions, --config or --unset")

    async def work() -> None:
        async with connection.admin() as admin:
            try:
                await admin.describe_topics([topic])  # a missing topic is told at once, and nothing is changed
                if changes:
                    await admin.alter_configs(changes, topic=topic)
                    done = [f"{name} unset" if value is None else f"{name}={value}" for name, value in changes.items()]
                    print(f"altered {topic}: {', '.join(done)}")
                if partitions is not None:
                    await admin.create_partitions({topic: partitions})
                    print(f"altered {topic}: {partitions} partitions")
            except UnknownTopicOrPartition:
                if not if_exists:
                    raise
                print(f"{topic} does not exist")

    return worked("topic alter", connection, work())


@app.command(help_epilogue="Examples:\n\n`barnabas topic delete orders payments`")
def delete(
    *topics: Annotated[str, Parameter(help="Names of the topics.")],
    if_exists: IfExists = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Delete topics with all their records."""
    if not topics:
        return wrong_call("topic delete", "name a topic")

    async def work() -> None:
        async with connection.admin() as admin:

            async def one(topic: str) -> None:
                try:
                    await admin.delete_topics([topic])
                except UnknownTopicOrPartition:
                    if not if_exists:
                        raise
                    print(f"{topic} does not exist")
                    return
                print(f"deleted {topic}")

            await each("topic delete", dict.fromkeys(topics), one)

    return worked("topic delete", connection, work())


def _assignment(text: str) -> dict[int, list[int]]:
    """The brokers of each partition, as in 1:2,2:3. Raises ValueError for another form."""
    found = {number: [int(broker) for broker in part.split(":")] for number, part in enumerate(text.split(","))}
    if any(broker < 0 for brokers in found.values() for broker in brokers):
        raise ValueError(text)
    return found
