"""`barnabas partition reassign`: moves partitions to other brokers, as Kafka's kafka-reassign-partitions does."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

from cyclopts import Parameter

from barnabas.cli.arguments import as_rate
from barnabas.cli.client_properties import WrongCall
from barnabas.cli.kafka_files import (
    WrongFile,
    as_reassignment,
    read_reassignment_file,
    read_topics_file,
    replicas_argument,
    without_doubles,
)
from barnabas.cli.partition_plan import spread
from barnabas.cli.render import (
    EVERY_S_MIN,
    Cell,
    Every,
    Json,
    Report,
    check_every,
    named,
    place_columns,
    print_json,
    watched,
)
from barnabas.cli.session import DEFAULT_CONNECTION, Connection, Ended, client_command
from barnabas.client.admin import Admin, ConfigResource, PartitionReassignment
from barnabas.client.errors import BrokerUnreachable, IllegalState, KafkaError, RequestTimedOut
from barnabas.client.types import TopicPartition

ReplicaLists = dict[TopicPartition, tuple[int, ...]]

LATER = "`partition reassign --verify` shows the end and removes throttles"
ROWS_MAX = 20  # partitions that the progress lists
RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
LEADERS: Final = "leader.replication.throttled.replicas"
FOLLOWERS: Final = "follower.replication.throttled.replicas"


class _Ended(Exception):
    """No partition of the plan is being reassigned."""


class PlanState(NamedTuple):
    """One partition of a plan: `state` is complete, in progress, differs or missing."""

    partition: TopicPartition
    wanted: tuple[int, ...]
    replicas: tuple[int, ...]
    state: str


async def present_replicas(admin: Admin, topics: Sequence[str]) -> ReplicaLists:
    """The replicas of all partitions of topics. Raises UnknownTopicOrPartition."""
    found = await admin.describe_topics(topics)
    return {
        TopicPartition(name, each.partition): each.replicas for name, info in found.items() for each in info.partitions
    }


async def start_reassignment(
    admin: Admin, targets: Mapping[TopicPartition, Sequence[int]], *, rate: int | None, additional: bool
) -> ReplicaLists:
    """Starts the reassignments that change something; returns the replicas that these partitions had.

    Raises IllegalState: a partition or broker does not exist, or other reassignments are in progress and `additional` is False.
    """
    present = await present_replicas(admin, sorted({partition.topic for partition in targets}))
    for partition in targets:
        if partition not in present:
            raise IllegalState(f"there is no partition {named(partition)}")
    registered = {broker.node_id for broker in await admin.list_brokers()}
    unknown = sorted({node for replicas in targets.values() for node in replicas} - registered)
    if unknown:
        brokers = ", ".join(map(str, sorted(registered)))
        raise IllegalState(f"there is no broker {unknown[0]}; the brokers are {brokers}")
    ongoing = await admin.list_partition_reassignments()
    if ongoing and not additional:
        raise IllegalState(
            f"{len(ongoing)} partitions are being reassigned: wait, cancel them (`partition cancel`), or give --additional"
        )
    changed = {
        partition: tuple(replicas)
        for partition, replicas in targets.items()
        if present[partition] != tuple(replicas) or partition in ongoing
    }
    if changed:
        try:
            if rate is not None:
                await set_throttles(admin, rate, changed, present, ongoing)
            await admin.alter_partition_reassignments(changed)
        except BaseException as error:
            if rate is not None:
                await _after_failure(admin, changed, error)
            raise
    return {partition: present[partition] for partition in changed}


async def state_of(admin: Admin, targets: Mapping[TopicPartition, Sequence[int]]) -> list[PlanState]:
    """How far each partition of a plan is."""
    existing = {*await admin.list_topics(include_internal=True)}
    present = await present_replicas(admin, sorted({each.topic for each in targets} & existing))
    ongoing = await admin.list_partition_reassignments()
    found = []
    for partition, replicas in sorted(targets.items()):
        now = present.get(partition, ())
        if partition in ongoing:
            state = "in progress"
        elif partition not in present:
            state = "missing"
        else:
            state = "complete" if now == tuple(replicas) else "differs"
        found.append(PlanState(partition, tuple(replicas), now, state))
    return found


async def _after_failure(admin: Admin, partitions: Mapping[TopicPartition, Any], error: BaseException) -> None:
    """Removes the throttles of reassignments that could not be started, or says that they remain."""
    if isinstance(error, KafkaError):
        with suppress(KafkaError):
            if not await admin.list_partition_reassignments():
                await end_throttles(admin, partitions)
                return
    print(f"throttles may remain: {LATER}", file=sys.stderr)


async def finish(
    admin: Admin, targets: Mapping[TopicPartition, Sequence[int]], *, every: float, watch: bool, keep_throttles: bool
) -> None:
    """Waits until no partition of the plan is being reassigned, then removes the throttles. With `watch` shows the progress.

    Raises IllegalState: partitions have other replicas than the plan: somebody has cancelled or replaced the reassignment.
    """
    try:
        await _ended(admin, targets, every=every, watch=watch)
    except BaseException:
        print(f"the reassignment goes on; {LATER}", file=sys.stderr)
        raise
    if not keep_throttles:
        await end_throttles(admin, targets)
    for pause_s in (0.05, 0.2, 0.5, 1.0, 0.0):  # a broker may learn of the end later than the controller
        others = [each for each in await state_of(admin, targets) if each.state != "complete"]
        if not others:
            return
        await asyncio.sleep(pause_s)
    now = f"{named(others[0].partition)} has the replicas {list(others[0].replicas)}"
    raise IllegalState(f"{len(others)} of {len(targets)} partitions are not as planned: {now}")


async def _ended(admin: Admin, targets: Mapping[TopicPartition, Sequence[int]], *, every: float, watch: bool) -> None:
    """Returns when no partition of the plan is being reassigned."""

    async def left() -> dict[TopicPartition, PartitionReassignment]:
        moves = await admin.list_partition_reassignments()
        return {each: move for each, move in moves.items() if each in targets}

    async def shown() -> str:
        now = await left()
        if not now:
            raise _Ended
        return await progress(admin, now, len(targets))

    if watch:
        try:
            await watched(every, shown)
        except _Ended:
            pass
    else:
        while await left():  # noqa: ASYNC110 - the controller is asked: nothing here could set an event
            await asyncio.sleep(max(every, EVERY_S_MIN))


async def end_throttles(admin: Admin, partitions: Mapping[TopicPartition, Any]) -> None:
    """Removes the throttles and names them on stderr, unless a reassignment is still in progress."""
    if await admin.list_partition_reassignments():
        return
    removed, unreached = await remove_throttles(admin, {each.topic for each in partitions})
    if removed:
        print(f"throttles removed from {', '.join(removed)}", file=sys.stderr)
    if unreached:
        print(f"no answer from {', '.join(unreached)}: throttles may remain there", file=sys.stderr)


async def progress(admin: Admin, left: Mapping[TopicPartition, PartitionReassignment], count: int) -> str:
    """A table of the partitions that are being reassigned, with the share of bytes that the slowest new replica has."""
    serving = {broker.node_id for broker in await admin.list_brokers() if not broker.is_fenced}
    concerned = {node for move in left.values() for node in move.replicas} & serving
    sizes: dict[tuple[TopicPartition, int], int] = {}
    for node in sorted(concerned):
        try:
            directories = (await admin.describe_log_dirs([node]))[node]
        except (BrokerUnreachable, RequestTimedOut):
            continue  # it has just stopped: the share of its replicas counts as 0
        for directory in directories:
            for partition, replica in directory.replicas.items():
                if partition in left:
                    sizes[partition, node] = replica.size_bytes
    rows = []
    for partition, move in sorted(left.items())[:ROWS_MAX]:
        whole = max((sizes.get((partition, node), 0) for node in set(move.replicas) - set(move.adding)), default=0)
        copied = min((sizes.get((partition, node), 0) for node in move.adding), default=whole)
        share = "100 %" if copied >= whole else f"{copied * 100 // whole} %"
        rows.append((partition, move, share))
    return f"{count - len(left)} of {count} partitions are complete\n{PROGRESS.text(rows)}"


PROGRESS = Report[tuple[TopicPartition, PartitionReassignment, str]](
    Cell("partition", text=lambda row: named(row[0]), shrinks=True),
    Cell("adding", text=lambda row: row[1].adding),
    Cell("removing", text=lambda row: row[1].removing),
    Cell("copied", text=lambda row: row[2]),
)


async def set_throttles(
    admin: Admin,
    rate: int,
    targets: Mapping[TopicPartition, Sequence[int]],
    present: Mapping[TopicPartition, Sequence[int]],
    ongoing: Mapping[TopicPartition, PartitionReassignment],
) -> list[int]:
    """Throttles the moves from `present` to `targets` and those in progress; returns the brokers with a rate, ascending."""
    leaders: dict[str, set[str]] = {}
    followers: dict[str, set[str]] = {}
    brokers: set[int] = set()
    for partition in {*targets, *ongoing}:
        move = ongoing.get(partition)
        sources = set(present.get(partition, ())) if move is None else set(move.replicas) - set(move.adding)
        adding = set(targets[partition]) - sources if partition in targets else set(move.adding if move else ())
        brokers |= sources | adding
        for found, nodes in ((leaders, sources), (followers, adding)):
            found.setdefault(partition.topic, set()).update(f"{partition.partition}:{node}" for node in nodes)
    for node in sorted(brokers):
        await admin.alter_config_resource(_rates_of(node), dict.fromkeys(RATES, str(rate)))
    for topic in sorted(leaders):
        lists = {LEADERS: leaders[topic], FOLLOWERS: followers[topic]}
        values: dict[str, str | None] = {name: ",".join(sorted(nodes)) for name, nodes in lists.items() if nodes}
        await admin.alter_config_resource(ConfigResource("topic", topic), values)
    return sorted(brokers)


async def remove_throttles(admin: Admin, topics: Iterable[str]) -> tuple[list[str], list[str]]:
    """Removes the rates of all brokers and the throttled replicas of these topics.

    Returns:
        In words: what was throttled; the brokers that did not answer, whose rates may remain.
    """
    names = {*topics} & {*await admin.list_topics(include_internal=True)}
    removed: list[str] = []
    unreached: list[str] = []
    resources = [
        *(ConfigResource("topic", topic) for topic in sorted(names)),
        *(_rates_of(broker.node_id) for broker in await admin.list_brokers() if not broker.is_fenced),
    ]
    for resource in resources:
        keys = (LEADERS, FOLLOWERS) if resource.type == "topic" else RATES
        own = 1 if resource.type == "topic" else 2  # the source of a config that is set on the resource itself
        try:
            found = (await admin.describe_config_resources([resource], names=keys)).get(resource, {})
            set_there = [name for name, entry in found.items() if entry.source == own]
            if set_there:
                await admin.alter_config_resource(resource, dict.fromkeys(set_there))
                removed.append(f"{resource.type} {resource.name}")
        except (BrokerUnreachable, RequestTimedOut):
            unreached.append(f"{resource.type} {resource.name}")
    return removed, unreached


def _rates_of(node_id: int) -> ConfigResource:
    return ConfigResource("broker", str(node_id))


Throttle = Annotated[
    str | None, Parameter(help="Bytes a second that each broker may copy, such as 50M; removed when all is complete.")
]
Wait = Annotated[bool, Parameter(help="Wait until all is complete, then remove the throttles.")]
WatchProgress = Annotated[bool, Parameter(name="--watch", help="Like --wait, and show the progress.")]
KeepThrottles = Annotated[bool, Parameter(help="Leave the throttles of brokers and topics in place.")]
IgnoreRacks = Annotated[bool, Parameter(help="Plan as if brokers had no racks.")]


@client_command("partition reassign")
async def reassign_partitions(
    *moves: Annotated[str, Parameter(help="TOPIC:PARTITION=1,2,3: the new replicas, the preferred leader first.")],
    file: Annotated[
        Path | None, Parameter(help='JSON of Kafka\'s tool: {"partitions": [{"topic", "partition", "replicas"}]}.')
    ] = None,
    generate: Annotated[
        bool, Parameter(help="Only print a plan as Kafka's JSON: --topic over --brokers, with few moves.")
    ] = False,
    topic: Annotated[tuple[str, ...], Parameter(help="With --generate: this topic [default: all].")] = (),
    topics_file: Annotated[
        Path | None, Parameter(help='With --generate: JSON of Kafka\'s tool, {"topics": [{"topic"}]}.')
    ] = None,
    brokers: Annotated[
        str | None, Parameter(help="With --generate: node ids to use, such as 1,2,3 [default: all that serve].")
    ] = None,
    replication_factor: Annotated[
        int | None, Parameter(help="With --generate: replicas of each partition [default: as now].")
    ] = None,
    ignore_racks: IgnoreRacks = False,
    verify: Annotated[
        bool, Parameter(help="Only show how far the plan is; remove the throttles if it is complete.")
    ] = False,
    throttle: Throttle = None,
    keep_throttles: KeepThrottles = False,
    additional: Annotated[bool, Parameter(help="Also while others are being reassigned.")] = False,
    save: Annotated[
        Path | None, Parameter(help="Write the present replicas there as Kafka's JSON, for the way back.")
    ] = None,
    wait: Wait = False,
    watch: WatchProgress = False,
    every: Every = 1.0,
    json_: Json = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> None:
    """Move partitions to other brokers, or change their number of replicas."""
    wanted = [*map(replicas_argument, moves), *([] if file is None else read_reassignment_file(file))]
    without_doubles(partition for partition, _ in wanted)
    targets = dict(wanted)
    topics = [*topic, *([] if topics_file is None else read_topics_file(topics_file))]
    nodes = None if brokers is None else _nodes(brokers)
    rate = None if throttle is None else as_rate(throttle)
    if replication_factor is not None and replication_factor < 1:
        raise WrongCall(f"--replication-factor {replication_factor}: a partition needs at least one replica")
    if generate and verify:
        raise WrongCall("--generate and --verify exclude each other")
    if generate and targets:
        raise WrongCall("--generate makes a plan: it takes --topic and --brokers, and no replicas")
    if not generate and (topics or nodes is not None or replication_factor is not None):
        raise WrongCall("--topic, --brokers and --replication-factor need --generate")
    if not generate and not targets:
        raise WrongCall("nothing to reassign: name TOPIC:PARTITION=1,2,3, --file, or --generate")
    check_every(every)
    async with connection.admin() as admin:
        if generate:
            await _generate(admin, topics, nodes, replication_factor, ignore_racks, save)
        elif verify:
            await _verify(admin, targets, keep_throttles, json_)
        else:
            if save is not None:
                _save(save, await present_replicas(admin, sorted({each.topic for each in targets})))
            started = await _start(admin, targets, rate, additional, json_)
            if wait or watch:
                await finish(admin, started, every=every, watch=watch, keep_throttles=keep_throttles)
                print(f"{len(started)} partitions are complete", file=sys.stderr)
            else:
                print("started; `partition reassign --verify` shows the end and removes throttles", file=sys.stderr)


async def brokers_with_racks(admin: Admin, nodes: list[int] | None, *, ignore_racks: bool) -> dict[int, str | None]:
    """The brokers to use and their racks; None for all if racks do not count.

    Raises IllegalState: a broker does not serve, or only some brokers have racks.
    """
    serving = {each.node_id: each.rack for each in await admin.list_brokers() if not each.is_fenced}
    chosen = sorted(serving) if nodes is None else nodes
    for node in chosen:
        if node not in serving:
            raise IllegalState(f"broker {node} does not serve; these do: {', '.join(map(str, sorted(serving)))}")
    racks = dict.fromkeys(chosen) if ignore_racks else {node: serving[node] for node in chosen}
    if len({rack is None for rack in racks.values()}) > 1:
        raise IllegalState("some brokers have a rack and some have none: set broker.rack, or give --ignore-racks")
    return racks


async def _generate(
    admin: Admin,
    topics: list[str],
    nodes: list[int] | None,
    replication_factor: int | None,
    ignore_racks: bool,
    save: Path | None,
) -> None:
    racks = await brokers_with_racks(admin, nodes, ignore_racks=ignore_racks)
    present = await present_replicas(admin, topics or await admin.list_topics())
    if not present:
        raise IllegalState("there is no topic to plan for")
    try:
        plan = spread(present, racks, replication_factor)
    except ValueError as error:
        raise IllegalState(str(error)) from error
    _save(save, present)
    print_json(as_reassignment(plan))
    moved = sum(len(set(plan[partition]) - set(replicas)) for partition, replicas in present.items())
    print(f"{moved} replicas would be copied", file=sys.stderr)


async def _start(admin: Admin, targets: ReplicaLists, rate: int | None, additional: bool, json_: bool) -> ReplicaLists:
    """Starts and shows the moves that change something; returns them. Raises WrongCall if there are none."""
    before = await start_reassignment(admin, targets, rate=rate, additional=additional)
    if json_ or before:
        MOVES.show([(each, replicas, targets[each]) for each, replicas in sorted(before.items())], json_)
    if not before:
        raise WrongCall("nothing to change: the partitions have these replicas already")
    return {each: targets[each] for each in before}


async def _verify(admin: Admin, targets: ReplicaLists, keep_throttles: bool, json_: bool) -> None:
    states = await state_of(admin, targets)
    if not keep_throttles and not any(each.state == "in progress" for each in states):
        await end_throttles(admin, targets)
    STATES.show(states, json_)
    if any(each.state != "complete" for each in states):
        raise Ended(1)


MOVES = Report[tuple[TopicPartition, Sequence[int], Sequence[int]]](
    *place_columns(lambda row: row[0]),
    Cell("replicas", "replicas", lambda row: list(row[1])),
    Cell("new replicas", "new_replicas", lambda row: list(row[2])),
)
STATES = Report[PlanState](
    *place_columns(lambda each: each.partition),
    Cell("wanted", "wanted_replicas", lambda each: list(each.wanted)),
    Cell("replicas", "replicas", lambda each: list(each.replicas)),
    Cell("state", "state", wrong=lambda each: each.state in ("differs", "missing")),
)


def _save(path: Path | None, replicas: ReplicaLists) -> None:
    if path is None:
        return
    try:
        path.write_text(json.dumps(as_reassignment(replicas), indent=2) + "\n")
    except OSError as error:
        raise IllegalState(f"cannot write {path}: {error}") from error


def _nodes(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() for part in parts) or len(set(parts)) < len(parts):
        raise WrongFile(f"{text!r} is no list of different node ids, such as 1,2,3")
    return sorted(map(int, parts))
