"""Spark's writers: micro-batches and batch jobs to topics and files, optionally exactly once (`decisions`).

- `streamWriter()` runs on the driver before a batch's tasks. Spark pickles the writer, so `__getstate__` starts the
  batch.
- `write()` runs in each task: it reads the decision, then writes and prepares, or skips its input.
- `commit()` and `abort()` run on the driver, each in another process with its own writer. After a driver's death Spark
  repeats the batch whose commit it has not logged, under the same number.
- `write_batch()` runs on the driver within `foreachBatch`: it starts the batch, runs a job per frame, and commits.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import pickle
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from barnabas.client import ConsumerGroupMetadata, OffsetAndMetadata, Producer
from barnabas.client.net.cluster import NetworkClient
from barnabas.pipeline import decisions
from barnabas.pipeline.connection import connected
from barnabas.pipeline.decision_record import BatchDecision, PreparedPart, SlotMark, TransactionSlot
from barnabas.pipeline.decisions import BatchStart, TaskMessage, TaskName
from barnabas.pipeline.errors import PipelineError, cause_first
from barnabas.pipeline.file_sink import FileSink
from barnabas.pipeline.sink_options import (
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    OUTPUT_OPTIONS,
    PER_PARTITION,
    RECORD_COLUMNS,
    SinkOptions,
    check_columns,
)
from barnabas.pipeline.sink_reports import NOTHING, SinkReport, send
from barnabas.pipeline.table_sink import DeltaSink, IcebergSink
from barnabas.pipeline.topic_rows import TopicRows
from barnabas.pipeline.topic_sink import TIMEOUT_MS, OpenEndedProducer, TopicSink, transactions_of
from barnabas.pipeline.transaction_requests import POSITION, TransactionRequests
from barnabas.pipeline.two_phase_commit import CommitCoordinator, Part, Task, TwoPhaseCommitSink
from barnabas.runtime import loop
from barnabas.runtime.clock import SystemClock

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

log = logging.getLogger("barnabas.pipeline")

_BATCH_QUERY = "batch"  # the query in decisions of batch jobs, which have none
_written: dict[str, tuple[str | None, int]] = {}  # run and batch of the last `write_batch` of a sink id in this process
_PARTITIONS_OF_FRAME = 1 << 20  # each frame of a batch has its own range of partition numbers
_CONNECT_TIMEOUT_MS = 15_000
_TOPIC_TIMEOUT_MS = 10_000
# Spark kills the worker of a task two seconds after its stop request (spark.python.task.killTimeout).
_STRAGGLER_MS = 3_000
_STRAGGLER_POLL_S = 0.25


def batch_writer(given: Mapping[str, str], schema: StructType) -> DataSourceWriter:
    return BatchSink(SinkOptions.parse(given, streaming=False), _columns(schema))


def stream_writer(given: Mapping[str, str], schema: StructType) -> DataSourceStreamWriter:
    return StreamSink(SinkOptions.parse(given, streaming=True), _columns(schema))


def _columns(schema: StructType) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]


@dataclasses.dataclass(frozen=True)
class SinkMessage(WriterCommitMessage):
    """Message of a task to its driver. `task` is None for a delivery without a decision."""

    rows: int
    task: TaskMessage | None = None
    begun: SinkReport = NOTHING  # of the start of the batch, for the report of its commit


class _Sink:
    """Base class of both writers."""

    def __init__(self, options: SinkOptions, columns: list[tuple[str, str]]) -> None:
        check_columns(options, columns)
        self.options = options
        names = [name for name, _ in columns]
        self.record_columns = [name for name in names if name.lower() in RECORD_COLUMNS]
        self.file_columns = [name for name in names if name.lower() not in RECORD_COLUMNS] or names
        self.to_topics = options.topic is not None or any(name.lower() == "topic" for name in names)
        self.start: BatchStart | None = None
        self.two_phase = False
        self.transaction_timeout_ms = TIMEOUT_MS
        self.batch = 0  # number of the batch in a batch job
        self.query: str | None = None
        self.outputs: Sequence[_Sink] = (self,)  # the writers whose parts one decision covers
        self._started = False
        self.begun = NOTHING

    @cause_first()
    def __getstate__(self) -> dict[str, Any]:
        """Starts the batch, once: Spark pickles the writer on the driver, for the tasks of one batch."""
        if not self._started:
            loop.run(self._start())
            self._started = True
        return self.__dict__

    # -- the driver ----------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        async with self.connected() as cluster:
            for output in self.outputs:
                wanted = output.options
                for option, topic in (("topic", wanted.topic), ("dead.letter.topic", wanted.dead_topic)):
                    if topic is not None:
                        await _check_topic(cluster, option, topic)
            if self.options.delivery == AT_LEAST_ONCE:
                return
            requests = TransactionRequests(cluster)
            await self._agree_on_transactions(requests)
            if self.options.delivery == PER_PARTITION:
                return
            coordinator = self.coordinator(requests)
            query = self._query()
            if query is not None:  # before the start, which fences off the present user of the sink id
                decisions.check_owner(await coordinator.read_decision(stable=False), query, self.options.sink_id)
            since = cluster.clock.monotonic_ms()
            self.start = await coordinator.start_batch()
            self.begun = SinkReport(start=cluster.clock.monotonic_ms() - since, aborted=coordinator.aborted)

    def _query(self) -> str | None:
        """The id of the query, if it is known on the driver: Spark passes it to tasks only, and to foreachBatch."""
        if self.query is not None or self.options.checkpoint is None:
            return self.query
        try:
            found = json.loads(Path(self.options.checkpoint, "metadata").read_bytes())
        except (OSError, ValueError):
            return None
        return str(found["id"]) if isinstance(found, dict) and "id" in found else None

    async def _agree_on_transactions(self, requests: TransactionRequests) -> None:
        options, offered = self.options, await transactions_of(requests)
        wanted = offered.two_phase if options.two_phase is None else options.two_phase
        self.two_phase = wanted and options.delivery == EXACTLY_ONCE
        self.transaction_timeout_ms = options.transaction_timeout_ms or min(TIMEOUT_MS, offered.timeout_ms_max)
        if not self.two_phase and self.transaction_timeout_ms > offered.timeout_ms_max:
            remedy = f"set it to {offered.timeout_ms_max} at most, or raise transaction.max.timeout.ms of the brokers"
            value = self.transaction_timeout_ms
            raise PipelineError("transaction.timeout.ms", value, remedy, "is above what the brokers allow")

    async def _commit(self, batch: int, messages: Iterable[Any]) -> None:
        messages = list(messages)
        tasks = _tasks(messages)
        async with self.connected() as cluster:
            coordinator = self.coordinator(TransactionRequests(cluster))
            since = cluster.clock.monotonic_ms()
            decision: BatchDecision = await coordinator.commit_batch(batch, tasks)
            done = cluster.clock.monotonic_ms()
        log.info("sink %s: batch %d is committed: %s", self.options.sink_id, batch, decision)
        if tasks:
            begun = next(m.begun for m in messages if isinstance(m, SinkMessage))
            decided = coordinator.decided_ms or since
            aborted = begun.aborted + coordinator.aborted
            send(tasks[0].query, SinkReport(batch, begun.start, decided - since, done - decided, aborted))

    async def _abort(self, batch: int, messages: Sequence[Any]) -> None:
        """Aborts a batch, repeatedly while tasks without message may run and begin transactions."""
        tasks = _tasks(messages)
        clock = SystemClock()
        until_ms = clock.monotonic_ms() + (_STRAGGLER_MS if None in messages else 0)
        async with self.connected() as cluster:
            coordinator = self.coordinator(TransactionRequests(cluster))
            while True:
                await coordinator.abort_batch(batch, tasks, self.start.driver if self.start is not None else None)
                if clock.monotonic_ms() >= until_ms:
                    break
                await asyncio.sleep(_STRAGGLER_POLL_S)
        query = tasks[0].query if tasks else self._query()
        if query is not None:
            send(query, SinkReport(batch, aborted=coordinator.aborted))

    def coordinator(self, requests: TransactionRequests) -> CommitCoordinator:
        options = self.options
        timeout_ms = 0 if self.two_phase else self.transaction_timeout_ms
        return CommitCoordinator(
            options.sink_id,
            requests,
            self.participants(requests),
            forgotten=options.forgotten,
            slot_timeout_ms=timeout_ms,
        )

    # -- tasks ---------------------------------------------------------------------------------------------------------

    async def _write(self, batches: Iterator[pa.RecordBatch], task: TaskName, batch: int, query: str) -> SinkMessage:
        delivery = self.options.delivery
        if delivery == AT_LEAST_ONCE:
            return await self._write_at_least_once(batches, task)
        if delivery == PER_PARTITION:
            return await self._write_per_partition(batches, task, batch, query)
        return await self._write_exactly_once(batches, task, batch, query)

    async def _write_exactly_once(
        self, batches: Iterator[pa.RecordBatch], name: TaskName, batch: int, query: str
    ) -> SinkMessage:
        options, start = self.options, self.start
        if start is None:
            raise PipelineError("delivery", EXACTLY_ONCE, "report this", "has not begun the batch on the driver")
        async with self.connected() as cluster:
            requests = TransactionRequests(cluster)
            coordinator = self.coordinator(requests)
            if not decisions.admitted(start.decision, batch, query, options.sink_id, adopt=options.adopt):
                rows = sum(each.num_rows for each in batches)
                log.info("sink %s: batch %d is already decided, %d rows are skipped", options.sink_id, batch, rows)
                return SinkMessage(rows, TaskMessage(start.driver, query, ()), self.begun)
            task = Task(options.sink_id, start, name, batch, query)
            writing = _Writing(self, list(coordinator.participants.values()), task, name.partition)
            try:
                for each in batches:
                    await writing.write(each)
                handles = await writing.pre_commit()
                if handles and decisions.superseded(await coordinator.read_decision(), batch):
                    for handle in handles:
                        await coordinator.participants[handle.participant].abort(handle)
                    raise PipelineError("sink.id", options.sink_id, "no action is needed", "was written by a twin task")
            except BaseException:
                await writing.discard()
                raise
            return SinkMessage(writing.rows, TaskMessage(start.driver, query, handles, writing.slot), self.begun)

    async def _write_per_partition(
        self, batches: Iterator[pa.RecordBatch], task: TaskName, batch: int, query: str
    ) -> SinkMessage:
        options = self.options
        rows = self.topic_rows(task.partition)
        producer = OpenEndedProducer(
            transactional_id=f"{options.sink_id}.slot.{task.partition}",
            transaction_timeout_ms=self.transaction_timeout_ms,
            **options.producer_settings(),
        )
        # Fences earlier attempts, then reads what they have committed.
        async with producer, self.connected() as cluster:
            found = await TopicSink(options.sink_id, requests=TransactionRequests(cluster)).read_slot(
                task.partition, stable=True
            )
            if not decisions.slot_state(found, batch, query, options.sink_id):
                return SinkMessage(sum(each.num_rows for each in batches))
            async with producer.transaction():
                for each in batches:
                    await rows.send(producer, each.select(self.record_columns))
                mark = SlotMark(batch + 1, query, producer.identity)
                group = ConsumerGroupMetadata(decisions.slot_group_id(options.sink_id, task.partition))
                await producer.send_offsets({POSITION: OffsetAndMetadata(batch + 1, mark.encode())}, group)
        return SinkMessage(rows.count)

    async def _write_at_least_once(self, batches: Iterator[pa.RecordBatch], task: TaskName) -> SinkMessage:
        rows = self.topic_rows(task.partition)
        async with Producer(**self.options.producer_settings()) as producer:
            for each in batches:
                await rows.send(producer, each.select(self.record_columns))
            await rows.finish(producer)
        return SinkMessage(rows.count)

    # -- parts of the sink ---------------------------------------------------------------------------------------------

    def participants(self, requests: TransactionRequests) -> list[TwoPhaseCommitSink]:
        return [participant for output in self.outputs for participant in output.own_participants(requests)]

    def own_participants(self, requests: TransactionRequests) -> list[TwoPhaseCommitSink]:
        options = self.options
        found: list[TwoPhaseCommitSink] = []
        if self.to_topics:
            found.append(
                TopicSink(
                    options.sink_id,
                    requests=requests,
                    rows=self.topic_rows,
                    producer=options.producer_settings(),
                    two_phase=self.two_phase,
                    transaction_timeout_ms=self.transaction_timeout_ms,
                )
            )
        if options.files_path is not None:
            found.append(FileSink(options.sink_id, options.files_path))
        if options.delta_path is not None:
            found.append(DeltaSink(options.sink_id, options.delta_path))
        if options.iceberg_table is not None:
            found.append(IcebergSink(options.sink_id, options.iceberg_table, options.iceberg_catalog))
        return found

    def topic_rows(self, partition: int = 0) -> TopicRows:
        options = self.options
        return TopicRows(
            options.topic,
            SystemClock(),
            spread=partition,
            dead_topic=options.dead_topic,
            request_bytes_max=options.max_request_size,
        )

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[NetworkClient]:
        """Connects to the cluster for the block. Raises PipelineError."""
        cluster = await connected(self.options.client, auto_create_topics=True, timeout_ms=_CONNECT_TIMEOUT_MS)
        try:
            yield cluster
        finally:
            await cluster.close()


class _Writing:
    """Parts of one task; they begin with the first row."""

    def __init__(self, sink: _Sink, participants: list[TwoPhaseCommitSink], task: Task, spread: int) -> None:
        self.rows = 0
        self.slot: TransactionSlot | None = None
        self._sink = sink
        self._participants = participants
        self._task = task
        self._parts: list[tuple[TwoPhaseCommitSink, Part, list[str]]] = []

    async def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        if not self._parts:
            for participant in self._participants:
                columns = self._sink.record_columns if isinstance(participant, TopicSink) else self._sink.file_columns
                self._parts.append((participant, await participant.begin(self._task), columns))
        for _, part, columns in self._parts:
            await part.write(batch.select(columns))
        self.rows += batch.num_rows

    async def pre_commit(self) -> tuple[PreparedPart, ...]:
        handles = []
        for participant, part, _ in self._parts:
            handles.append(await participant.pre_commit(part))
            self.slot = self.slot or part.slot
            await part.close()
        return tuple(handles)

    async def discard(self) -> None:
        """Aborts the parts as far as possible; the start of the next batch aborts the others."""
        for participant, part, _ in self._parts:
            try:
                await part.close()
                await participant.abort(part.handle)
            except Exception as error:
                log.warning("a failed task leaves %s open: %s", part.handle.key, error)


class StreamSink(_Sink, DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query."""

    @cause_first()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkMessage:
        context = TaskContext.get()
        if context is None:
            raise PipelineError("format", "barnabas", "let Spark call it", "is written outside a task")
        batch = int(context.getLocalProperty("streaming.sql.batchId") or -1)
        query = context.getLocalProperty("sql.streaming.queryId") or ""
        return loop.run(self._write(iterator, _task_name(context), batch, query))

    @cause_first()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if self.options.delivery == EXACTLY_ONCE:
            loop.run(self._commit(batchId, messages))

    @cause_first()
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if self.options.delivery == EXACTLY_ONCE:
            loop.run(self._abort(batchId, messages))


class BatchSink(_Sink, DataSourceArrowWriter):
    """Writes a frame in one job."""

    async def _start(self) -> None:
        await super()._start()
        if self.start is not None:
            decision = self.start.decision
            self.batch = 0 if decision is None else decision.next_batch
            decisions.admitted(decision, self.batch, _BATCH_QUERY, self.options.sink_id)

    @cause_first()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkMessage:
        context = TaskContext.get()
        if context is None:
            raise PipelineError("format", "barnabas", "let Spark call it", "is written outside a task")
        return loop.run(self._write(iterator, _task_name(context), self.batch, _BATCH_QUERY))

    @cause_first()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if self.options.delivery == EXACTLY_ONCE:
            loop.run(self._commit(self.batch, messages))

    @cause_first()
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if self.options.delivery == EXACTLY_ONCE:
            loop.run(self._abort(self.batch, messages))


class _FrameSink(_Sink):
    """Writes one frame of `write_batch`."""

    def task(self, number: int, batch: int, driver: _Sink) -> Callable[[Iterator[pa.RecordBatch]], Iterator[Any]]:
        """The function of the frame's tasks. Each yields its SinkMessage as one row."""
        self.start, self.begun, self._started = driver.start, driver.begun, True
        self.two_phase, self.transaction_timeout_ms = driver.two_phase, driver.transaction_timeout_ms
        query = driver.query or ""

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa

            context = TaskContext.get()
            if context is None:
                raise PipelineError("outputs", None, "let Spark call it", "are written outside a task")
            name = TaskName(number * _PARTITIONS_OF_FRAME + context.partitionId(), context.taskAttemptId())
            with cause_first():
                message = loop.run(self._write_exactly_once(batches, name, batch, query))
            yield pa.RecordBatch.from_pydict({"message": [pickle.dumps(message)]})

        return write


def write_batch(batch: int, options: Mapping[str, str], *outputs: tuple[DataFrame, Mapping[str, str]]) -> None:
    """Writes the frames of a micro-batch exactly once, under one decision. Called in `foreachBatch` with its batch id.

    If this batch of the query is written already, it completes what a killed driver left, and runs no job.

    Args:
        batch: Spark's batch id.
        options: options of the sink for all outputs; `sink.id` is required.
        outputs: frames with their own options, OUTPUT_OPTIONS. A frame is computed once.

    Raises:
        PipelineError, DriverReplaced, HalfCommitted: as the sink of a stream.
    """
    if not outputs:
        raise PipelineError("outputs", None, "give pairs of a frame and its options", "are missing")
    for name in [name for _, own in outputs for name in own if not name.lower().startswith(OUTPUT_OPTIONS)]:
        raise PipelineError(name, None, "set it in the options of all outputs", "is not of one output")
    sinks = []
    for frame, own in outputs:
        parsed = SinkOptions.parse({**options, **own, "delivery": EXACTLY_ONCE}, streaming=False)
        sinks.append(_FrameSink(parsed, _columns(frame.schema)))
    driver = _Sink(sinks[0].options, _columns(outputs[0][0].schema))
    driver.outputs = sinks
    context = outputs[0][0].sparkSession.sparkContext
    driver.query = context.getLocalProperty("sql.streaming.queryId") or _BATCH_QUERY
    sink_id, run = driver.options.sink_id, context.getLocalProperty("spark.jobGroup.id")  # a stream's run id
    if run is not None and _written.get(sink_id) == (run, batch):  # would be taken for a repeated batch
        remedy = "write all frames of a batch by one call, or by calls with different sink ids"
        raise PipelineError("sink.id", sink_id, remedy, f"has written batch {batch} in this run")
    loop.run(driver._start())
    decision = driver.start.decision if driver.start is not None else None
    if decisions.admitted(decision, batch, driver.query, sink_id, adopt=driver.options.adopt):
        messages: list[SinkMessage | None] = []
        try:
            for number, (sink, (frame, _)) in enumerate(zip(sinks, outputs, strict=True)):
                rows = frame.mapInArrow(sink.task(number, batch, driver), "message binary").collect()
                messages += [pickle.loads(row.message) for row in rows]
            loop.run(driver._commit(batch, messages))
        except BaseException:
            loop.run(driver._abort(batch, [*messages, None]))  # killed tasks have sent no message
            raise
    else:
        log.info("sink %s: batch %d is already decided", sink_id, batch)
    _written[sink_id] = run, batch


def _task_name(context: TaskContext) -> TaskName:
    return TaskName(context.partitionId(), context.taskAttemptId())


def _tasks(messages: Iterable[Any]) -> list[TaskMessage]:
    return [m.task for m in messages if isinstance(m, SinkMessage) and m.task is not None]


async def _check_topic(cluster: NetworkClient, option: str, topic: str) -> None:
    """Waits until the topic exists; the request may create it. Raises PipelineError."""
    cluster.add_topics([topic])
    deadline = cluster.clock.monotonic_ms() + _TOPIC_TIMEOUT_MS
    while not cluster.metadata.partition_count(topic):
        info = cluster.metadata.topics.get(topic)
        refused = info is not None and info.error and not info.error.retriable
        if refused or not await cluster.changed(deadline):
            reason = info.error.name if info is not None else "no metadata"
            raise PipelineError(option, topic, f"create it: barnabas topic create {topic}", f"is not there ({reason})")
