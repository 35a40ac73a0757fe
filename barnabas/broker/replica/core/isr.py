"""InSyncReplicas: a partition leader's state about its followers, and its ISR proposals.
KIP-497 (AlterPartition), KIP-704, KIP-841 (fenced brokers do not join), KIP-903 (broker epochs), KIP-966.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from barnabas.errors import BrokerError, ErrorCode

UNKNOWN_OFFSET: Final = -1
LONG_AGO: Final = -(2**62)
REFUSED_PAUSE_MS: Final = 100  # after the controller found a replica ineligible, until its next proposal

# Refusals that leave the ISR unchanged: the proposal is dropped.
_DROPPED: Final = frozenset(
    {ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA, ErrorCode.INVALID_REQUEST}
)
# Refusals because of newer metadata: the proposal stays until that metadata arrives.
_OVERTAKEN: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NEW_LEADER_ELECTED,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
    }
)


class IsrProposal(NamedTuple):
    """A requested ISR: the controller grants it only if both epochs are still current."""

    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]  # (broker id, broker epoch; -1 if unknown)


class IsrAnswer(NamedTuple):
    """The controller's answer for one partition."""

    error_code: int
    leader_epoch: int = -1
    partition_epoch: int = -1
    isr: tuple[int, ...] = ()


class FollowedPartition(Protocol):
    """A partition in a follower's fetch session."""

    current_leader_epoch: int

    @property
    def followed_ms(self) -> int:
        """Monotonic time at which the follower certainly still followed this leader."""
        ...


class Follower:
    """One follower's progress, from its fetches."""

    __slots__ = (
        "_fetched_ms",
        "_leader_end_offset",
        "broker_epoch",
        "broker_id",
        "fetches",
        "last_caught_up_ms",
        "log_end_offset",
        "log_start_offset",
    )

    def __init__(self, broker_id: int, now_ms: int, *, in_sync: bool) -> None:
        self.broker_id = broker_id
        self.log_end_offset = UNKNOWN_OFFSET  # acknowledged: everything below is in its log
        self.log_start_offset = UNKNOWN_OFFSET
        self.broker_epoch = -1
        self.last_caught_up_ms = now_ms if in_sync else LONG_AGO  # monotonic
        self._fetched_ms = LONG_AGO
        self._leader_end_offset = 0  # the leader's log end at the follower's last fetch
        # its partition in the follower's fetch session, as of its last fetch in this leader epoch
        self.fetches: FollowedPartition | None = None

    def on_fetch(
        self, offset: int, log_start_offset: int, broker_epoch: int, now_ms: int, leader_end_offset: int
    ) -> None:
        """The follower holds everything below `offset`.

        It is caught up if it had everything that the leader had at its previous fetch: a follower of a busy partition never has the very
        latest records.
        """
        if offset >= leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)
        elif offset >= self._leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self._fetched_ms)
        self.log_end_offset = offset
        self.log_start_offset = log_start_offset
        self.broker_epoch = broker_epoch
        self._fetched_ms = now_ms
        self._leader_end_offset = leader_end_offset

    def on_idle(self, fetched_ms: int) -> None:
        """The follower had everything at a fetch that did not name the partition, because nothing had changed (KIP-227)."""
        self.last_caught_up_ms = max(self.last_caught_up_ms, fetched_ms)
        self._fetched_ms = max(self._fetched_ms, fetched_ms)
        self._leader_end_offset = self.log_end_offset

    def follows(self, leader_epoch: int, since_ms: int) -> bool:
        """Whether it followed this leader in this epoch at `since_ms` (monotonic) or later."""
        fetches = self.fetches
        return fetches is not None and fetches.current_leader_epoch == leader_epoch and fetches.followed_ms >= since_ms

    def is_caught_up(self, leader_end_offset: int, now_ms: int, lag_ms_max: int) -> bool:
        """Whether the follower has everything, or had it within the last `lag_ms_max`."""
        return self.log_end_offset == leader_end_offset or now_ms - self.last_caught_up_ms <= lag_ms_max


class InSyncReplicas:
    """The ISR of one partition and, on its leader, the followers.

    One proposal at a time; until it is answered the *maximal* ISR counts: joining replicas already, leaving ones still. A proposal with
    unknown outcome stays until newer metadata replaces it. A replica joins once it holds everything committed and everything before this
    leader's epoch, and its broker is alive in the broker epoch of its fetch (`is_eligible`: broker id, broker epoch of its fetches or -1).
    """

    __slots__ = (
        "_is_eligible",
        "_node_id",
        "_proposal",
        "_refused_until_ms",
        "committed",
        "followers",
        "lag_ms_max",
        "maximal",
        "partition_epoch",
    )

    def __init__(
        self, node_id: int, is_eligible: Callable[[int, int], bool] = lambda *_: True, lag_ms_max: int = 30_000
    ) -> None:
        self._node_id = node_id
        self._is_eligible = is_eligible
        self.lag_ms_max = lag_ms_max  # `replica.lag.time.max.ms`
        self.committed: tuple[int, ...] = ()  # the ISR at the controller
        self.maximal: tuple[int, ...] = ()  # the ISR including joining replicas
        self.partition_epoch = -1
        self.followers: dict[int, Follower] = {}  # by broker id; empty unless this node leads
        self._proposal: IsrProposal | None = None
        self._refused_until_ms = LONG_AGO

    @property
    def proposal(self) -> IsrProposal | None:
        return self._proposal

    # -- metadata

    def on_metadata(self, isr: Sequence[int], partition_epoch: int) -> None:
        """Applies a newer state of the partition; a pending proposal becomes void."""
        self.committed = self.maximal = tuple(isr)
        self.partition_epoch = partition_epoch
        self._proposal = None

    def lead(self, replicas: Sequence[int], now_ms: int) -> None:
        """Begins a new leader epoch, without knowledge of the followers."""
        self.followers = {}
        self.assign(replicas, now_ms)

    def assign(self, replicas: Sequence[int], now_ms: int) -> None:
        """Sets the brokers that hold the partition, within a leader epoch."""
        self.followers = {
            broker_id: self.followers.get(broker_id) or Follower(broker_id, now_ms, in_sync=broker_id in self.committed)
            for broker_id in replicas
            if broker_id != self._node_id
        }

    def resign(self) -> None:
        self.followers = {}
        self._proposal = None
        self.maximal = self.committed

    # -- committed offsets

    def committed_end_offset(self, own_end_offset: int, log_end_offset: int, now_ms: int) -> int:
        """The offset that every in-sync replica holds, and every follower that keeps up: else none could reach the high watermark."""
        end = own_end_offset
        for broker_id, follower in self.followers.items():
            if follower.log_end_offset < end and (
                broker_id in self.maximal
                or (
                    follower.is_caught_up(log_end_offset, now_ms, self.lag_ms_max)
                    and self._is_eligible(broker_id, follower.broker_epoch)
                )
            ):
                end = follower.log_end_offset
        return end

    # -- proposals

    def expansion(self, joins_at: int, leader_epoch: int, now_ms: int) -> IsrProposal | None:
        """The ISR with every follower that has reached `joins_at`; None if no follower joins, or a proposal is pending."""
        if self._proposal is not None or len(self.committed) > len(self.followers) or now_ms < self._refused_until_ms:
            return None
        joining = [
            broker_id
            for broker_id, follower in self.followers.items()
            if broker_id not in self.committed
            and follower.log_end_offset >= joins_at
            and self._is_eligible(broker_id, follower.broker_epoch)
        ]
        if not joining:
            return None
        self.maximal = (*self.committed, *joining)
        return self._propose(self.maximal, leader_epoch)

    def shrinkage(self, log_end_offset: int, leader_epoch: int, now_ms: int) -> IsrProposal | None:
        """The ISR without followers that lag for too long; None if there are none, or a proposal is pending."""
        if self._proposal is not None:
            return None
        staying = tuple(
            broker_id
            for broker_id in self.committed
            if (follower := self.followers.get(broker_id)) is None
            or follower.is_caught_up(log_end_offset, now_ms, self.lag_ms_max)
        )
        return None if staying == self.committed else self._propose(staying, leader_epoch)

    def _propose(self, isr: tuple[int, ...], leader_epoch: int) -> IsrProposal:
        epochs = tuple((one, self.followers[one].broker_epoch if one in self.followers else -1) for one in isr)
        self._proposal = IsrProposal(leader_epoch, self.partition_epoch, epochs)
        return self._proposal

    def on_answer(self, proposal: IsrProposal, answer: IsrAnswer | BrokerError, now_ms: int) -> bool:
        """Applies the controller's answer, or the failure of the request. Returns whether to send the same proposal again."""
        if proposal is not self._proposal:
            return False
        if isinstance(answer, BrokerError):
            return True
        if answer.error_code == ErrorCode.NONE:
            if answer.leader_epoch > proposal.leader_epoch:
                return False  # a new epoch has begun: its image follows
            if answer.partition_epoch >= self.partition_epoch:
                self.on_metadata(answer.isr, answer.partition_epoch)
            return False
        if answer.error_code in _DROPPED:
            self._proposal = None
            self.maximal = self.committed
            self._refused_until_ms = now_ms + REFUSED_PAUSE_MS
            return False
        return answer.error_code not in _OVERTAKEN
