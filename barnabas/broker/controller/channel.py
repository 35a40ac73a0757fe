"""ControllerChannel: forwards requests of this node's parts and of its clients to the active controller, local or remote."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, TypeVar

from barnabas.broker.api.access import FULL_ACCESS, Access
from barnabas.broker.api.call import Done
from barnabas.broker.authorization.envelopes import SealedRequest, open_answer, seal
from barnabas.broker.authorization.permissions import refusal_of
from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.controller.controller import QuorumController
from barnabas.broker.controller.core.decision import AnyDone, deliver
from barnabas.broker.controller.core.requests import ADMINISTRATION, refused_as_a_whole
from barnabas.broker.controller.core.topics import topic_to_ensure
from barnabas.broker.image.current_image import CurrentImage
from barnabas.broker.image.image import MetadataDelta, MetadataImage
from barnabas.broker.peers.peer import Peer
from barnabas.broker.peers.peer_error import PeerError, PeerErrorKind
from barnabas.broker.peers.peers import Peers
from barnabas.broker.quorum.quorum import Quorum
from barnabas.broker.quotas.mutations import MutatingClient
from barnabas.broker.scheduling.reactor import Reactor
from barnabas.broker.scheduling.slices import Slices, WorkResult, advance
from barnabas.broker.scheduling.timers import Timer
from barnabas.errors import BrokerError, ErrorCode
from barnabas.loggers import logger
from barnabas.protocol.acls import AclResourceType
from barnabas.protocol.internal_topics import CLUSTER_METADATA_TOPIC, INTERNAL_TOPICS
from barnabas.protocol.messages.admin import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from barnabas.protocol.messages.cluster import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from barnabas.protocol.messages.envelope import EnvelopeResponse
from barnabas.protocol.messages.quorum import DescribeQuorumRequest, DescribeQuorumRequestTopic, DescribeQuorumResponse
from barnabas.protocol.messages.shared import PartitionIndex
from barnabas.protocol.schema import Message
from barnabas.work import Steps

log = logger("kafka.server")

RETRY_MS: Final = 50  # after a failed attempt
SPREAD_MS: Final = 1_000  # how long an answer waits for this node's own image
PURPOSE: Final = "controller"  # of the peer connection
HERE: Final = -1  # in place of a node id: this process
T = TypeVar("T")


class _Request:
    __slots__ = ("access", "attempt", "client", "deadline_ms", "done", "here", "request", "sent_to", "timer")

    def __init__(
        self,
        request: Message,
        done: AnyDone,
        deadline_ms: int,
        here: Callable[[], object] | None,
        access: Access,
        client: MutatingClient | None,
    ) -> None:
        self.request = request
        self.access = access
        self.client = client
        self.here = here
        self.done: AnyDone | None = done  # None once answered
        self.deadline_ms = deadline_ms
        self.attempt = 0  # answers to earlier attempts are ignored
        self.sent_to: int | None = None  # None while it waits for a controller
        self.timer: Timer | None = None


class _WaitingImage(NamedTuple):
    """A callback that waits for an offset in the published image."""

    offset: int
    timer: Timer
    done: Done[None]


class ControllerChannel:
    """A node's channel to the active controller.

    A request waits until a controller is known. After NOT_CONTROLLER, a closed connection or a leader change it is sent again until its
    timeout, so it may take effect twice, as in Kafka: an administrator may get TOPIC_ALREADY_EXISTS for a topic that the request created.
    `done` gets the response, or BrokerError: the error of the whole request, REQUEST_TIMED_OUT if no controller was found in time, or
    UNSUPPORTED_VERSION at once if no version of the controller can carry the request. `here` is this node's controller, None without that
    role.
    """

    def __init__(
        self,
        reactor: Reactor,
        config: BrokerConfig,
        current: CurrentImage,
        peers: Peers,
        quorum: Quorum,
        here: QuorumController | None,
    ) -> None:
        self._reactor = reactor
        self._config = config
        self._node_id = config.node_id
        self._current = current
        self._peers = peers
        self._quorum = quorum
        self._here = here
        self._requests: dict[_Request, None] = {}  # in order of arrival
        self._images: list[_WaitingImage] = []
        self._retry: Timer | None = None
        self._refused_topics: dict[str, str] = {}  # last error by internal topic
        self._closed = False

    # --- named requests -------------------------------------------------------------------------------------------

    def create_topics(
        self,
        request: CreateTopicsRequest,
        done: Done[CreateTopicsResponse],
        *,
        access: Access = FULL_ACCESS,
        client: MutatingClient | None = None,
    ) -> None:
        self.request(request, done, access=access, client=client)

    def create_partitions(
        self,
        request: CreatePartitionsRequest,
        done: Done[CreatePartitionsResponse],
        *,
        access: Access = FULL_ACCESS,
        client: MutatingClient | None = None,
    ) -> None:
        self.request(request, done, access=access, client=client)

    def alter_configs(
        self,
        request: IncrementalAlterConfigsRequest,
        done: Done[IncrementalAlterConfigsResponse],
        *,
        access: Access = FULL_ACCESS,
    ) -> None:
        self.request(request, done, access=access)

    def allocate_producer_ids(self, broker_epoch: int, done: Done[int]) -> None:
        """`broker_epoch` is that of the broker's present registration; `done` gets the first of PRODUCER_ID_BLOCK_SIZE ids (KIP-730)."""

        def allocated(answer: AllocateProducerIdsResponse | BrokerError) -> None:
            done(answer if isinstance(answer, BrokerError) else answer.producer_id_start)

        request = AllocateProducerIdsRequest(broker_id=self._node_id, broker_epoch=broker_epoch)
        self.request(request, allocated)

    def ensure_topic(self, name: str, done: Done[None], *, access: Access = FULL_ACCESS) -> None:
        """Creates the topic if it is missing: an internal topic with its own settings, another with the cluster's defaults.

        `done` gets None once the topic is in this node's image, or for example INVALID_TOPIC_EXCEPTION, or INVALID_REPLICATION_FACTOR while
        fewer brokers are registered than the topic needs replicas. As in Kafka fenced brokers count: they join the ISR when they return.
        """
        if self._current.image.topic(name) is not None:
            done(None)
            return
        topic = topic_to_ensure(name, self._config)

        def created(answer: CreateTopicsResponse | BrokerError) -> None:
            if isinstance(answer, BrokerError):
                done(answer)
                return
            result = answer.topics[0]
            if result.error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                self._refused_topics.pop(name, None)
                done(None)
            else:
                error = BrokerError(ErrorCode(result.error_code), result.error_message)
                if name in INTERNAL_TOPICS and self._refused_topics.get(name) != str(error):
                    self._refused_topics[name] = str(error)
                    log.warning("Internal topic cannot be created, its clients wait: topic=%s error=%s", name, error)
                done(error)

        self.request(CreateTopicsRequest(topics=[topic]), created, access=access)

    @property
    def waiting(self) -> int:
        """The number of requests without an answer."""
        return len(self._requests)

    # --- any request ----------------------------------------------------------------------------------------------

    def request(
        self,
        request: Message,
        done: AnyDone,
        *,
        timeout_ms: int | None = None,
        here: Callable[[], object] | None = None,
        access: Access = FULL_ACCESS,
        client: MutatingClient | None = None,
    ) -> None:
        """Sends a request to the active controller.

        `timeout_ms` is controller.socket.timeout.ms by default and at most. `client` names the quota of a request that creates or deletes
        partitions. `here` answers requests that the active controller does not decide.
        """
        if self._closed:
            done(BrokerError(ErrorCode.NOT_CONTROLLER, "the node is closed"))
            return
        timeout_ms_max = max(self._config.get_int("controller.socket.timeout.ms"), 1)
        timeout_ms = timeout_ms_max if timeout_ms is None else min(timeout_ms, timeout_ms_max)
        entry = _Request(request, done, self._now_ms() + timeout_ms, here, access, client)
        entry.timer = self._reactor.call_later(timeout_ms, partial(self._on_timeout, entry))
        self._requests[entry] = None
        self._try(entry)

    def _try(self, entry: _Request) -> None:
        entry.attempt += 1
        answered = partial(self._on_answer, entry, entry.attempt)
        if self._here is not None and self._here.active:
            entry.sent_to = HERE
            if entry.here is None:
                self._here.handle(entry.request, answered, access=entry.access, client=entry.client)
                return
            try:
                answer = entry.here()
            except BrokerError as error:
                answer = error.with_traceback(None)  # its frames hold this variable: a cycle
            answered(answer)
            return
        leader = self._quorum.leader_endpoint()
        if leader is None or leader[0] == self._node_id:  # no leader, or this node before its first record is committed
            entry.sent_to = None
            return
        leader_id, host, port = leader
        entry.sent_to = leader_id
        peer = self._peers.to(host, port, PURPOSE, node_id=leader_id)
        timeout_ms = max(entry.deadline_ms - self._now_ms(), 1)
        client = entry.client if self._current.image.quotas else None
        # KIP-590: a client's request carries its principal, even without an authorizer here: the controller may have one.
        if entry.access is not FULL_ACCESS:
            forward(self._peers.slices, peer, entry.request, entry.access, answered, timeout_ms, client)
            return
        peer.send(entry.request, answered, timeout_ms=timeout_ms, long=type(entry.request) in ADMINISTRATION)

    def _on_answer(self, entry: _Request, attempt: int, answer: object) -> None:
        if entry.done is None or entry.attempt != attempt:
            return
        if isinstance(answer, PeerError):
            if answer.kind is PeerErrorKind.UNSUPPORTED:  # a retry would fail in the same way
                self._finish(entry, BrokerError(ErrorCode.UNSUPPORTED_VERSION, str(answer)))
            else:
                self._again(entry)
            return
        error: BrokerError | None = answer if isinstance(answer, BrokerError) else None
        if error is None:
            code = refused_as_a_whole(answer)
            if code != ErrorCode.NONE and (code == ErrorCode.NOT_CONTROLLER or hasattr(answer, "error_code")):
                error = BrokerError(code, getattr(answer, "error_message", None))
                if code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED and not hasattr(answer, "error_message"):
                    error = refusal_of(AclResourceType.CLUSTER)  # ElectLeaders has the text in each partition only
        if error is not None and error.code == ErrorCode.NOT_CONTROLLER:
            self._again(entry)
        elif error is None and entry.sent_to != HERE and type(entry.request) in ADMINISTRATION:
            self._await_own_image(entry, answer)
        else:
            self._finish(entry, answer if error is None else error)

    def _again(self, entry: _Request) -> None:
        entry.sent_to = None
        if self._retry is None:
            self._retry = self._reactor.call_later(RETRY_MS, self._on_retry)

    def _on_retry(self) -> None:
        self._retry = None
        self._try_waiting()

    def _try_waiting(self) -> None:
        for entry in list(self._requests):
            if entry.sent_to is None and entry.done is not None:
                self._try(entry)

    def _on_timeout(self, entry: _Request) -> None:
        what = type(entry.request).__name__.removesuffix("Request")
        self._finish(entry, BrokerError(ErrorCode.REQUEST_TIMED_OUT, f"no controller has answered {what} in time"))

    def _finish(self, entry: _Request, answer: object) -> None:
        done, entry.done = entry.done, None
        self._requests.pop(entry, None)
        if entry.timer is not None:
            entry.timer.cancel()
        if done is not None:
            deliver(done, answer)

    # --- the active controller ------------------------------------------------------------------------------------

    def on_active(self) -> None:
        self._leave_all_but(HERE)

    def on_leader(self, leader_id: int, epoch: int) -> None:
        """Sends requests to the former leader again."""
        if leader_id >= 0 and leader_id != self._node_id:
            self._leave_all_but(leader_id)

    def _leave_all_but(self, node_id: int) -> None:
        for entry in self._requests:
            if entry.sent_to not in (None, node_id):
                entry.attempt += 1  # ignores answers of the former controller
                entry.sent_to = None
        self._reactor.soon(self._try_waiting)

    def close(self) -> None:
        self._closed = True
        self._requests.clear()
        self._images.clear()

    # --- this node's own image ------------------------------------------------------------------------------------

    def when_caught_up(self, done: Done[None], *, timeout_ms: int = SPREAD_MS) -> None:
        """Calls back once this node's image holds everything committed before the call; with a BrokerError if that cannot be determined."""
        if self._here is not None and self._here.active:
            done(None)
            return

        def described(answer: DescribeQuorumResponse | BrokerError) -> None:
            if isinstance(answer, BrokerError):
                done(answer)
                return
            partition = answer.topics[0].partitions[0]
            if partition.error_code:
                done(BrokerError(ErrorCode(partition.error_code)))
            else:
                self._await_offset(partition.high_watermark - 1, done)

        self._ask_leader(described, timeout_ms)

    def _await_own_image(self, entry: _Request, answer: object) -> None:
        """Answers once this node's image has everything committed at the controller's answer, so that a client finds its change here."""
        entry.attempt += 1  # answered: no other controller is asked
        entry.sent_to = HERE
        self.when_caught_up(lambda _: self._finish(entry, answer))

    def _ask_leader(self, described: AnyDone, timeout_ms: int) -> None:
        leader = self._quorum.leader_endpoint()
        if leader is None or leader[0] == self._node_id:
            described(BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, "the quorum has no leader that is known"))
            return

        def answered(response: DescribeQuorumResponse | PeerError) -> None:
            if isinstance(response, PeerError):
                described(BrokerError(ErrorCode.NETWORK_EXCEPTION, str(response)))
            elif response.error_code or not response.topics or not response.topics[0].partitions:
                described(BrokerError(ErrorCode(response.error_code or ErrorCode.NOT_CONTROLLER)))
            else:
                described(response)

        leader_id, host, port = leader
        peer = self._peers.to(host, port, PURPOSE, node_id=leader_id)
        peer.send(_DESCRIBE_QUORUM, answered, timeout_ms=timeout_ms)

    def _await_offset(self, offset: int, done: Done[None]) -> None:
        if self._current.image.offset >= offset:
            done(None)
            return

        def give_up() -> None:
            self._images.remove(waiting)
            done(BrokerError(ErrorCode.REQUEST_TIMED_OUT, f"this node's metadata has not reached offset {offset} yet"))

        waiting = _WaitingImage(offset, self._reactor.call_later(SPREAD_MS, give_up), done)
        self._images.append(waiting)

    def on_image(self, _former: MetadataImage, image: MetadataImage, _delta: MetadataDelta) -> None:
        if not self._images:
            return
        ready = [waiting for waiting in self._images if waiting.offset <= image.offset]
        self._images = [waiting for waiting in self._images if waiting.offset > image.offset]
        for waiting in ready:
            waiting.timer.cancel()
            waiting.done(None)

    def _now_ms(self) -> int:
        return self._reactor.clock.monotonic_ms()


_DESCRIBE_QUORUM: Final = DescribeQuorumRequest(
    topics=[
        DescribeQuorumRequestTopic(topic_name=CLUSTER_METADATA_TOPIC, partitions=[PartitionIndex(partition_index=0)])
    ]
)


def forward(
    slices: Slices,
    peer: Peer,
    request: Message,
    access: Access,
    done: AnyDone,
    timeout_ms: int,
    client: MutatingClient | None = None,
) -> None:
    """`client` names the mutation quota. `done` gets the answer, a BrokerError of the controller, or the peer's PeerError."""
    version = peer.version_of(type(request))
    client_id = f"controller-{peer.purpose}"
    if client is not None:
        client_id = client.client_id
        if not client.strict:
            version = min(version, client.version)

    def answered(answer: EnvelopeResponse | PeerError) -> None:
        if isinstance(answer, PeerError):
            done(answer)
        elif answer.error_code == ErrorCode.UNSUPPORTED_VERSION and peer.version_of(type(request)) < version:
            # The connection was not open when the version was chosen, and the controller's node has another release.
            forward(slices, peer, request, access, done, timeout_ms, client)
        else:
            _run(slices, open_answer(request, version, answer), done, done)

    def sealed(found: SealedRequest) -> None:
        peer.send(found.envelope, answered, timeout_ms=timeout_ms, long=True)

    _run(slices, seal(request, version, access, client_id), sealed, done)


def _run(slices: Slices, work: Steps[T], done: Callable[[T], None], refused: AnyDone) -> None:

    def failed(error: BaseException) -> None:
        if not isinstance(error, BrokerError):
            raise error
        refused(error.with_traceback(None))

    try:
        rest = advance(work)
    except BrokerError as error:
        refused(error.with_traceback(None))
        return
    if isinstance(rest, WorkResult):
        done(rest.result)
    else:
        slices.start(rest, done, failed)
