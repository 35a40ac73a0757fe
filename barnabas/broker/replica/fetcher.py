"""Fetchers: fetch partitions from their leaders, with one connection and one fetch session for each leader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.image.current_image import CurrentImage
from barnabas.broker.image.image import BrokerImage
from barnabas.broker.peers.peer import Peer
from barnabas.broker.peers.peer_error import PeerError
from barnabas.broker.peers.peers import Peers
from barnabas.broker.replica.core.fetch_plan import FetchLimits, FetchPlan
from barnabas.broker.replica.core.machine import Replica
from barnabas.broker.replica.core.throttle import ReplicationQuota, ReplicationThrottles
from barnabas.broker.scheduling.reactor import Reactor
from barnabas.broker.scheduling.slices import Slices
from barnabas.broker.scheduling.timers import Timer
from barnabas.errors import BrokerError, ErrorCode
from barnabas.loggers import logger
from barnabas.protocol.messages.fetch import FetchResponse
from barnabas.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from barnabas.work import Steps

log = logger("kafka.server.ReplicaFetcherThread")

RETRY_MS: Final = 50  # after a lost connection; Peer has its own backoff on top
LATEST: Final = -1
EARLIEST: Final = -2


def limits_of(config: BrokerConfig) -> FetchLimits:
    return FetchLimits(
        config.get_int("replica.fetch.wait.max.ms"),
        config.get_int("replica.fetch.min.bytes"),
        config.get_int("replica.fetch.response.max.bytes"),
        config.get_int("replica.fetch.max.bytes"),
        config.get_int("replica.fetch.backoff.ms"),
    )


class FetcherParts(NamedTuple):
    """Parts that every fetcher of a node uses."""

    reactor: Reactor
    config: BrokerConfig
    current: CurrentImage
    peers: Peers
    throttle: ReplicationQuota
    slices: Slices


class Fetchers:
    """Every fetcher of a node, by leader. `FetchPlan` and the replicas have the rules; fetchers have addresses, timers and retries."""

    def __init__(
        self,
        reactor: Reactor,
        config: BrokerConfig,
        current: CurrentImage,
        peers: Peers,
        throttles: ReplicationThrottles,
        slices: Slices,
    ) -> None:
        self._parts = FetcherParts(reactor, config, current, peers, throttles.follower, slices)
        self._fetchers: dict[int, _Fetcher] = {}
        self._leader_of: dict[Replica, int] = {}
        self._started = False

    def start(self) -> None:
        """Before that, assignments are only recorded."""
        self._started = True
        for fetcher in self._fetchers.values():
            fetcher.wake()

    def stop(self) -> None:
        """Stops for good; later answers change nothing."""
        self._started = False
        for fetcher in self._fetchers.values():
            fetcher.stop()

    @property
    def started(self) -> bool:
        return self._started

    def follow(self, replica: Replica) -> None:
        """The replica follows its `leader_id`, maybe a new one, maybe in a new epoch."""
        leader_id = replica.leader_id
        before = self._leader_of.get(replica)
        if before is not None and before != leader_id:
            self._fetchers[before].plan.unfollow(replica)
        self._leader_of[replica] = leader_id
        fetcher = self._fetchers.get(leader_id)
        if fetcher is None:
            fetcher = self._fetchers[leader_id] = _Fetcher(self._parts, self, leader_id)
        fetcher.plan.follow(replica)
        fetcher.await_durable(replica)  # it may have been the leader, with an unsynced end
        fetcher.wake()

    def unfollow(self, replica: Replica) -> None:
        """The replica leads, is deleted, failed, or has no leader."""
        leader_id = self._leader_of.pop(replica, None)
        if leader_id is not None:
            self._fetchers[leader_id].plan.unfollow(replica)
            self._fetchers[leader_id].wake()


class _Fetcher:
    """The fetches from one leader.

    All partitions share one round trip. The next request is sent with the response to the previous one, after the syncs that topics demand;
    a change of the assignment does not wait for a long-polled request.
    """

    def __init__(self, parts: FetcherParts, owner: Fetchers, leader_id: int) -> None:
        self._reactor, config, self._current, self._peers, throttle, self._slices = parts
        self._node_id = config.node_id
        self._listener_name = config.inter_broker_listener
        self._owner = owner
        self._leader_id = leader_id
        self.plan = FetchPlan(
            self._node_id,
            limits_of(config),
            throttle,
        )
        self._timeout_ms = config.get_int("replica.socket.timeout.ms")
        self._address: tuple[str, int] | None = None
        self._known: tuple[BrokerImage, Peer] | None = None  # the leader as of the last look-up
        self._generation = 0  # of the connection: answers of older ones are ignored
        self._wake_due = False
        self._unsynced = 0  # replicas whose sync the next request waits for
        self._timer: Timer | None = None
        self._broken = False  # the connection failed: wait for the retry

    def wake(self) -> None:
        """Checks at the end of this wake-up whether to send a request."""
        if not self._wake_due and self._owner.started:
            self._wake_due = True
            self._reactor.soon(self._send)

    def stop(self) -> None:
        self._generation += 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- sending

    def _send(self) -> None:
        self._wake_due = False
        if not self._owner.started or self._unsynced or self._broken:
            return
        now_ms = self._reactor.clock.monotonic_ms()
        self._arm(self.plan.resume(now_ms), now_ms)
        peer = self._peer() if len(self.plan) or self._address is not None else None
        if peer is None:
            return
        own = self._current.image.brokers.get(self._node_id)
        request = self.plan.next_request(-1 if own is None else own.epoch)
        if request is None:
            return
        generation = self._generation
        peer.send(request, lambda outcome: self._on_outcome(generation, outcome), timeout_ms=self._timeout_ms)

    def _peer(self) -> Peer | None:
        """None while the metadata has no address for the leader."""
        broker = self._current.image.brokers.get(self._leader_id)
        if self._known is not None and self._known[0] is broker:
            return self._known[1]
        point = None if broker is None else broker.endpoint(self._listener_name)
        if broker is None or point is None:
            self._retry_in(RETRY_MS)
            return None
        address = (point.host, point.port)
        if address != self._address:
            if self._address is not None:
                self._on_broken()
                self._broken = False
            self._address = address
        peer = self._peers.to(point.host, point.port, "fetch", node_id=self._leader_id)
        self._known = broker, peer
        return peer

    def _arm(self, at_ms: int | None, now_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if at_ms is not None:
            self._timer = self._reactor.call_later(at_ms - now_ms, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._broken = False
        self.wake()

    # -- receiving

    def _on_outcome(self, generation: int, outcome: FetchResponse | PeerError) -> None:
        if generation != self._generation:
            return
        if isinstance(outcome, PeerError):
            log.info("Fetch from a leader failed, is tried again: leader=%d error=%s", self._leader_id, outcome)
            self._on_broken()
            self._retry_in(max(outcome.retry_in_ms, RETRY_MS))
            return
        touched = self.plan.on_response(outcome, self._reactor.clock.monotonic_ms())
        self._ask_bounds()
        self._unsynced += 1
        self._run_pending()
        for replica in touched:
            self.await_durable(replica)
        self._on_durable()

    def await_durable(self, replica: Replica) -> None:
        """The next request acknowledges what the replica holds now: waits for its sync if the topic demands it."""
        self._unsynced += 1
        replica.when_durable(replica.log.log_end_offset, self._on_durable)

    def _on_durable(self, _error: BrokerError | None = None) -> None:
        self._unsynced -= 1
        if not self._unsynced:
            self.wake()

    def _on_broken(self) -> None:
        """The connection failed: pending requests and the session are lost."""
        self._generation += 1
        self._broken = True
        self.plan.on_lost()

    def _retry_in(self, pause_ms: int) -> None:
        now_ms = self._reactor.clock.monotonic_ms()
        self._arm(now_ms + pause_ms, now_ms)

    # -- truncations and long appends

    def _run_pending(self) -> None:
        for replica, work in self.plan.pending_work():
            self._run_one(replica, work)

    def _run_one(self, replica: Replica, work: Steps[bool]) -> None:
        def failed(error: BaseException) -> None:
            ended(error if isinstance(error, BrokerError) else BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, repr(error)))
            if not isinstance(error, BrokerError):
                raise error

        def ended(error: BrokerError | None = None) -> None:
            self.plan.on_work_done(replica, error, self._reactor.clock.monotonic_ms())
            self.await_durable(replica)
            self.wake()

        self._slices.run(work, lambda _: ended(), failed)

    # -- out of range

    def _ask_bounds(self) -> None:
        peer = None
        for replica in self.plan.out_of_range():
            peer = peer or self._peer()
            if peer is None:
                self.plan.on_bounds(replica, replica.leader_epoch, None, self._reactor.clock.monotonic_ms())
                continue
            self._ask_bounds_of(peer, replica, replica.leader_epoch)

    def _ask_bounds_of(self, peer: Peer, replica: Replica, leader_epoch: int) -> None:
        found: dict[int, int] = {}

        def on_offset(timestamp: int) -> Callable[[ListOffsetsResponse | PeerError], None]:
            def done(outcome: ListOffsetsResponse | PeerError) -> None:
                if not isinstance(outcome, PeerError):
                    for topic in outcome.topics:
                        for one in topic.partitions:
                            if one.error_code == ErrorCode.NONE:
                                found[timestamp] = one.offset
                if timestamp == LATEST:
                    bounds = (found[EARLIEST], found[LATEST]) if len(found) == 2 else None
                    self.plan.on_bounds(replica, leader_epoch, bounds, self._reactor.clock.monotonic_ms())
                    self._run_pending()
                    self.wake()

            return done

        for timestamp in (EARLIEST, LATEST):  # answered in this order
            partition = ListOffsetsPartition(
                partition_index=replica.partition, current_leader_epoch=leader_epoch, timestamp=timestamp
            )
            peer.send(
                ListOffsetsRequest(
                    replica_id=self._node_id,
                    isolation_level=0,
                    topics=[ListOffsetsTopic(name=replica.topic, partitions=[partition])],
                ),
                on_offset(timestamp),
                timeout_ms=self._timeout_ms,
            )
