"""`barnabas partition …`: lists partitions, moves them, elects their leaders, balances them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from cyclopts import App, Parameter

from barnabas.cli.arguments import as_rate
from barnabas.cli.client_properties import WrongCall
from barnabas.cli.confirmation import Yes, confirm
from barnabas.cli.kafka_files import partition_argument, read_partitions_file, read_reassignment_file, without_doubles
from barnabas.cli.partition_plan import spread
from barnabas.cli.reassign import (
    KeepThrottles,
    Throttle,
    Wait,
    brokers_with_racks,
    end_throttles,
    finish,
    reassign_partitions,
    start_reassignment,
)
from barnabas.cli.render import Cell, Every, Json, Report, check_every, named, place, place_columns, print_json
from barnabas.cli.session import DEFAULT_CONNECTION, Connection, Ended, client_command
from barnabas.client.admin import Admin, PartitionReassignment
from barnabas.client.errors import IllegalState
from barnabas.client.net.core.metadata import PartitionInfo
from barnabas.client.types import TopicPartition
from barnabas.errors import ErrorCode

app = App(
    name="partition",
    help_epilogue="Examples:\n\n- `barnabas partition list --under-replicated`\n"
    "- `barnabas partition reassign orders:0=1,2,3 --throttle 50M --watch`\n- `barnabas partition balance --execute`",
)
app.command(
    reassign_partitions,
    name="reassign",
    help_epilogue="Examples:\n\n- `barnabas partition reassign orders:0=1,2,3 orders:1=2,3,1 --throttle 50M --watch`\n"
    "- `barnabas partition reassign --generate --topic orders --brokers 1,2,3 > plan.json`\n"
    "- `barnabas partition reassign --file plan.json --save before.json`\n"
    "- `barnabas partition reassign --file plan.json --verify`",
)

_Partitions = Annotated[str, Parameter(help="TOPIC:PARTITION.")]
_Topics = Annotated[tuple[str, ...], Parameter(help="Only this topic.")]


class _Listed(NamedTuple):
    partition: TopicPartition
    info: PartitionInfo
    move: PartitionReassignment | None = None

    @property
    def leader(self) -> int | None:
        return None if self.info.leader < 0 else self.info.leader

    @property
    def preferred(self) -> int:
        return self.info.replicas[0]


@app.command(
    name=["list", "ls"],
    help_epilogue="Examples:\n\n- `barnabas partition list`\n- `barnabas partition list orders --not-preferred --json`",
)
@client_command("partition list")
async def list_(
    topic: _Topics = (),
    *,
    internal: Annotated[bool, Parameter(help="Also the brokers' own topics.")] = False,
    under_replicated: Annotated[bool, Parameter(help="Only those with replicas out of sync.")] = False,
    offline: Annotated[bool, Parameter(help="Only those without a leader.")] = False,
    not_preferred: Annotated[bool, Parameter(help="Only those whose leader is not the preferred one.")] = False,
    reassigning: Annotated[bool, Parameter(help="Only those that are being reassigned.")] = False,
    json_: Json = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> None:
    """List partitions with leader, replicas, replicas in sync and reassignments. Several filters must hold together."""
    async with connection.admin() as admin:
        found = await _listed(admin, topic, internal=internal)
        moves = await admin.list_partition_reassignments()
    shown = [
        each._replace(move=moves.get(each.partition))
        for each in found
        if (not under_replicated or len(each.info.isr) < len(each.info.replicas))
        and (not offline or each.info.leader < 0)
        and (not not_preferred or each.info.leader != each.preferred)
        and (not reassigning or each.partition in moves)
    ]
    LISTED.show(shown, json_, empty="no partition matches" if found else "there are no partitions")


@app.command(
    help_epilogue="Examples:\n\n- `barnabas partition elect --all`\n- `barnabas partition elect orders:0 orders:1`\n"
    "- `barnabas partition elect orders:0 --unclean --yes`"
)
@client_command("partition elect")
async def elect(
    *partitions: _Partitions,
    all_: Annotated[bool, Parameter(name="--all", help="All partitions that need it.")] = False,
    topic: _Topics = (),
    file: Annotated[
        Path | None, Parameter(help='JSON of Kafka\'s tool: {"partitions": [{"topic", "partition"}]}.')
    ] = None,
    unclean: Annotated[
        bool,
        Parameter(help="Elect any replica of a partition without a leader. May lose acknowledged records."),
    ] = False,
    yes: Yes = False,
    json_: Json = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> None:
    """Elect the preferred replicas as leaders."""
    chosen = [*map(partition_argument, partitions), *([] if file is None else read_partitions_file(file))]
    without_doubles(chosen)
    if all_ == bool(chosen or topic):
        raise WrongCall("name TOPIC:PARTITION, --topic or --file, or else --all")
    confirm(yes or not unclean, "an unclean election may lose acknowledged records: elect?", "nothing was elected")
    async with connection.admin() as admin:
        wanted = [*chosen, *(each.partition for each in await _listed(admin, topic))] if topic else chosen
        results = await admin.elect_leaders(None if all_ else dict.fromkeys(wanted), unclean=unclean)
    _show_elections(results, json_=json_)
    if any(code not in _FINE for code in results.values()):
        raise Ended(1)


@app.command(
    help_epilogue="Examples:\n\n- `barnabas partition balance` only shows what would be done.\n"
    "- `barnabas partition balance --execute`\n- `barnabas partition balance --replicas --throttle 50M --execute --wait`"
)
@client_command("partition balance")
async def balance(
    *,
    replicas: Annotated[
        bool, Parameter(help="Also spread the replicas over all brokers that serve, which copies data.")
    ] = False,
    topic: _Topics = (),
    execute: Annotated[bool, Parameter(help="Do it; without this the plan is only shown.")] = False,
    throttle: Throttle = None,
    ignore_racks: Annotated[bool, Parameter(help="Plan as if brokers had no racks.")] = False,
    wait: Wait = False,
    every: Every = 1.0,
    json_: Json = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> None:
    """Move leaderships to the preferred leaders; with --replicas also spread the replicas. Shows the plan first."""
    rate = None if throttle is None else as_rate(throttle)
    check_every(every)
    async with connection.admin() as admin:
        found = await _listed(admin, topic)
        moves = {}
        if replicas:
            racks = await brokers_with_racks(admin, None, ignore_racks=ignore_racks)
            present = {each.partition: each.info.replicas for each in found}
            moves = {each: to for each, to in _spread(present, racks).items() if to != present[each]}
        leaders = {
            each.partition: moves.get(each.partition, each.info.replicas)[0]
            for each in found
            if each.info.leader != moves.get(each.partition, each.info.replicas)[0]
        }
        _show_plan(found, moves, leaders, execute=execute, json_=json_)
        if not execute:
            return
        if moves:
            await start_reassignment(admin, moves, rate=rate, additional=False)
            if not wait:
                print("replicas move; `partition balance --execute` elects the leaders later", file=sys.stderr)
                return
            await finish(admin, moves, every=every, watch=False, keep_throttles=False)
        if leaders:
            results = await admin.elect_leaders(leaders)
            bad = {each: code.name for each, code in results.items() if code not in _FINE}
            if bad:
                partition, reason = min(bad.items())
                raise IllegalState(f"{len(bad)} leaders were not moved, {named(partition)}: {reason}")
    if moves or leaders:
        print(f"moved {len(leaders)} leaders and {len(moves)} partitions", file=sys.stderr)


_FINE = (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)


@app.command(
    help_epilogue="Examples:\n\n- `barnabas partition cancel --all`\n- `barnabas partition cancel orders:0`\n"
    "- `barnabas partition cancel --file plan.json`"
)
@client_command("partition cancel")
async def cancel(
    *partitions: _Partitions,
    all_: Annotated[bool, Parameter(name="--all", help="All reassignments in progress.")] = False,
    file: Annotated[Path | None, Parameter(help="The reassignments of a file of Kafka's tool.")] = None,
    keep_throttles: KeepThrottles = False,
    json_: Json = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> None:
    """Cancel reassignments in progress: the partitions keep their old replicas. Then remove the throttles."""
    chosen = [
        *map(partition_argument, partitions),
        *([] if file is None else [partition for partition, _ in read_reassignment_file(file)]),
    ]
    without_doubles(chosen)
    if all_ == bool(chosen):
        raise WrongCall("name TOPIC:PARTITION or --file, or else --all")
    async with connection.admin() as admin:
        moves = await admin.list_partition_reassignments()
        idle = [each for each in chosen if each not in moves]
        if idle and file is None:
            raise IllegalState(f"{named(idle[0])} is not being reassigned")
        cancelled = sorted(moves if all_ else {*chosen} & {*moves})
        if not cancelled:
            raise WrongCall("nothing to cancel: no such reassignment")
        await admin.alter_partition_reassignments(dict.fromkeys(cancelled))
        if not keep_throttles:
            await end_throttles(admin, dict.fromkeys(cancelled))
    if json_:
        print_json(list(map(place, cancelled)))
    else:
        print(f"cancelled {', '.join(map(named, cancelled))}")


async def _listed(admin: Admin, topics: Sequence[str], *, internal: bool = True) -> list[_Listed]:
    names = topics or await admin.list_topics(include_internal=internal)
    found = await admin.describe_topics(names)
    return [
        _Listed(TopicPartition(name, info.partition), info) for name in sorted(found) for info in found[name].partitions
    ]


def _spread(present: dict[TopicPartition, tuple[int, ...]], racks: dict[int, str | None]) -> Any:
    try:
        return spread(present, racks)
    except ValueError as error:
        raise IllegalState(str(error)) from error


LISTED = Report[_Listed](
    *place_columns(lambda each: each.partition),
    Cell("leader", "leader", wrong=lambda each: each.info.leader < 0),
    Cell("epoch", "leader_epoch", lambda each: each.info.leader_epoch),
    Cell("replicas", "replicas", lambda each: list(each.info.replicas)),
    Cell(
        "in sync",
        "isr",
        lambda each: list(each.info.isr),
        wrong=lambda each: len(each.info.isr) < len(each.info.replicas),
    ),
    Cell("adding", "adding_replicas", lambda each: list(each.move.adding) if each.move else []),
    Cell("removing", "removing_replicas", lambda each: list(each.move.removing) if each.move else []),
)
ELECTED = Report[tuple[TopicPartition, str]](
    *place_columns(lambda row: row[0]),
    Cell("result", "result", lambda row: row[1], wrong=lambda row: row[1] not in ("elected", "not needed")),
)


class _Planned(NamedTuple):
    of: _Listed
    new_leader: int
    new_replicas: tuple[int, ...] | None
    executed: bool


PLAN = Report[_Planned](
    *place_columns(lambda row: row.of.partition),
    Cell("leader", "leader", lambda row: row.of.leader),
    Cell("new leader", "new_leader"),
    Cell("replicas", "replicas", lambda row: list(row.of.info.replicas)),
    Cell(
        "new replicas",
        "new_replicas",
        lambda row: list(row.new_replicas or row.of.info.replicas),
        lambda row: row.new_replicas,
    ),
    Cell("", "executed"),
)


def _show_elections(results: dict[TopicPartition, ErrorCode], *, json_: bool) -> None:
    words = {ErrorCode.NONE: "elected", ErrorCode.ELECTION_NOT_NEEDED: "not needed"}
    rows = sorted((partition, words.get(code, code.name)) for partition, code in results.items())
    ELECTED.show(rows, json_, empty="no partition needs an election")


def _show_plan(
    found: list[_Listed], moves: Any, leaders: dict[TopicPartition, int], *, execute: bool, json_: bool
) -> None:
    changed = [
        _Planned(each, leaders.get(each.partition, each.info.leader), moves.get(each.partition), execute)
        for each in found
        if each.partition in moves or each.partition in leaders
    ]
    PLAN.show(changed, json_, empty="balanced: there is nothing to move")
    if changed and not execute and not json_:
        print("only a plan; --execute does it", file=sys.stderr)
