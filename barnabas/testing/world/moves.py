"""Moves a group's partition to another member, inside the coordinator's broker. Classic: changes the leader's SyncGroup requests, with two rebalances in
a cooperative protocol. KIP-848: writes the next target assignment.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from barnabas.broker.coordinator.groups.classic.group import ClassicGroup
from barnabas.broker.coordinator.groups.classic.state import GroupState
from barnabas.broker.coordinator.groups.consumer.embedded import read_subscription
from barnabas.broker.coordinator.groups.consumer.group import ConsumerGroup, ConsumerGroupState
from barnabas.broker.coordinator.groups.effects import At
from barnabas.broker.coordinator.groups.records import AnyRecord, ConsumerRecord, Kind, TargetEpoch
from barnabas.broker.coordinator.groups.shard import GroupShard
from barnabas.broker.coordinator.host.decision import Decision
from barnabas.errors import BrokerError, RemoteProtocolError
from barnabas.protocol.messages.groups import ConsumerProtocolAssignment, SyncGroupRequest, SyncGroupRequestAssignment
from barnabas.protocol.messages.shared import TopicPartitions
from barnabas.protocol.schema import decode_versioned, encode_versioned

if TYPE_CHECKING:
    from barnabas.testing.node_host import NodeHost

Told = dict[str, str]  # {}: done; "missing": what it waits for; "refused": why it cannot be
EMPTY: Final = b"\0\0\0\0\0\0\xff\xff\xff\xff"  # an assignment of version 0 without partitions


async def begin_move(host: NodeHost, group: str, topic: str, partition: int, to: str) -> Told:
    """Starts the move to the member with the id `to`, if the group is stable."""
    try:
        shard = host.running.groups.shard_for(group)
    except BrokerError as error:
        return {"missing": f"a coordinator of the group ({error.code.name})"}
    classic, consumer = shard.tables.classic.get(group), shard.tables.consumer.get(group)
    if classic is not None:
        return _begin_classic(host, classic, topic, partition, to)
    if consumer is not None:
        return await _begin_consumer(host, consumer, topic, partition, to)
    return {"refused": f"group '{group}' does not exist any more"}


def move_progress(host: NodeHost, group: str, topic: str, partition: int, to: str) -> Told:
    """What a move that has begun waits for."""
    try:
        shard = host.running.groups.shard_for(group)
    except BrokerError:
        return {"refused": f"the coordinator of group '{group}' has moved during the move of the partition"}
    classic, consumer = shard.tables.classic.get(group), shard.tables.consumer.get(group)
    if classic is not None and to in classic.members:
        return _classic_progress(classic, topic, partition, to)
    if consumer is not None and to in consumer.members:
        return _consumer_progress(consumer, shard.tables.topics.topic_id(topic) or b"", partition, to)
    return {"refused": f"member {to} has left group '{group}' during the move"}


def end_move(host: NodeHost, group: str, topic: str, partition: int, to: str) -> None:
    """The leader of the group assigns as before."""
    changes = host.interception.sync_changes
    change = changes.get(group)
    if isinstance(change, partial) and change.args[1:] == (topic, partition, to):
        del changes[group]
        host.interception.apply()


def _checked(group: str, where: str, owner: str | None, to: str, subscribes: bool) -> Told:
    """Why a move cannot be, as far as both protocols have the same reasons."""
    if not subscribes:
        return {"refused": f"member {to} of group '{group}' does not subscribe to the topic of {where}"}
    if owner is None:
        return {"refused": f"no member of group '{group}' has {where}, so it cannot move"}
    if owner == to:
        return {"refused": f"member {to} of group '{group}' has {where} already"}
    return {}


# -- classic groups


def _begin_classic(host: NodeHost, group: ClassicGroup, topic: str, partition: int, to: str) -> Told:
    if group.state is not GroupState.STABLE or group.pending_syncs or to not in group.members:
        return {"missing": f"a stable group; it is {group.state.value}"}
    name = group.group_id
    if not group.uses_consumer_protocol:
        return {
            "refused": f"group '{name}' is of type '{group.protocol_type}', and only consumers have partitions: use evict"
        }
    try:
        owner = _classic_owner(group, topic, partition)
        subscribes = topic in read_subscription(group.members[to].metadata(group.protocol_name)).topics
    except (BrokerError, RemoteProtocolError) as error:
        return {
            "refused": f"the assignments of protocol '{group.protocol_name}' of group '{name}' cannot be read: {error}; use evict"
        }
    refused = _checked(name, f"{topic}-{partition}", owner, to, subscribes)
    changes = host.interception.sync_changes
    if name in changes:
        return {"missing": "the end of another move in this group"}
    if not refused:
        changes[name] = partial(_change, group, topic, partition, to)
        host.interception.apply()
        coordinator = host.running.groups
        coordinator._rebalance(coordinator.host.partition_of(name), [name])
    return refused


def _change(group: ClassicGroup, topic: str, partition: int, to: str, request: SyncGroupRequest) -> None:
    """Changes what the leader assigns; nothing if it cannot be read, or the member has left."""
    if not request.assignments or to not in group.members:
        return
    given = {each.member_id: each.assignment or EMPTY for each in request.assignments}
    try:
        owned = _owned_by_another(group, topic, partition, to)
        changed = {member: _without(data, topic, partition) for member, data in given.items()}
        if not owned:
            changed[to] = _with(changed.get(to, EMPTY), topic, partition)
    except (BrokerError, RemoteProtocolError):
        return
    request.assignments = [
        SyncGroupRequestAssignment(member_id=member, assignment=data) for member, data in changed.items()
    ]


def _owned_by_another(group: ClassicGroup, topic: str, partition: int, to: str) -> bool:
    for member in group.members.values():
        if member.member_id != to:
            owned = read_subscription(member.metadata(group.protocol_name)).owned_partitions
            if any(each.topic == topic and partition in each.partitions for each in owned):
                return True
    return False


def _without(data: bytes, topic: str, partition: int) -> bytes:
    read = decode_versioned(ConsumerProtocolAssignment, data)
    for each in read.assigned_partitions:
        if each.topic == topic:
            each.partitions = [number for number in each.partitions if number != partition]
    read.assigned_partitions = [each for each in read.assigned_partitions if each.partitions]
    return encode_versioned(read, int.from_bytes(data[:2], "big"))


def _with(data: bytes, topic: str, partition: int) -> bytes:
    read = decode_versioned(ConsumerProtocolAssignment, data)
    same = next((each for each in read.assigned_partitions if each.topic == topic), None)
    if same is None:
        read.assigned_partitions.append(TopicPartitions(topic=topic, partitions=[partition]))
    else:
        same.partitions = sorted([*same.partitions, partition])
    return encode_versioned(read, int.from_bytes(data[:2], "big"))


def _classic_owner(group: ClassicGroup, topic: str, partition: int) -> str | None:
    for member in group.members.values():
        read = decode_versioned(ConsumerProtocolAssignment, member.assignment or EMPTY)
        if any(each.topic == topic and partition in each.partitions for each in read.assigned_partitions):
            return member.member_id
    return None


def _classic_progress(group: ClassicGroup, topic: str, partition: int, to: str) -> Told:
    if group.state is GroupState.PREPARING_REBALANCE:
        late = [each.member_id for each in group.members.values() if each.awaiting_join is None]
        return {"missing": f"JoinGroup of {', '.join(late)}: a member joins when its application polls"}
    if group.state is GroupState.COMPLETING_REBALANCE:
        return {"missing": f"the assignments of the leader {group.leader_id}"}
    if group.pending_syncs:
        return {"missing": f"SyncGroup of {', '.join(group.pending_syncs)}"}
    try:
        owner = _classic_owner(group, topic, partition)
    except RemoteProtocolError as error:
        return {"refused": f"the assignments of group '{group.group_id}' cannot be read any more: {error}"}
    return {} if owner == to else {"missing": f"the next rebalance, after {topic}-{partition} was given back"}


# -- groups of KIP-848


async def _begin_consumer(host: NodeHost, group: ConsumerGroup, topic: str, partition: int, to: str) -> Told:
    if group.state is not ConsumerGroupState.STABLE or to not in group.members:
        return {"missing": f"a stable group; it is {group.state.value}"}
    topic_id = host.running.image.topic_id(topic) or b""
    owner = group.owner(topic_id, partition)
    subscribes = topic in group.topic_names_of(group.members[to].metadata.subscription)
    refused = _checked(group.group_id, f"{topic}-{partition}", owner, to, subscribes)
    if refused or owner is None:
        return refused
    written: asyncio.Future[BrokerError | None] = asyncio.get_running_loop().create_future()
    decide = partial(_decide, group, topic_id, partition, owner, to)
    host.running.groups.write(group.group_id, decide, written.set_result)
    problem = await written
    return (
        {} if problem is None else {"refused": f"the assignment of group '{group.group_id}' was not written: {problem}"}
    )


def _decide(
    group: ConsumerGroup, topic_id: bytes, partition: int, owner: str, to: str, _shard: GroupShard, at: At
) -> Decision[None, AnyRecord]:
    """The next target assignment: the present one with the move."""
    targets = {member: {key: set(held) for key, held in group.target.get(member, {}).items()} for member in (owner, to)}
    targets[owner].get(topic_id, set()).discard(partition)
    targets[to].setdefault(topic_id, set()).add(partition)
    epoch = group.epoch._replace(epoch=group.epoch.epoch + 1)
    records = [ConsumerRecord(group.group_id, Kind.GROUP_EPOCH, "", epoch)]
    for member, target in targets.items():
        value = {key: tuple(sorted(held)) for key, held in target.items() if held}
        records.append(ConsumerRecord(group.group_id, Kind.TARGET_ASSIGNMENT, member, value))
    made = TargetEpoch(epoch.epoch, at.now_ms)
    records.append(ConsumerRecord(group.group_id, Kind.TARGET_ASSIGNMENT_EPOCH, "", made))
    return Decision(None, records)


def _consumer_progress(group: ConsumerGroup, topic_id: bytes, partition: int, to: str) -> Told:
    owner = group.owner(topic_id, partition)
    if owner == to:
        return {}
    if partition not in group.target.get(to, {}).get(topic_id, ()):
        return {
            "refused": f"group '{group.group_id}' has got another assignment during the move: its members have changed"
        }
    who = to if owner is None else owner
    return {
        "missing": f"the next heartbeat of {who}{'' if owner is None else ', by which it gives the partition back'}"
    }
