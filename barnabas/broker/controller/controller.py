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
from barnabas.broker.controller.core.decision import AnyDone, ClusterView, MetadataDecision, deliver
from barnabas.broker.controller.core.delegation_tokens import expired_tokens
from barnabas.broker.controller.core.elections import UNCLEAN_KEY
from barnabas.broker.controller.core.isr import elect_unclean_leaders
from barnabas.broker.controller.core.registration import bootstrap_records
from barnabas.broker.controller.core.requests import ADMINISTRATION, DECISIONS
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
from barnabas.broker.scheduling.slices import Slice, Slices
from barnabas.errors import BrokerError, ErrorCode, InvariantViolated
from barnabas.loggers import logger
from barnabas.network_port import Network
from barnabas.ports import Disk
from barnabas.protocol.exchange import is_long
from barnabas.protocol.messages.cluster import BrokerHeartbeatRequest, BrokerRegistrationRequest
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import EncodedRecords, encode_records
from barnabas.protocol.schema import Message
from barnabas.work import UNITS_PER_SLICE, in_worker

log = logger("kafka.controller")

A = TypeVar("A")
Decide = Callable[[ClusterView], MetadataDecision[object]]

DECISION_UNITS: Final = 4  # of any decision, besides its records
RECORDS_AT_ONCE: Final = 500  # of one decision: more are encoded and replayed in the worker thread
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
    in_worker: bool
    since_ms: int


class _Change(NamedTuple):
    """Records to append, and the image after them."""

    records: Sequence[MetadataRecord]
    encoded: EncodedRecords
    image: MetadataImage


class _Outcome(NamedTuple):
    """Of one decision. `change` is None without records."""

    done: AnyDone
    answer: object
    change: _Change | None


class _Answers(NamedTuple):
    """Answers to send once everything below `next_offset` is published."""

    next_offset: int
    answers: list[tuple[AnyDone, object]]


class QuorumController:
    """The metadata controller of a node with the controller role.

    It decides on an image with everything appended, committed or not; the next wake-up does not wait for the last one's commit. Answers
    keep the order of the requests and are sent once their records, or those that they are based on, are committed and in the published
    image. Requests of administrators are decided in the worker thread; later decisions wait, so the image does not change in between.
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
        self._long: Slice | None = None  # decisions in the worker thread
        self._in_worker: list[_Queued] = []  # what it decides
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
            aborted = [AbortTransactionRecord(reason="the controller changed")]
            self._append(_change(ImageBuilder(self.image, open_transaction), self._view(), aborted, self._now_ms()))
        if not self.image.features:
            formatted = [decode_record(value) for value in read_bootstrap(self._disk)]
            records = bootstrap_records(self._config, formatted)
            self._append(_change(ImageBuilder(self.image), self._view(), records, self._now_ms()))
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
        waiting += [queued.done for queued in (*self._in_worker, *self._queue)]
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
        self._long, self._in_worker = None, []

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
            in_worker = type(request) in ADMINISTRATION or is_long(request)
            allowed = authorized_decision(access.fixed() if in_worker else access, decide)
            permits, now_ms = self.mutations.permits(client), self._reactor.clock.now_ms()

            def decided(view: ClusterView) -> MetadataDecision[object]:
                return allowed(replace(view, permits=permits, principal=access.principal, now_ms=now_ms), request)

            self.submit(decided, done if permits is None else partial(_throttled, permits, done), in_worker=in_worker)

    def submit(
        self,
        decide: Callable[[ClusterView], MetadataDecision[A]],
        done: Done[A] = lambda answer: None,
        *,
        between: bool = False,
        in_worker: bool = False,
    ) -> None:
        """Queues a decision; it runs with all others that arrive within controller.quorum.append.linger.ms.

        `done` gets the answer once its records are committed and published, or the BrokerError that `decide` raises. `between`: the
        decision (a heartbeat) runs before all that wait, and during a long decision if it has no records: a session must not end because a
        client sends many requests. `in_worker`: it may take long, and touches nothing that the loop changes.
        """
        if not self.active:
            done(_not_controller(self._node_id))
            return
        # Heartbeats are before all others, and in order.
        ahead = sum(1 for _ in takewhile(lambda each: each.between, self._queue)) if between else len(self._queue)
        self._queue.insert(ahead, _Queued(decide, done, between, in_worker, self._reactor.clock.monotonic_ms()))
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
        left = UNITS_PER_SLICE
        while self._queue and left > 0:
            queued = self._queue.popleft()
            if queued.in_worker:
                self._decide_in_worker(queued)
                return
            began_ms = self._reactor.clock.monotonic_ms()
            view = self._view()
            decision = _decision(queued, view)
            if len(decision.records) > RECORDS_AT_ONCE:
                self._queue.appendleft(queued._replace(decide=_constant(decision), in_worker=True))
                continue
            self._take([_outcome(queued, decision, view, self._now_ms())])
            self._observe([queued], began_ms)
            left -= DECISION_UNITS + len(decision.records)
        if self._queue:
            self._flush_due = True
            self._reactor.next_turn(self._flush)

    def _decide_in_worker(self, first: _Queued) -> None:
        """Decides what waits for the worker thread, up to the first decision that does not."""
        group = [first]
        while self._queue and self._queue[0].in_worker:
            group.append(self._queue.popleft())
        began_ms = self._reactor.clock.monotonic_ms()
        view = replace(self._view(), config=self._config.fixed())

        def done(outcomes: list[_Outcome]) -> None:
            self._long, self._in_worker = None, []
            self._take(outcomes)
            self._observe(group, began_ms)
            self._flush()

        self._in_worker = group
        work = in_worker(partial(_decide_all, group, view, self._now_ms()))
        self._long = self._slices.start(work, done, self._on_failed)

    def _observe(self, group: list[_Queued], began_ms: int) -> None:
        if self.observer is not None:
            took_ms = self._reactor.clock.monotonic_ms() - began_ms
            for queued in group:
                self.observer.on_decision(began_ms - queued.since_ms, took_ms)

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
            if decision.records:
                kept.append(queued)
            else:
                answers.append((queued.done, decision.answer))
        self._queue = kept
        if answers:
            self._waiting.append(_Answers(self._quorum.log_end_offset, answers))
            self._answer(self._current.image)

    def _view(self) -> ClusterView:
        return ClusterView(
            self.image, self._config, self._reactor.rng.uuid, self._quorum.log_end_offset, epoch=self.epoch
        )

    def _on_failed(self, error: BaseException) -> None:
        self._long, self._in_worker = None, []
        raise error

    def _take(self, outcomes: Sequence[_Outcome]) -> None:
        """Appends the records of each decision as one batch, none if this node no longer leads. Then the answers wait."""
        answers = []
        for done, answer, change in outcomes:
            try:
                if change is not None:
                    self._append(change)
            except BrokerError as error:
                answer = error.with_traceback(None)
            answers.append((done, answer))
        self._waiting.append(_Answers(self._quorum.log_end_offset, answers))
        self._answer(self._current.image)

    def _append(self, change: _Change) -> None:
        last_offset = self._quorum.append(change.encoded)
        if last_offset != change.image.offset:
            raise InvariantViolated(f"records decided for offset {change.image.offset} are at {last_offset}")
        self.image = change.image
        if self.observer is not None:
            self._appended.append((last_offset, self._reactor.clock.monotonic_ms()))
        for remark in remarks_on_change(change.records):
            log.warning("Changed setting: %s", remark)

    def _now_ms(self) -> int:
        return self._reactor.clock.now_ms()

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


def _decide_all(group: Sequence[_Queued], view: ClusterView, now_ms: int) -> list[_Outcome]:
    """Each decision sees the records of those before it."""
    outcomes = []
    for queued in group:
        outcome = _outcome(queued, _decision(queued, view), view, now_ms)
        outcomes.append(outcome)
        if outcome.change is not None:
            image = outcome.change.image
            view = replace(view, image=image, next_offset=image.offset + 1)
    return outcomes


def _decision(queued: _Queued, view: ClusterView) -> MetadataDecision[object]:
    """With a BrokerError as answer if it is refused."""
    try:
        return queued.decide(view)
    except BrokerError as error:
        return MetadataDecision(error.with_traceback(None))
    except InvariantViolated:
        raise
    except Exception:  # a bug in one decision must not prevent the others' answers
        log.exception("Decision of the controller failed")
        return MetadataDecision(BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR))


def _constant(decision: MetadataDecision[object]) -> Decide:
    return lambda _view: decision


def _outcome(queued: _Queued, decision: MetadataDecision[object], view: ClusterView, now_ms: int) -> _Outcome:
    records = decision.records
    return _Outcome(
        queued.done, decision.answer, _change(ImageBuilder(view.image), view, records, now_ms) if records else None
    )


def _change(builder: ImageBuilder, view: ClusterView, records: Sequence[MetadataRecord], now_ms: int) -> _Change:
    values = []
    for record in records:
        values.append(NewRecord(None, encode_record(record), now_ms))
        builder.replay(record)
    builder.advance(view.next_offset + len(records) - 1, view.epoch, now_ms)
    return _Change(records, encode_records(values), builder.image())


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
        submit: Callable[..., None],
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
        self._submit(lambda view: expired_tokens(view.image, now_ms), self._removed, in_worker=True)

    def _removed(self, more: bool | BrokerError) -> None:
        if more is True:
            self._remove()
