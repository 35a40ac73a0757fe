"""`barnabas topic …`: create, list, describe, change and delete topics."""

from __future__ import annotations

import asyncio
import re
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from fnmatch import filter as matching
from typing import Annotated, Final, NamedTuple

from cyclopts import App, Parameter

from barnabas.cli.arguments import key_values
from barnabas.cli.client_properties import WrongCall
from barnabas.cli.render import DEFAULT_OUTPUT, Cell, Output, Report, as_size, known, printed_uuid
from barnabas.cli.session import DEFAULT_CONNECTION, Connection, client_command, each
from barnabas.cli.streams import printable
from barnabas.client.admin import Admin, ConfigEntry, NewTopic
from barnabas.client.errors import (
    AuthorizationFailed,
    IllegalState,
    KafkaError,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from barnabas.client.net.core.metadata import PartitionInfo, TopicInfo
from barnabas.client.types import OffsetAndTimestamp, TopicPartition

TOPIC_SOURCE: Final = 1  # ConfigSource of DescribeConfigs: set on the topic itself
IN_FLIGHT_MAX: Final = 50  # DescribeConfigs requests at the same time
MIN_ISR: Final = "min.insync.replicas"
TOPICS_PER_REQUEST: Final = 1_000
PARTITIONS_PER_REQUEST: Final = 10_000  # controllers of Kafka create no more at once

app = App(
    name="topic",
    help_epilogue="Examples:\n\n- `barnabas topic create orders --partitions 3`\n- `barnabas topic list --long`\n"
    "- `barnabas topic describe orders`",
)


Internal = Annotated[bool, Parameter(help="Also the brokers' own topics.")]
Names = Annotated[str, Parameter(help="Names or patterns of topics: 'load-*'.")]
Regex = Annotated[bool, Parameter(name=["--regex", "-r"], help="They are regular expressions for whole names.")]
Configs = Annotated[
    tuple[str, ...],
    Parameter(name=["--config", "-c"], help="key=value, Kafka's config names; may be repeated."),
]
IfExists = Annotated[bool, Parameter(help="A topic that does not exist is no error.")]
_OR = "; with other filters, partitions that match any of them."
UnderReplicated = Annotated[bool, Parameter(help=f"Only partitions with replicas out of sync{_OR}")]
Unavailable = Annotated[bool, Parameter(help=f"Only partitions without a leader{_OR}")]
UnderMinIsr = Annotated[bool, Parameter(help=f"Only partitions with fewer in sync than min.insync.replicas{_OR}")]
AtMinIsr = Annotated[bool, Parameter(help=f"Only partitions with just min.insync.replicas in sync{_OR}")]


@app.command(
    help_epilogue="Examples:\n\n- `barnabas topic create orders --partitions 3 --config retention.ms=3600000`\n"
    "- `barnabas topic create orders payments --if-not-exists`\n"
    "- `barnabas topic create orders --replica-assignment 1:2,2:3` makes two partitions, led by brokers 1 and 2."
)
@client_command("topic create")
async def create(
    *topics: Annotated[str, Parameter(required=True, help="Names of the topics.")],
    partitions: Annotated[
        int, Parameter(name=["--partitions", "-p"], help="Number of partitions; -1 takes the broker's num.partitions.")
    ] = -1,
    replication_factor: Annotated[
        int,
        Parameter(
            name=["--replication-factor", "-r"],
            help="Number of replicas; -1 takes the broker's default.replication.factor.",
        ),
    ] = -1,
    replica_assignment: Annotated[
        str | None,
        Parameter(help="Brokers of each partition instead: ':' between brokers, ',' between partitions."),
    ] = None,
    config: Configs = (),
    if_not_exists: Annotated[bool, Parameter(help="A topic that exists is no error.")] = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> None:
    """Create topics."""
    configs = key_values(config)
    if replica_assignment is not None and (partitions, replication_factor) != (-1, -1):
        raise WrongCall("--replica-assignment excludes --partitions and --replication-factor")
    try:
        assignment = {} if replica_assignment is None else _assignment(replica_assignment)
    except ValueError:
        text = (
            f"--replica-assignment {replica_assignment!r} is not as in 1:2,2:3: brokers of partition 0, of partition 1"
        )
        raise WrongCall(text) from None
    names = list(dict.fromkeys(topics))
    at_once = max(1, min(TOPICS_PER_REQUEST, PARTITIONS_PER_REQUEST // max(partitions, len(assignment), 1)))
    refused: dict[str, KafkaError] = {}
    created: dict[str, tuple[int, int]] = {}
    async with connection.admin() as admin:
        for start in range(0, len(names), at_once):
            wanted = names[start : start + at_once]
            new = [NewTopic(name, partitions, replication_factor, configs, assignment) for name in wanted]
            created |= await admin.create_topics(new, refused=refused)

    async def tell(topic: str) -> None:
        if topic in created:
            count, replicas = created[topic]
            what = "1 partition" if count == 1 else f"{count} partitions"
            print(f"created {topic}" + (f" with {what}, replication factor {replicas}" if count > 0 else ""))
        elif if_not_exists and isinstance(refused[topic], TopicAlreadyExists):
            print(f"{topic} exists")
        else:
            raise refused[topic]

    await each("topic create", names, tell, connection, "topic")


@app.command(
    name=["list", "ls"],
    help_epilogue="Examples:\n\n- `barnabas topic list 'load-*' --internal`\n- `barnabas topic list --long`\n"
    "- `barnabas topic list --json`",
)
@client_command("topic list")
async def list_(
    *topics: Names,
    regex: Regex = False,
    internal: Internal = False,
    long: Annotated[bool, Parameter(name=["--long", "-l"], help="Show partitions, leaders, records and size.")] = False,
    output: Output = DEFAULT_OUTPUT,
    connection: Connection = DEFAULT_CONNECTION,
) -> None:
    """List topics."""
    async with connection.admin() as admin:

        async def names() -> list[str]:
            there = await admin.list_topics(include_internal=internal)
            chosen = _chosen(there, topics, regex, strict=False) if topics else there
            return sorted(set(chosen) & set(there))

        empty = "no topic matches" if topics else "there are no topics"
        table = LONG if long or (output.watch and not output.json_) else TOPICS
        if not (long or output.json_ or output.watch):
            found = await names()
            print("\n".join(found)) if found else print(empty, file=sys.stderr)
            return

        async def read() -> list[TopicReport]:
            infos = (await admin.describe_topics(await names(), refused={})).values()
            reports = [TopicReport(each) for each in infos]
            return await _measured(admin, reports) if table is LONG else reports

        await output.show(read, table, empty=empty)


@app.command(
    help_epilogue="Examples:\n\n- `barnabas topic describe orders`\n- `barnabas topic describe --under-replicated --watch`"
    " shows what replicas still have to catch up with.\n- `barnabas topic describe orders --json`"
)
@client_command("topic describe")
async def describe(
    *topics: Annotated[str, Parameter(help="Names or patterns of topics [default: all].")],
    regex: Regex = False,
    internal: Internal = False,
    under_replicated: UnderReplicated = False,
    unavailable: Unavailable = False,
    under_min_isr: UnderMinIsr = False,
    at_min_isr: AtMinIsr = False,
    if_exists: IfExists = False,
    output: Output = DEFAULT_OUTPUT,
    connection: Connection = DEFAULT_CONNECTION,
) -> None:
    """Show topics: partitions with leaders, replicas and offsets, and the configs set on the topic."""
    filters = {
        "under-replicated": under_replicated,
        "unavailable": unavailable,
        "under-min-isr": under_min_isr,
        "at-min-isr": at_min_isr,
    }
    chosen = [name for name, wanted in filters.items() if wanted]
    missing: dict[str, KafkaError] = {}

    async def refused(name: str) -> None:
        if not (if_exists and isinstance(missing[name], UnknownTopicOrPartition)):
            raise missing[name]

    async with connection.admin() as admin:

        async def read() -> list[TopicReport]:
            missing.clear()
            names = await _named(admin, topics, regex, internal, if_exists)
            found = await admin.describe_topics(names, refused=missing)
            if output.watch and topics and missing:
                raise next(iter(missing.values()))
            reports = await _measured(admin, await _configured(admin, found.values()))
            if chosen:
                reports = [left for each in reports if (left := each.only(chosen)).info.partitions]
                if not reports and not output.watch:
                    print(f"no partition is {' or '.join(chosen)}", file=sys.stderr)
            return reports

        await output.show(read, DESCRIBED, lambda reports: "\n".join(map(_text, reports)))
        await each("topic describe", missing, refused, connection, "topic")


@app.command(
    help_epilogue="Examples:\n\n- `barnabas topic alter orders --partitions 6 --config retention.ms=1000 --unset cleanup.policy`"
)
@client_command("topic alter", about="topic:{topic}")
async def alter(
    topic: Annotated[str, Parameter(help="Name of the topic.")],
    *,
    partitions: Annotated[int | None, Parameter(help="Raise the number of partitions to this total.")] = None,
    config: Configs = (),
    unset: Annotated[tuple[str, ...], Parameter(help="A config to reset to its default.")] = (),
    if_exists: IfExists = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> None:
    """Change a topic's configs or raise its number of partitions."""
    changes: dict[str, str | None] = {**key_values(config), **dict.fromkeys(unset)}
    if not changes and partitions is None:
        raise WrongCall("give a change: --partitions, --config or --unset")
    async with connection.admin() as admin:
        try:
            await admin.describe_topics([topic])  # a missing topic is reported first, and nothing is changed
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


@app.command(help_epilogue="Examples:\n\n- `barnabas topic delete orders payments`\n- `barnabas topic delete 'load-*'`")
@client_command("topic delete")
async def delete(
    *topics: Annotated[str, Parameter(required=True, help="Names or patterns of topics: 'load-*'.")],
    regex: Regex = False,
    if_exists: IfExists = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> None:
    """Delete topics with all their records."""
    refused: dict[str, KafkaError] = {}
    async with connection.admin() as admin:
        names = await _named(admin, topics, regex, False, if_exists)
        for start in range(0, len(names), TOPICS_PER_REQUEST):
            await admin.delete_topics(names[start : start + TOPICS_PER_REQUEST], refused=refused)

    async def tell(topic: str) -> None:
        if topic not in refused:
            print(f"deleted {topic}")
        elif if_exists and isinstance(refused[topic], UnknownTopicOrPartition):
            print(f"{topic} does not exist")
        else:
            raise refused[topic]

    await each("topic delete", names, tell, connection, "topic")


async def _named(admin: Admin, wanted: Sequence[str], regex: bool, internal: bool, if_exists: bool) -> list[str]:
    """The topics that the arguments name; without arguments all. Only patterns and no arguments need a list of all."""
    if wanted and not regex and not any(map(_is_pattern, wanted)):
        return list(dict.fromkeys(wanted))
    there = await admin.list_topics(include_internal=internal)
    return _chosen(there, wanted, regex, strict=not if_exists) if wanted else there


def _chosen(there: Sequence[str], wanted: Sequence[str], regex: bool, *, strict: bool) -> list[str]:
    """The names, and those that patterns match. Raises WrongCall for a wrong pattern; IllegalState if `strict` and one matches nothing."""
    found: dict[str, None] = {}
    for pattern in wanted:
        if regex:
            try:
                names = [name for name in there if re.fullmatch(pattern, name)]
            except re.error as error:
                raise WrongCall(f"--regex {pattern!r}: {error}") from None
        else:
            names = matching(there, pattern) if _is_pattern(pattern) else [pattern]
        if strict and not names:
            raise IllegalState(f"no topic matches {pattern!r}" + (" as a whole" if regex else ""))
        found |= dict.fromkeys(names)
    return list(found)


def _is_pattern(name: str) -> bool:
    return not {"*", "?", "["}.isdisjoint(name)


def _assignment(text: str) -> dict[int, list[int]]:
    """The brokers of each partition, as in 1:2,2:3. Raises ValueError for another form."""
    found = {number: [int(broker) for broker in part.split(":")] for number, part in enumerate(text.split(","))}
    if any(broker < 0 for brokers in found.values() for broker in brokers):
        raise ValueError(text)
    return found


# -- reports -----------------------------------------------------------------------------------------------------------


class PartitionReport(NamedTuple):
    """A partition with its offsets (−1: not known) and the size of its leader's log."""

    info: PartitionInfo
    start: int = -1
    end: int = -1  # the high watermark
    stable: int = -1  # the last stable offset
    size: int | None = None

    @property
    def lags(self) -> bool:
        """Whether a replica is out of sync."""
        return len(self.info.isr) < len(self.info.replicas)


class TopicReport(NamedTuple):
    """A topic. `configs` has all configs of the topic, also defaults; `partitions` what was measured, by partition number."""

    info: TopicInfo
    configs: Mapping[str, ConfigEntry] = {}
    measured: Mapping[int, PartitionReport] = {}

    @property
    def partitions(self) -> list[PartitionReport]:
        return [self.measured.get(p.partition, PartitionReport(p)) for p in self.info.partitions]

    @property
    def replicas(self) -> int:
        """The replication factor."""
        return max((len(p.replicas) for p in self.info.partitions), default=0)

    @property
    def own_configs(self) -> dict[str, str | None]:
        return {name: entry.value for name, entry in sorted(self.configs.items()) if entry.source == TOPIC_SOURCE}

    @property
    def records(self) -> int | None:
        """The sum of end - start; None if it is not known for all partitions with a leader."""
        led = [p for p in self.partitions if p.info.leader >= 0]
        return None if any(p.end < 0 for p in led) else sum(p.end - p.start for p in led)

    @property
    def size(self) -> int | None:
        sizes = [p.size for p in self.partitions if p.size is not None]
        return sum(sizes) if sizes else None

    @property
    def leaders(self) -> dict[str, int]:
        """How many partitions each broker leads."""
        led = Counter(p.leader for p in self.info.partitions if p.leader >= 0)
        return {str(node): count for node, count in sorted(led.items())}

    @property
    def under_replicated(self) -> int:
        return sum(p.lags for p in self.partitions)

    @property
    def unavailable(self) -> int:
        return sum(p.leader < 0 for p in self.info.partitions)

    @property
    def state(self) -> str:
        counts = ((self.unavailable, "without leader"), (self.under_replicated, "under-replicated"))
        return ", ".join(f"{count} {what}" for count, what in counts if count) or "ok"

    def only(self, names: Sequence[str]) -> TopicReport:
        """This topic with those of its partitions that have one of these conditions."""
        entry = self.configs.get(MIN_ISR)
        min_isr = int(entry.value) if entry is not None and entry.value else 1
        kept = []
        for p in self.info.partitions:
            holds = {
                "under-replicated": len(p.isr) < len(p.replicas),
                "unavailable": p.leader < 0,
                "under-min-isr": len(p.isr) < min_isr,
                "at-min-isr": len(p.isr) == min_isr,
            }
            if any(holds[name] for name in names):
                kept.append(p)
        return self._replace(info=self.info._replace(partitions=tuple(kept)))


PARTITIONS = Report[PartitionReport](
    Cell("partition", "partition", lambda p: p.info.partition),
    Cell(
        "leader",
        "leader",
        lambda p: p.info.leader if p.info.leader >= 0 else None,
        lambda p: p.info.leader if p.info.leader >= 0 else "none",
        wrong=lambda p: p.info.leader < 0,
    ),
    Cell("epoch", "leader_epoch", lambda p: p.info.leader_epoch),
    Cell("replicas", "replicas", lambda p: list(p.info.replicas)),
    Cell("in sync", "isr", lambda p: list(p.info.isr), wrong=lambda p: p.lags),
    Cell("start", "start_offset", known("start")),
    Cell("end", "end_offset", known("end")),
    Cell("stable", "last_stable_offset", known("stable")),
    Cell("size", "size_bytes", lambda p: p.size, lambda p: as_size(p.size)),
)
_SUMMARY: Final = (
    Cell[TopicReport]("topic", "name", lambda t: t.info.name, shrinks=True),
    Cell[TopicReport]("", "topic_id", lambda t: printed_uuid(t.info.topic_id)),
    Cell[TopicReport]("", "is_internal", lambda t: t.info.is_internal),
    Cell[TopicReport]("partitions", "partition_count", lambda t: len(t.info.partitions)),
    Cell[TopicReport]("replicas", "replication_factor", lambda t: t.replicas),
    Cell[TopicReport]("", "under_replicated_partitions", lambda t: t.under_replicated),
    Cell[TopicReport]("", "unavailable_partitions", lambda t: t.unavailable),
)
_MEASURED: Final = (
    Cell[TopicReport](
        "leaders", "leaders", text=lambda t: " ".join(f"{node}:{count}" for node, count in t.leaders.items()) or None
    ),
    Cell[TopicReport]("records", "records"),
    Cell[TopicReport]("size", "size_bytes", lambda t: t.size, lambda t: as_size(t.size)),
    Cell[TopicReport]("state", text=lambda t: t.state, wrong=lambda t: t.state != "ok"),
)
TOPICS = Report(*_SUMMARY)
LONG = Report(*_SUMMARY, *_MEASURED)
DESCRIBED = Report(
    *_SUMMARY,
    *_MEASURED,
    Cell("", "configs", lambda t: t.own_configs),
    Cell("", "partitions", lambda t: PARTITIONS.documents(t.partitions)),
)


def _text(topic: TopicReport) -> str:
    """A topic as `topic describe` prints it."""
    facts = {
        "id": printed_uuid(topic.info.topic_id),
        "partitions": len(topic.info.partitions),
        "replication factor": topic.replicas,
        "records": "-" if topic.records is None else topic.records,
        "size": as_size(topic.size) or "-",
    }
    return "\n".join(
        [
            "  ".join([topic.info.name, *(f"{name} {value}" for name, value in facts.items())]),
            *(f"  {name}={printable(value)}" for name, value in topic.own_configs.items()),
            PARTITIONS.text(topic.partitions, indent="  "),
        ]
    )


async def _configured(admin: Admin, topics: Collection[TopicInfo]) -> list[TopicReport]:
    """The topics with their configs. A topic that is deleted between two requests is left out."""
    room = asyncio.Semaphore(IN_FLIGHT_MAX)

    async def one(topic: TopicInfo) -> list[TopicReport]:
        async with room:
            try:
                return [TopicReport(topic, await admin.describe_configs(topic=topic.name))]
            except UnknownTopicOrPartition:
                return []

    return [report for found in await asyncio.gather(*map(one, topics)) for report in found]


async def _measured(admin: Admin, topics: Collection[TopicReport]) -> list[TopicReport]:
    """The topics with offsets and sizes of their partitions, as far as brokers tell them; stderr says if offsets are missing."""
    led = {TopicPartition(t.info.name, p.partition): p for t in topics for p in t.info.partitions if p.leader >= 0}
    sizes: dict[tuple[TopicPartition, int], int] = {}
    offsets: list[Mapping[TopicPartition, OffsetAndTimestamp]] = []
    try:
        for node, directories in (await admin.describe_log_dirs()).items():
            sizes |= {(tp, node): r.size_bytes for each in directories for tp, r in each.replicas.items()}
    except AuthorizationFailed:
        pass  # sizes need a right on the cluster, the rest only on the topics
    except KafkaError as error:
        print(f"sizes are not shown: {error}", file=sys.stderr)
    try:
        offsets = [
            await admin.list_offsets(dict.fromkeys(led, "earliest")),
            await admin.list_offsets(dict.fromkeys(led, "latest")),
            await admin.list_offsets(dict.fromkeys(led, "latest"), isolation_level="read_committed"),
        ]
    except KafkaError as error:
        print(f"offsets are not shown: {error}", file=sys.stderr)
    measured: dict[str, dict[int, PartitionReport]] = {}
    for tp, p in led.items():
        report = PartitionReport(p, *(at[tp].offset for at in offsets))._replace(size=sizes.get((tp, p.leader)))
        measured.setdefault(tp.topic, {})[tp.partition] = report
    return [t._replace(measured=measured.get(t.info.name, {})) for t in topics]
