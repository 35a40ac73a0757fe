"""QuorumController: the active controller while this node leads the metadata quorum. Queues, decides and appends requests.
Follows KIP-631 and KIP-868; the shape is that of Kafka's QuorumController.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Final, NamedTuple, Protocol, TypeVar

from barnabas.broker.api.access import FULL_ACCESS, Access
from barnabas.broker.api.call import Done
from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.controller.core.authorization import authorized_decision, check_cluster_operation
from barnabas.broker.controller.core.config_remarks import remarks_on_change
from barnabas.broker.controller.core.decision import AnyDone, ClusterView, LongDecision, MetadataDecision, deliver
from barnabas.broker.controller.core.delegation_tokens import expired_tokens
from barnabas.broker.controller.core.elections import UNCLEAN_KEY
from barnabas.broker.controller.core.isr import elect_unclean_leaders
from barnabas.broker.controller.core.registration import bootstrap_records
from barnabas.broker.controller.core.requests import DECISIONS, OF_CLIENTS
from barnabas.broker.controller.liveness import HeartbeatSource, Liveness
from barnabas.broker.image.current_image import CurrentImage
from barnabas.broker.image.image import BROKER_RESOURCE, EMPTY_IMAGE, TOPIC_RESOURCE, MetadataDelta, MetadataImage
from barnabas.broker.image.records import AbortTransactionRecord, MetadataRecord, decode_record, encode_record
from barnabas.broker.image.replay import ImageBuilder
from barnabas.broker.peers.peers import Peers
from barnabas.broker.quorum.core.snapshots import read_bootstrap
from barnabas.broker.quorum.quorum import Quorum
from barnabas.broker.quotas.client_quotas import QuotaWindow
from barnabas.broker.quotas.mutations import MutatingClient, MutationPermits, MutationQuotas
from barnabas.broker.scheduling.reactor import Reactor
from barnabas.broker.scheduling.slices import Slice, Slices, WorkResult, advance
from barnabas.errors import BrokerError, ErrorCode, InvariantViolated
from barnabas.loggers import logger
from barnabas.network_port import Network
from barnabas.ports import Disk
from barnabas.protocol.messages.cluster import BrokerHeartbeatRequest, BrokerRegistrationRequest
from barnabas.protocol.records import encode_values_in_slices
from barnabas.protocol.schema import Message
from barnabas.work import UNITS_PER_SLICE, Work, finished

log = logger("kafka.controller")

A = TypeVar("A")
Decide = Callable[[ClusterView], MetadataDecision[object] | Work]

DECISION_UNITS: Final = 4  # of any decision, besides its records
THROTTLE_TIME: Final = "throttle_time_ms"
NOT_ACTIVE: Final = -1  # the epoch of an inactive controller


class ControllerObserver(Protocol):
    """Timing of an active controller."""

    def on_decision(self, queued_ms: int, took_ms: int) -> None:
        """`queued_ms` in the queue; `took_ms` for the decision or its first slice."""
        ...

    def on_published(self, latency_ms: int) -> None:
        """`latency_ms` from append to the published image."""
        ...


class _Queued(NamedTuple):
    decide: Decide
    done: AnyDone
    between: bool  # a heartbeat: see `submit`
    since_ms: int


class _Answers(NamedTuple):
    """Answers to send once everything below `next_offset` is published."""

    next_offset: int
    answers: list[tuple[AnyDone, object]]


class QuorumController:
    """The metadata controller of a node with the controller role.

    It decides on an image with everything appended, committed or not; the next wake-up does not wait for the last one's commit. Answers
    keep the order of the requests and are sent once their records, or those that they are based on, are committed and in the published
    image. A long decision, its encoding and its replay run in slices; later decisions wait, so the image does not change in between.
    """

    def __init__(
        self,
        reactor: Reactor,
        config: BrokerConfig,
        *,
        slices: Slices,
        current: CurrentImage,
        quorum: Quorum,
        disk: Disk,
        network: Network,
        peers: Peers,
    ) -> None:
        """Uses neither disk nor network. `disk` may hold bootstrap records of Kafka's storage tool."""
        self._reactor = reactor
        self._config = config
        self._node_id = config.node_id
        self._slices = slices
        self._current = current
        self._quorum = quorum
        self._disk = disk
        window = config.get_int("controller.quota.window.num"), config.get_int("controller.quota.window.size.seconds")
        self.mutations = MutationQuotas(  # partitions that clients create and delete
            reactor.clock.monotonic_ms,
            QuotaWindow(window[0], window[1] * 1_000),
            in_slices=lambda work: slices.start(work, lambda _: None, reactor.fatal),
        )
        self._tokens = _TokenExpiry(reactor, config, self.submit)
        self.epoch = NOT_ACTIVE
        self.image: MetadataImage = EMPTY_IMAGE  # with everything appended; valid only while active
        self.liveness = Liveness(reactor, config, network, peers, self, self.submit)
        self._queue: deque[_Queued] = deque()
        self._long: Slice | None = None  # a decision that runs in slices
        self._long_done: AnyDone | None = None  # its callback
        self._flush_due = False
        self._waiting: deque[_Answers] = deque()  # ascending by offset
        self.observer: ControllerObserver | None = None  # None: nothing is measured
        self._appended: deque[tuple[int, int]] = deque()  # last offset and time, ascending; empty without an observer

    @property
    def active(self) -> bool:
        return self.epoch != NOT_ACTIVE

    @property
    def cluster_id(self) -> str:
        return self._quorum.cluster_id

    # --- leadership -----------------------------------------------------------------------------------------------

    def on_leading(self, epoch: int, open_transaction: list[MetadataRecord] | None) -> None:
        """This node leads, and its published image holds everything committed before.

        `open_transaction` has the records of an open metadata transaction. Raises InvariantViolated if the log holds more than the image.
        """
        self.epoch = epoch
        self.image = self._current.image
        if self.image.offset + 1 != self._quorum.log_end_offset:
            raise InvariantViolated(
                f"controller of epoch {epoch} begins at offset {self.image.offset + 1}, the log ends at "
                f"{self._quorum.log_end_offset}"
            )
        log.info("Node is the active controller: node_id=%d epoch=%d", self._node_id, epoch)
        if open_transaction is not None:
            # KIP-868: a new leader aborts the transaction that its predecessor left open.
            finished(
                self._append(
                    ImageBuilder(self.image, open_transaction),
                    [AbortTransactionRecord(reason="the controller changed")],
                )
            )
        if not self.image.features:
            formatted = [decode_record(value) for value in read_bootstrap(self._disk)]
            finished(self._append(ImageBuilder(self.image), bootstrap_records(self._config, formatted)))
        self.liveness.begin()
        self.submit(elect_unclean_leaders)

    def on_not_leading(self) -> None:
        """Answers waiting requests NOT_CONTROLLER, even if a successor commits their records."""
        if not self.active:
            return
        log.info("Node is no longer the active controller: node_id=%d", self._node_id)
        self.epoch = NOT_ACTIVE
        self.image = EMPTY_IMAGE
        self.liveness.end()
        waiting = [done for answers in self._waiting for done, _ in answers.answers]
        if self._long_done is not None:
            waiting.append(self._long_done)
        waiting += [queued.done for queued in self._queue]
        self._cancel_long()
        self._waiting.clear()
        self._appended.clear()
        self._queue.clear()
        for done in waiting:
            deliver(done, _not_controller(self._node_id))

    def close(self) -> None:
        self.epoch = NOT_ACTIVE
        self.liveness.end()
        self._cancel_long()
        self._waiting.clear()
        self._queue.clear()

    def _cancel_long(self) -> None:
        if self._long is not None:
            self._long.cancel()
        self._long = self._long_done = None

    # --- requests -------------------------------------------------------------------------------------------------

    def handle(
        self,
        request: Message,
        done: AnyDone,
        *,
        source: HeartbeatSource | None = None,
        access: Access = FULL_ACCESS,
        client: MutatingClient | None = None,
    ) -> None:
        """Handles a request of the controller listener, or of this node's own parts (`source` is None).

        `done` gets the published response, or BrokerError for the whole request: NOT_CONTROLLER if this node is not the active controller,
        or loses that role before the answer. `client` names the mutation quota. Raises BrokerError(UNSUPPORTED_VERSION) for an unserved
        class of request.
        """
        if not self.active:
            done(_not_controller(self._node_id))
        elif (refusal := _refusal(access, request)) is not None:
            done(refusal)
        elif isinstance(request, BrokerHeartbeatRequest):
            self.liveness.on_heartbeat(request, source, done)
        elif isinstance(request, BrokerRegistrationRequest):
            self.liveness.on_registration(request, done)
        else:
            decide = DECISIONS.get(type(request))
            if decide is None:
                raise BrokerError(ErrorCode.UNSUPPORTED_VERSION, f"{type(request).__name__} is not for the controller")
            allowed = authorized_decision(access, decide)
            in_slices = allowed.in_slices if isinstance(allowed, LongDecision) else allowed
            permits = self.mutations.permits(client)
            if type(request) in OF_CLIENTS:
                now_ms = self._reactor.clock.now_ms()
                self.submit(
                    lambda view: in_slices(replace(view, principal=access.principal, now_ms=now_ms), request), done
                )
            elif permits is None:
                self.submit(lambda view: in_slices(view, request), done)
            else:
                self.submit(
                    lambda view: in_slices(replace(view, permits=permits), request), partial(_throttled, permits, done)
                )

    def submit(
        self,
        decide: Callable[[ClusterView], MetadataDecision[A] | Work],
        done: Done[A] = lambda answer: None,
        *,
        between: bool = False,
    ) -> None:
        """Queues a decision; it runs with all others that arrive within controller.quorum.append.linger.ms.

        `done` gets the answer once its records are committed and published, or the BrokerError that `decide` raises. `between`: the
        decision (a heartbeat) runs before all that wait, and during a long decision if it has no records: a session must not end because a
        client sends many requests.
        """
        if not self.active:
            done(_not_controller(self._node_id))
            return
        # Heartbeats are before all others, and in order.
        ahead = sum(1 for _ in takewhile(lambda each: each.between, self._queue)) if between else len(self._queue)
        self._queue.insert(ahead, _Queued(decide, done, between, self._reactor.clock.monotonic_ms()))
        if not self._flush_due:
            self._flush_due = True
            linger_ms = self._config.get_int("controller.quorum.append.linger.ms")
            if linger_ms > 0:
                self._reactor.call_later(linger_ms, self._flush)
            else:
                self._reactor.soon(self._flush)

    # --- decide, append, answer -----------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Decides and appends queued requests for one slice; the rest continues in later turns."""
        self._flush_due = False
        if not self.active:
            return
        if self._long is not None:
            self._decide_between()
            return
        answers: list[tuple[AnyDone, object]] = []
        left = UNITS_PER_SLICE
        while self._queue and left > 0:
            queued = self._queue.popleft()
            began_ms = self._reactor.clock.monotonic_ms()
            work = self._decided(queued.decide)
            rest = advance(work)
            if self.observer is not None:
                now_ms = self._reactor.clock.monotonic_ms()
                self.observer.on_decision(began_ms - queued.since_ms, now_ms - began_ms)
            if not isinstance(rest, WorkResult):
                self._long_done = queued.done
                self._long = self._slices.start(rest, self._on_decided, self._on_failed)
                break
            answers.append((queued.done, rest.result))
            left -= DECISION_UNITS + rest.units
        if self._queue and self._long is None:
            self._flush_due = True
            self._reactor.next_turn(self._flush)
        if answers:
            self._waiting.append(_Answers(self._quorum.log_end_offset, answers))
            self._answer(self._current.image)

    def _decide_between(self) -> None:
        """Makes decisions that need not wait for a long decision; they see the image at its begin."""
        answers: list[tuple[AnyDone, object]] = []
        kept: deque[_Queued] = deque()
        for queued in self._queue:
            if not queued.between:
                kept.append(queued)
                continue
            try:
                decision = queued.decide(self._view())
            except BrokerError as error:
                answers.append((queued.done, error))
                continue
            if isinstance(decision, MetadataDecision) and not decision.records:
                answers.append((queued.done, decision.answer))
            else:
                kept.append(queued)
        self._queue = kept
        if answers:
            self._waiting.append(_Answers(self._quorum.log_end_offset, answers))
            self._answer(self._current.image)

    def _view(self) -> ClusterView:
        return ClusterView(self.image, self._config, self._reactor.rng.uuid, self._quorum.log_end_offset)

    def _on_decided(self, answer: object) -> None:
        done, self._long, self._long_done = self._long_done, None, None
        if done is not None:
            self._waiting.append(_Answers(self._quorum.log_end_offset, [(done, answer)]))
            self._answer(self._current.image)
        self._flush()

    def _on_failed(self, error: BaseException) -> None:
        self._long = self._long_done = None
        raise error

    def _decided(self, decide: Decide) -> Work:
        try:
            decision = decide(self._view())
            if not isinstance(decision, MetadataDecision):
                decision = yield from decision
            if decision.records:
                yield from self._append(ImageBuilder(self.image), decision.records)
        except BrokerError as error:
            return error
        except InvariantViolated:
            raise
        except Exception:  # a bug in one decision must not prevent the others' answers
            log.exception("Decision of the controller failed")
            return BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR)
        return decision.answer

    def _append(self, builder: ImageBuilder, records: Sequence[MetadataRecord]) -> Work:
        """Appends records as one batch, or none if this node no longer leads."""
        values = []
        for record in records:
            values.append(encode_record(record))
            builder.replay(record)
            yield 1
        encoded = yield from encode_values_in_slices(values, self._reactor.clock.now_ms())
        last_offset = self._quorum.append(encoded)
        if self.observer is not None:
            self._appended.append((last_offset, self._reactor.clock.monotonic_ms()))
        for remark in remarks_on_change(records):
            log.warning("Changed setting: %s", remark)
        builder.advance(last_offset, self.epoch, self._reactor.clock.now_ms())
        self.image = yield from builder.image_in_slices()

    # --- publication ----------------------------------------------------------------------------------------------

    def on_image(self, _former: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> None:
        self.mutations.on_image(image, delta)
        self._tokens.start()
        if not self.active:
            return
        if not self._queue and image.offset == self.image.offset:
            self.image = image  # the same content: releases the copy
        self._answer(image)
        while self._appended and self._appended[0][0] <= image.offset and self.observer is not None:
            self.observer.on_published(self._reactor.clock.monotonic_ms() - self._appended.popleft()[1])
        self.liveness.on_image(image, delta)
        if any(self._concerns_unclean_elections(image, kind, name) for kind, name in delta.configs):
            self.submit(elect_unclean_leaders)

    @staticmethod
    def _concerns_unclean_elections(image: MetadataImage, kind: int, name: str) -> bool:
        return kind in (TOPIC_RESOURCE, BROKER_RESOURCE) and UNCLEAN_KEY in image.config(kind, name)

    def _answer(self, image: MetadataImage) -> None:
        while self._waiting and self._waiting[0].next_offset <= image.offset + 1:
            for done, answer in self._waiting.popleft().answers:
                deliver(done, answer)


def _refusal(access: Access, request: Message) -> BrokerError | None:
    """Refuses a node's request without CLUSTER_ACTION; clients' requests are authorized when they are decided."""
    if access.unrestricted or not isinstance(request, BrokerHeartbeatRequest | BrokerRegistrationRequest):
        return None
    try:
        check_cluster_operation(access, request.API_KEY)
    except BrokerError as error:
        return error.with_traceback(None)
    return None


def _throttled(permits: MutationPermits, done: AnyDone, answer: Message | BrokerError) -> None:
    if not isinstance(answer, BrokerError):
        setattr(answer, THROTTLE_TIME, permits.throttle_ms)
    done(answer)


def _not_controller(node_id: int) -> BrokerError:
    return BrokerError(ErrorCode.NOT_CONTROLLER, f"node {node_id} is not the active controller")


class _TokenExpiry:
    """Removes expired delegation tokens, on the active controller."""

    def __init__(
        self,
        reactor: Reactor,
        config: BrokerConfig,
        submit: Callable[[Callable[[ClusterView], Work], Callable[[bool | BrokerError], None]], None],
    ) -> None:
        self._reactor = reactor
        self._config = config
        self._submit = submit
        self._started = False

    def start(self) -> None:
        if not self._started and self._config.get_str("delegation.token.secret.key"):
            self._started = True
            self._later()

    def _later(self) -> None:
        self._reactor.call_later(self._config.get_int("delegation.token.expiry.check.interval.ms"), self._check)

    def _check(self) -> None:
        self._remove()
        self._later()

    def _remove(self) -> None:
        now_ms = self._reactor.clock.now_ms()
        self._submit(lambda view: expired_tokens(view.image, now_ms), self._removed)

    def _removed(self, more: bool | BrokerError) -> None:
        if more is True:
            self._remove()
