"""The exactly-once copy as a process of its own, by each client: librdkafka, aiokafka, and the bundled one.

Called as `python -m tests.support.processes.copiers CLIENT BOOTSTRAP SOURCE TARGET NAME RECORDS [SESSION_MS]`. Copies
partition by partition what it reads, RECORDS at most a transaction, until it is killed; told by SIGTERM it leaves its
group and ends. NAME is both the group and the transactional id. Prints one line of JSON a committed transaction: whose,
when (monotonic seconds), records copied so far, transactions committed and aborted. An error that aborting and reading
again cannot mend ends the process with code 3 and a line that names it: a supervisor begins anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, TextIO, TypeVar

from barnabas.client.types import GroupProtocol
from tests.support.clients.librdkafka import place_of

T = TypeVar("T")

POLL_SECONDS = 0.1
CALL_SECONDS = 30.0
SESSION_MS = 6_000  # a killed process is missed for so long
FATAL = 3


@dataclass(frozen=True)
class Job:
    """What one copier does.

    Attributes:
        records_max: of one transaction.
        protocol: of the group, "classic" or "consumer" (KIP-848).
        session_ms: session timeout of a classic member; for KIP-848 the broker sets it.
        transaction_ms: after so long without an end the coordinator aborts a transaction.
        offsets_are_there: the group has committed offsets; a member that finds none gives up.
    """

    bootstrap: str
    source: str
    target: str
    group: str
    transactional_id: str
    records_max: int
    protocol: GroupProtocol = "classic"
    session_ms: int = SESSION_MS
    transaction_ms: int = 60_000
    offsets_are_there: bool = False


def tell(line: str, stream: TextIO = sys.stderr) -> None:
    """Prints one line and flushes."""
    stream.write(line + "\n")
    stream.flush()


class Progress:
    """What one process has done; prints each transaction."""

    def __init__(self) -> None:
        self.records = 0
        self.committed = 0
        self.aborted = 0

    def commit(self, records: int) -> None:
        self.records += records
        self.committed += 1
        line = {
            "pid": os.getpid(),
            "at": time.monotonic(),
            "records": self.records,
            "committed": self.committed,
            "aborted": self.aborted,
        }
        tell(json.dumps(line), sys.stdout)


def copy_by_librdkafka(job: Job) -> None:
    """confluent-kafka: subscribe, and one producer with group metadata (KIP-447)."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition

    leaving: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: leaving.append(number))
    quick: dict[str, Any] = {
        "log_level": 0,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 500,
        "retry.backoff.ms": 20,
    }
    # Without a broker, librdkafka 2.11 to 2.16 forgets all brokers, and then waits forever for a coordinator among the
    # forgotten ones (confluentinc/librdkafka#5511), unless it is told not to begin anew.
    quick["metadata.recovery.strategy"] = "none"
    classic = {"session.timeout.ms": job.session_ms, "heartbeat.interval.ms": job.session_ms // 5}
    consumer = Consumer(
        {
            "bootstrap.servers": job.bootstrap,
            "group.id": job.group,
            "group.protocol": job.protocol,
            **(classic if job.protocol == "classic" else {}),
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "error" if job.offsets_are_there else "earliest",
            **quick,
        }
    )
    producer = Producer(
        {
            "bootstrap.servers": job.bootstrap,
            "transactional.id": job.transactional_id,
            "transaction.timeout.ms": job.transaction_ms,
            "linger.ms": 2,
            **quick,
        }
    )
    progress = Progress()

    def patiently(call: Callable[[], T]) -> T:
        """Repeats the call while its error is temporary."""
        deadline = time.monotonic() + CALL_SECONDS * 2
        while True:
            try:
                return call()
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise
            time.sleep(0.01)

    def start_over() -> None:
        patiently(lambda: producer.abort_transaction(CALL_SECONDS))
        progress.aborted += 1
        assigned = consumer.assignment()
        if not assigned:
            return
        deadline = time.monotonic() + CALL_SECONDS * 2
        while True:
            try:
                committed = consumer.committed(assigned, 5)
                if all(tp.error is None for tp in committed):
                    break
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.05)
        for tp in committed:
            offset = tp.offset if tp.offset >= 0 else OFFSET_BEGINNING
            patiently(partial(consumer.seek, TopicPartition(tp.topic, tp.partition, offset)))

    patiently(lambda: producer.init_transactions(CALL_SECONDS))
    consumer.subscribe([job.source])
    while not leaving:
        messages = []
        for message in consumer.consume(job.records_max, POLL_SECONDS):
            refusal = message.error()
            if refusal is None:
                messages.append(message)
            elif refusal.fatal() or refusal.name() == "_AUTO_OFFSET_RESET":
                raise KafkaException(refusal)
        if not messages:
            continue
        try:
            producer.begin_transaction()
            for message in messages:
                producer.produce(job.target, message.value(), message.key(), partition=place_of(message)[1])
            places = (place_of(message) for message in messages)
            ends = {(topic, partition): offset + 1 for topic, partition, offset in places}
            offsets = [TopicPartition(topic, partition, end) for (topic, partition), end in ends.items()]
            metadata = consumer.consumer_group_metadata()
            patiently(partial(producer.send_offsets_to_transaction, offsets, metadata, CALL_SECONDS))
            patiently(lambda: producer.commit_transaction(CALL_SECONDS))
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            tell(f"aborts: {error}")
            start_over()
        else:
            progress.commit(len(messages))
    consumer.close()


async def copy_by_aiokafka(job: Job) -> None:
    """aiokafka: subscribe. Its transactions name groups without the member, so a former member is not fenced."""
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.errors import IllegalOperation, KafkaError, OutOfOrderSequenceNumber, ProducerFenced

    consumer = AIOKafkaConsumer(
        job.source,
        bootstrap_servers=job.bootstrap,
        group_id=job.group,
        session_timeout_ms=job.session_ms,
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        retry_backoff_ms=20,
    )
    producer = AIOKafkaProducer(
        bootstrap_servers=job.bootstrap,
        transactional_id=job.transactional_id,
        transaction_timeout_ms=job.transaction_ms,
        linger_ms=2,
        retry_backoff_ms=20,
    )
    progress = Progress()
    async with consumer, producer:
        while True:
            polled = await consumer.getmany(timeout_ms=int(POLL_SECONDS * 1000), max_records=job.records_max)
            if not polled:
                continue
            try:
                async with producer.transaction():
                    sent = [
                        await producer.send(job.target, record.value, record.key, partition=record.partition)
                        for records in polled.values()
                        for record in records
                    ]
                    offsets = {tp: records[-1].offset + 1 for tp, records in polled.items()}
                    await producer.send_offsets_to_transaction(offsets, job.group)
                    for future in sent:
                        await future
            except (ProducerFenced, OutOfOrderSequenceNumber, IllegalOperation):
                raise
            except KafkaError as error:
                tell(f"aborts: {error!r}")
                progress.aborted += 1
                await consumer.seek_to_committed()
            else:
                progress.commit(len(sent))


async def copy_by_barnabas(job: Job) -> None:
    """The bundled client and its own loop."""
    from barnabas.client import Consumer, CopyProgress, NewMessage, Producer, Record, exactly_once

    def transform(record: Record[Any, Any]) -> Iterable[NewMessage]:
        yield NewMessage(job.target, record.value, key=record.key, partition=record.partition)

    told = Progress()

    async def on_transaction(progress: CopyProgress) -> bool:
        told.aborted = progress.aborted
        if progress.committed > told.committed:
            told.commit(progress.records_out - told.records)
        return False

    async with (
        Consumer(
            job.source,
            bootstrap_servers=job.bootstrap,
            group_id=job.group,
            group_protocol=job.protocol,
            session_timeout_ms=job.session_ms,
            heartbeat_interval_ms=job.session_ms // 5,
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="none" if job.offsets_are_there else "earliest",
        ) as consumer,
        Producer(
            bootstrap_servers=job.bootstrap,
            transactional_id=job.transactional_id,
            transaction_timeout_ms=job.transaction_ms,
            linger_ms=2,
        ) as producer,
    ):
        await exactly_once(
            consumer,
            producer,
            transform,
            transaction_records_max=job.records_max,
            poll_timeout_ms=int(POLL_SECONDS * 1000),
            on_transaction=on_transaction,
        )


CLIENTS: dict[str, Callable[[Job], Any]] = {
    "librdkafka": copy_by_librdkafka,
    "aiokafka": copy_by_aiokafka,
    "barnabas": copy_by_barnabas,
}


async def until_told(work: Coroutine[Any, Any, None]) -> None:
    """Runs until SIGTERM, then cancels the copy, which leaves the group."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


def copy(client: str, job: Job) -> int:
    """Copies until SIGTERM or a fatal error; returns the exit code of the process."""
    faulthandler.register(signal.SIGUSR1)  # where is it stuck?
    try:
        work = CLIENTS[client](job)
        if work is not None:
            asyncio.run(until_told(work))
    except Exception as error:
        tell(f"gives up: {error!r}")
        return FATAL
    return 0


def main(
    client: str,
    bootstrap: str,
    source: str,
    target: str,
    name: str,
    records_max: str,
    session_ms: str = str(SESSION_MS),
) -> None:
    """Entry of the process."""
    job = Job(bootstrap, source, target, name, name, int(records_max), session_ms=int(session_ms))
    sys.exit(copy(client, job))


if __name__ == "__main__":
    main(*sys.argv[1:])
