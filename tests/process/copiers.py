"""The exactly-once copy as a process of its own, by each client: librdkafka, aiokafka, and the bundled one.

Called as `python -m tests.process.copiers CLIENT BOOTSTRAP SOURCE TARGET NAME RECORDS`. Copies partition by partition what it
reads, RECORDS at most a transaction, until it is killed. NAME is both the group and the transactional id. Prints one line of
JSON a committed transaction: when (monotonic seconds), records copied so far, transactions committed and aborted. An error
that aborting and reading again cannot mend ends the process with code 3 and a line that names it: a supervisor begins anew.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import signal
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TextIO, TypeVar

T = TypeVar("T")

POLL_SECONDS = 0.1
CALL_SECONDS = 30.0
SESSION_MS = 6_000  # a killed process is missed for so long
FATAL = 3


def tell(line: str, stream: TextIO = sys.stderr) -> None:
    """One line, at once."""
    stream.write(line + "\n")
    stream.flush()


class Progress:
    """What one process has done; tells of every transaction."""

    def __init__(self) -> None:
        self.records = 0
        self.committed = 0
        self.aborted = 0

    def commit(self, records: int) -> None:
        self.records += records
        self.committed += 1
        line = {
            "at": time.monotonic(),
            "records": self.records,
            "committed": self.committed,
            "aborted": self.aborted,
        }
        tell(json.dumps(line), sys.stdout)


def copy_by_librdkafka(bootstrap: str, source: str, target: str, name: str, records_max: int) -> None:
    """confluent-kafka: subscribe, and one producer with group metadata (KIP-447)."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition

    quick: dict[str, Any] = {
        "log_level": 0,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 500,
        "retry.backoff.ms": 20,
    }
    # When no broker is left, librdkafka 2.11 to 2.16 forgets them all, and then waits without end for a coordinator among the
    # forgotten ones (confluentinc/librdkafka#5511), unless it is told not to begin anew.
    quick["metadata.recovery.strategy"] = "none"
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": name,
            "session.timeout.ms": SESSION_MS,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            **quick,
        }
    )
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 2, **quick})
    progress = Progress()

    def patiently(call: Callable[[], T]) -> T:
        """Again while the error is one that passes."""
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
    consumer.subscribe([source])
    while True:
        messages = []
        for message in consumer.consume(records_max, POLL_SECONDS):
            if message.error() is None:
                messages.append(message)
            elif message.error().fatal():
                raise KafkaException(message.error())
        if not messages:
            continue
        try:
            producer.begin_transaction()
            for message in messages:
                producer.produce(target, message.value(), message.key(), partition=message.partition())
            ends = {(m.topic(), m.partition()): m.offset() + 1 for m in messages}
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


async def copy_by_aiokafka(bootstrap: str, source: str, target: str, name: str, records_max: int) -> None:
    """aiokafka: subscribe; its transactions know groups by name alone."""
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.errors import IllegalOperation, KafkaError, OutOfOrderSequenceNumber, ProducerFenced

    consumer = AIOKafkaConsumer(
        source,
        bootstrap_servers=bootstrap,
        group_id=name,
        session_timeout_ms=SESSION_MS,
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        retry_backoff_ms=20,
    )
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name, linger_ms=2, retry_backoff_ms=20)
    progress = Progress()
    async with consumer, producer:
        while True:
            polled = await consumer.getmany(timeout_ms=int(POLL_SECONDS * 1000), max_records=records_max)
            if not polled:
                continue
            try:
                async with producer.transaction():
                    sent = [
                        await producer.send(target, record.value, record.key, partition=record.partition)
                        for records in polled.values()
                        for record in records
                    ]
                    offsets = {tp: records[-1].offset + 1 for tp, records in polled.items()}
                    await producer.send_offsets_to_transaction(offsets, name)
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


async def copy_by_barnabas(bootstrap: str, source: str, target: str, name: str, records_max: int) -> None:
    """The bundled client and its own loop."""
    from barnabas.client import Consumer, CopyProgress, NewMessage, Producer, Record, exactly_once

    def transform(record: Record) -> Iterable[NewMessage]:
        yield NewMessage(target, record.value, key=record.key, partition=record.partition)

    told = Progress()

    async def on_transaction(progress: CopyProgress) -> bool:
        told.aborted = progress.aborted
        if progress.committed > told.committed:
            told.commit(progress.records_out - told.records)
        return False

    async with (
        Consumer(
            source,
            bootstrap_servers=bootstrap,
            group_id=name,
            session_timeout_ms=SESSION_MS,
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        ) as consumer,
        Producer(bootstrap_servers=bootstrap, transactional_id=name, linger_ms=2) as producer,
    ):
        await exactly_once(
            consumer,
            producer,
            transform,
            transaction_records_max=records_max,
            poll_timeout_ms=int(POLL_SECONDS * 1000),
            on_transaction=on_transaction,
        )


CLIENTS: dict[str, Callable[[str, str, str, str, int], Any]] = {
    "librdkafka": copy_by_librdkafka,
    "aiokafka": copy_by_aiokafka,
    "barnabas": copy_by_barnabas,
}


def main(client: str, bootstrap: str, source: str, target: str, name: str, records_max: str) -> None:
    """Entry of the process."""
    faulthandler.register(signal.SIGUSR1)  # where is it stuck?
    try:
        work = CLIENTS[client](bootstrap, source, target, name, int(records_max))
        if work is not None:
            asyncio.run(work)
    except Exception as error:
        tell(f"gives up: {error!r}")
        sys.exit(FATAL)


if __name__ == "__main__":
    main(*sys.argv[1:])
