"""`barnabas topic …`: create, list, describe, change and delete topics."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from barnabas.cli.session import DEFAULT_CONNECTION, Connection, Settings, key_values, worked
from barnabas.client.admin import NewTopic
from barnabas.client.types import TopicPartition

__all__ = ["app"]

TOPIC_SOURCE = 1  # ConfigSource of DescribeConfigs: set on the topic itself

app = App(
    name="topic",
    help_epilogue="Examples:\n\n`barnabas topic create orders --partitions 3`\n\n`barnabas topic describe orders`",
)
Topic = Annotated[str, Parameter(help="Name of the topic.")]


@app.command(help_epilogue="Examples:\n\n`barnabas topic create orders --partitions 3 --config retention.ms=3600000`")
def create(
    topic: Topic,
    *,
    partitions: Annotated[int, Parameter(help="-1 takes the broker's num.partitions.")] = -1,
    replication_factor: Annotated[int, Parameter(help="-1 takes the broker's default.replication.factor.")] = -1,
    config: Settings = (),
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Create a topic."""
    configs = key_values("topic create", config)

    async def work() -> None:
        async with connection.admin() as admin:
            await admin.create_topics([NewTopic(topic, partitions, replication_factor, configs)])
            info = (await admin.describe_topics([topic]))[topic]
        print(
            f"created {topic} with {len(info.partitions)} partitions, replication factor {len(info.partitions[0].replicas)}"
        )

    return worked("topic create", connection, work())


@app.command(name="list", help_epilogue="Examples:\n\n`barnabas topic list --internal`")
def list_(
    *,
    internal: Annotated[bool, Parameter(negative=(), help="Also the brokers' own topics.")] = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """List topics."""

    async def work() -> None:
        async with connection.admin() as admin:
            for name in await admin.list_topics(include_internal=internal):
                print(name)

    return worked("topic list", connection, work())


@app.command(help_epilogue="Examples:\n\n`barnabas topic describe orders`")
def describe(topic: Topic, *, connection: Connection = DEFAULT_CONNECTION) -> int:
    """Show a topic's partitions with leaders, replicas and offsets, and the configs set on the topic."""

    async def work() -> None:
        async with connection.admin() as admin:
            info = (await admin.describe_topics([topic]))[topic]
            configs = await admin.describe_configs(topic=topic)
            led = [TopicPartition(topic, p.partition) for p in info.partitions if p.leader >= 0]
            first = await admin.list_offsets(dict.fromkeys(led, "earliest"))
            last = await admin.list_offsets(dict.fromkeys(led, "latest"))
            stable = await admin.list_offsets(dict.fromkeys(led, "latest"), isolation_level="read_committed")
        print(f"{topic}  id {info.topic_id.hex()}  partitions {len(info.partitions)}")
        for entry in sorted(configs.values()):
            if entry.source == TOPIC_SOURCE:
                print(f"  {entry.name}={entry.value}")
        for p in info.partitions:
            tp = TopicPartition(topic, p.partition)
            offsets = (
                f"offsets {first[tp].offset}..{last[tp].offset}, stable up to {stable[tp].offset}"
                if tp in first
                else "no leader"
            )
            print(
                f"  partition {p.partition}: leader {p.leader} epoch {p.leader_epoch} replicas {list(p.replicas)} "
                f"in sync {list(p.isr)}  {offsets}"
            )

    return worked("topic describe", connection, work())


@app.command(
    help_epilogue="Examples:\n\n`barnabas topic alter orders --partitions 6 --config retention.ms=1000 --unset cleanup.policy`"
)
def alter(
    topic: Topic,
    *,
    partitions: Annotated[int | None, Parameter(help="Raise the number of partitions to this total.")] = None,
    config: Settings = (),
    unset: Annotated[tuple[str, ...], Parameter(negative=(), help="A config to reset to its default.")] = (),
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Change a topic's configs or raise its number of partitions."""
    changes: dict[str, str | None] = {**key_values("topic alter", config), **dict.fromkeys(unset)}

    async def work() -> None:
        async with connection.admin() as admin:
            if changes:
                await admin.alter_configs(changes, topic=topic)
            if partitions is not None:
                await admin.create_partitions({topic: partitions})
        print(f"altered {topic}")

    return worked("topic alter", connection, work())


@app.command(help_epilogue="Examples:\n\n`barnabas topic delete orders payments`")
def delete(
    *topics: Annotated[str, Parameter(help="Names of the topics.")], connection: Connection = DEFAULT_CONNECTION
) -> int:
    """Delete topics with all their records."""

    async def work() -> None:
        async with connection.admin() as admin:
            await admin.delete_topics(topics)
        print(f"deleted {', '.join(topics)}")

    return worked("topic delete", connection, work())
