"""A run of consumer groups (KIP-848) against one broker, by raw requests: what it observes is compared."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import count
from typing import Any

from barnabas.broker.coordinator.host.partitioning import partition_for
from barnabas.protocol.messages.groups import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from barnabas.protocol.messages.shared import TopicPartitions
from barnabas.protocol.schema import decode_versioned, encode_versioned
from tests.support.oracle.wire import Wire
from tests.support.processes.attempts import attempts
from tests.support.requests import request_of

FOUR, THREE = "consumers-4", "consumers-3"
A, B, C = "A" * 22, "B" * 22, "C" * 22
GROUP_RESOURCE = 32
COORDINATORS = 50  # partitions of __consumer_offsets
MADE_BY_BROKER = re.compile(r"^(c\d-)?([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[\w-]{22})$")
WHY = re.compile(r"(is not a valid regular expression: ).*")


class Script:
    """A run against one broker, and what was observed."""

    def __init__(self, address: str) -> None:
        self.wire = Wire(address, client_id="c1")
        self.other = Wire(address, client_id="c2")
        self.seen: list[Any] = []
        self.topics: dict[Any, Any] = {}  # both ways: name and id
        self._ids: dict[str, str] = {}

    def close(self) -> None:
        self.wire.close()
        self.other.close()

    def plain(self, value: str | None) -> str | None:
        if value in (None, A, B, C) or not MADE_BY_BROKER.match(value or ""):
            return None if value is None else WHY.sub(r"\1…", value)
        return self._ids.setdefault(value or "", f"#{len(self._ids)}")

    def note(self, *values: Any) -> None:
        self.seen.append(values)

    def topic(self, name: str, partitions: int) -> None:
        self.wire.create_topic(name, partitions)
        answer = self.wire.call(request_of("Metadata", topics=[{"name": name}]), 12).topics[0]
        self.topics[name], self.topics[answer.topic_id] = answer.topic_id, name

    def prepare(self, group: str) -> None:
        """Two topics, and a coordinator that serves the group and knows the topics."""
        self.topic(FOUR, 4)
        self.topic(THREE, 3)
        self.wire.await_coordinators()
        self.await_topics(group, FOUR, THREE)

    def await_topics(self, group: str, *names: str) -> None:
        """Waits until the coordinator of a group assigns these topics: Kafka's coordinators learn of them last."""
        place = partition_for(group, COORDINATORS)
        probe = next(each for number in count() if partition_for(each := f"probe-{number}", COORDINATORS) == place)
        request = request_of(
            "ConsumerGroupHeartbeat",
            group_id=probe,
            member_id=A,
            member_epoch=0,
            rebalance_timeout_ms=30_000,
            subscribed_topic_names=list(names),
            topic_partitions=[],
        )
        for _ in attempts(f"the coordinator of {group} knows {names}"):
            assigned = self.wire.call(request, 1).assignment
            if assigned is not None and len(assigned.topic_partitions) == len(names):
                break
        request.member_epoch = -1
        assert self.wire.call(request, 1).error_code == 0

    def configure(self, group: str, name: str, value: str) -> None:
        config = {"name": name, "config_operation": 0, "value": value}
        resource = {"resource_type": GROUP_RESOURCE, "resource_name": group, "configs": [config]}
        answer = self.wire.call(request_of("IncrementalAlterConfigs", resources=[resource]), 1).responses[0]
        self.note("configured", name, answer.error_code, answer.error_message)

    def names(self, partitions: Any) -> dict[str, list[int]]:
        return {self.topics.get(each.topic_id, "?"): sorted(each.partitions) for each in partitions}

    # the consumer protocol

    def beat(self, group: str, member: str, epoch: int, *, version: int = 1, **fields: Any) -> Any:
        """A heartbeat; with `changes` it is repeated until it brings another epoch or assignment.

        Kafka's coordinators learn of topics, and of what an expression matches, some time after the change.
        """
        owned = fields.pop("owned", None)
        if owned is not None:
            owned = [{"topic_id": self.topics[name], "partitions": p} for name, p in owned.items()]
        request = request_of(
            "ConsumerGroupHeartbeat",
            group_id=group,
            member_id=member,
            member_epoch=epoch,
            instance_id=fields.pop("instance", None),
            rack_id=fields.pop("rack", None),
            rebalance_timeout_ms=fields.pop("timeout", -1),
            subscribed_topic_names=fields.pop("topics", None),
            subscribed_topic_regex=fields.pop("regex", None),
            server_assignor=fields.pop("assignor", None),
            topic_partitions=owned,
        )
        changes = fields.pop("changes", False)
        assert not fields
        for _ in attempts("the heartbeat brings a change"):
            answer = self.wire.call(request, version)
            if not changes or answer.error_code or answer.member_epoch != epoch or answer.assignment is not None:
                break
        self.note(
            "beat",
            self.plain(member),
            epoch,
            answer.error_code,
            self.plain(answer.error_message),
            self.plain(answer.member_id),
            answer.member_epoch,
            answer.heartbeat_interval_ms,
            None if answer.assignment is None else self.names(answer.assignment.topic_partitions),
        )
        return answer

    def join(self, group: str, member: str, topics: list[str] | None = None, **fields: Any) -> Any:
        return self.beat(group, member, 0, topics=topics, owned={}, timeout=fields.pop("timeout", 30_000), **fields)

    def describe(self, group: str) -> None:
        request = request_of("ConsumerGroupDescribe", group_ids=[group], include_authorized_operations=True)
        found = self.wire.call(request, 1).groups[0]
        members = [
            [
                self.plain(m.member_id),
                m.instance_id,
                m.rack_id,
                m.member_epoch,
                m.client_id,
                m.client_host,
                sorted(m.subscribed_topic_names),
                m.subscribed_topic_regex,
                self.names(m.assignment.topic_partitions),
                self.names(m.target_assignment.topic_partitions),
                m.member_type,
            ]
            for m in found.members
        ]
        self.note(
            "described",
            found.error_code,
            found.error_message,
            found.group_state,
            found.group_epoch,
            found.assignment_epoch,
            found.assignor_name,
            found.authorized_operations,
            sorted(members, key=repr),
        )

    # offsets

    def commit(
        self,
        group: str,
        member: str,
        epoch: int,
        partitions: list[int],
        *,
        version: int = 9,
        instance: str | None = None,
    ) -> None:
        offsets = [{"partition_index": p, "committed_offset": p + 1} for p in partitions]
        topic = {"name": FOUR, "topic_id": self.topics[FOUR], "partitions": offsets}
        request = request_of(
            "OffsetCommit",
            group_id=group,
            member_id=member,
            generation_id_or_member_epoch=epoch,
            group_instance_id=instance,
            topics=[topic],
        )
        answer = self.wire.call(request, version)
        self.note("committed", self.plain(member), epoch, [p.error_code for p in answer.topics[0].partitions])

    def offsets(self, group: str, member: str | None, epoch: int, *, version: int = 9) -> None:
        topic = {"name": FOUR, "topic_id": self.topics[FOUR], "partition_indexes": [0, 1, 2, 3]}
        wanted = {"group_id": group, "member_id": member, "member_epoch": epoch, "topics": [topic]}
        found = self.wire.call(request_of("OffsetFetch", groups=[wanted]), version).groups[0]
        offsets = [(p.partition_index, p.committed_offset) for t in found.topics for p in t.partitions]
        self.note("offsets", self.plain(member), epoch, found.error_code, offsets)

    def delete(self, group: str) -> None:
        answer = self.wire.call(request_of("DeleteGroups", groups_names=[group]), 2)
        self.note("deleted", answer.results[0].error_code)

    # the classic protocol

    def classic_join(
        self, wire: Wire, group: str, member: str = "", *, owned: dict[str, list[int]] | None = None, **fields: Any
    ) -> Any:
        self.classic_joined(wire, self.classic_join_later(wire, group, member, owned=owned, **fields))
        return self.last_join

    def classic_join_later(
        self, wire: Wire, group: str, member: str, *, owned: dict[str, list[int]] | None = None, **fields: Any
    ) -> int:
        subscription = ConsumerProtocolSubscription(
            topics=[FOUR],
            owned_partitions=[TopicPartitions(topic=name, partitions=p) for name, p in (owned or {}).items()],
        )
        request = request_of(
            "JoinGroup",
            group_id=group,
            session_timeout_ms=30_000,
            rebalance_timeout_ms=10_000,
            member_id=member,
            group_instance_id=fields.pop("instance", None),
            protocol_type=fields.pop("type", "consumer"),
            protocols=[{"name": fields.pop("protocol", "range"), "metadata": encode_versioned(subscription, 1)}],
        )
        return wire.send(request, 9)

    def classic_joined(self, wire: Wire, correlation: int) -> Any:
        answer = self.last_join = wire.receive(11, 9, correlation)
        self.note(
            "joined",
            answer.error_code,
            answer.generation_id,
            answer.protocol_type,
            answer.protocol_name,
            self.plain(answer.leader),
            self.plain(answer.member_id),
            len(answer.members),
        )
        return answer

    def enter(self, wire: Wire, group: str) -> Any:
        """A dynamic member of the classic protocol: gets its id and joins with it."""
        return self.classic_join(wire, group, self.classic_join(wire, group).member_id)

    def sync(self, wire: Wire, group: str, member: str, generation: int, instance: str | None = None) -> None:
        request = request_of(
            "SyncGroup",
            group_id=group,
            generation_id=generation,
            member_id=member,
            group_instance_id=instance,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[],
        )
        answer = wire.call(request, 5)
        assigned = None
        if answer.assignment:
            read = decode_versioned(ConsumerProtocolAssignment, answer.assignment).assigned_partitions
            assigned = {each.topic: each.partitions for each in read}
        self.note("synced", answer.error_code, answer.protocol_type, answer.protocol_name, assigned)

    def classic_beat(self, group: str, member: str, generation: int, instance: str | None = None) -> None:
        request = request_of(
            "Heartbeat", group_id=group, member_id=member, generation_id=generation, group_instance_id=instance
        )
        self.note("classic beat", self.plain(member), generation, self.wire.call(request, 4).error_code)

    def leave(self, group: str, member: str, instance: str | None = None) -> None:
        identity = {"member_id": member, "group_instance_id": instance}
        answer = self.wire.call(request_of("LeaveGroup", group_id=group, members=[identity]), 5)
        self.note("left", answer.error_code, [(self.plain(m.member_id), m.error_code) for m in answer.members])

    def describe_classic(self, group: str) -> None:
        for version in (5, 6):
            found = self.wire.call(request_of("DescribeGroups", groups=[group]), version).groups[0]
            self.note(
                "described classic",
                found.error_code,
                found.error_message,
                found.group_state,
                found.protocol_type,
                sorted(self.plain(m.member_id) or "" for m in found.members),
            )


def leave_behind(script: Script) -> None:
    """A group for another broker to find, in the middle of a rebalance."""
    group = "left-rebalancing"
    script.prepare(group)
    script.configure(group, "consumer.assignment.interval.ms", "0")
    script.join(group, A, [THREE], regex="consumers-[4-9]", instance="i1")
    script.beat(group, A, 2, instance="i1", changes=True)
    script.join(group, B, [FOUR])
    script.beat(group, A, 3, instance="i1")
    script.commit(group, B, 4, [1])
    script.describe(group)


def look_again(script: Script) -> None:
    """What `leave_behind` left."""
    script.prepare("left-rebalancing")
    script.describe("left-rebalancing")
    script.offsets("left-rebalancing", None, -1)


def go_on(script: Script) -> None:
    """The members of what `leave_behind` left go on with their epochs."""
    assert script.beat("left-rebalancing", B, 4).error_code == 0


def play_on(address: str, play: Callable[[Script], None]) -> list[Any]:
    """What a script saw of one broker."""
    script = Script(address)
    try:
        play(script)
    finally:
        script.close()
    return script.seen


def unordered(seen: Any) -> Any:
    """What was seen without what Kafka leaves to the order of hash tables over random member ids: whose turn comes first."""
    if isinstance(seen, dict):
        counted = {key: len(value) if isinstance(value, list) else unordered(value) for key, value in seen.items()}
        # Topics come in the order of their ids, and lists are sorted by how they look.
        return dict(sorted(counted.items()))
    if isinstance(seen, list):
        return sorted((unordered(each) for each in seen), key=repr)
    if isinstance(seen, tuple):
        return tuple(unordered(each) for each in seen)
    return "#" if isinstance(seen, str) and seen.startswith("#") else seen
