"""Group coordinator of a node: shell of its shards of `__consumer_offsets`."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import Any, TypeVar

from barnabas.broker.api.call import Done
from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.config.group_config import ASSIGNMENT_INTERVAL, HEARTBEAT_INTERVAL, SESSION_TIMEOUT, group_value
from barnabas.broker.coordinator.group_regexes import RegexSearch
from barnabas.broker.coordinator.groups.effects import (
    At,
    Effects,
    GroupDecision,
    HeartbeatCall,
    JoinCall,
    MemberAnswer,
    Responder,
)
from barnabas.broker.coordinator.groups.records import AnyRecord, GroupRecord, ResolvedRegex
from barnabas.broker.coordinator.groups.settings import ConsumerSettings, GroupSettings
from barnabas.broker.coordinator.groups.shard import GroupShard
from barnabas.broker.coordinator.groups.topics import Topics
from barnabas.broker.coordinator.host.decision import Decision
from barnabas.broker.coordinator.shard_host import ShardHost
from barnabas.broker.image.current_image import CurrentImage
from barnabas.broker.image.image import GROUP_RESOURCE, MetadataDelta, MetadataImage
from barnabas.broker.replica.replicas import Replicas
from barnabas.broker.scheduling.reactor import Reactor
from barnabas.broker.scheduling.slices import Slice, Slices
from barnabas.errors import BrokerError, ErrorCode
from barnabas.loggers import logger
from barnabas.protocol.internal_topics import GROUP_METADATA_TOPIC
from barnabas.protocol.messages.groups import LeaveGroupRequest, LeaveGroupResponse, SyncGroupRequest
from barnabas.work import SLICE, Work

log = logger("kafka.coordinator.group")

FENCED = (ErrorCode.FENCED_INSTANCE_ID, ErrorCode.FENCED_MEMBER_EPOCH)
ANSWERS_AT_ONCE = 256  # of one decision in one turn of the loop: 1 to 2 ms, with their encoding
AFTER_STALL_MS = 10  # the loop reads its sockets in this time
LOOKED_PER_UNIT = 16  # offsets whose expiry is checked: 10 microseconds
TOMBSTONES_PER_BATCH = 1_000  # about 100 kB: below every usual max.message.bytes

A = TypeVar("A")


def settings_of(config: BrokerConfig) -> GroupSettings:
    return GroupSettings(
        session_timeout_min_ms=config.get_int("group.min.session.timeout.ms"),
        session_timeout_max_ms=config.get_int("group.max.session.timeout.ms"),
        size_max=config.get_int("group.max.size"),
        initial_rebalance_delay_ms=config.get_int("group.initial.rebalance.delay.ms"),
        offset_metadata_bytes_max=config.get_int("offset.metadata.max.bytes"),
        offsets_retention_ms=config.get_int("offsets.retention.minutes") * 60_000,
    )


class GroupCoordinator:
    """The group coordinator; every broker has one. It is the ShardOwner of its shards.

    Each shard has one timer, for its earliest deadline: an idle group costs only heartbeats. Every Responder is answered once: by a
    decision, by its refusal, or when the shard resigns. A method with `done` never raises: `done` gets the result or the error, maybe
    before it returns.
    """

    def __init__(
        self,
        reactor: Reactor,
        config: BrokerConfig,
        *,
        slices: Slices,
        current: CurrentImage,
        replicas: Replicas,
    ) -> None:
        self._reactor = reactor
        self._config = config
        self._slices = slices
        self._current = current
        self.settings = settings_of(config)
        self.fenced_members = 0  # requests of members answered FENCED_INSTANCE_ID or FENCED_MEMBER_EPOCH
        self.host: ShardHost[GroupShard] = ShardHost(
            GROUP_METADATA_TOPIC,
            reactor,
            replicas,
            self._make_shard,
            lambda: current.image.partition_count(GROUP_METADATA_TOPIC),
            slices,
            compression=config.get_int("offsets.topic.compression.codec"),
            answer_timeout_ms=partial(config.get_int, "offsets.commit.timeout.ms"),
        )
        self._timers: dict[int, tuple[int, Any]] = {}  # by partition: (deadline in monotonic ms, timer)
        # markers that were appended while the partition loaded
        self._late_markers: dict[int, list[tuple[int, bool]]] = {}
        self._retention_timer: Any = None
        self._expiry: Slice | None = None
        self._regexes = RegexSearch(reactor, current, self._on_resolved)

    # -- start, stop, leadership ---------------------------------------------------------------------------------------

    def start(self) -> None:
        self._arm_retention()

    def stop(self) -> None:
        """Drops the shards; answers parked requests."""
        if self._retention_timer is not None:
            self._retention_timer.cancel()
            self._retention_timer = None
        if self._expiry is not None:
            self._expiry.cancel()
        self.host.close()

    def on_elected(self, partition: int, leader_epoch: int) -> None:
        self._late_markers[partition] = []
        self.host.on_elected(partition, leader_epoch)

    def on_resigned(self, partition: int) -> None:
        self._late_markers.pop(partition, None)
        self.host.on_resigned(partition)

    def on_marker(self, partition: int, producer_id: int, commit: bool) -> None:
        """A transaction marker in a partition is committed: commits or drops pending offsets."""
        try:
            shard = self.host.shard(partition)
        except BrokerError as error:
            # Loading reads the log up to the election; later markers are applied after it.
            if error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                self._late_markers.setdefault(partition, []).append((producer_id, commit))
            return
        shard.replay_marker(producer_id, -1, commit=commit)

    def on_image(self, _former: MetadataImage, _image: MetadataImage, delta: MetadataDelta) -> None:
        """Removes the offsets of deleted topics that were committed until now, in slices."""
        if not delta.deleted:
            return
        work = self._forget_topics(frozenset(topic.name for topic in delta.deleted.values()))
        self._slices.run(work, _nothing, self._reactor.fatal)

    def _forget_topics(self, topics: frozenset[str]) -> Work:
        shards = [(partition, shard, shard.offsets.order) for partition, shard in self.host.active_shards()]
        for partition, shard, order in shards:
            for records in shard.offsets_of_topics(topics, order):
                if not self._has(partition, shard):
                    break  # at the next coordinator these offsets expire
                if records:
                    self._write_tombstones(partition, records)
                yield 1 + len(records)

    def _has(self, partition: int, shard: GroupShard) -> bool:
        """Whether the shard is still active here."""
        try:
            return self.host.shard(partition) is shard
        except BrokerError:
            return False

    def _make_shard(self, partition: int, leader_epoch: int) -> GroupShard:
        return GroupShard(partition, self.settings, self)

    def on_shard_active(self, partition: int, shard: GroupShard) -> None:
        """Starts the sessions of a loaded shard."""
        for producer_id, commit in self._late_markers.pop(partition, ()):
            shard.replay_marker(producer_id, -1, commit=commit)
        self._decide(partition, lambda shard, at: shard.start_loaded(at))

    def on_shard_resigned(self, partition: int, replies: list[Responder]) -> None:
        """Refuses the parked requests of a dropped shard."""
        _, timer = self._timers.pop(partition, (0, None))
        if timer is not None:
            timer.cancel()
        for reply in replies:
            reply.refuse(ErrorCode.NOT_COORDINATOR)

    @property
    def topics(self) -> Topics:
        return self._current.image

    def consumer_settings(self, group_id: str) -> ConsumerSettings:
        config = self._config
        own = self._current.image.config(GROUP_RESOURCE, group_id)
        policy = (config.get_str("group.consumer.migration.policy") or "").lower()
        return ConsumerSettings(
            session_timeout_ms=group_value(config, own, SESSION_TIMEOUT),
            heartbeat_interval_ms=group_value(config, own, HEARTBEAT_INTERVAL),
            assignment_interval_ms=group_value(config, own, ASSIGNMENT_INTERVAL),
            size_max=config.get_int("group.consumer.max.size"),
            assignors=config.get_list("group.consumer.assignors"),
            upgrades=policy in ("upgrade", "bidirectional"),
            downgrades=policy in ("downgrade", "bidirectional"),
        )

    # -- requests ------------------------------------------------------------------------------------------------------

    def now(self) -> At:
        clock = self._reactor.client_time.clock
        return At(clock.now_ms(), clock.monotonic_ms())

    def shard_for(self, group_id: str) -> GroupShard:
        """Raises BrokerError(COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS)."""
        return self.host.shard_for(group_id)[1]

    def join(self, call: JoinCall) -> None:
        self._decide_request(call.request.group_id, lambda shard, at: shard.join(call, at), call.reply)

    def sync(self, request: SyncGroupRequest, reply: Responder) -> None:
        self._decide_request(request.group_id, lambda shard, at: shard.sync(request, reply, at), reply)

    def consumer_heartbeat(self, call: HeartbeatCall) -> None:
        group_id = call.request.group_id
        self._decide_request(group_id, lambda shard, at: shard.consumer_heartbeat(call, at), call.reply)
        try:
            partition, shard = self.host.shard_for(group_id)
        except BrokerError:
            return
        group = shard.tables.consumer.get(group_id)
        if group is not None and group.regex_subscribers:
            self._regexes.look_up(partition, group, call.access)

    def _on_resolved(self, partition: int, group_id: str, found: dict[str, ResolvedRegex]) -> None:
        self._decide(partition, lambda shard, _at: shard.store_resolved(group_id, found))

    def heartbeat(self, group_id: str, member_id: str, group_instance_id: str | None, generation: int) -> None:
        """Writes nothing; raises as `shard_for` and `Group.heartbeat`."""
        shard = self.shard_for(group_id)
        try:
            shard.heartbeat(group_id, member_id, group_instance_id, generation, self.now())
        except BrokerError as error:
            self._count(error.code)
            raise

    def leave(self, request: LeaveGroupRequest, done: Done[LeaveGroupResponse]) -> None:
        """`done` gets the response, UNKNOWN_MEMBER_ID if the group does not exist, or the errors of `shard_for`."""
        response: list[LeaveGroupResponse] = []

        def decide(shard: GroupShard, at: At) -> GroupDecision:
            decision = shard.leave(request, at)
            response.append(decision.answer[0])
            return Decision(decision.answer[1], decision.records)

        self._decide_request(
            request.group_id, decide, None, lambda error: done(response[0] if error is None else error)
        )

    def write(self, group_id: str, decide: Callable[[GroupShard, At], Decision[A, AnyRecord]], done: Done[A]) -> None:
        """Writes a decision about offsets or deletion, or reads after everything written before; errors of `shard_for` and `ShardHost.write`."""
        try:
            partition = self.host.partition_of(group_id)
            # Otherwise an offset could be older than what another coordinator has written.
            self.host.check_leads(partition)
        except BrokerError as error:
            done(error)
            return

        def deciding(shard: GroupShard, _now_ms: int) -> Decision[A, AnyRecord]:
            try:
                return decide(shard, self.now())
            except BrokerError as error:
                self._count(error.code)
                raise

        self.host.write(partition, deciding, done)

    # -- decisions about members ---------------------------------------------------------------------------------------

    def _decide_request(
        self,
        group_id: str,
        decide: Callable[[GroupShard, At], GroupDecision],
        reply: Responder | None,
        then: Done[None] | None = None,
    ) -> None:
        try:
            partition = self.host.partition_of(group_id)
        except BrokerError as error:
            if reply is not None:
                reply.refuse(error.code)
            if then is not None:
                then(error)
            return
        self._decide(partition, decide, reply, then)

    def _decide(
        self,
        partition: int,
        decide: Callable[[GroupShard, At], GroupDecision],
        reply: Responder | None = None,
        then: Done[None] | None = None,
    ) -> None:
        """Refuses `reply` if the decision cannot be written; `then` gets None when it is committed, or the error."""
        decisions: list[GroupDecision] = []

        def deciding(shard: GroupShard, _now_ms: int) -> GroupDecision:
            decision = decide(shard, self.now())
            decisions.append(decision)
            for answer in decision.answer.answers:
                self._count(answer.response.error_code)
            self._rearm(partition, shard)
            return decision

        def done(outcome: Effects | BrokerError) -> None:
            if isinstance(outcome, BrokerError):
                self._refuse(partition, decisions, reply, outcome)
                self._start_converted(partition, decisions)  # the groups as they were before
            else:
                self._send(outcome.answers)
            if then is not None:
                then(outcome if isinstance(outcome, BrokerError) else None)

        self.host.write(partition, deciding, done)
        self._start_converted(partition, decisions)

    def _count(self, code: int) -> None:
        if code in FENCED:
            self.fenced_members += 1

    def _send(self, answers: list[MemberAnswer]) -> None:
        """Sends the answers of a decision; those of a large group a few in each turn of the loop."""
        if len(answers) <= ANSWERS_AT_ONCE:
            for answer in answers:
                answer.reply.send(answer.response)
            return
        self._slices.start(_sent_in_slices(answers), _nothing, self._reactor.fatal)

    def _start_converted(self, partition: int, decisions: list[GroupDecision]) -> None:
        conversions = [conversion for decision in decisions for conversion in decision.answer.conversions]
        if conversions:
            self._decide(partition, lambda shard, at: shard.start_converted(conversions, at))

    def _refuse(
        self,
        partition: int,
        decisions: list[GroupDecision],
        reply: Responder | None,
        error: BrokerError,
    ) -> None:
        if reply is not None:
            reply.refuse(error.code)
        for decision in decisions:
            for answer in decision.answer.answers:
                answer.reply.refuse(error.code)
            # An assignment could not be stored: its group rebalances again.
            unstable = [
                r.group_id for r in decision.records if isinstance(r, GroupRecord) and r.value and r.value.members
            ]
            if unstable:
                log.warning("Assignments of groups could not be stored: groups=%s error=%s", ", ".join(unstable), error)
                self._rebalance(partition, unstable)

    def _rebalance(self, partition: int, group_ids: list[str]) -> None:
        self._decide(partition, lambda shard, at: shard.rebalance(group_ids, at))

    # -- time ----------------------------------------------------------------------------------------------------------

    def _rearm(self, partition: int, shard: GroupShard) -> None:
        deadline_ms = shard.next_deadline_ms()
        armed = self._timers.get(partition)
        if deadline_ms is None or (armed is not None and armed[0] <= deadline_ms):
            return
        if armed is not None:
            armed[1].cancel()
        now_ms = self._reactor.client_time.clock.monotonic_ms()
        self._arm(partition, deadline_ms, deadline_ms - now_ms, self._on_timer)

    def _arm(self, partition: int, deadline_ms: int, delay_ms: int, then: Callable[[int], None]) -> None:
        timer = self._reactor.client_time.call_later(max(delay_ms, 0), partial(then, partition))
        self._timers[partition] = (deadline_ms, timer)

    def _on_timer(self, partition: int) -> None:
        deadline_ms, _ = self._timers[partition]
        if self._reactor.client_time.stall_ms(deadline_ms):
            # Heartbeats that arrived while the process was suspended are read before any session ends.
            self._arm(partition, deadline_ms, AFTER_STALL_MS, self._on_due)
        else:
            self._on_due(partition)

    def _on_due(self, partition: int) -> None:
        del self._timers[partition]
        self._decide(partition, lambda shard, at: shard.on_time(at))

    def _arm_retention(self) -> None:
        interval_ms = self._config.get_int("offsets.retention.check.interval.ms")
        self._retention_timer = self._reactor.call_later(interval_ms, self._on_retention)

    def _on_retention(self) -> None:
        self._expiry = self._slices.start(self._expire(), lambda _: self._arm_retention(), self._reactor.fatal)

    def expire_offsets(self, done: Callable[[], None], keep: Container[str] = ()) -> None:
        """Deletes expired offsets and groups without members and offsets, except `keep`; `done` when the tombstones are written."""
        self._slices.start(self._expire(keep), lambda _: done(), self._reactor.fatal)

    def _expire(self, keep: Container[str] = ()) -> Work:
        for partition, shard in list(self.host.active_shards()):
            for looked, records in shard.expired(self.now(), keep):
                if not self._has(partition, shard):
                    break  # offsets that another coordinator has written since are not in this shard
                if records:
                    self._write_tombstones(partition, records)
                yield 1 + looked // LOOKED_PER_UNIT + len(records)

    def _write_tombstones(self, partition: int, records: Sequence[AnyRecord]) -> None:
        for start in range(0, len(records), TOMBSTONES_PER_BATCH):
            chunk: Decision[None, AnyRecord] = Decision(None, records[start : start + TOMBSTONES_PER_BATCH])
            self.host.write(partition, partial(_decided, chunk), partial(_log_refused, partition))


def _decided(decision: Decision[None, AnyRecord], _shard: GroupShard, _now_ms: int) -> Decision[None, AnyRecord]:
    return decision


def _sent_in_slices(answers: list[MemberAnswer]) -> Work:
    for number, answer in enumerate(answers, 1):
        answer.reply.send(answer.response)
        if number % ANSWERS_AT_ONCE == 0:
            yield SLICE


def _nothing(_result: None) -> None:
    """No request waits for tombstones."""


def _log_refused(partition: int, outcome: BrokerError | None) -> None:
    if outcome is not None:
        log.info(
            "Offsets of deleted partitions are not removed yet: topic=%s partition=%d error=%s",
            GROUP_METADATA_TOPIC,
            partition,
            outcome,
        )
