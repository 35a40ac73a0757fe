"""Liveness: sessions of brokers with the active controller. The shell of BrokerSessions: timers and probes.
Follows KIP-631; the probes are ours. broker.probe.enable=false turns them off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Final, Protocol

from barnabas.broker.api.call import Done
from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.controller.core.decision import AnyDone, ClusterView, MetadataDecision
from barnabas.broker.controller.core.heartbeats import broker_heartbeat
from barnabas.broker.controller.core.isr import balance_leaders, elect_unclean_leaders, give_leaderships_back
from barnabas.broker.controller.core.registration import fence_broker, register_broker
from barnabas.broker.controller.core.sessions import BrokerSessions, Suspicion
from barnabas.broker.image.image import BrokerImage, MetadataDelta, MetadataImage
from barnabas.broker.image.records import RegisteredEndpoint
from barnabas.broker.peers.peer import probe
from barnabas.broker.peers.peer_error import ProbeResult
from barnabas.broker.peers.peers import Peers
from barnabas.broker.scheduling.reactor import Reactor
from barnabas.broker.scheduling.timers import Timer
from barnabas.errors import BrokerError, ErrorCode
from barnabas.loggers import logger
from barnabas.network_port import Network
from barnabas.protocol.messages.cluster import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)

log = logger("kafka.controller")

PROBE_MS: Final = 200  # time limit for a listener to accept
BALANCE_AGAIN_MS: Final = 100  # if one decision was not enough
GIVE_BACK_MS: Final = 500  # between checks whether an unfenced broker is in sync
GIVE_BACK_MS_MAX: Final = 60_000  # after that the periodic balance does it


class HeartbeatSource(Protocol):
    """A connection that carries heartbeats."""

    def on_close(self, callback: Callable[[], None], /) -> None:
        """Calls back once after it ended."""
        ...


class ControllerView(Protocol):
    """The present state of the controller."""

    epoch: int
    image: MetadataImage

    @property
    def active(self) -> bool: ...

    @property
    def cluster_id(self) -> str: ...


class Submit(Protocol):
    """`QuorumController.submit`."""

    def __call__(
        self,
        decide: Callable[[ClusterView], MetadataDecision[object]],
        done: AnyDone = ...,
        /,
        *,
        between: bool = False,
    ) -> None: ...


class Liveness:
    """Sessions of brokers with the active controller; `submit` queues a decision.

    A broker whose heartbeat connection closes is probed; `suspicion.py` decides when it is dead, and it is fenced under the suspected
    epoch. A new controller probes every unfenced broker: one that died with the former controller closed its connections to that one.
    """

    def __init__(
        self,
        reactor: Reactor,
        config: BrokerConfig,
        network: Network,
        peers: Peers,
        view: ControllerView,
        submit: Submit,
    ) -> None:
        self._reactor = reactor
        self._config = config
        self._network = network
        self._peers = peers
        self._view = view
        self._submit = submit
        self.sessions = BrokerSessions(config.get_int("broker.session.timeout.ms"))
        self._probes = config.get_bool("broker.probe.enable")
        self._is_broker = "broker" in config.roles
        # Broker epoch of the incarnation that accepted a connection of this node, by broker. Controllers need no route to
        # brokers: a node that is no broker probes only brokers whose listener has accepted its connection.
        self._reached: dict[int, int] = {}
        self._probing: dict[int, int] = {}  # suspected epoch by broker
        self._watched: dict[HeartbeatSource, None] = {}  # connections that carry heartbeats
        self._check_timer: Timer | None = None
        self._check_at_ms = 0
        self._balance_timer: Timer | None = None
        self._returned: dict[int, int] = {}  # brokers that get leaderships back: end of the attempts, by id
        self._return_timer: Timer | None = None

    # --- begin and end --------------------------------------------------------------------------------------------

    def begin(self) -> None:
        brokers = self._view.image.brokers.values()
        self.sessions.begin(brokers, self._now_ms())
        self._arm_check()
        self._arm_balance(self._balance_interval_ms())
        self._on_returned(broker.broker_id for broker in brokers if _serves(broker))
        for broker in brokers:
            self.suspect(broker.broker_id, broker.epoch, closed=self._peers.ended_ms(broker.broker_id) is not None)

    def end(self) -> None:
        self.sessions.end()
        for timer in (self._check_timer, self._balance_timer, self._return_timer):
            if timer is not None:
                timer.cancel()
        self._check_timer = self._balance_timer = self._return_timer = None
        self._returned.clear()

    def on_image(self, image: MetadataImage, delta: MetadataDelta) -> None:
        for broker_id in delta.brokers:
            broker = image.brokers.get(broker_id)
            if broker is None or not _serves(broker):
                self._returned.pop(broker_id, None)
            else:
                self._on_returned([broker_id])

    # --- requests -------------------------------------------------------------------------------------------------

    def on_heartbeat(
        self,
        request: BrokerHeartbeatRequest,
        source: HeartbeatSource | None,
        done: Done[BrokerHeartbeatResponse],
    ) -> None:
        """Watches the connection from then on."""
        if source is not None and source not in self._watched:
            self._watched[source] = None
            source.on_close(lambda: self._on_closed(request.broker_id, source))
            broker = self._view.image.brokers.get(request.broker_id)
            if broker is not None and self._probes and not self._can_reach(broker):
                self._reactor.scope.start(self._listens(broker), name="first probe")

        def decide(view: ClusterView) -> MetadataDecision[BrokerHeartbeatResponse]:
            broker_id, now_ms = request.broker_id, self._now_ms()
            decision = broker_heartbeat(view, self.sessions, request, now_ms)
            self.sessions.on_heartbeat(broker_id, request.broker_epoch, request.current_metadata_offset, source, now_ms)
            if request.want_shut_down and decision.records and not decision.answer.should_shut_down:
                self.sessions.on_shutting_down(broker_id, view.next_offset + len(decision.records) - 1, now_ms)
            return decision

        self._submit(decide, done, between=True)
        if self._check_timer is None:
            self._arm_check()

    def on_registration(self, request: BrokerRegistrationRequest, done: Done[BrokerRegistrationResponse]) -> None:
        if request.cluster_id != self._view.cluster_id:
            text = f"Expected cluster ID {self._view.cluster_id}, but got cluster ID {request.cluster_id}"
            done(BrokerError(ErrorCode.INCONSISTENT_CLUSTER_ID, text))
            return
        former = self._view.image.brokers.get(request.broker_id)
        if former is None or self._is_over(former, request):
            self._register(request, done)
        elif self._same_address(former, request):
            self._refuse_duplicate(request, done)
        else:
            self._reactor.scope.start(self._register_if_gone(former, request, done))

    def _is_over(self, former: BrokerImage, request: BrokerRegistrationRequest) -> bool:
        """Whether the former incarnation of the registering broker is dead; else DUPLICATE_BROKER_REGISTRATION until its session ends."""
        if former.fenced or former.incarnation_id == request.incarnation_id:
            return True
        if not self.sessions.alive(former.broker_id, self._now_ms()):
            return True
        # The new process has bound the address of the former one.
        return self._same_address(former, request) and not self.sessions.connected(former.broker_id)

    def _same_address(self, former: BrokerImage, request: BrokerRegistrationRequest) -> bool:
        address = self._address(former)
        return address is not None and any(
            (each.host, each.port) == (address.host, address.port) for each in request.listeners
        )

    async def _register_if_gone(self, former: BrokerImage, request: BrokerRegistrationRequest, done: AnyDone) -> None:
        if self._can_reach(former) and await self._refuses(former):
            self._register(request, done)
        else:
            self._refuse_duplicate(request, done)

    def _register(self, request: BrokerRegistrationRequest, done: AnyDone) -> None:
        def decide(view: ClusterView) -> MetadataDecision[BrokerRegistrationResponse]:
            decision = register_broker(view, request)
            former = view.image.brokers.get(request.broker_id)
            if former is not None and _serves(former) and former.incarnation_id != request.incarnation_id:
                self.sessions.on_died(request.broker_id, self._now_ms())  # it restarted before it was fenced
            self.sessions.on_registered(request.broker_id, decision.answer.broker_epoch, self._now_ms())
            return decision

        self._submit(decide, done)

    def _refuse_duplicate(self, request: BrokerRegistrationRequest, done: AnyDone) -> None:
        text = f"Another broker is registered with that broker id: {request.broker_id}."
        done(BrokerError(ErrorCode.DUPLICATE_BROKER_REGISTRATION, text))

    # --- suspicion ------------------------------------------------------------------------------------------------

    def _on_closed(self, broker_id: int, source: HeartbeatSource) -> None:
        self._watched.pop(source, None)
        broker_epoch = self.sessions.on_closed(broker_id, source)
        if broker_epoch is not None:
            self.suspect(broker_id, broker_epoch)

    def suspect(self, broker_id: int, broker_epoch: int, *, closed: bool = True) -> None:
        """Probes a broker until it sends a heartbeat, is fenced or registers again; fences it if it is dead.

        Starts later if a probe fenced the same incarnation recently. No effect if the broker is fenced, or cannot be reached from here.
        """
        broker = self._suspected(broker_id, broker_epoch)
        if (
            broker is None
            or broker_id == self._config.node_id
            or not self._can_reach(broker)
            or self._probing.get(broker_id) == broker_epoch
        ):
            return
        wait_ms = self.sessions.probe_fence_in_ms(broker_id, broker_epoch, self._now_ms())
        if wait_ms:
            self._reactor.call_later(wait_ms, lambda: self.suspect(broker_id, broker_epoch, closed=closed))
            return
        self._probing[broker_id] = broker_epoch
        self._reactor.scope.start(self._probe(broker, closed=closed))

    def _suspected(self, broker_id: int, broker_epoch: int) -> BrokerImage | None:
        """The broker, if this controller may still fence it under this epoch."""
        broker = self._view.image.brokers.get(broker_id) if self._view.active else None
        return None if broker is None or broker.fenced or broker.epoch != broker_epoch else broker

    async def _probe(self, broker: BrokerImage, *, closed: bool) -> None:
        epoch, peers = self._view.epoch, self._peers
        ended_ms = peers.ended_ms(broker.broker_id)  # perhaps before this node became the controller
        began_ms = self._now_ms() if ended_ms is None else ended_ms
        suspicion = Suspicion(began_ms, closed=closed)

        def is_over() -> bool:
            gone = self._suspected(broker.broker_id, broker.epoch) is None
            return gone or self._view.epoch != epoch or self.sessions.connected(broker.broker_id)

        try:
            while not is_over():
                result = await self._listens(broker)
                if is_over():
                    return
                if suspicion.is_dead(result, self._now_ms(), refused_too=peers.refused(broker.broker_id)):
                    break
                await asyncio.sleep(suspicion.next_pause_ms() / 1000)
            else:
                return
        finally:
            if self._probing.get(broker.broker_id) == broker.epoch:
                del self._probing[broker.broker_id]
        log.warning(
            "Broker is fenced, its listener accepts no connection: broker=%d probe=%s", broker.broker_id, result.value
        )
        self.sessions.on_probe_fenced(broker.broker_id, broker.epoch, self._now_ms())
        self._fence(broker.broker_id, broker.epoch)

    async def _listens(self, broker: BrokerImage) -> ProbeResult:
        address = self._address(broker)
        if address is None:
            return ProbeResult.ACCEPTED
        result = await probe(self._network, address.host, address.port, PROBE_MS)
        if result is ProbeResult.ACCEPTED:
            self._reached[broker.broker_id] = broker.epoch
        return result

    def _can_reach(self, broker: BrokerImage) -> bool:
        """Whether a refusal proves that the broker's process is gone: a firewall may refuse connections of a controller."""
        return self._probes and (self._is_broker or self._reached.get(broker.broker_id) == broker.epoch)

    async def _refuses(self, broker: BrokerImage) -> bool:
        """Whether nothing listens at the broker's registered address, by two probes."""
        suspicion = Suspicion(self._now_ms())
        if suspicion.is_dead(await self._listens(broker), self._now_ms()):
            return True
        await asyncio.sleep(suspicion.next_pause_ms() / 1000)
        return suspicion.is_dead(await self._listens(broker), self._now_ms())

    def _address(self, broker: BrokerImage) -> RegisteredEndpoint | None:
        """The inter-broker listener, else the broker's first."""
        name = self._config.inter_broker_listener
        return broker.endpoint(name) or next(iter(broker.end_points), None)

    def _fence(self, broker_id: int, broker_epoch: int) -> None:
        def decide(view: ClusterView) -> MetadataDecision[None]:
            return MetadataDecision(None, fence_broker(view, broker_id, broker_epoch))

        self._submit(decide)

    # --- time -----------------------------------------------------------------------------------------------------

    def _unfenced(self) -> list[BrokerImage]:
        return [broker for broker in self._view.image.brokers.values() if not broker.fenced]

    def _arm_check(self) -> None:
        at_ms = self.sessions.next_check_ms(self._unfenced())
        if self._check_timer is not None:
            self._check_timer.cancel()
        self._check_timer = None
        if at_ms is not None:
            self._check_at_ms = at_ms
            self._check_timer = self._reactor.call_later(at_ms - self._now_ms(), self._check)

    def _check(self) -> None:
        """Fences brokers whose session has ended; time while this process was suspended does not count."""
        self._check_timer = None
        now_ms = self._now_ms()
        stall_ms = self._reactor.stall_ms(self._check_at_ms)
        if stall_ms:
            self.sessions.extend_sessions(stall_ms)
        unfenced = {broker.broker_id: broker for broker in self._unfenced()}
        for broker_id in self.sessions.expired(unfenced.values(), now_ms):
            log.warning("Broker is fenced, its session has timed out: broker=%d", broker_id)
            self._fence(broker_id, unfenced[broker_id].epoch)
            self.sessions.on_expired(broker_id, now_ms)
        self._arm_check()

    def _balance_interval_ms(self) -> int:
        return self._config.get_int("leader.imbalance.check.interval.seconds") * 1000

    def _arm_balance(self, delay_ms: int) -> None:
        self._balance_timer = self._reactor.call_later(delay_ms, self._balance)

    def _balance(self) -> None:

        def done(more: bool | BrokerError) -> None:
            if self._view.active and self._balance_timer is None:
                self._arm_balance(BALANCE_AGAIN_MS if more is True else self._balance_interval_ms())

        self._balance_timer = None
        self._submit(elect_unclean_leaders)
        balances = self._config.get_bool("auto.leader.rebalance.enable")
        self._submit(balance_leaders if balances else _no_balance, done)

    def _on_returned(self, broker_ids: Iterable[int]) -> None:
        now_ms = self._now_ms()
        if not self._config.get_bool("auto.leader.rebalance.enable"):
            return
        for broker_id in broker_ids:
            if self.sessions.steady(broker_id, now_ms):
                self._returned[broker_id] = now_ms + GIVE_BACK_MS_MAX
        if self._returned and self._return_timer is None:
            self._return_timer = self._reactor.call_later(GIVE_BACK_MS, self._give_back)

    def _give_back(self) -> None:
        """Elects returned brokers that are in sync; checks the others again later."""

        def done(left: Collection[int] | BrokerError) -> None:
            now_ms = self._now_ms()
            waiting: Collection[int] = () if isinstance(left, BrokerError) else left
            self._returned = {
                each: until for each, until in self._returned.items() if each in waiting and now_ms < until
            }
            self._on_returned(())

        self._return_timer = None
        returned = tuple(self._returned)
        self._submit(lambda view: give_leaderships_back(view, returned), done)

    def _now_ms(self) -> int:
        return self._reactor.clock.monotonic_ms()


def _no_balance(_view: ClusterView) -> MetadataDecision[bool]:
    return MetadataDecision(False)


def _serves(broker: BrokerImage) -> bool:
    return not broker.fenced and not broker.in_controlled_shutdown
