"""The client's way to the brokers: connections by node and purpose, metadata kept fresh, coordinators looked up.

Driven by: whoever asks for a connection, a coordinator or a topic; answers; two timers (metadata age, retries).
Emits: `on_change` calls to its listeners whenever a connection, the metadata or a coordinator changed, so that callers hold
no tasks of their own: they ask again.

Invariants: at most one connection per (node, purpose): a fetch that waits for bytes and a join that waits for members must
not hold up what comes after them on the same connection; at most one Metadata request is on its way; bootstrap
addresses are used until the first metadata came and whenever no known broker can be reached (KIP-899).

A broker that is gone is followed by what takes its place: as long as a leader of the topics kept here cannot be reached,
metadata is asked for again and again, at the pace of `backoff.py`, and so is a coordinator. Nobody waits for a broker that
refuses, or for one that keeps silent where others can be asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any

from barnabas.client.errors import (
    BrokerUnreachable,
    ClientClosed,
    IllegalState,
    KafkaError,
    NotKafka,
    RequestTimedOut,
    code_of,
    error_for,
)
from barnabas.client.net.backoff import Backoff
from barnabas.client.net.metadata import Broker, ClusterMetadata
from barnabas.client.net.transport import Connection
from barnabas.client.types import TopicPartition
from barnabas.errors import ErrorCode
from barnabas.ports import Clock, Network, Rng
from barnabas.protocol.exchange import Exchange, Features
from barnabas.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from barnabas.runtime.clock import SystemClock
from barnabas.runtime.network import AsyncioNetwork
from barnabas.runtime.randomness import SystemRng
from barnabas.runtime.scope import Scope

__all__ = ["Cluster", "Purpose", "parse_bootstrap"]

_VERSION_MAX = 0x7FFF
_TV2_VERSIONS = {0: 12, 26: 5, 28: 5}  # Produce, EndTxn, TxnOffsetCommit: what TV2 needs of the broker
# A broker that does not answer for so long is passed over, if there is another; twice as long the next time.
_SILENCE_MS = 1_000
_LOOK_AGAIN_MS = 100  # attempts to connect that take long are passed over meanwhile
_COORDINATOR_KINDS = {"group": 0, "transaction": 1}


class Purpose(Enum):
    """What a connection is for."""

    GENERAL = "general"
    FETCH = "fetch"
    COORDINATOR = "coordinator"


def parse_bootstrap(servers: str | Iterable[str]) -> list[tuple[str, int]]:
    """Addresses of "host:port,host:port" or a list of such; the port defaults to 9092, IPv6 in brackets.

    Raises:
        IllegalState: an address that is none.
    """
    if isinstance(servers, str):
        servers = servers.split(",")
    parts = list(servers) if isinstance(servers, Iterable) else [servers]
    if not all(isinstance(part, str) for part in parts):
        raise IllegalState(f"bootstrap_servers must be 'host:port' or a list of such, not {servers!r}")
    addresses = []
    for part in (p.strip() for p in parts):
        if not part:
            continue
        if "/" in part:
            raise IllegalState(f"bootstrap_servers: {part!r} is a URL or path; give host:port alone")
        host, colon, port = part.rpartition(":")
        if not colon or part.endswith("]"):
            host, port = part, "9092"
        if not port.isdecimal() or not host:
            raise IllegalState(f"bootstrap_servers: {part!r} is not host:port")
        if not 0 < int(port) < 65_536:
            raise IllegalState(f"bootstrap_servers: {part!r}: a port is a number from 1 to 65535")
        addresses.append((host.strip("[]"), int(port)))
    if not addresses:
        raise IllegalState("bootstrap_servers names no address; give e.g. 'localhost:9092'")
    return addresses


class Cluster:
    """The shell that owns all connections of one client.

    Args:
        bootstrap_servers: "host:port" or several, as string or list.
        client_id: sent with every request.
        request_timeout_ms: how long an answer may take, ≥ 1.
        retry_backoff_ms: least pause before the same thing is asked again.
        metadata_max_age_ms: metadata older than this is refreshed unasked.
        auto_create_topics: whether asking for an unknown topic creates it (where the broker allows that).
        clock, rng, network: the ports; the real ones by default.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        client_id: str,
        request_timeout_ms: int = 30_000,
        retry_backoff_ms: int = 20,
        metadata_max_age_ms: int = 300_000,
        auto_create_topics: bool = False,
        clock: Clock | None = None,
        rng: Rng | None = None,
        network: Network | None = None,
    ) -> None:
        self.bootstrap = parse_bootstrap(bootstrap_servers)
        self.client_id = client_id
        self.request_timeout_ms = request_timeout_ms
        self.retry_backoff_ms = retry_backoff_ms
        self.clock: Clock = clock or SystemClock()
        self.rng: Rng = rng or SystemRng()
        self.network: Network = network or AsyncioNetwork()
        self.metadata = ClusterMetadata(metadata_max_age_ms)
        self.scope = Scope(client_id)
        self.listeners: list[Callable[[], None]] = []
        self.all_topics = False  # keep metadata of every topic, for subscriptions by pattern
        self._auto_create_topics = auto_create_topics
        self._topics: dict[str, None] = {}
        self._connections: dict[tuple[int, Purpose], Connection] = {}
        self._transaction_version: int | None = None  # as last seen
        self._coordinators: dict[tuple[str, str], int] = {}
        self._lookups: dict[tuple[str, str], None] = {}
        self._coordinator_errors: dict[tuple[str, str], KafkaError] = {}
        self._waiters: list[asyncio.Future[None]] = []
        self._refresh_wanted = asyncio.Event()
        self._refresh_hurried = asyncio.Event()  # news that ends the pause between two refreshes
        self._refreshes = 0  # answers taken
        self._silence_ms = _SILENCE_MS
        self._notify_scheduled = False
        self._closed = False
        self.error: KafkaError | None = None  # why metadata could not be had the last time

    # -- life ----------------------------------------------------------------------------------------------------------

    async def start(self, timeout_ms: int | None = None) -> None:
        """Connects and takes the first metadata.

        Raises:
            NotKafka: every bootstrap address was answered by something else; told at once.
            BrokerUnreachable: none answered within `timeout_ms` (default `request_timeout_ms`).
        """
        self._refresh_wanted.set()
        self.scope.start(self._refresh_metadata(), name="metadata")
        deadline = self.clock.monotonic_ms() + (self.request_timeout_ms if timeout_ms is None else timeout_ms)
        while self.metadata.updated_ms < 0:
            in_time = await self.changed(deadline)
            strangers = [c.error for c in self._connections.values() if isinstance(c.error, NotKafka)]
            if len(strangers) == len(self.bootstrap):
                raise NotKafka("; ".join(error.message for error in strangers)) from strangers[0]
            if not in_time and self.metadata.updated_ms < 0:
                cause = self._connection_error() or self.error
                addresses = ", ".join(f"{host}:{port}" for host, port in self.bootstrap)
                why = cause.message if cause is not None else "timed out"
                if self._connection_error() is None and any(c.mute for c in self._connections.values()):
                    why = "it takes connections and says nothing; is it a Kafka broker?"
                raise BrokerUnreachable(f"no Kafka broker answers at {addresses}: {why}") from cause

    async def close(self) -> None:
        """Closes every connection; waiting requests fail."""
        if self._closed:
            return
        self._closed = True
        for connection in list(self._connections.values()):
            connection.close()
        self._notify()
        await self.scope.stop()

    @property
    def closed(self) -> bool:
        return self._closed

    # -- connections ---------------------------------------------------------------------------------------------------

    def connection(self, node_id: int, purpose: Purpose = Purpose.GENERAL) -> Connection | None:
        """The ready connection to a broker; None while it is being made (a change will be told) or backs off."""
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
        """Milliseconds until a connection to the broker is tried again; 0 where it is ready, under way or due."""
        found = self._connections.get((node_id, purpose))
        return found.backoff if found is not None and not found.ready else 0

    def any_connection(self) -> Connection | None:
        """A ready connection, the least busy one of those that answer; else None, and connections are being made."""
        ready = [c for (_, purpose), c in self._connections.items() if purpose is Purpose.GENERAL and c.ready]
        heard = [c for c in ready if not c.silent]
        if heard:
            return min(heard, key=lambda c: c.core.in_flight)
        if self._closed:
            return None
        nodes = [*self.metadata.brokers.values(), *(Broker(-1 - i, *a) for i, a in enumerate(self.bootstrap))]
        known = len(self.metadata.brokers)
        first = self.rng.randrange(known) if known else 0
        for i in range(len(nodes)):
            broker = nodes[(first + i) % known] if i < known else nodes[i]
            found = self._connections.get((broker.node_id, Purpose.GENERAL)) or self._connect(broker, Purpose.GENERAL)
            if not found.ready and found.backoff == 0 and not found.stalled:
                found.open()
                return None  # one attempt at a time; its failure is a change and brings the next address
        return min(ready, key=lambda c: c.core.in_flight, default=None)

    async def ready_connection(
        self, node_id: int | None, purpose: Purpose = Purpose.GENERAL, *, timeout_ms: int | None = None
    ) -> Connection:
        """Waits for a ready connection to a broker, or to any (None).

        Raises:
            BrokerUnreachable: the broker cannot be reached now, or none within `timeout_ms` (default `request_timeout_ms`).
        """
        deadline = self.clock.monotonic_ms() + (self.request_timeout_ms if timeout_ms is None else timeout_ms)
        while True:
            if self._closed:
                raise ClientClosed("the client is closed")
            found = self.any_connection() if node_id is None else self.connection(node_id, purpose)
            if found is not None:
                return found
            if node_id is not None:
                if node_id not in self.metadata.brokers:
                    self.want_update()
                    raise BrokerUnreachable("the cluster has no such broker now", broker=node_id)
                failed = self._connections.get((node_id, purpose))
                if failed is not None and failed.backoff and failed.error is not None:
                    raise BrokerUnreachable(failed.error.message, broker=node_id) from failed.error
            pause = min(deadline, self.clock.monotonic_ms() + _LOOK_AGAIN_MS)
            if not await self.changed(pause) and self.clock.monotonic_ms() >= deadline:
                raise BrokerUnreachable("no connection in time", broker=node_id) from self._connection_error()

    async def request(
        self,
        request: Any,
        *,
        node_id: int | None = None,
        purpose: Purpose = Purpose.GENERAL,
        timeout_ms: int | None = None,
        version_max: int = _VERSION_MAX,
    ) -> Any:
        """One request to a broker (None: any), waiting for the connection first. No retries."""
        connection = await self.ready_connection(node_id, purpose, timeout_ms=timeout_ms)
        return await connection.request(request, timeout_ms=timeout_ms, version_max=version_max)

    def features(self) -> Features:
        """The finalized features, as the broker with the newest view told them."""
        newest = Features(-1, {})
        for connection in self._connections.values():
            if connection.core.features.epoch > newest.epoch:
                newest = connection.core.features
        return newest

    def transaction_version(self) -> int:
        """Of the transaction protocol: 2 where the cluster has finalized transaction.version 2 and its brokers speak it, else 1.

        Without a connection, what was true when there was one; 1 where there was none yet (`learn_transaction_version`).
        """
        connection = self.any_connection()
        if connection is not None:
            finalized = self.features().levels.get("transaction.version", 0) >= 2
            offered = connection.core.versions
            spoken = all(offered.get(key, (0, 0))[1] >= needed for key, needed in _TV2_VERSIONS.items())
            self._transaction_version = 2 if finalized and spoken else 1
        return self._transaction_version or 1

    async def learn_transaction_version(self) -> int:
        """`transaction_version`, after a first connection.

        Raises:
            BrokerUnreachable: there is none in time.
        """
        if self._transaction_version is None:
            await self.ready_connection(None)
        return self.transaction_version()

    # -- metadata ------------------------------------------------------------------------------------------------------

    def add_topics(self, topics: Iterable[str]) -> None:
        """Topics to keep metadata of."""
        new = [t for t in topics if t not in self._topics]
        if new:
            self._topics.update(dict.fromkeys(new))
            self._hurry_update()

    def set_topics(self, topics: Iterable[str]) -> None:
        """Replaces the topics to keep metadata of."""
        wanted = dict.fromkeys(topics)
        missing = any(t not in self.metadata.topics for t in wanted)
        self._topics = wanted
        if missing:
            self._hurry_update()

    def want_update(self) -> None:
        """Asks for fresh metadata, `retry_backoff_ms` after the last answer at the earliest."""
        self._refresh_wanted.set()

    async def fresh_metadata(self, timeout_ms: int | None = None) -> ClusterMetadata:
        """Waits for metadata asked for after this call.

        Raises:
            RequestTimedOut: none came in time.
        """
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
        """Waits for the next change; False where `deadline_ms` (monotonic) comes first."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            if deadline_ms is None:
                await waiter
            else:
                async with asyncio.timeout(max(0, deadline_ms - self.clock.monotonic_ms()) / 1000):
                    await waiter
        except TimeoutError:
            return False
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
        return True

    # -- coordinators --------------------------------------------------------------------------------------------------

    def coordinator(self, kind: str, key: str) -> int | None:
        """Node id of a coordinator ("group" or "transaction"); None while it is being looked up (a change will be told).

        Raises:
            KafkaError: the broker refused to tell, and will again.
        """
        found = self._coordinators.get((kind, key))
        if found in self.metadata.brokers:
            return found
        self._coordinators.pop((kind, key), None)  # the broker is gone: whoever coordinates now is another
        error = self._coordinator_errors.pop((kind, key), None)
        if error is not None:
            raise error
        if (kind, key) not in self._lookups and not self._closed:
            self._lookups[kind, key] = None
            self.scope.start(self._find_coordinator(kind, key), name=f"find {kind} coordinator")
        return None

    async def find_coordinator(self, kind: str, key: str, *, timeout_ms: int | None = None) -> int:
        """Waits for `coordinator`."""
        deadline = self.clock.monotonic_ms() + (self.request_timeout_ms if timeout_ms is None else timeout_ms)
        while True:
            node_id = self.coordinator(kind, key)
            if node_id is not None:
                return node_id
            if self._closed:
                raise ClientClosed("the client is closed")
            if not await self.changed(deadline):
                raise RequestTimedOut(f"no {kind} coordinator for {key!r} in time") from self._connection_error()

    def forget_coordinator(self, kind: str, key: str) -> None:
        """The coordinator moved or cannot be reached: it is looked up anew when next asked for."""
        self._coordinators.pop((kind, key), None)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _connect(self, broker: Broker, purpose: Purpose) -> Connection:
        core = Exchange(self.client_id, request_timeout_ms=self.request_timeout_ms)
        connection = Connection(
            broker.host,
            broker.port,
            core,
            node_id=broker.node_id,
            clock=self.clock,
            rng=self.rng,
            network=self.network,
            scope=self.scope,
            on_change=self._on_connection_change,
            on_lost=self._hurry_update,
        )
        self._connections[broker.node_id, purpose] = connection
        return connection

    def _hurry_update(self) -> None:
        """What is known is out of date, or not enough: fresh metadata without waiting for the end of a pause."""
        self._refresh_hurried.set()
        self.want_update()

    def _unreachable(self, node_id: int) -> bool:
        """Whether the last attempt to reach a broker failed, and none has gone well since; the next one begins where it is due."""
        known = [c for (each, _), c in self._connections.items() if each == node_id]
        if any(c.ready for c in known) or all(c.error is None for c in known):
            return False
        return self.connection(node_id) is None

    async def _ask_anyone(self, request: Any, *, version_max: int = _VERSION_MAX) -> Any:
        """The answer of the least busy broker. One that keeps silent is passed over by the next call, where there is another.

        Raises:
            KafkaError: no broker can be reached, or the one that was asked gave no answer.
        """
        connection = await self.ready_connection(None)
        patience_ms = self._silence_ms if len(self.metadata.brokers) > 1 else self.request_timeout_ms
        try:
            async with asyncio.timeout(patience_ms / 1000):
                answer = await connection.request(request, version_max=version_max)
        except TimeoutError:
            self._silence_ms = min(2 * self._silence_ms, self.request_timeout_ms)
            connection.silent = True
            raise RequestTimedOut("no answer yet, another broker is asked", broker=connection.node_id) from None
        self._silence_ms = _SILENCE_MS
        return answer

    def _on_connection_change(self) -> None:
        if not self._closed and any(c.error is not None for c in self._connections.values()):
            self.want_update()  # a broker may be gone, and with it its leaderships
        self._notify()

    def _connection_error(self) -> KafkaError | None:
        for connection in self._connections.values():
            if connection.error is not None:
                return connection.error
        return None

    def _notify(self) -> None:
        """Tells of a change at the end of the present wake-up, once however much changed."""
        if not self._notify_scheduled:
            self._notify_scheduled = True
            asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        self._notify_scheduled = False
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        for listener in list(self.listeners):
            listener()

    async def _refresh_metadata(self) -> None:
        pace = Backoff(self.retry_backoff_ms, self.rng)
        while not self._closed:
            await self._until_refresh_is_due()
            self._refresh_wanted.clear()
            self._refresh_hurried.clear()
            if await self._refresh_once() and not self._unsettled():
                pace.settle()
                pause_ms = self.retry_backoff_ms
            else:
                pause_ms = pace.pause_ms(self.clock.monotonic_ms())
                self._refresh_wanted.set()
            try:
                async with asyncio.timeout(pause_ms / 1000):
                    await self._refresh_hurried.wait()
                pace.settle()
            except TimeoutError:
                pass

    async def _until_refresh_is_due(self) -> None:
        age_left = self.metadata.max_age_ms
        if self.metadata.updated_ms >= 0:
            age_left += self.metadata.updated_ms - self.clock.monotonic_ms()
        try:
            async with asyncio.timeout(max(0, age_left) / 1000):
                await self._refresh_wanted.wait()
        except TimeoutError:
            pass

    async def _refresh_once(self) -> bool:
        whole = self.all_topics
        topics = None if whole else [MetadataRequestTopic(name=t) for t in self._topics]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=self._auto_create_topics)
        try:
            response: MetadataResponse = await self._ask_anyone(request)
        except ClientClosed:
            return True
        except KafkaError as error:
            self.error = error
            self._notify()
            return False
        if not response.brokers:
            return False  # a broker that has only begun to start
        self.error = None
        self.metadata.update(response, self.clock.monotonic_ms(), whole=whole)
        self._refreshes += 1
        self._retire()
        self._notify()
        return True

    def _unsettled(self) -> bool:
        """Whether metadata will soon say more: a topic was just created by asking for it, or a leader is gone."""
        leaders: dict[int, None] = {}
        for name in self._topics:
            info = self.metadata.topics.get(name)
            if info is None or info.error.retriable:
                if not self.all_topics:
                    return True
                continue
            for p in info.partitions:
                leaders[self.metadata.leaders.get(TopicPartition(name, p.partition), -1)] = None
        return -1 in leaders or any(self._unreachable(leader) for leader in leaders)

    def _retire(self) -> None:
        """Closes bootstrap connections once the brokers have names, and those to brokers that are gone."""
        for (node_id, purpose), connection in list(self._connections.items()):
            gone = node_id >= 0 and node_id not in self.metadata.brokers and not connection.ready
            if (node_id < 0 or gone) and connection.core.in_flight == 0:
                del self._connections[node_id, purpose]
                connection.close()

    async def _find_coordinator(self, kind: str, key: str) -> None:
        request = FindCoordinatorRequest(key=key, key_type=_COORDINATOR_KINDS[kind], coordinator_keys=[key])
        pace = Backoff(self.retry_backoff_ms, self.rng)
        try:
            while not self._closed:
                try:
                    response: FindCoordinatorResponse = await self._ask_anyone(request, version_max=4)
                    found = response.coordinators[0] if response.coordinators else response
                    code = code_of(found.error_code)
                    if code is not ErrorCode.NONE:
                        raise error_for(code, found.error_message)
                except KafkaError as error:
                    if not error.retriable:
                        self._coordinator_errors[kind, key] = error
                        return
                else:
                    known = self.metadata.brokers.get(found.node_id)
                    if known is None or (known.host, known.port) != (found.host, found.port):
                        self.metadata.brokers[found.node_id] = Broker(found.node_id, found.host, found.port)
                    if not self._unreachable(found.node_id):  # else: who told does not know yet that it is gone
                        self._coordinators[kind, key] = found.node_id
                        return
                await asyncio.sleep(pace.pause_ms(self.clock.monotonic_ms()) / 1000)
        finally:
            self._lookups.pop((kind, key), None)
            if not self._closed:
                self._notify()
