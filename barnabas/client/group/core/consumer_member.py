"""KIP-848 member core: creates heartbeats and applies responses (also KIP-1082, KIP-345).
A heartbeat contains only changes; after a join, a rejection or a lost response it contains everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

from barnabas.client.errors import COORDINATOR_MOVED, KafkaError, UnsupportedByBroker, code_of, error_for
from barnabas.client.group.core.classic_member import Change, Next
from barnabas.client.types import ConsumerGroupMetadata, TopicPartition
from barnabas.errors import ErrorCode, InvariantViolated
from barnabas.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicIdPartitions,
)

_JOIN_EPOCH = 0
_LEAVE_EPOCH = -1
_LEAVE_STATIC_EPOCH = -2  # a static member leaves for a while: it keeps its partitions
_FIRST_INTERVAL_MS = 5_000  # until the coordinator has sent its interval


class ConsumerMemberState(Enum):
    """States of a member."""

    UNJOINED = "unjoined"  # the next poll joins
    JOINING = "joining"  # the joining heartbeat is due or in flight
    STABLE = "stable"  # owns exactly the assigned partitions
    RECONCILING = "reconciling"  # owns other partitions: a poll must revoke and assign
    FENCED = "fenced"  # removed by the coordinator: a poll reports the loss and joins again
    LEFT = "left"


_S = ConsumerMemberState

VALID_PREVIOUS: dict[ConsumerMemberState, frozenset[ConsumerMemberState]] = {
    _S.UNJOINED: frozenset({_S.FENCED, _S.LEFT}),
    _S.JOINING: frozenset({_S.UNJOINED}),
    _S.STABLE: frozenset({_S.JOINING, _S.RECONCILING, _S.STABLE}),
    _S.RECONCILING: frozenset({_S.JOINING, _S.STABLE, _S.RECONCILING}),
    _S.FENCED: frozenset({_S.JOINING, _S.STABLE, _S.RECONCILING}),
    _S.LEFT: frozenset(_S) - {_S.LEFT},
}
_MEMBER = frozenset({_S.JOINING, _S.STABLE, _S.RECONCILING})
_GONE = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.STALE_MEMBER_EPOCH})


class ConsumerMember:
    """Core of one membership. States change as VALID_PREVIOUS allows.

    `owned` changes only in polls. The coordinator raises the epoch only after all revocations were reported, so
    `metadata` follows it at once. Once fenced, `metadata` stays that of the lost membership until a poll has joined
    again.

    Args:
        group_instance_id: makes the member static; None for a dynamic member.
        server_assignor: the coordinator's assignor ("uniform", "range"); None: the broker's default.
        rebalance_timeout_ms: how long the coordinator waits for a revocation; `max_poll_interval_ms`.
    """

    def __init__(
        self,
        group_id: str,
        member_id: str,
        *,
        group_instance_id: str | None = None,
        rack_id: str | None = None,
        server_assignor: str | None = None,
        rebalance_timeout_ms: int = 300_000,
    ) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.rack_id = rack_id
        self.server_assignor = server_assignor
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.state = ConsumerMemberState.UNJOINED
        self.epoch = _JOIN_EPOCH
        self.membership_number = 0  # the number of memberships so far: increases with every join
        self.topics: tuple[str, ...] = ()
        self.pattern: str | None = None
        self.owned: dict[TopicPartition, bytes] = {}  # the partitions that are read, with the ids of their topics
        self.metadata = ConsumerGroupMetadata(group_id, -1, "", group_instance_id)
        self.heartbeat_interval_ms = _FIRST_INTERVAL_MS
        self._target: frozenset[tuple[bytes, int]] | None = None  # None until the membership's first assignment
        self._assigned_once = False  # whether the first assignment was applied
        self._sent: ConsumerGroupHeartbeatRequest | None = None  # not answered yet
        self._full = True  # the next heartbeat contains everything
        self._topics_changed = False
        self._owned_changed = False
        self._next_heartbeat_ms = 0
        self._polled_ms = 0

    # -- subscription ------------------------------------------------------------------------------------------------

    def subscribe(self, topics: Sequence[str] = (), pattern: str | None = None) -> None:
        """Topics, or a regular expression that the coordinator resolves. Sent at once."""
        wanted = tuple(sorted(set(topics)))
        if (wanted, pattern) != (self.topics, self.pattern):
            self.topics, self.pattern = wanted, pattern
            self._topics_changed = True

    @property
    def has_subscription(self) -> bool:
        return bool(self.topics) or self.pattern is not None

    def on_poll(self, now_ms: int) -> None:
        """The consumer's caller has polled (KIP-62)."""
        self._polled_ms = now_ms

    def overdue_at(self) -> int:
        """When the member must leave unless its caller polls, in monotonic ms."""
        return self._polled_ms + self.rebalance_timeout_ms

    # -- heartbeats ----------------------------------------------------------------------------------------------------

    def join(self) -> None:
        """Starts a membership; its first heartbeat is due at once."""
        self._transition(ConsumerMemberState.JOINING)
        self.membership_number += 1
        self.epoch = _JOIN_EPOCH
        self._target = None
        self._assigned_once = False
        self._full = True
        self._next_heartbeat_ms = 0

    def heartbeat_at(self) -> int | None:
        """Next heartbeat in monotonic ms (0: at once); None without a membership."""
        if self.state not in _MEMBER:
            return None
        if self.state is not ConsumerMemberState.JOINING and (self._topics_changed or self._owned_changed):
            return 0
        return self._next_heartbeat_ms

    def heartbeat_request(self, now_ms: int) -> ConsumerGroupHeartbeatRequest:
        """The next heartbeat. Pass its response to `on_heartbeat`; without one call `on_unanswered`."""
        whole = self._full or self.epoch == _JOIN_EPOCH
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.group_instance_id,
        )
        if whole:
            request.rack_id = self.rack_id
            request.rebalance_timeout_ms = self.rebalance_timeout_ms
            request.server_assignor = self.server_assignor
        if whole or self._topics_changed:
            request.subscribed_topic_names = list(self.topics)
            request.subscribed_topic_regex = self.pattern or ""
        if whole or self._owned_changed:
            request.topic_partitions = [] if self.epoch == _JOIN_EPOCH else _to_wire(self.owned)
        self._topics_changed = self._owned_changed = self._full = False
        self._next_heartbeat_ms = now_ms + self.heartbeat_interval_ms
        self._sent = request
        return request

    def on_heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        response: ConsumerGroupHeartbeatResponse,
        now_ms: int,
    ) -> Next:
        """Applies a response. Raises KafkaError if the group rejects this member, which is then fenced."""
        if request is not self._sent:
            return Next.GO_ON  # the response belongs to an earlier membership
        self._sent = None
        code = code_of(response.error_code)
        if code is ErrorCode.NONE:
            self._on_success(response, now_ms)
            return Next.GO_ON
        self.send_full_heartbeat()
        if code in _GONE:
            self.fence()
            return Next.GO_ON
        if code in COORDINATOR_MOVED:
            return Next.FIND_COORDINATOR
        if code.retriable:
            return Next.WAIT
        self.fence()
        if code is ErrorCode.UNSUPPORTED_VERSION:
            raise unsupported(self.group_id, response.error_message or "its group coordinator refuses the protocol")
        raise error_for(code, response.error_message or f"group {self.group_id!r} refuses this member")

    def on_unanswered(self, request: ConsumerGroupHeartbeatRequest) -> None:
        if request is self._sent:
            self._sent = None
            self.send_full_heartbeat()

    def send_full_heartbeat(self) -> None:
        self._full = True
        self._next_heartbeat_ms = 0

    # -- partitions ----------------------------------------------------------------------------------------------------

    @property
    def due(self) -> bool:
        """Whether a poll must join, change the assignment, or report a loss."""
        return self.state in (
            ConsumerMemberState.RECONCILING,
            ConsumerMemberState.FENCED,
            ConsumerMemberState.UNJOINED,
        )

    def has_unknown_topics(self, names: Mapping[bytes, str]) -> bool:
        return any(topic_id not in names for topic_id, _ in self._target or ())

    def change(self, names: Mapping[bytes, str]) -> Change | None:
        """Difference between owned and assigned partitions with known names (topic id → name), or None."""
        target = self._target
        if self.state is not ConsumerMemberState.RECONCILING or target is None:
            return None
        revoked = [tp for tp, topic_id in self.owned.items() if (topic_id, tp.partition) not in target]
        assigned = [tp for tp, topic_id in self._known(target, names).items() if self.owned.get(tp) != topic_id]
        if revoked or assigned or not self._assigned_once:
            return Change(revoked, assigned)
        return None

    def on_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """These partitions are no longer read; the next heartbeat is due at once."""
        for tp in revoked:
            if self.owned.pop(tp, None) is not None:
                self._owned_changed = True
        self._update_state()

    def on_assigned(self, assigned: Iterable[TopicPartition], names: Mapping[bytes, str]) -> list[TopicPartition]:
        """Takes over and returns those partitions that are still assigned."""
        known = self._known(self._target or frozenset(), names) if self.state in _MEMBER else {}
        taken = [tp for tp in assigned if tp in known]
        for tp in taken:
            self.owned[tp] = known[tp]
        self._assigned_once = True
        self._owned_changed = self._owned_changed or bool(taken)
        self._update_state()
        return taken

    # -- end of the membership ----------------------------------------------------------------------------------------------------------

    def fence(self) -> None:
        self._sent = None
        if self.state in _MEMBER:
            self._transition(ConsumerMemberState.FENCED)

    def forget(self) -> None:
        """Clears the membership after a reported loss or a leave; the next poll may join."""
        self.owned = {}
        self._target = None
        self._transition(ConsumerMemberState.UNJOINED)

    def leave_request(self, *, for_good: bool = True) -> ConsumerGroupHeartbeatRequest | None:
        """Ends the membership; None without a request. If not `for_good`, the next poll reports the loss and rejoins."""
        member = self.state in _MEMBER
        if not for_good:
            self.fence()
        elif self.state is not ConsumerMemberState.LEFT:
            self._transition(ConsumerMemberState.LEFT)
            self.owned = {}
        self._sent = None
        if not member:
            return None
        static = self.group_instance_id is not None
        return ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=_LEAVE_STATIC_EPOCH if static else _LEAVE_EPOCH,
            instance_id=self.group_instance_id,
        )

    # -- internal --------------------------------------------------------------------------------------------------------

    def _on_success(self, response: ConsumerGroupHeartbeatResponse, now_ms: int) -> None:
        self.epoch = response.member_epoch
        self.metadata = ConsumerGroupMetadata(self.group_id, self.epoch, self.member_id, self.group_instance_id)
        if response.heartbeat_interval_ms > 0:
            self.heartbeat_interval_ms = response.heartbeat_interval_ms
            self._next_heartbeat_ms = now_ms + self.heartbeat_interval_ms
        if response.assignment is not None:
            self._target = frozenset(
                (each.topic_id, number) for each in response.assignment.topic_partitions for number in each.partitions
            )
        if self._target is None:  # the response to the join contains no assignment: it is empty
            self._target = frozenset()
        self._update_state()

    def _update_state(self) -> None:
        if self.state not in _MEMBER or self._target is None:
            return
        owned = {(topic_id, tp.partition) for tp, topic_id in self.owned.items()}
        done = self._assigned_once and owned == self._target
        self._transition(ConsumerMemberState.STABLE if done else ConsumerMemberState.RECONCILING)

    def _known(self, target: Iterable[tuple[bytes, int]], names: Mapping[bytes, str]) -> dict[TopicPartition, bytes]:
        found = {TopicPartition(names[topic_id], number): topic_id for topic_id, number in target if topic_id in names}
        return dict(sorted(found.items()))

    def _transition(self, state: ConsumerMemberState) -> None:
        if self.state not in VALID_PREVIOUS[state]:
            raise InvariantViolated(f"a consumer group member cannot become {state.value} from {self.state.value}")
        self.state = state


def unsupported(group_id: str, reason: str) -> KafkaError:
    return UnsupportedByBroker(
        f"group {group_id!r}: this cluster does not support group_protocol='consumer' ({reason}); "
        "use group_protocol='classic', or a Kafka from 4.0 on",
        code=ErrorCode.UNSUPPORTED_VERSION,
    )


def _to_wire(owned: Mapping[TopicPartition, bytes]) -> list[TopicIdPartitions]:
    topics: dict[bytes, TopicIdPartitions] = {}
    for tp, topic_id in owned.items():
        topics.setdefault(topic_id, TopicIdPartitions(topic_id=topic_id)).partitions.append(tp.partition)
    return list(topics.values())
