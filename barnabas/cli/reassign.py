"""`barnabas partition reassign`: moves partitions to other brokers, as Kafka's kafka-reassign-partitions does."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

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
from barnabas.cli.reassigning import (
    PlanState,
    ReplicaLists,
    end_throttles,
    finish,
    present_replicas,
    start_reassignment,
    state_of,
)
from barnabas.cli.render import Cell, Every, Json, Report, check_every, place_columns, print_json
from barnabas.cli.session import DEFAULT_CONNECTION, Connection, Ended, client_command
from barnabas.client.admin import Admin
from barnabas.client.errors import IllegalState
from barnabas.client.types import TopicPartition

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
