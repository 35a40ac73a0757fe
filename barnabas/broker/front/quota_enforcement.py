"""QuotaEnforcement: charges requests and connections of clients to their quotas, and throttles those that exceed them.

The answer leaves at once, and the connection serves and reads nothing until the throttle time is over (KIP-219). A throttled consumer gets an
empty Fetch answer. Requests that only brokers send are exempt, if the client may send them (CLUSTER_ACTION). Without quotas `active` is False, and connections ask for no charge.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, cast

from barnabas.broker.api.call import Call
from barnabas.broker.api.router import LOGIN_LISTENER, Route, Router
from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.image.image import EMPTY_IMAGE, MetadataDelta, MetadataImage, QuotaEntity
from barnabas.broker.quotas.client_quotas import QuotaKind, QuotaMeter, QuotaWindow
from barnabas.broker.quotas.connection_rates import ConnectionRates
from barnabas.broker.replica.core.fetch_sessions import NO_SESSION, FetchSessions
from barnabas.broker.scheduling.reactor import Reactor
from barnabas.broker.scheduling.slices import Slice, Slices
from barnabas.ports import Buffer
from barnabas.protocol.acls import AclOperation, AclResourceType
from barnabas.protocol.schema import Message
from barnabas.work import Steps, Work, finished, in_worker

if TYPE_CHECKING:
    from barnabas.protocol.messages.fetch import FetchRequest, FetchResponse
    from barnabas.protocol.messages.offsets import OffsetForLeaderEpochRequest
    from barnabas.protocol.messages.produce import ProduceRequest

PRODUCE, FETCH, SASL_HANDSHAKE, API_VERSIONS, OFFSET_FOR_LEADER_EPOCH = 0, 1, 17, 18, 23
ADD_PARTITIONS_TO_TXN, WRITE_TXN_MARKERS, SASL_AUTHENTICATE = 24, 27, 36
FIRST_WITH_REPLICA_STATE: Final = 15  # version of Fetch
FIRST_VERIFICATION_OF_BROKERS: Final = 4  # version of AddPartitionsToTxn
THROTTLE_TIME: Final = "throttle_time_ms"
REQUESTS_OF_LOGINS: Final = frozenset({SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE})
ENTITIES_AT_ONCE: Final = 256
PARTITIONS_PER_UNIT: Final = 16

T = TypeVar("T")


class MutedConnection(Protocol):
    """The connection of a client.

    Attributes:
        router: serves its requests.
    """

    router: Router

    def mute(self, throttle_ms: int) -> None:
        """Serves and reads nothing for a time."""
        ...


class QuotaEnforcement:
    """The quotas of one node's clients. The module docstring describes it.

    Attributes:
        active: whether any user or client id has a quota.
        clients: what they use.
        addresses: how fast addresses connect.
        fetch_sessions: those of the node.
    """

    def __init__(
        self, reactor: Reactor, config: BrokerConfig, slices: Slices, fetch_sessions: FetchSessions | None
    ) -> None:
        self.active = False
        window = _window(config, "quota.window")
        self.clients = QuotaMeter(window, _window(config, "controller.quota.window"))
        self.addresses = ConnectionRates(window)
        self.fetch_sessions = fetch_sessions
        self._reactor = reactor
        self._slices = slices
        self._image: MetadataImage = EMPTY_IMAGE
        self._changed: dict[QuotaEntity, None] = {}
        self._slice: Slice | None = None
        self._loop_time: Callable[[], float] = float

    # --- what is set ----------------------------------------------------------------------------------------------

    def on_image(self, _former: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> None:
        """`image` is published: its quotas apply, those of very many entities in later turns."""
        self._image = image
        if not delta.quotas:
            return
        self._loop_time = asyncio.get_running_loop().time
        self._changed.update(delta.quotas)
        if self._slice is None:
            if len(self._changed) <= ENTITIES_AT_ONCE:
                finished(self._adopt())
            else:
                self._slice = self._slices.start(self._adopt(), self._adopted, self._reactor.fatal)

    def _adopt(self) -> Work:
        number = 0
        while self._changed:
            entity, _ = self._changed.popitem()
            quotas = self._image.quotas.get(entity, {})
            if entity[0][0] == "ip":
                self.addresses.set_limit(entity[0][1], quotas.get("connection_creation_rate"))
            else:
                self.clients.set_quotas(entity, quotas)
            number += 1
            if number % 2 == 0:
                yield 1
        self.active = self.clients.configured

    def _adopted(self, _result: object) -> None:
        self._slice = None

    # --- connections ----------------------------------------------------------------------------------------------

    def delay_connection(self, host: str) -> int:
        """A connection was accepted. Returns the time in ms after which it must be closed, unused; 0: it may stay."""
        return self.addresses.arrived(host, self.now_ms()) if self.addresses.configured else 0

    # --- requests -------------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """The monotonic clock of the node."""
        return self._reactor.clock.monotonic_ms()

    def now_s(self) -> float:
        """The clock that measures handlers: the loop's, which is virtual in a simulation."""
        return self._loop_time()

    def charge(
        self, connection: MutedConnection, route: Route, call: Call[Message], size_bytes: int, began_s: float
    ) -> Charge | None:
        """A request of a client is about to be handled; None: it is exempt. Limits what a Fetch request may return.

        Args:
            size_bytes: of the request's body.
            began_s: when the node began to decode it (`now_s`).
        """
        api_key = call.api_key
        if api_key in REQUESTS_OF_LOGINS and self._belongs_to_login(connection, call):
            return None  # as in Kafka: before the login the client has no user
        if _is_of_brokers(call) and call.access.allows(AclOperation.CLUSTER_ACTION, AclResourceType.CLUSTER, log=False):
            return None
        user, client_id = call.access.principal.name, call.client_id or ""
        one = Charge(self, connection, route, user, client_id, size_bytes, began_s)
        if api_key == FETCH:
            fetch = cast("FetchRequest", call.request)
            one.session_epoch = fetch.session_epoch
            most = self.clients.fetch_bytes_max(user, client_id)
            if most is not None:
                fetch.max_bytes = min(fetch.max_bytes, most)
        elif api_key == PRODUCE:
            one.counts_time = cast("ProduceRequest", call.request).acks != 0
        return one

    @staticmethod
    def _belongs_to_login(connection: MutedConnection, call: Call[Message]) -> bool:
        """Whether it is a request of a first login, or of one that is repeated on an open connection."""
        if connection.router.listener == LOGIN_LISTENER:
            return True
        login = call.connection.login
        return call.api_key == SASL_HANDSHAKE and login is not None and login.may_begin_again()

    def charging(
        self, connection: MutedConnection, route: Route
    ) -> Callable[[Call[Message], int], Charge | None] | None:
        """What charges a request after it is decoded, with the size of its body; None: no client has quotas."""
        if not self.active:
            return None
        return lambda call, size_bytes: self.charge(connection, route, call, size_bytes, self.now_s())


class Charge:
    """One request of a client, until its answer is made. The time in which it waits for others does not count.

    Attributes:
        counts_time: whether the request counts for request_percentage.
        session_epoch: of a Fetch request.
    """

    __slots__ = (
        "_began_s",
        "_busy_s",
        "_connection",
        "_quotas",
        "_route",
        "api_key",
        "client_id",
        "counts_time",
        "session_epoch",
        "size_bytes",
        "user",
    )

    def __init__(
        self,
        quotas: QuotaEnforcement,
        connection: MutedConnection,
        route: Route,
        user: str,
        client_id: str,
        size_bytes: int,
        began_s: float,
    ) -> None:
        self._quotas = quotas
        self._connection = connection
        self._route = route
        self._began_s = began_s
        self._busy_s = 0.0
        self.api_key = route.api_key
        self.user = user
        self.client_id = client_id
        self.size_bytes = size_bytes
        self.counts_time = True
        self.session_epoch = 0

    def pause(self) -> None:
        """The request waits."""
        self._busy_s += self._quotas.now_s() - self._began_s

    def go_on(self) -> None:
        """The node works for it again."""
        self._began_s = self._quotas.now_s()

    def timed(self, work: Work) -> Work:
        """Work of a request that is paused: its steps count."""
        try:
            while True:
                self.go_on()
                try:
                    step = next(work)
                except StopIteration as end:
                    return end.value
                finally:
                    self.pause()
                yield step
        finally:
            work.close()

    def frame(self, correlation: int, response: Message) -> list[Buffer]:
        """The bytes of an answer, with its throttle time, as `Route.frame` makes them. Mutes the connection if it must."""
        parts = self._route.frame(correlation, response)
        self.pause()
        throttled = self.throttled(response, sum(map(len, parts)))
        if throttled is response:
            return parts
        finished(self.discard(response))
        return self._route.frame(correlation, throttled)

    def frame_in_worker(self, correlation: int, response: Message) -> Steps[list[Buffer]]:
        """Returns what `frame` returns, of a paused request; encodes in the worker thread."""
        parts = yield from in_worker(self.measured(partial(Route.frame, self._route, correlation, response)))
        throttled = self.throttled(response, sum(map(len, parts)))
        if throttled is not response:
            yield from self.discard(response)
            parts = yield from in_worker(partial(Route.frame, self._route, correlation, throttled))
        return parts

    def measured(self, call: Callable[[], T]) -> Callable[[], T]:
        """Wraps a call for the worker thread, so that its time counts. The request is paused, so the loop changes nothing here."""

        def run() -> T:
            self.go_on()
            try:
                return call()
            finally:
                self.pause()

        return run

    def unanswered(self) -> None:
        """A request without an answer has ended (acks=0)."""
        self._settle(0, 0)

    def throttled(self, response: Message, size_bytes: int) -> Message:
        """The answer to send: `response` itself, or a copy with a throttle time, without records for a Fetch."""
        already_ms = getattr(response, THROTTLE_TIME, 0)  # of the controller, for mutations
        throttle_ms = self._settle(size_bytes, already_ms)
        if throttle_ms <= already_ms:
            return response
        if self.api_key == FETCH:
            fetched = cast("FetchResponse", response)
            return type(fetched)(
                throttle_time_ms=throttle_ms,
                error_code=fetched.error_code,
                session_id=fetched.session_id if self.session_epoch > 0 else NO_SESSION,
            )
        found = copy(response)
        if hasattr(found, THROTTLE_TIME):
            setattr(found, THROTTLE_TIME, throttle_ms)
        return found

    def discard(self, response: Message) -> Work:
        """A throttled Fetch answer is not sent: its session forgets what it would have told."""
        sessions = self._quotas.fetch_sessions
        if self.api_key != FETCH or sessions is None:
            return
        fetched = cast("FetchResponse", response)
        if self.session_epoch <= 0:
            sessions.close(fetched.session_id)
            return
        number = 0
        for topic in fetched.responses:
            for partition in topic.partitions:
                sessions.untold(fetched.session_id, topic.topic or topic.topic_id, partition.partition_index)
                number += 1
                if number % PARTITIONS_PER_UNIT == 0:
                    yield 1

    def _settle(self, answer_bytes: int, throttle_ms: int) -> int:
        """Charges the request. Returns the throttle time, at least `throttle_ms`."""
        now_ms, clients = self._quotas.now_ms(), self._quotas.clients
        if self.counts_time and clients.limits(QuotaKind.REQUEST):
            busy_ns = int(self._busy_s * 1e9)
            throttle_ms = max(throttle_ms, clients.served(self.user, self.client_id, busy_ns, now_ms))
        if self.api_key == PRODUCE:
            throttle_ms = max(throttle_ms, clients.produced(self.user, self.client_id, self.size_bytes, now_ms))
        elif self.api_key == FETCH and clients.limits(QuotaKind.FETCH):
            throttle_ms = max(throttle_ms, clients.fetched(self.user, self.client_id, answer_bytes, now_ms))
            if throttle_ms > 0:
                clients.not_fetched(self.user, self.client_id, answer_bytes, now_ms)
        if throttle_ms > 0:
            self._connection.mute(throttle_ms)
        return throttle_ms


def _is_of_brokers(call: Call[Message]) -> bool:
    """Whether only brokers send such a request, or a client that says it is one."""
    api_key = call.api_key
    if api_key == FETCH:
        fetch = cast("FetchRequest", call.request)
        return (fetch.replica_state if call.version >= FIRST_WITH_REPLICA_STATE else fetch).replica_id >= 0
    if api_key == OFFSET_FOR_LEADER_EPOCH:
        return cast("OffsetForLeaderEpochRequest", call.request).replica_id >= 0
    if api_key == ADD_PARTITIONS_TO_TXN:
        return call.version >= FIRST_VERIFICATION_OF_BROKERS
    return api_key == WRITE_TXN_MARKERS


def _window(config: BrokerConfig, prefix: str) -> QuotaWindow:
    return QuotaWindow(config.get_int(f"{prefix}.num"), config.get_int(f"{prefix}.size.seconds") * 1_000)
