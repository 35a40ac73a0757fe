"""The same requests to Kafka and to Barnabas: consumer groups (KIP-848) answer alike, epoch by epoch, word by word.

Each script is played on both and its observations compared. Member ids that a broker makes stand by the order of their first
appearance; members of a described group are compared without their order. Groups have `consumer.assignment.interval.ms` 0, so that
nothing hangs on when a request comes; one script waits the interval out.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from barnabas.errors import ErrorCode
from barnabas.protocol.messages.admin import (
    AlterableConfig,
    AlterConfigsResource,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
    IncrementalAlterConfigsRequest,
)
from barnabas.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    TopicIdPartitions,
)
from barnabas.protocol.messages.groups import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    SyncGroupRequest,
    TopicPartition,
)
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from barnabas.protocol.schema import decode_versioned, encode_versioned
from tests.support.oracle.wire import Wire

pytestmark = pytest.mark.oracle

FOUR, THREE = "consumers-4", "consumers-3"
A, B, C = "A" * 22, "B" * 22, "C" * 22
GROUP_RESOURCE = 32
TOPICS_SEEN_SECONDS = 0.5  # until both coordinators know of a topic that has just changed, Kafka's expressions included
RETRY = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR)
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
        answer = self.wire.call(MetadataRequest(topics=[MetadataRequestTopic(name=name)]), 12).topics[0]
        self.topics[name], self.topics[answer.topic_id] = answer.topic_id, name

    def prepare(self, group: str) -> None:
        """Two topics, and a coordinator that serves the group."""
        self.topic(FOUR, 4)
        self.topic(THREE, 3)
        self.wire.find_coordinator(group, 0)
        deadline = time.monotonic() + 30
        while self.wire.call(ConsumerGroupDescribeRequest(group_ids=[group]), 1).groups[0].error_code in RETRY:
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def configure(self, group: str, name: str, value: str) -> None:
        config = AlterableConfig(name=name, config_operation=0, value=value)
        resource = AlterConfigsResource(resource_type=GROUP_RESOURCE, resource_name=group, configs=[config])
        answer = self.wire.call(IncrementalAlterConfigsRequest(resources=[resource]), 1).responses[0]
        self.note("configured", name, answer.error_code, answer.error_message)

    def names(self, partitions: Any) -> dict[str, list[int]]:
        return {self.topics.get(each.topic_id, "?"): sorted(each.partitions) for each in partitions}

    # the consumer protocol

    def beat(self, group: str, member: str, epoch: int, *, version: int = 1, **fields: Any) -> Any:
        owned = fields.pop("owned", None)
        if owned is not None:
            owned = [TopicIdPartitions(topic_id=self.topics[name], partitions=p) for name, p in owned.items()]
        request = ConsumerGroupHeartbeatRequest(
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
        assert not fields
        answer = self.wire.call(request, version)
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
        request = ConsumerGroupDescribeRequest(group_ids=[group], include_authorized_operations=True)
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
        offsets = [OffsetCommitRequestPartition(partition_index=p, committed_offset=p + 1) for p in partitions]
        topic = OffsetCommitRequestTopic(name=FOUR, topic_id=self.topics[FOUR], partitions=offsets)
        request = OffsetCommitRequest(
            group_id=group,
            member_id=member,
            generation_id_or_member_epoch=epoch,
            group_instance_id=instance,
            topics=[topic],
        )
        answer = self.wire.call(request, version)
        self.note("committed", self.plain(member), epoch, [p.error_code for p in answer.topics[0].partitions])

    def offsets(self, group: str, member: str | None, epoch: int, *, version: int = 9) -> None:
        topic = OffsetFetchRequestTopics(name=FOUR, topic_id=self.topics[FOUR], partition_indexes=[0, 1, 2, 3])
        wanted = OffsetFetchRequestGroup(group_id=group, member_id=member, member_epoch=epoch, topics=[topic])
        found = self.wire.call(OffsetFetchRequest(groups=[wanted]), version).groups[0]
        offsets = [(p.partition_index, p.committed_offset) for t in found.topics for p in t.partitions]
        self.note("offsets", self.plain(member), epoch, found.error_code, offsets)

    def delete(self, group: str) -> None:
        answer = self.wire.call(DeleteGroupsRequest(groups_names=[group]), 2)
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
            owned_partitions=[TopicPartition(topic=name, partitions=p) for name, p in (owned or {}).items()],
        )
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=30_000,
            rebalance_timeout_ms=10_000,
            member_id=member,
            group_instance_id=fields.pop("instance", None),
            protocol_type=fields.pop("type", "consumer"),
            protocols=[
                JoinGroupRequestProtocol(
                    name=fields.pop("protocol", "range"), metadata=encode_versioned(subscription, 1)
                )
            ],
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
        request = SyncGroupRequest(
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
        request = HeartbeatRequest(
            group_id=group, member_id=member, generation_id=generation, group_instance_id=instance
        )
        self.note("classic beat", self.plain(member), generation, self.wire.call(request, 4).error_code)

    def leave(self, group: str, member: str, instance: str | None = None) -> None:
        identity = MemberIdentity(member_id=member, group_instance_id=instance)
        answer = self.wire.call(LeaveGroupRequest(group_id=group, members=[identity]), 5)
        self.note("left", answer.error_code, [(self.plain(m.member_id), m.error_code) for m in answer.members])

    def describe_classic(self, group: str) -> None:
        for version in (5, 6):
            found = self.wire.call(DescribeGroupsRequest(groups=[group]), version).groups[0]
            self.note(
                "described classic",
                found.error_code,
                found.error_message,
                found.group_state,
                found.protocol_type,
                sorted(self.plain(m.member_id) or "" for m in found.members),
            )


def refusals(script: Script) -> None:
    """Requests that break the rules, one by one, and groups that are not there."""
    group = "refused"
    script.prepare(group)
    full: dict[str, Any] = {"topics": [FOUR], "owned": {}, "timeout": 1000}
    script.beat("", A, 0, **full)
    script.beat(group, "", 0, **full)
    script.beat(group, A, 0, topics=[FOUR], owned={})
    script.beat(group, A, 0, topics=[FOUR], timeout=1000)
    script.beat(group, A, 0, owned={}, timeout=1000)
    script.beat(group, A, 0, topics=[FOUR], owned={FOUR: [1]}, timeout=1000)
    for epoch in (-1, -2, -3, 5):
        script.beat(group, A, epoch)
    script.beat(group, "", -1)
    script.beat(group, A, 0, instance="", **full)
    script.beat(group, A, 0, rack="", **full)
    script.beat(group, A, 0, assignor="sticky", **full)
    script.beat(group, A, 0, regex="(", owned={}, timeout=1000)
    script.describe(group)
    script.describe("")
    for name, value in (
        ("consumer.session.timeout.ms", "100"),
        ("consumer.session.timeout.ms", "100000"),
        ("consumer.heartbeat.interval.ms", "100"),
        ("consumer.heartbeat.interval.ms", "6000"),
        ("what", "1"),
    ):
        script.configure(group, name, value)
    script.join(group, A, [])  # without topics
    script.describe(group)
    script.join(group, A, ["nothing-of-that-name"])
    script.describe(group)


def rebalance(script: Script) -> None:
    """A second member, a revocation acknowledged, epochs too old and too new, a third one with another assignor, leaving."""
    group = "rebalanced"
    script.prepare(group)
    script.configure(group, "consumer.assignment.interval.ms", "0")
    script.join(group, A, [FOUR])
    script.join(group, B, [FOUR])
    script.describe(group)
    for epoch in (1, 2, 3):
        script.beat(group, A, epoch)
    script.beat(group, A, 2, owned={FOUR: [0, 1, 2, 3]})
    script.beat(group, A, 2, owned={FOUR: [0, 1]})
    script.describe(group)
    script.beat(group, B, 3)
    script.beat(group, A, 2, owned={FOUR: [0]})  # its answer may have been lost
    script.beat(group, A, 2, owned={FOUR: [0, 2]})
    script.beat(group, A, 2)
    script.join(group, A, [FOUR])  # again
    script.join(group, C, [FOUR], rack="r1", assignor="range")
    script.describe(group)
    for member in (A, B, C):
        script.beat(group, member, 3)
        script.beat(group, member, 4)
    script.beat(group, B, 3, owned={FOUR: [2]})
    script.beat(group, C, 4)
    script.describe(group)
    script.beat(group, A, 4, assignor="range")
    script.beat(group, A, 4, topics=[FOUR], owned={FOUR: [0, 1]}, timeout=30_000)
    script.beat(group, A, 4, topics=[FOUR, THREE])
    script.describe(group)
    script.beat(group, B, -1)
    script.beat(group, C, -1)
    script.beat(group, C, 4)
    script.describe(group)
    script.delete(group)
    script.beat(group, A, -1)
    script.describe(group)
    script.delete(group)
    script.describe(group)


def interval(script: Script) -> None:
    """A target is not made anew at once; a member that comes meanwhile waits in the epoch of the last one."""
    group = "patient"
    script.prepare(group)
    script.configure(group, "consumer.assignment.interval.ms", "2000")
    script.join(group, A, [FOUR])
    began = time.monotonic()
    script.join(group, B, [FOUR])
    script.beat(group, A, 2)
    if time.monotonic() - began > 1.5:
        pytest.skip("the machine is too slow for this one")
    time.sleep(2.5)  # the interval and some more
    script.describe(group)
    script.beat(group, B, 2)
    script.describe(group)


def static(script: Script) -> None:
    """Static members: away and back under another id, fenced, gone."""
    group = "statics"
    script.prepare(group)
    script.configure(group, "consumer.assignment.interval.ms", "0")
    script.join(group, A, [FOUR], instance="i1")
    script.join(group, A, [FOUR], instance="i1")
    script.join(group, B, [FOUR], instance="i1")
    script.beat(group, B, 2, instance="i1")
    script.beat(group, A, 2, instance="i2")
    script.beat(group, A, 2, instance="i1")
    script.beat(group, A, -2)
    script.beat(group, B, -2, instance="i1")
    script.beat(group, A, -2, instance="i1")
    script.describe(group)
    script.beat(group, A, 2, instance="i1")
    script.join(group, B, [FOUR], instance="i1")
    script.describe(group)
    script.beat(group, A, 2, instance="i1")
    script.commit(group, A, 2, [0], instance="i1")
    script.commit(group, B, 2, [0], instance="i1")
    script.join(group, C, [FOUR], instance="i2")
    script.beat(group, C, -1, instance="i2")
    script.beat(group, B, -2, instance="i1")
    script.join(group, A, [THREE], instance="i1")
    script.describe(group)


def topics_change(script: Script) -> None:
    """Topics that grow, come and go."""
    group = "changing"
    script.prepare(group)
    script.configure(group, "consumer.assignment.interval.ms", "0")
    script.topic("consumers-grows", 2)
    script.join(group, A, ["consumers-grows", "consumers-comes"])
    grown = CreatePartitionsTopic(name="consumers-grows", count=3, assignments=None)
    script.wire.call(CreatePartitionsRequest(topics=[grown], timeout_ms=5000), 2)
    time.sleep(TOPICS_SEEN_SECONDS)
    script.beat(group, A, 2)
    script.topic("consumers-comes", 1)
    time.sleep(TOPICS_SEEN_SECONDS)
    script.beat(group, A, 3)
    script.describe(group)
    gone = DeleteTopicState(name="consumers-comes")
    script.wire.call(DeleteTopicsRequest(topics=[gone], timeout_ms=5000), 6)
    time.sleep(TOPICS_SEEN_SECONDS)
    script.beat(group, A, 4)
    script.beat(group, A, 4, owned={"consumers-grows": [0, 1, 2]})
    script.describe(group)


def expressions(script: Script) -> None:
    """Subscription by regular expression, beside names; one that does not compile; none any more."""
    group = "matching"
    script.prepare(group)
    script.configure(group, "consumer.assignment.interval.ms", "0")
    script.join(group, A, [THREE], regex="consumers-[4-9]")
    time.sleep(TOPICS_SEEN_SECONDS)
    script.beat(group, A, 2)
    script.describe(group)
    script.join(group, B, None, regex="consumers-[4-9]")
    script.describe(group)
    script.beat(group, A, 3, regex="[")
    script.beat(group, A, 3, regex="")
    script.describe(group)
    script.beat(group, B, 4)


def fencing(script: Script) -> None:
    """Who may commit, in which epoch; the same in a transaction (KIP-447)."""
    group = "fenced"
    script.prepare(group)
    script.configure(group, "consumer.assignment.interval.ms", "0")
    script.join(group, A, [FOUR])
    script.join(group, B, [FOUR])
    script.commit(group, A, 2, [2])
    script.beat(group, A, 2)
    script.beat(group, A, 2, owned={FOUR: [0, 1]})
    script.beat(group, B, 3)
    for epoch in (3, 2, 1, 4, -1):
        script.commit(group, A, epoch, [0])
    script.commit(group, A, 2, [0, 2])
    script.commit(group, A, 3, [0, 2])
    script.commit(group, B, 2, [2])
    script.commit(group, A, 3, [0], version=8)
    script.commit(group, A, 3, [0], version=10)
    script.commit(group, "nobody", 3, [0])
    script.commit(group, "", -1, [0])
    for member, epoch in ((A, 3), (A, 2), ("nobody", 3), (None, -1)):
        script.offsets(group, member, epoch)
    script.offsets(group, A, 3, version=10)
    topics = [
        OffsetDeleteRequestTopic(name=name, partitions=[OffsetDeleteRequestPartition(partition_index=0)])
        for name in (FOUR, THREE)
    ]
    answer = script.wire.call(OffsetDeleteRequest(group_id=group, topics=topics), 0)
    script.note("offsets deleted", answer.error_code, [p.error_code for t in answer.topics for p in t.partitions])
    in_transaction(script, group)
    listed = script.wire.call(ListGroupsRequest(types_filter=["Consumer"], states_filter=["stable"]), 5).groups
    script.note([(g.group_type, g.protocol_type, g.group_state) for g in listed if g.group_id == group])
    script.beat(group, A, -1)
    script.beat(group, B, -1)
    script.commit(group, "", -1, [0])
    script.offsets(group, None, -1)


def in_transaction(script: Script, group: str) -> None:
    name = f"tx-{group}"
    script.wire.find_coordinator(name, 1)
    deadline = time.monotonic() + 30
    while True:
        request = InitProducerIdRequest(
            transactional_id=name, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
        )
        producer = script.wire.call(request, 4)
        if producer.error_code == 0:
            break
        assert time.monotonic() < deadline, producer
        time.sleep(0.1)
    who = {
        "transactional_id": name,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "group_id": group,
    }
    assert script.wire.call(AddOffsetsToTxnRequest(**who), 3).error_code == 0
    for member, epoch, partitions in (
        (A, 3, [0]),
        (A, 2, [0]),
        (A, 2, [0, 2]),
        (A, 4, [0]),
        ("nobody", 3, [0]),
        ("", -1, [0]),
    ):
        offsets = [TxnOffsetCommitRequestPartition(partition_index=p, committed_offset=1) for p in partitions]
        topic = TxnOffsetCommitRequestTopic(name=FOUR, partitions=offsets)
        answer = script.wire.call(
            TxnOffsetCommitRequest(**who, member_id=member, generation_id=epoch, topics=[topic]), 3
        )
        script.note("in transaction", member, epoch, [p.error_code for p in answer.topics[0].partitions])


def migration(script: Script) -> None:
    """A classic group gets a consumer member and loses it again."""
    group = "migrated"
    script.prepare(group)
    script.configure(group, "consumer.assignment.interval.ms", "0")
    classic = script.enter(script.wire, group)
    first = classic.member_id
    script.sync(script.wire, group, first, 1)
    script.describe(group)
    script.join(group, B, [FOUR])
    script.describe_classic(group)
    script.classic_beat(group, first, 1)
    script.commit(group, first, 1, [0], version=8)
    script.sync(script.wire, group, first, 1)
    script.classic_join(script.wire, group, first, owned={FOUR: [0, 1, 2, 3]})
    script.sync(script.wire, group, first, script.last_join.generation_id)
    script.describe(group)
    script.classic_beat(group, first, script.last_join.generation_id)
    script.classic_join(script.wire, group, first, owned={FOUR: [0]})
    script.sync(script.wire, group, first, script.last_join.generation_id)
    script.classic_beat(group, first, script.last_join.generation_id)
    script.commit(group, first, 2, [0], version=8)
    script.commit(group, first, 1, [0], version=8)
    script.classic_join(script.other, group, protocol="nothing-in-common")
    script.classic_join(script.other, group, type="connect")
    script.leave(group, "nobody")
    script.beat(group, B, -1)
    script.describe_classic(group)
    script.describe(group)
    script.classic_beat(group, first, 2)
    script.classic_join(script.wire, group, first)
    script.describe_classic(group)
    script.leave(group, first)


def migrating_statics(script: Script) -> None:
    """A static member goes from one protocol to the other and back; members are removed by an operator."""
    group = "migrated-statics"
    script.prepare(group)
    script.configure(group, "consumer.assignment.interval.ms", "0")
    script.join(group, B, [FOUR], instance="i1")
    script.beat(group, B, -2, instance="i1")
    member = script.classic_join(script.other, group, instance="i1").member_id
    script.describe(group)
    script.describe_classic(group)
    script.sync(script.other, group, member, 2, "i1")
    script.classic_beat(group, member, 2, "i1")
    script.join(group, C, [FOUR], instance="i1")
    script.describe(group)
    script.classic_beat(group, member, 2, "i1")
    script.leave(group, "", "i1")
    script.describe(group)
    script.enter(script.other, group)  # the empty group is whoever's comes
    script.describe_classic(group)
    other = "not-consumers"
    script.prepare(other)
    script.classic_join(
        script.wire, other, script.classic_join(script.wire, other, type="connect").member_id, type="connect"
    )
    script.join(other, A, [FOUR])


def leave_behind(script: Script) -> None:
    """A group for another broker to find, in the middle of a rebalance."""
    group = "left-rebalancing"
    script.prepare(group)
    script.configure(group, "consumer.assignment.interval.ms", "0")
    script.join(group, A, [THREE], regex="consumers-[4-9]", instance="i1")
    time.sleep(TOPICS_SEEN_SECONDS)
    script.beat(group, A, 2, instance="i1")
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


@pytest.mark.parametrize(
    "play",
    [
        refusals,
        rebalance,
        interval,
        static,
        topics_change,
        expressions,
        fencing,
        migration,
        migrating_statics,
    ],
    ids=lambda play: play.__name__,
)
def test_both_answer_alike(kafka: str, barnabas: str, play: Callable[[Script], None]) -> None:
    expected = play_on(kafka, play)
    assert expected
    found = play_on(barnabas, play)
    if play in (migration, migrating_statics):  # members whose ids are drawn
        assert [unordered(each) for each in found] == [unordered(each) for each in expected]
    else:
        assert found == expected
