"""Reassignments of partitions: their checks, start, progress and end. `partition reassign`, `balance` and `cancel` use it.

Follows KIP-455 and the order of kafka-reassign-partitions: checks, throttles, reassignments; when all are complete,
throttles are removed.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from barnabas.cli.render import EVERY_S_MIN, Cell, Report, named, watched
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
