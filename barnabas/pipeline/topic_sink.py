"""TopicSink: participant that writes to topics, with one transaction per task, which stays open after the task.
It is prepared with two-phase commit (KIP-939), else subject to `transaction_timeout_ms`; a driver ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from barnabas.client import ConsumerGroupMetadata, OffsetAndMetadata, PreparedTransaction, Producer
from barnabas.client.errors import KafkaError, TransactionFailed, UnsupportedByBroker
from barnabas.errors import InvariantViolated
from barnabas.pipeline import decisions
from barnabas.pipeline.decision_record import BatchDecision, Identity, PreparedPart, SlotMark, TransactionSlot
from barnabas.pipeline.decisions import BatchStart, CommitResult, EndTransaction, ReadSlot
from barnabas.pipeline.errors import PipelineError
from barnabas.pipeline.transaction_requests import POSITION, TransactionRequests
from barnabas.pipeline.two_phase_commit import Part, Task, TwoPhaseCommitSink, drive
from barnabas.protocol.messages.admin import DescribeConfigsRequest, DescribeConfigsResource

if TYPE_CHECKING:
    import pyarrow as pa

    from barnabas.pipeline.topic_rows import TopicRows

TIMEOUT_MS = 900_000  # default transaction timeout: the brokers' default of transaction.max.timeout.ms
_TICKET_TIMEOUT_MS = 60_000  # without effect: the id has no transactions
_BROKER = 4  # resource type of DescribeConfigs
_TWO_PHASE = "transaction.two.phase.commit.enable"
_TIMEOUT_MAX = "transaction.max.timeout.ms"


class OpenEndedProducer(Producer):
    """A producer whose transaction stays open after it, also without two-phase commit (with its timeout).

    `slot`: its transactional id and identity; the producer then sends no InitProducerId.
    """

    def __init__(self, slot: TransactionSlot | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self._slot = slot

    def _initialize(self) -> None:
        if self._slot is None:
            super()._initialize()
        else:
            self._delivery.resume(*self._slot.identity)

    async def prepare(self) -> PreparedTransaction:
        """As Producer.prepare, on every cluster."""
        self._check_transactional()
        return await self._prepare()

    @property
    def identity(self) -> Identity:
        return Identity(self._txn.producer_id, self._txn.producer_epoch)


class TopicPart(Part):
    """Transaction of one task."""

    def __init__(
        self,
        task: Task,
        producer: OpenEndedProducer,
        rows: TopicRows,
        name: str,
        participant: str,
        ticket: Identity | None,
    ) -> None:
        self.task = task
        self.producer = producer
        self.rows = rows
        self.ticket = ticket
        self.handle = PreparedPart(participant, name, str(producer.identity), 0)

    async def write(self, batch: pa.RecordBatch) -> None:
        await self.rows.send(self.producer, batch)

    async def close(self) -> None:
        await self.producer.stop()  # aborts the transaction if it is not prepared


class TopicSink(TwoPhaseCommitSink):
    """The participant that writes to topics.

    Args:
        sink_id: id of the sink.
        requests: sends requests to the cluster; None in tasks that only begin and prepare, and reuse no ids.
        rows: creates the TopicRows of a part; None on the driver.
        producer: settings of the producers, as in barnabas.client.Producer.
        two_phase: whether the cluster has two-phase commit (KIP-939).
        transaction_timeout_ms: timeout of transactions without two-phase commit.
    """

    name = "topics"

    def __init__(
        self,
        sink_id: str,
        *,
        requests: TransactionRequests | None = None,
        rows: Callable[[], TopicRows] | None = None,
        producer: dict[str, Any] | None = None,
        two_phase: bool = True,
        transaction_timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        self.sink_id = sink_id
        self._requests = requests
        self._rows = rows
        self._settings = producer or {}
        self._two_phase = two_phase
        self._timeout_ms = transaction_timeout_ms

    # -- tasks ---------------------------------------------------------------------------------------------------------

    async def begin(self, task: Task) -> TopicPart:
        if self._rows is None:
            raise InvariantViolated("a TopicSink without rows cannot begin a part")
        slot, ticket = await self._claim(task)
        name = slot.key if slot is not None else decisions.task_id(self.sink_id, task.start, task.name)
        producer = OpenEndedProducer(
            slot,
            transactional_id=name,
            two_phase_commit=self._two_phase,
            transaction_timeout_ms=self._timeout_ms,
            **self._settings,
        )
        try:
            await producer.start()
        except UnsupportedByBroker as error:
            remedy = "set two.phase.commit = false, or enable transaction.two.phase.commit.enable on all brokers"
            raise PipelineError("two.phase.commit", "true", remedy, "is not offered by the cluster") from error
        try:
            await producer.begin_transaction()
        except BaseException:
            await producer.stop()
            raise
        return TopicPart(task, producer, self._rows(), name, self.name, ticket)

    async def _claim(self, task: Task) -> tuple[TransactionSlot | None, Identity | None]:
        """Takes a ticket, and with it the slot if this is the first attempt to do so (see `decisions`)."""
        if task.start.slots is None or await self._need().version() < 2:
            return None, None
        name = decisions.ticket_id(self.sink_id, task.name.partition)
        ticket = await self._need().fence(name, transaction_timeout_ms=_TICKET_TIMEOUT_MS)
        return decisions.slot_for(task.start, task.name.partition, ticket), ticket

    async def pre_commit(self, part: Part) -> PreparedPart:
        if not isinstance(part, TopicPart):
            raise InvariantViolated("a part of another participant")
        task, producer = part.task, part.producer
        await part.rows.finish(producer)
        identity = producer.identity
        mark = SlotMark(task.batch + 1, task.query, identity)
        group = decisions.slot_group_id(self.sink_id, task.name.partition)
        offset = OffsetAndMetadata(mark.next_batch, mark.encode())
        await producer.send_offsets({POSITION: offset}, ConsumerGroupMetadata(group))
        prepared = await producer.prepare()
        if Identity(*prepared) != identity:
            raise TransactionFailed(f"the transaction changed hands: {identity} became {prepared}")
        part.handle = PreparedPart(self.name, part.handle.key, str(identity), part.rows.count)
        if part.ticket is not None:
            timeout_ms = 0 if self._two_phase else self._timeout_ms
            part.slot = decisions.next_slot(part.handle.key, identity, part.ticket, timeout_ms)
        return part.handle

    # -- the driver ----------------------------------------------------------------------------------------------------

    async def commit(self, handle: PreparedPart, decision: BatchDecision) -> CommitResult:
        identity = Identity.parse(handle.token)
        return await drive(decisions.commit_transaction(handle.key, identity, decision.next_batch), self._perform)

    async def _perform(self, effect: Any) -> Any:
        if isinstance(effect, EndTransaction):
            return await self._need().end(effect.transactional_id, effect.identity, commit=True, decided=True)
        if isinstance(effect, ReadSlot):
            return await self.read_slot(effect.partition, stable=False)
        raise InvariantViolated(f"no code performs the effect {effect!r} of the protocol")

    async def abort(self, handle: PreparedPart) -> None:
        await self._need().end(handle.key, Identity.parse(handle.token), commit=False)

    async def list_open(self, start: BatchStart | None = None) -> Sequence[PreparedPart]:
        listed = [
            PreparedPart(self.name, name, str(identity), 0)
            for name, identity in await self._need().list_open(f"{self.sink_id}.")
            if decisions.is_own_id(self.sink_id, name)
        ]
        return [part for part in listed if start is None or decisions.is_of_start(self.sink_id, start, part)]

    async def read_slot(self, partition: int, *, stable: bool) -> SlotMark | None:
        """The committed slot mark of a partition."""
        found = await self._need().read_offset(decisions.slot_group_id(self.sink_id, partition), stable=stable)
        return None if found is None else SlotMark.decode(*found)

    def _need(self) -> TransactionRequests:
        if self._requests is None:
            raise InvariantViolated("a TopicSink without requests cannot commit, abort or list")
        return self._requests


class ClusterTransactions(NamedTuple):
    """Transaction features of a cluster."""

    two_phase: bool  # prepared transactions have no timeout (KIP-939)
    timeout_ms_max: int  # longest timeout of other transactions


async def transactions_of(requests: TransactionRequests) -> ClusterTransactions:
    """Features that all reachable brokers support. Raises KafkaError without any."""
    cluster = requests.cluster
    two_phase = await requests.version() >= 2
    timeout_ms_max = 2**31 - 1
    away: KafkaError | None = None
    answered = 0
    for node_id in sorted(cluster.metadata.brokers):
        resource = DescribeConfigsResource(
            resource_type=_BROKER, resource_name=str(node_id), configuration_keys=[_TWO_PHASE, _TIMEOUT_MAX]
        )
        try:
            answer = await cluster.request(DescribeConfigsRequest(resources=[resource]), node_id=node_id)
        except KafkaError as error:
            if not error.retriable:
                raise
            away = error
            continue
        answered += 1
        found = {config.name: config.value for config in answer.results[0].configs}
        two_phase = two_phase and found.get(_TWO_PHASE) == "true"
        timeout_ms_max = min(timeout_ms_max, int(found.get(_TIMEOUT_MAX) or timeout_ms_max))
    if away is not None and not answered:
        raise away
    return ClusterTransactions(two_phase, timeout_ms_max)
