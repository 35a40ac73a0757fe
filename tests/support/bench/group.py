"""A group shard on a bench: virtual time, a log in memory, answers collected as they leave.

The bench does what the host does (decide, encode, stage) without a broker: every record goes through its bytes into
`log`, so that `replayed()` is the shard another coordinator would load.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from barnabas.broker.coordinator.groups.committing import Committer
from barnabas.broker.coordinator.groups.effects import At, Conversion, Effects, HeartbeatCall, JoinCall
from barnabas.broker.coordinator.groups.records import AnyRecord, OffsetRecord
from barnabas.broker.coordinator.groups.settings import ConsumerSettings, GroupSettings
from barnabas.broker.coordinator.groups.shard import GroupShard
from barnabas.broker.coordinator.host.decision import Decision, ProducerStamp
from barnabas.broker.image.image import MetadataImage
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicIdPartitions,
)
from barnabas.protocol.messages.groups import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from tests.support.clock import WALL_MS


class Ticket:
    """A reply that a request waits for, and the responses that were sent."""

    def __init__(self) -> None:
        self.responses: list[Any] = []

    def send(self, response: Any) -> None:
        self.responses.append(response)

    def refuse(self, code: ErrorCode) -> None:
        self.responses.append(None)

    @property
    def answered(self) -> bool:
        return bool(self.responses)

    @property
    def response(self) -> Any:
        (response,) = self.responses  # exactly one answer
        return response


class GroupBench:
    """One shard, partition 0."""

    def __init__(self, settings: GroupSettings | None = None) -> None:
        self.settings = settings or GroupSettings(initial_rebalance_delay_ms=0)
        self.now_ms = 0
        self.log: list[tuple[bytes, bytes | None, int]] = []  # key, value, producer id
        self.markers: list[tuple[int, int, bool]] = []  # position in the log, producer id, commit
        self.refused: list[Any] = []
        self.conversions: list[Conversion] = []  # decided, and not started yet
        self.active = False
        self.append_fails = False
        self.image = MetadataImage()
        self.consumers = ConsumerSettings(assignment_interval_ms=0)
        self.shard = GroupShard(0, self.settings, self)
        self._fresh = 0

    # ShardOwner
    def on_shard_active(self, partition: int, shard: GroupShard) -> None:
        self.active = True

    def on_shard_resigned(self, partition: int, replies: list[Any]) -> None:
        self.refused = replies

    @property
    def topics(self) -> MetadataImage:
        return self.image

    def consumer_settings(self, group_id: str) -> ConsumerSettings:
        return self.consumers

    @property
    def at(self) -> At:
        return At(WALL_MS + self.now_ms, self.now_ms)

    # what the host does
    def commit(self, decision: Decision[Any, AnyRecord]) -> Any:
        """Stages and appends the records. If the append is to fail, undoes the staging and raises."""
        if isinstance(decision.answer, Effects):
            self.conversions += decision.answer.conversions
        undo = self.shard.stage(decision.records, decision.producer)
        if self.append_fails and decision.records:
            undo()
            for answer in decision.answer.answers if isinstance(decision.answer, Effects) else ():
                answer.reply.refuse(ErrorCode.MESSAGE_TOO_LARGE)
            raise BrokerError(ErrorCode.MESSAGE_TOO_LARGE)
        producer_id = decision.producer.producer_id if decision.producer else -1
        self.log += [(*self.shard.encode(record), producer_id) for record in decision.records]
        return decision.answer

    def release(self, effects: Effects) -> None:
        for answer in effects.answers:
            answer.reply.send(answer.response)

    def replayed(self) -> GroupShard:
        shard = GroupShard(0, self.settings, self)
        markers = list(self.markers)
        for position, (key, value, producer_id) in enumerate(self.log):
            while markers and markers[0][0] <= position:
                _, ended, commit = markers.pop(0)
                shard.replay_marker(ended, 0, commit=commit)
            record = shard.decode(key, value)
            assert record is not None
            shard.replay(record, producer_id, 0)
        for _, ended, commit in markers:
            shard.replay_marker(ended, 0, commit=commit)
        return shard

    def fail_over(self) -> None:
        """Replaces the shard by one that has loaded the log, as after a failover."""
        self.shard.on_resigned()
        self.shard = self.replayed()
        self.shard.on_active()
        self.release(self.commit(self.shard.start_loaded(self.at)))

    def expired(self) -> list[AnyRecord]:
        """Stages and returns the tombstones of everything that has expired."""
        found: list[AnyRecord] = []
        for _, records in self.shard.expired(self.at):
            self.shard.stage(records, None)
            found += records
        return found

    def advance(self, duration_ms: int) -> None:
        """Lets time pass, stopping at every deadline."""
        end_ms = self.now_ms + duration_ms
        while (deadline_ms := self.shard.next_deadline_ms()) is not None and deadline_ms <= end_ms:
            self.now_ms = max(deadline_ms, self.now_ms)
            self.release(self.commit(self.shard.on_time(self.at)))
            self.start_converted()
        self.now_ms = end_ms

    # requests
    def join(
        self,
        member_id: str = "",
        *,
        group: str = "g",
        instance: str | None = None,
        protocols: list[tuple[str, bytes]] | None = None,
        protocol_type: str = "consumer",
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        version: int = 9,
        client_id: str = "client",
    ) -> Ticket:
        self._fresh += 1
        ticket = Ticket()
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[
                JoinGroupRequestProtocol(name=name, metadata=metadata)
                for name, metadata in (protocols if protocols is not None else [("range", b"")])
            ],
        )
        call = JoinCall(request, version, client_id, "/127.0.0.1", str(self._fresh), ticket)
        self.release(self.commit(self.shard.join(call, self.at)))
        return ticket

    def member(self, **kwargs: Any) -> tuple[str, Ticket]:
        """Joins a dynamic member in two requests, as KIP-394 demands: the second one carries the member id."""
        member_id = self.join(**kwargs).response.member_id
        return member_id, self.join(member_id, **kwargs)

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        instance: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> Ticket:
        ticket = Ticket()
        request = SyncGroupRequest(
            group_id="g",
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments=[
                SyncGroupRequestAssignment(member_id=name, assignment=assignment)
                for name, assignment in (assignments or {}).items()
            ],
        )
        self.release(self.commit(self.shard.sync(request, ticket, self.at)))
        return ticket

    def consumer_heartbeat(self, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
        ticket = Ticket()
        self._fresh += 1
        call = HeartbeatCall(request, "client", "/127.0.0.1", str(self._fresh), ticket)
        self.release(self.commit(self.shard.consumer_heartbeat(call, self.at)))
        self.start_converted()
        response: ConsumerGroupHeartbeatResponse = ticket.response
        return response

    def start_converted(self) -> None:
        conversions, self.conversions = self.conversions, []
        self.release(self.commit(self.shard.start_converted(conversions, self.at)))

    def heartbeat(self, member_id: str, generation: int, *, instance: str | None = None) -> ErrorCode:
        return code_of(lambda: self.shard.heartbeat("g", member_id, instance, generation, self.at))

    def leave(self, *members: tuple[str, str | None]) -> LeaveGroupResponse:
        request = LeaveGroupRequest(
            group_id="g",
            members=[MemberIdentity(member_id=name, group_instance_id=instance) for name, instance in members],
        )
        response, effects = self.commit(self.shard.leave(request, self.at))
        self.release(effects)
        assert isinstance(response, LeaveGroupResponse)
        return response

    def offset(
        self,
        record: OffsetRecord,
        *,
        member_id: str = "",
        generation: int = -1,
        instance: str | None = None,
        version: int = 9,
        producer_id: int | None = None,
    ) -> ErrorCode:
        """OffsetCommit of one record, or TxnOffsetCommit with a producer id."""
        committer = Committer(
            record.group_id, member_id, instance, generation, version if producer_id is None else None
        )
        try:
            self.shard.group(record.group_id).check_commit(committer, [record], self.at)
            producer = None if producer_id is None else ProducerStamp(producer_id, 0)
            self.commit(Decision(None, [record], producer))
        except BrokerError as error:
            return error.code
        return ErrorCode.NONE

    def marker(self, producer_id: int, *, commit: bool) -> None:
        self.markers.append((len(self.log), producer_id, commit))
        self.shard.replay_marker(producer_id, 0, commit=commit)

    def stable(self, size: int = 2, **kwargs: Any) -> list[str]:
        """A Stable group of `size` members; the leader comes first."""
        members = [self.member(**kwargs) for _ in range(size)]
        self.advance(0)
        responses: list[JoinGroupResponse] = [ticket.response for _, ticket in members]
        leader = responses[0].leader
        ids = sorted((member_id for member_id, _ in members), key=lambda member_id: member_id != leader)
        generation = responses[0].generation_id
        for member_id in ids[1:]:
            self.sync(member_id, generation)
        self.sync(leader, generation, {member_id: member_id.encode() for member_id in ids})
        return ids


class Client:
    """A member of the consumer protocol: it revokes partitions before it reports so.

    Attributes:
        owned: the partitions that it reads, by topic name and partition.
        assigned: the last assignment that it received.
    """

    def __init__(
        self,
        bench: GroupBench,
        member_id: str,
        topics: list[str],
        *,
        instance: str | None = None,
        regex: str | None = None,
        assignor: str | None = None,
        rebalance_ms: int = 60_000,
    ) -> None:
        self.bench = bench
        self.member_id = member_id
        self.topics = topics
        self.instance = instance
        self.regex = regex
        self.assignor = assignor
        self.rebalance_ms = rebalance_ms
        self.epoch = 0
        self.code = ErrorCode.NONE
        self.owned: set[tuple[str, int]] = set()
        self.assigned: set[tuple[str, int]] = set()

    @property
    def is_member(self) -> bool:
        """Whether the coordinator has it as a member."""
        group = self.bench.shard.tables.consumer.get("g")
        return group is not None and self.member_id in group.members and self.epoch > 0

    def join(self, *, lost: bool = False) -> None:
        self.epoch = 0
        self.owned, self.assigned = set(), set()
        self._send(everything=True, lost=lost)

    def beat(self, *, report: bool = True, lost: bool = False) -> None:
        """Sends one heartbeat. `report`: it revokes first, and reports what it owns. `lost`: the answer is lost."""
        if self.code is not ErrorCode.NONE or self.epoch <= 0:
            self.join(lost=lost)
            return
        if report:
            self.owned &= self.assigned
        self._send(report=report, lost=lost)
        if report and self.code is ErrorCode.NONE:
            self.owned &= self.assigned

    def subscribe(self, topics: list[str]) -> None:
        self.topics = topics
        if self.epoch > 0 and self.code is ErrorCode.NONE:
            self._send(names=True)

    def leave(self, *, epoch: int = -1) -> None:
        request = ConsumerGroupHeartbeatRequest(
            group_id="g", member_id=self.member_id, member_epoch=epoch, instance_id=self.instance
        )
        self.owned = set()
        self.code = ErrorCode(self.bench.consumer_heartbeat(request).error_code)

    def _send(self, *, everything: bool = False, report: bool = False, names: bool = False, lost: bool = False) -> None:
        image = self.bench.image
        request = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance,
            rebalance_timeout_ms=self.rebalance_ms if everything else -1,
            subscribed_topic_names=self.topics if everything or names else None,
            subscribed_topic_regex=self.regex if everything else None,
            server_assignor=self.assignor if everything else None,
            topic_partitions=[
                TopicIdPartitions(topic_id=image.topic_id(name) or bytes(16), partitions=[number])
                for name, number in sorted(self.owned)
            ]
            if everything or report
            else None,
        )
        response = self.bench.consumer_heartbeat(request)
        if lost:
            return
        self.code = ErrorCode(response.error_code)
        if self.code is not ErrorCode.NONE:
            self.owned, self.assigned = set(), set()
            return
        self.epoch = response.member_epoch
        if response.assignment is not None:
            told = response.assignment.topic_partitions
            self.assigned = {
                (name, number)
                for each in told
                if (name := image.topic_name(each.topic_id)) is not None
                for number in each.partitions
            }
            self.owned |= self.assigned


def code_of(call: Callable[[], None]) -> ErrorCode:
    """The code of the error that a call raises; NONE without an error."""
    try:
        call()
    except BrokerError as error:
        return error.code
    return ErrorCode.NONE


def outcome(ticket: Ticket) -> ErrorCode:
    """Error code of an answered ticket."""
    response: JoinGroupResponse | SyncGroupResponse = ticket.response
    return ErrorCode(response.error_code)
