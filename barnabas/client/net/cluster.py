"""NetworkClient: connections of one client by node and purpose, current metadata, coordinator look-ups."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Any

from barnabas.client.errors import (
    BrokerUnreachable,
    ClientClosed,
    IllegalState,
    KafkaError,
    RequestTimedOut,
    code_of,
    error_for,
)
from barnabas.client.loop_affinity import HomeLoop
from barnabas.client.net.core.backoff import Backoff
from barnabas.client.net.core.connection_config import ConnectionConfig, parse_bootstrap
from barnabas.client.net.core.metadata import BrokerEndpoint, ClusterMetadata
from barnabas.client.net.failures import all_failed, first_error, hopeless, no_answer, refused_login, unreachable_broker
from barnabas.client.net.security import ClientSecurity
from barnabas.client.net.transport import Connection
from barnabas.client.net.waiters import Waiters
from barnabas.client.types import TopicPartition
from barnabas.errors import ErrorCode, LocalProtocolError
from barnabas.network_port import Network
from barnabas.ports import Clock, Rng
from barnabas.protocol.exchange import Features
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from barnabas.runtime.clock import SystemClock
from barnabas.runtime.network import AsyncioNetwork
from barnabas.runtime.randomness import SystemRng
from barnabas.runtime.scope import Scope

if TYPE_CHECKING:
    from barnabas.protocol.messages.groups import FindCoordinatorResponse

log = logging.getLogger("barnabas.client.net")

_VERSION_MAX = 0x7FFF
_KEY_TYPES = {"group": 0, "transaction": 1}  # of FindCoordinator
_FIND_VERSION_MAX = 4
_TV2_VERSIONS = {0: 12, 26: 5, 28: 5}  # the versions of Produce, EndTxn and TxnOffsetCommit that TV2 needs
# Another broker is asked after this time; each time-out doubles it.
_SILENCE_MS = 1_000
_UNANSWERED_MS = 2_000  # after this time without a byte from a broker that must respond, others are asked
_WARN_MS = 1_000  # a start without a response for this long is reported
_LOOK_AGAIN_MS = 100  # how often a waiting caller checks for connection attempts that have stalled


class Purpose(Enum):
    """Purpose of a connection: long requests (a fetch, a join) delay all later ones on theirs."""

    GENERAL = "general"
    FETCH = "fetch"
    COORDINATOR = "coordinator"


class NetworkClient:
    """Owns all connections of one client, at most one per (node, purpose).

    Bootstrap addresses serve until the first metadata, and whenever no known broker is reachable (KIP-899). While a
    leader or coordinator is unreachable or silent, metadata and the coordinator are requested again, with backoff.

    Args:
        auto_create_topics: whether a request for an unknown topic may create it (if the broker allows that).
    """

    def __init__(
        self,
        config: ConnectionConfig,
        clock: Clock | None = None,
        rng: Rng | None = None,
        network: Network | None = None,
        *,
        auto_create_topics: bool = False,
    ) -> None:
        self.bootstrap = parse_bootstrap(config.bootstrap_servers)
        self.client_id = config.client_id
        self.request_timeout_ms = config.request_timeout_ms
        self.retry_backoff_ms = config.retry_backoff_ms
        self.clock: Clock = clock or SystemClock()
        self.rng: Rng = rng or SystemRng()
        self.network: Network = network or AsyncioNetwork()
        self.security = ClientSecurity(config, self.rng)
        self.metadata = ClusterMetadata(config.metadata_max_age_ms)
        self.scope = Scope(config.client_id)
        self.home = HomeLoop()
        self.listeners: list[Callable[[], None]] = []
        self.all_topics = False  # request metadata of every topic, for subscriptions by pattern
        self._auto_create_topics = auto_create_topics
        self._topics: dict[str, None] = {}
        self._connections: dict[tuple[int, Purpose], Connection] = {}
        self._transaction_version: int | None = None  # the last known one
        self._coordinators = _Coordinators(self)
        self._waiters = Waiters(self.clock)
        self._refresh_wanted = asyncio.Event()
        self._refresh_urgent = asyncio.Event()  # ends the pause between two refreshes
        self._refreshes = 0  # the number of Metadata responses
        self._silence_ms = _SILENCE_MS
        self._silence = _UnresponsiveBrokers(self)
        self._news = _StaleBrokers()
        self._notify_scheduled = False
        self._closed = False
        self.error: KafkaError | None = None  # why the last Metadata request failed

    # -- start and close ----------------------------------------------------------------------------------------------------------

    async def start(self, timeout_ms: int | None = None) -> None:
        """Connects and waits for the first metadata.

        Raises:
            AuthenticationFailed: a broker rejected this client, or its certificate is not trusted; raised at once.
            NotKafka: no bootstrap address is a broker; raised at once.
            BrokerUnreachable: no broker answered within `timeout_ms` (default `request_timeout_ms`). A WARNING precedes
                it.
        """
        self.home.enter()
        self._refresh_wanted.set()
        self.scope.start(self._refresh_metadata(), name="metadata")
        self.scope.start(self._silence.watch(), name="silence")
        limit_ms = self.request_timeout_ms if timeout_ms is None else timeout_ms
        deadline = self.clock.monotonic_ms() + limit_ms
        look_at = min(deadline, self.clock.monotonic_ms() + _WARN_MS)
        while True:
            await self.changed(look_at)
            if self.metadata.updated_ms >= 0:
                return
            now, tried = self.clock.monotonic_ms(), self.connections()
            error = hopeless(tried, self.bootstrap)
            if error is not None or now >= deadline:
                raise error or no_answer(tried, self.bootstrap, self.error)
            if look_at < deadline and (now >= look_at or all_failed(tried, self.bootstrap)):
                look_at = deadline
                text = "%s; trying for %g s; is one running? `barnabas up` starts one"
                log.warning(text, no_answer(tried, self.bootstrap, self.error), limit_ms / 1000)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for connection in list(self._connections.values()):
            connection.close()
        self.notify_change()
        await self.scope.stop()
        self.home.leave()

    def abandon(self) -> None:
        """Closes without the event loop, which is closed, and waits for nothing."""
        self._closed = True
        for connection in self._connections.values():
            connection.abandon()
        self.home.leave()

    @property
    def closed(self) -> bool:
        return self._closed

    # -- connections ---------------------------------------------------------------------------------------------------

    def connection(self, node_id: int, purpose: Purpose = Purpose.GENERAL) -> Connection | None:
        """The ready connection to a broker; None while it connects (a change follows) or backs off."""
        found = self._connections.get((node_id, purpose))
        if found is None:
            broker = self.metadata.brokers.get(node_id)
            if broker is None or self._closed:
                return None
            found = self._connect(broker, purpose)
        elif not found.ready:
            broker = self.metadata.brokers.get(node_id)
            if broker is not None and (broker.host, broker.port) != (found.host, found.port) and not self._closed:
                found.close()
                found = self._connect(broker, purpose)
        if found.ready:
            return found
        found.open()
        return None

    def backoff(self, node_id: int, purpose: Purpose = Purpose.GENERAL) -> int:
        """Milliseconds until the next attempt to connect; 0 if connected, connecting or due now."""
        found = self._connections.get((node_id, purpose))
        return found.backoff if found is not None and not found.ready else 0

    def any_connection(self) -> Connection | None:
        """The least busy ready connection, responsive ones first; None starts connecting."""
        ready = [c for (_, purpose), c in self._connections.items() if purpose is Purpose.GENERAL and c.ready]
        responsive = [c for c in ready if not c.silent and c.node_id not in self._news.without]
        if responsive:
            return min(responsive, key=lambda c: c.core.in_flight)
        if self._closed:
            return None
        nodes = [*self.metadata.brokers.values(), *(BrokerEndpoint(-1 - i, *a) for i, a in enumerate(self.bootstrap))]
        known = len(self.metadata.brokers)
        first = self.rng.randrange(known) if known else 0
        for i in range(len(nodes)):
            broker = nodes[(first + i) % known] if i < known else nodes[i]
            found = self._connections.get((broker.node_id, Purpose.GENERAL)) or self._connect(broker, Purpose.GENERAL)
            if not found.ready and found.backoff == 0 and not found.stalled:
                found.open()
                return None  # one attempt at a time; if it fails, a change follows and the next address is tried
        return min(ready, key=lambda c: c.core.in_flight, default=None)

    async def ready_connection(
        self, node_id: int | None, purpose: Purpose = Purpose.GENERAL, *, timeout_ms: int | None = None
    ) -> Connection:
        """Waits for a ready connection to a broker (None: any). Raises AuthenticationFailed, BrokerUnreachable."""
        deadline = self.clock.monotonic_ms() + (self.request_timeout_ms if timeout_ms is None else timeout_ms)
        while True:
            if self._closed:
                raise ClientClosed("the client is closed")
            found = self.any_connection() if node_id is None else self.connection(node_id, purpose)
            if found is not None:
                return found
            refused = None if node_id is not None else refused_login(self.connections())
            if refused is not None:
                raise refused
            if node_id is not None:
                if node_id not in self.metadata.brokers:
                    self.want_update()
                    live = ", ".join(map(str, sorted(self.metadata.brokers)))
                    raise BrokerUnreachable(f"no such broker is live; live are {live}", broker=node_id)
                failed = self._connections.get((node_id, purpose))
                if failed is not None and failed.backoff and failed.error is not None:
                    raise refused_login([failed]) or unreachable_broker(failed.error, node_id)
            pause = min(deadline, self.clock.monotonic_ms() + _LOOK_AGAIN_MS)
            if not await self.changed(pause) and self.clock.monotonic_ms() >= deadline:
                raise BrokerUnreachable("no connection in time", broker=node_id) from first_error(self.connections())

    async def request(
        self,
        request: Any,
        *,
        node_id: int | None = None,
        purpose: Purpose = Purpose.GENERAL,
        timeout_ms: int | None = None,
        version_max: int = _VERSION_MAX,
    ) -> Any:
        """Sends one request to a broker (None: any) and returns its response. Waits for the connection; does not retry."""
        connection = await self.ready_connection(node_id, purpose, timeout_ms=timeout_ms)
        return await connection.request(request, timeout_ms=timeout_ms, version_max=version_max)

    def features(self) -> Features:
        """Finalized features, from the connected broker with the newest ones."""
        newest = Features(-1, {})
        for connection in self._connections.values():
            if connection.core.features.epoch > newest.epoch:
                newest = connection.core.features
        return newest

    def transaction_version(self) -> int:
        """Transaction protocol: 2 if finalized and supported by the brokers, else 1. Without a connection the last one."""
        connection = self.any_connection()
        if connection is not None:
            finalized = self.features().levels.get("transaction.version", 0) >= 2
            offered = connection.core.versions
            supported = all(offered.get(key, (0, 0))[1] >= needed for key, needed in _TV2_VERSIONS.items())
            self._transaction_version = 2 if finalized and supported else 1
        return self._transaction_version or 1

    async def learn_transaction_version(self) -> int:
        """As `transaction_version`, after the first connection. Raises BrokerUnreachable."""
        if self._transaction_version is None:
            await self.ready_connection(None)
        return self.transaction_version()

    # -- metadata ------------------------------------------------------------------------------------------------------

    def add_topics(self, topics: Iterable[str]) -> None:
        new = [t for t in topics if t not in self._topics]
        if new:
            self._topics.update(dict.fromkeys(new))
            self._update_now()

    def set_topics(self, topics: Iterable[str]) -> None:
        wanted = dict.fromkeys(topics)
        missing = any(t not in self.metadata.topics for t in wanted)
        self._topics = wanted
        if missing:
            self._update_now()

    def want_update(self) -> None:
        """Requests metadata, at the earliest `retry_backoff_ms` after the last response."""
        self._refresh_wanted.set()

    async def fresh_metadata(self, timeout_ms: int | None = None) -> ClusterMetadata:
        """Requests metadata and waits for it. Raises RequestTimedOut."""
        seen = self._refreshes
        self.want_update()
        deadline = self.clock.monotonic_ms() + (self.request_timeout_ms if timeout_ms is None else timeout_ms)
        while self._refreshes == seen:
            if not await self.changed(deadline):
                raise RequestTimedOut("no metadata in time") from self.error
            if self._closed:
                raise ClientClosed("the client is closed")
        return self.metadata

    async def changed(self, deadline_ms: int | None = None) -> bool:
        """Waits for the next change; False after `deadline_ms` (monotonic)."""
        return await self._waiters.wait(deadline_ms)

    # -- coordinators --------------------------------------------------------------------------------------------------

    def coordinator(self, kind: str, key: str) -> int | None:
        """Node id of a coordinator ("group" or "transaction"); None during its look-up. Raises KafkaError."""
        return self._coordinators.get(kind, key)

    async def find_coordinator(self, kind: str, key: str, *, timeout_ms: int | None = None) -> int:
        """As `coordinator`, waits. Raises RequestTimedOut after `timeout_ms` (default `request_timeout_ms`)."""
        deadline = self.clock.monotonic_ms() + (self.request_timeout_ms if timeout_ms is None else timeout_ms)
        while True:
            node_id = self.coordinator(kind, key)
            if node_id is not None:
                return node_id
            if self._closed:
                raise ClientClosed("the client is closed")
            if not await self.changed(deadline):
                raise RequestTimedOut(f"no {kind} coordinator for {key!r} in time") from first_error(self.connections())

    def forget_coordinator(self, kind: str, key: str) -> None:
        """Drops a coordinator that moved or is unreachable; the next use looks it up again."""
        self._coordinators.forget(kind, key)

    # -- for the look-ups ----------------------------------------------------------------------------------------------

    async def ask_any(self, request: Any, *, version_max: int = _VERSION_MAX) -> Any:
        """Sends a request to the least busy broker. Raises KafkaError. If it is slow, the next call asks another."""
        connection = await self.ready_connection(None)
        patience_ms = self._silence_ms if len(self.metadata.brokers) > 1 else self.request_timeout_ms
        try:
            async with asyncio.timeout(patience_ms / 1000):
                answer = await connection.request(request, version_max=version_max)
        except TimeoutError:
            self._silence_ms = min(2 * self._silence_ms, self.request_timeout_ms)
            connection.silent = True
            raise RequestTimedOut("no answer yet, another broker is asked", broker=connection.node_id) from None
        self._silence_ms, self._news.asked = _SILENCE_MS, connection.node_id
        return answer

    def connections(self) -> list[Connection]:
        return list(self._connections.values())

    def leading(self) -> set[int]:
        return {*self.metadata.leaders.values(), *self._coordinators.nodes()}

    def ask_about(self, node_id: int) -> None:
        self._coordinators.look_again(node_id)
        self.want_update()

    def unreachable(self, node_id: int) -> bool:
        """Whether the last attempt failed and no connection is ready; starts the next attempt if due."""
        known = [c for (each, _), c in self._connections.items() if each == node_id]
        if any(c.ready for c in known) or all(c.error is None for c in known):
            return False
        return self.connection(node_id) is None

    def notify_change(self) -> None:
        """Reports changes once, at the end of this event-loop iteration."""
        if not self._notify_scheduled:
            self._notify_scheduled = True
            asyncio.get_running_loop().call_soon(self._report_change)

    # -- internal ------------------------------------------------------------------------------------------------------

    def _connect(self, broker: BrokerEndpoint, purpose: Purpose) -> Connection:
        core = self.security.exchange(self.client_id, self.request_timeout_ms, broker.host)
        connection = Connection(
            broker.host,
            broker.port,
            core,
            node_id=broker.node_id,
            clock=self.clock,
            rng=self.rng,
            network=self.network,
            security=self.security,
            scope=self.scope,
            on_change=self._on_connection_change,
            on_lost=self._update_now,
        )
        self._connections[broker.node_id, purpose] = connection
        return connection

    def _update_now(self) -> None:
        self._refresh_urgent.set()
        self.want_update()

    def _on_connection_change(self) -> None:
        self._retry_reachable()
        if not self._closed and any(c.error is not None for c in self._connections.values()):
            self.want_update()  # a broker may have failed, and its partitions may have new leaders
        self.notify_change()

    def _retry_reachable(self) -> None:
        """Ends the backoff of connections to addresses where another connection became ready since."""
        waiting = [c for c in self._connections.values() if not c.ready and c.backoff]
        for connection in waiting:
            address = connection.host, connection.port
            ready = [c.ready_ms for c in self._connections.values() if c.ready and (c.host, c.port) == address]
            connection.retry_now(max(ready, default=0))

    def _retry_elected(self, epochs: dict[TopicPartition, int]) -> None:
        """Ends the backoff of brokers elected as leaders since `epochs`: they run again."""
        metadata = self.metadata
        elected = {leader for tp, leader in metadata.leaders.items() if metadata.leader_epochs[tp] != epochs.get(tp)}
        for (node_id, _), connection in self._connections.items():
            if node_id in elected:
                connection.retry_now(metadata.updated_ms)

    def _report_change(self) -> None:
        self._notify_scheduled = False
        self._silence.leave_replaced()
        self._waiters.wake_all()
        for listener in list(self.listeners):
            listener()

    async def _refresh_metadata(self) -> None:
        backoff = Backoff(self.retry_backoff_ms, self.rng)
        while not self._closed:
            await self._until_refresh_is_due()
            wanted = self._refresh_wanted.is_set()
            self._refresh_wanted.clear()
            self._refresh_urgent.clear()
            if await self._refresh_once(wanted) and not self._incomplete():
                backoff.reset()
                pause_ms = self.retry_backoff_ms
            else:
                pause_ms = backoff.pause_ms(self.clock.monotonic_ms())
                self._refresh_wanted.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_ms / 1000):
                    await self._refresh_urgent.wait()
                backoff.reset()

    async def _until_refresh_is_due(self) -> None:
        age_left = self.metadata.max_age_ms
        if self.metadata.updated_ms >= 0:
            age_left += self.metadata.updated_ms - self.clock.monotonic_ms()
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0, age_left) / 1000):
                await self._refresh_wanted.wait()

    async def _refresh_once(self, wanted: bool) -> bool:
        whole = self.all_topics
        topics = None if whole else [MetadataRequestTopic(name=t) for t in self._topics]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=self._auto_create_topics)
        try:
            response: MetadataResponse = await self.ask_any(request)
        except ClientClosed:
            return True
        except KafkaError as error:
            self.error = error
            self.notify_change()
            return False
        if not response.brokers:
            return False  # the broker is still starting
        self.error = None
        epochs = dict(self.metadata.leader_epochs)
        self.metadata.update(response, self.clock.monotonic_ms(), whole=whole)
        self._retry_elected(epochs)
        nothing_new = wanted and self.metadata.leader_epochs == epochs and not self._incomplete()
        self._news.on_answer(nothing_new, len(self.metadata.brokers))
        self._refreshes += 1
        self._close_obsolete()
        self.notify_change()
        return True

    def _incomplete(self) -> bool:
        """Whether newer metadata is expected soon: a topic is being created, or a leader is unreachable."""
        leaders: dict[int, None] = {}
        for name in self._topics:
            info = self.metadata.topics.get(name)
            if info is None or info.error.retriable:
                if not self.all_topics:
                    return True
                continue
            for p in info.partitions:
                leaders[self.metadata.leaders.get(TopicPartition(name, p.partition), -1)] = None
        return -1 in leaders or any(self.unreachable(leader) for leader in leaders)

    def _close_obsolete(self) -> None:
        for (node_id, purpose), connection in list(self._connections.items()):
            gone = node_id >= 0 and node_id not in self.metadata.brokers and not connection.ready
            if (node_id < 0 or gone) and connection.core.in_flight == 0:
                del self._connections[node_id, purpose]
                connection.close()


class _StaleBrokers:
    """Brokers whose metadata was stale: the next refresh asks another one. A leader that is cut off from the controller still names itself.

    `without` has the stale brokers, never all of them; `asked` is the broker that answered last.
    """

    def __init__(self) -> None:
        self.asked = -1
        self.without: dict[int, None] = {}

    def on_answer(self, nothing_new: bool, brokers: int) -> None:
        """Broker `asked` has answered; `nothing_new`: an update was needed but it brought none."""
        if nothing_new and len(self.without) + 1 < brokers:
            self.without[self.asked] = None
        else:
            self.without.clear()


class _UnresponsiveBrokers:
    """Drops connections to unresponsive leaders and coordinators after a failover, before their time limits."""

    def __init__(self, cluster: NetworkClient) -> None:
        self._cluster = cluster
        self._silent: dict[Connection, None] = {}

    async def watch(self) -> None:
        """Looks for the successors of unresponsive brokers."""
        while not self._cluster.closed:
            await asyncio.sleep(_UNANSWERED_MS / 2_000)
            for connection in self._cluster.connections():
                if connection.unanswered_ms >= _UNANSWERED_MS and connection.node_id in self._cluster.leading():
                    self._silent[connection] = None
                    connection.silent = True
                    self._cluster.ask_about(connection.node_id)

    def leave_replaced(self) -> None:
        """Drops connections to brokers that led or coordinated and no longer do by fresh metadata."""
        now_ms = self._cluster.clock.monotonic_ms()
        for connection in list(self._silent):
            unanswered_ms = connection.unanswered_ms
            asked_since = self._cluster.metadata.updated_ms > now_ms - unanswered_ms
            if unanswered_ms < _UNANSWERED_MS:
                del self._silent[connection]
            elif asked_since and connection.node_id not in self._cluster.leading():
                del self._silent[connection]
                text = f"{connection.host}:{connection.port} does not answer, and other brokers have taken over"
                connection.drop(BrokerUnreachable(text, broker=connection.node_id))


class _Coordinators:
    """Coordinators by kind ("group" or "transaction") and key: a cache, and at most one look-up of each at a time."""

    def __init__(self, cluster: NetworkClient) -> None:
        self._cluster = cluster
        self._known: dict[tuple[str, str], int] = {}
        self._lookups: dict[tuple[str, str], None] = {}
        self._errors: dict[tuple[str, str], KafkaError] = {}

    def get(self, kind: str, key: str) -> int | None:
        """Node id; None during a look-up, which starts here if necessary. Raises KafkaError if it failed for good."""
        cluster = self._cluster
        found = self._known.get((kind, key))
        if found in cluster.metadata.brokers:
            return found
        self._known.pop((kind, key), None)
        error = self._errors.pop((kind, key), None)
        if error is not None:
            raise error
        self._begin(kind, key)
        return None

    def look_again(self, node_id: int) -> None:
        """Looks up the coordinators on an unresponsive broker; the old ones stay until then."""
        for kind, key in [each for each, known in self._known.items() if known == node_id]:
            self._begin(kind, key)

    def nodes(self) -> set[int]:
        return set(self._known.values())

    def forget(self, kind: str, key: str) -> None:
        """Drops a coordinator that moved or is unreachable; the next `get` looks it up again."""
        self._known.pop((kind, key), None)

    def _begin(self, kind: str, key: str) -> None:
        if (kind, key) not in self._lookups and not self._cluster.closed:
            self._lookups[kind, key] = None
            self._cluster.scope.start(self._look_up(kind, key), name=f"find {kind} coordinator")

    async def _look_up(self, kind: str, key: str) -> None:
        # here: plain producers need no coordinator
        from barnabas.protocol.messages.groups import FindCoordinatorRequest

        cluster = self._cluster
        request = FindCoordinatorRequest(key=key, key_type=_KEY_TYPES[kind], coordinator_keys=[key])
        backoff = Backoff(cluster.retry_backoff_ms, cluster.rng)
        try:
            while not cluster.closed:
                try:
                    response: FindCoordinatorResponse = await cluster.ask_any(request, version_max=_FIND_VERSION_MAX)
                    found = response.coordinators[0] if response.coordinators else response
                    code = code_of(found.error_code)
                    if code is not ErrorCode.NONE:
                        raise error_for(code, found.error_message)
                except KafkaError as error:
                    if not error.retriable:
                        self._errors[kind, key] = error
                        return
                except LocalProtocolError as error:  # no request can carry the key: a lone surrogate, or too long
                    refusal = IllegalState(f"{kind} {key!r}: {error}")
                    refusal.__cause__ = error
                    self._errors[kind, key] = refusal
                    return
                else:
                    known = cluster.metadata.brokers.get(found.node_id)
                    if known is None or (known.host, known.port) != (found.host, found.port):
                        cluster.metadata.brokers[found.node_id] = BrokerEndpoint(found.node_id, found.host, found.port)
                    # The broker that named an unreachable coordinator has probably not noticed its failure yet.
                    if not cluster.unreachable(found.node_id):
                        self._known[kind, key] = found.node_id
                        return
                await asyncio.sleep(backoff.pause_ms(cluster.clock.monotonic_ms()) / 1000)
        finally:
            self._lookups.pop((kind, key), None)
            if not cluster.closed:
                cluster.notify_change()
