"""A member of a consumer group whose coordinator assigns: what its heartbeats say and what the answers mean (KIP-848).

Driven by: the consumer's polls (partitions change hands inside them only), heartbeat times, answers, lost answers.
Emits: ConsumerGroupHeartbeat requests; what to give up and what to take over; that the membership is lost.

A heartbeat says only what has changed since the last one that was answered; after a join, a refusal or a lost answer it says
everything, and the coordinator answers with the whole assignment. What has been given up is said at once: that is the
acknowledgement that another member waits for.

Invariants: states change after VALID_PREVIOUS; `held` changes by `give_up`, `take_over` and `forget` only, which a poll calls; the
coordinator raises the epoch of a member only when that has said that it holds nothing it must not, so `metadata` may follow
the epoch at once; once fenced, `metadata` stays that of the lost membership until a poll has joined anew.
Follows KIP-848, KIP-1082 (the member's id is its own, for as long as it lives), KIP-345 (static members).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

from barnabas.client.errors import COORDINATOR_MOVED, KafkaError, UnsupportedByBroker, code_of, error_for
from barnabas.client.group.membership import Change, Next
from barnabas.client.types import ConsumerGroupMetadata, TopicPartition
from barnabas.errors import ErrorCode, InvariantViolated
from barnabas.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicIdPartitions,
)

__all__ = ["VALID_PREVIOUS", "ConsumerMember", "ConsumerMemberState", "unsupported"]

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_STATIC_EPOCH = -2  # a static member that will be back: its partitions are kept for it
_FIRST_INTERVAL_MS = 5_000  # until the coordinator has said how often


class ConsumerMemberState(Enum):
    """Where a member stands."""

    UNJOINED = "unjoined"  # the next poll joins
    JOINING = "joining"  # the heartbeat that joins is due, or on its way
    STABLE = "stable"  # holds what the coordinator wants it to hold
    RECONCILING = "reconciling"  # holds something else: a poll gives up and takes over
    FENCED = "fenced"  # removed: a poll tells of the loss and joins anew
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
    """The core of one membership.

    Args:
        group_id: of the group, not empty.
        member_id: this member's own, unique in the group.
        group_instance_id: makes the member a static one; None for dynamic.
        rack_id: where the member is; None to say nothing.
        server_assignor: the coordinator's assignor this member asks for ("uniform", "range"); None leaves it to the broker.
        rebalance_timeout_ms: how long the coordinator waits for what must be given up; `max_poll_interval_ms`.
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
        self.epoch = JOIN_EPOCH
        self.tenure = 0  # memberships so far: raised by every join
        self.topics: tuple[str, ...] = ()
        self.pattern: str | None = None
        self.held: dict[TopicPartition, bytes] = {}  # what is read now, with the id of its topic
        self.metadata = ConsumerGroupMetadata(group_id, -1, "", group_instance_id)
        self.heartbeat_interval_ms = _FIRST_INTERVAL_MS
        self._target: frozenset[tuple[bytes, int]] | None = None  # None until the membership's first assignment
        self._settled_once = False  # whether the first assignment has been taken over
        self._sent: ConsumerGroupHeartbeatRequest | None = None  # awaits its answer
        self._whole = True  # the next heartbeat says everything
        self._topics_changed = False
        self._held_changed = False
        self._next_heartbeat_ms = 0
        self._polled_ms = 0

    # -- what is wanted ------------------------------------------------------------------------------------------------

    def subscribe(self, topics: Sequence[str] = (), pattern: str | None = None) -> None:
        """The topics wanted, by name or by a regular expression that the coordinator resolves; said at once."""
        wanted = tuple(sorted(set(topics)))
        if (wanted, pattern) != (self.topics, self.pattern):
            self.topics, self.pattern = wanted, pattern
            self._topics_changed = True

    @property
    def wants(self) -> bool:
        """Whether anything is subscribed to."""
        return bool(self.topics) or self.pattern is not None

    def on_poll(self, now_ms: int) -> None:
        """The consumer's caller has polled (KIP-62)."""
        self._polled_ms = now_ms

    def overdue_at(self) -> int:
        """When the caller will not have polled for `rebalance_timeout_ms` (max.poll.interval.ms): time to leave. Monotonic ms."""
        return self._polled_ms + self.rebalance_timeout_ms

    # -- heartbeats ----------------------------------------------------------------------------------------------------

    def join(self) -> None:
        """Begins a membership; its first heartbeat is due at once."""
        self._transition(ConsumerMemberState.JOINING)
        self.tenure += 1
        self.epoch = JOIN_EPOCH
        self._target = None
        self._settled_once = False
        self._whole = True
        self._next_heartbeat_ms = 0

    def heartbeat_at(self) -> int | None:
        """When the next heartbeat is due, in monotonic ms (0: at once); None while there is nothing to keep alive."""
        if self.state not in _MEMBER:
            return None
        if self.state is not ConsumerMemberState.JOINING and (self._topics_changed or self._held_changed):
            return 0
        return self._next_heartbeat_ms

    def heartbeat_request(self, now_ms: int) -> ConsumerGroupHeartbeatRequest:
        """The next heartbeat; its answer goes to `on_heartbeat`, its loss to `on_unanswered`."""
        whole = self._whole or self.epoch == JOIN_EPOCH
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
        if whole or self._held_changed:
            request.topic_partitions = [] if self.epoch == JOIN_EPOCH else _to_wire(self.held)
        self._topics_changed = self._held_changed = self._whole = False
        self._next_heartbeat_ms = now_ms + self.heartbeat_interval_ms
        self._sent = request
        return request

    def on_heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        response: ConsumerGroupHeartbeatResponse,
        now_ms: int,
    ) -> Next:
        """Takes the answer to a heartbeat.

        Raises:
            KafkaError: the group does not take or keep this member. The membership is over: fenced.
        """
        if request is not self._sent:
            return Next.GO_ON  # of a life before
        self._sent = None
        code = code_of(response.error_code)
        if code is ErrorCode.NONE:
            self._on_good(response, now_ms)
            return Next.GO_ON
        self.say_all()
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
        raise error_for(code, response.error_message or f"group {self.group_id!r} does not take this member")

    def on_unanswered(self, request: ConsumerGroupHeartbeatRequest) -> None:
        """A heartbeat was lost, or its answer: the next one says everything."""
        if request is self._sent:
            self._sent = None
            self.say_all()

    def say_all(self) -> None:
        """The next heartbeat says everything, and is due at once."""
        self._whole = True
        self._next_heartbeat_ms = 0

    # -- partitions ----------------------------------------------------------------------------------------------------

    @property
    def due(self) -> bool:
        """Whether a poll has something to do: join, change hands, or tell of a loss."""
        return self.state in (
            ConsumerMemberState.RECONCILING,
            ConsumerMemberState.FENCED,
            ConsumerMemberState.UNJOINED,
        )

    def unresolved(self, names: Mapping[bytes, str]) -> bool:
        """Whether partitions of topics are assigned whose names are not known (yet)."""
        return any(topic_id not in names for topic_id, _ in self._target or ())

    def change(self, names: Mapping[bytes, str]) -> Change | None:
        """The way from what is held to what is assigned, as far as topics' names are known; None where there is none.

        Args:
            names: topic id → name.
        """
        target = self._target
        if self.state is not ConsumerMemberState.RECONCILING or target is None:
            return None
        revoked = [tp for tp, topic_id in self.held.items() if (topic_id, tp.partition) not in target]
        assigned = [tp for tp, topic_id in self._known(target, names).items() if self.held.get(tp) != topic_id]
        if revoked or assigned or not self._settled_once:
            return Change(revoked, assigned)
        return None

    def give_up(self, revoked: Iterable[TopicPartition]) -> None:
        """These are read no more. What is to be given up is said at once, unless something is taken over with it."""
        for tp in revoked:
            if self.held.pop(tp, None) is not None:
                self._held_changed = True
        self._settle()

    def take_over(self, assigned: Iterable[TopicPartition], names: Mapping[bytes, str]) -> list[TopicPartition]:
        """These are read from now on, unless the coordinator has thought better of it meanwhile; returns those that are."""
        known = self._known(self._target or frozenset(), names) if self.state in _MEMBER else {}
        taken = [tp for tp in assigned if tp in known]
        for tp in taken:
            self.held[tp] = known[tp]
        self._settled_once = True
        self._held_changed = self._held_changed or bool(taken)
        self._settle()
        return taken

    # -- ends ----------------------------------------------------------------------------------------------------------

    def fence(self) -> None:
        """The coordinator does not know this member any more: its partitions may be another's now."""
        self._sent = None
        if self.state in _MEMBER:
            self._transition(ConsumerMemberState.FENCED)

    def forget(self) -> None:
        """After a loss was told, or a leave: nothing is held, and the next poll may join."""
        self.held = {}
        self._target = None
        self._transition(ConsumerMemberState.UNJOINED)

    def leave_request(self, *, for_good: bool = True) -> ConsumerGroupHeartbeatRequest | None:
        """Ends the membership; None where there is nothing to tell. If not for good, the next poll tells of the loss and joins."""
        member = self.state in _MEMBER
        if not for_good:
            self.fence()
        elif self.state is not ConsumerMemberState.LEFT:
            self._transition(ConsumerMemberState.LEFT)
            self.held = {}
        self._sent = None
        if not member:
            return None
        static = self.group_instance_id is not None
        return ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=LEAVE_STATIC_EPOCH if static else LEAVE_EPOCH,
            instance_id=self.group_instance_id,
        )

    # -- inside --------------------------------------------------------------------------------------------------------

    def _on_good(self, response: ConsumerGroupHeartbeatResponse, now_ms: int) -> None:
        self.epoch = response.member_epoch
        self.metadata = ConsumerGroupMetadata(self.group_id, self.epoch, self.member_id, self.group_instance_id)
        if response.heartbeat_interval_ms > 0:
            self.heartbeat_interval_ms = response.heartbeat_interval_ms
            self._next_heartbeat_ms = now_ms + self.heartbeat_interval_ms
        if response.assignment is not None:
            self._target = frozenset(
                (each.topic_id, number) for each in response.assignment.topic_partitions for number in each.partitions
            )
        if self._target is None:  # joined, and told of no assignment: there is none yet
            self._target = frozenset()
        self._settle()

    def _settle(self) -> None:
        if self.state not in _MEMBER or self._target is None:
            return
        held = {(topic_id, tp.partition) for tp, topic_id in self.held.items()}
        done = self._settled_once and held == self._target
        self._transition(ConsumerMemberState.STABLE if done else ConsumerMemberState.RECONCILING)

    def _known(self, target: Iterable[tuple[bytes, int]], names: Mapping[bytes, str]) -> dict[TopicPartition, bytes]:
        """Those whose topic's name is known, in order."""
        found = {TopicPartition(names[topic_id], number): topic_id for topic_id, number in target if topic_id in names}
        return dict(sorted(found.items()))

    def _transition(self, state: ConsumerMemberState) -> None:
        if self.state not in VALID_PREVIOUS[state]:
            raise InvariantViolated(f"a consumer group member cannot become {state.value} from {self.state.value}")
        self.state = state


def unsupported(group_id: str, reason: str) -> KafkaError:
    """What is told where a cluster does not serve the protocol."""
    return UnsupportedByBroker(
        f"group {group_id!r}: this cluster does not serve group_protocol='consumer' ({reason}); "
        "use group_protocol='classic', or a Kafka from 4.0 on",
        code=ErrorCode.UNSUPPORTED_VERSION,
    )


def _to_wire(held: Mapping[TopicPartition, bytes]) -> list[TopicIdPartitions]:
    topics: dict[bytes, TopicIdPartitions] = {}
    for tp, topic_id in held.items():
        topics.setdefault(topic_id, TopicIdPartitions(topic_id=topic_id)).partitions.append(tp.partition)
    return list(topics.values())
