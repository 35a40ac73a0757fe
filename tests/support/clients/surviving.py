"""A client process that works while brokers are killed: by librdkafka, aiokafka, or the bundled client.

Called as `python -m tests.support.clients.surviving CLIENT BOOTSTRAP PLAIN TRANSACTED TRANSACTIONAL_ID GROUP
PARTITIONS`. Four things run at once: an idempotent producer that has one record a partition of PLAIN on its way, a
transactional producer that commits one record a partition of TRANSACTED, a read_committed reader of TRANSACTED without
a group, and a group member that reads PLAIN and commits. Prints a line of JSON an event: when (monotonic seconds), what
("acknowledged", "committed", "read", "grouped", "refused"), partition, value. SIGTERM ends it: it sends nothing more,
waits for what is on its way, and leaves with 0. Then consumers of librdkafka print the end of their debug log to stderr.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from tests.support.clients.librdkafka import Debugged, place_of, value_of

T = TypeVar("T")

PACE_SECONDS = 0.02  # between two records of a partition, and between two transactions
CALL_SECONDS = 30.0
SESSION_MS = 6_000
DEBUG = "cgrp,fetch,broker,metadata"  # of consumers of librdkafka

_stop = threading.Event()
_printing = threading.Lock()


def tell(what: str, partition: int = -1, value: str = "") -> None:
    """One event, at once."""
    line = json.dumps({"at": time.monotonic(), "what": what, "partition": partition, "value": value})
    with _printing:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


# -- librdkafka: blocking calls, a thread each


def plain_by_librdkafka(bootstrap: str, topic: str, partitions: int) -> None:
    """Idempotent, acks=all."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0, "log_level": 0})
    open_: set[int] = set()
    sent = dict.fromkeys(range(partitions), 0)

    def on_delivery(partition: int, error: Any, message: Any) -> None:
        open_.discard(partition)
        if error is not None:
            tell("refused", partition, str(error))
        else:
            tell("acknowledged", partition, message.value().decode())

    while not _stop.is_set():
        for partition in sent:
            if partition not in open_:
                open_.add(partition)
                value = b"%d" % sent[partition]
                producer.produce(topic, value, partition=partition, on_delivery=partial(on_delivery, partition))
                sent[partition] += 1
        deadline = time.monotonic() + PACE_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            producer.poll(left)
    producer.flush(CALL_SECONDS)


def transactions_by_librdkafka(bootstrap: str, topic: str, partitions: int, transactional_id: str) -> None:
    """One record a partition, a transaction each."""
    from confluent_kafka import KafkaException, Producer

    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "linger.ms": 0, "log_level": 0},
    )

    def patiently(call: Callable[[], T]) -> T:
        while True:
            try:
                return call()
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise

    patiently(lambda: producer.init_transactions(CALL_SECONDS))
    number = 0
    while not _stop.is_set():
        try:
            producer.begin_transaction()
            for partition in range(partitions):
                producer.produce(topic, b"%d" % number, partition=partition)
            patiently(lambda: producer.commit_transaction(CALL_SECONDS))
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            tell("aborted", -1, str(error))
            patiently(lambda: producer.abort_transaction(CALL_SECONDS))
        else:
            for partition in range(partitions):
                tell("committed", partition, str(number))
        number += 1
        time.sleep(PACE_SECONDS)


def reader_by_librdkafka(bootstrap: str, topic: str, partitions: int) -> None:
    """read_committed, assigned."""
    from confluent_kafka import Consumer, TopicPartition

    log = Debugged("reader")
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "debug": DEBUG,
        },
        logger=log.logger,
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    while not _stop.is_set():
        for message in consumer.consume(100, 0.05):
            if message.error() is None:
                tell("read", place_of(message)[1], value_of(message).decode())
    sys.stderr.write(f"-- reader\n{log}\n")
    consumer.close()


def member_by_librdkafka(bootstrap: str, topic: str, group: str) -> None:
    """Subscribed; commits what it reads, synchronously."""
    from confluent_kafka import Consumer, KafkaException

    log = Debugged("member")
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "session.timeout.ms": SESSION_MS,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "debug": DEBUG,
        },
        logger=log.logger,
    )
    consumer.subscribe([topic])
    while not _stop.is_set():
        messages = [m for m in consumer.consume(100, 0.02) if m.error() is None]
        if messages:
            try:
                consumer.commit(asynchronous=False)
            except KafkaException as error:
                tell("refused", -1, f"commit: {error}")
            else:
                tell("grouped", place_of(messages[-1])[1], value_of(messages[-1]).decode())
    sys.stderr.write(f"-- member\n{log}\n")
    consumer.close()


def run_librdkafka(
    bootstrap: str, plain: str, transacted: str, transactional_id: str, group: str, partitions: int
) -> None:
    """Runs all four, each in a thread."""
    threads = [
        threading.Thread(target=call, args=arguments)
        for call, arguments in (
            (plain_by_librdkafka, (bootstrap, plain, partitions)),
            (transactions_by_librdkafka, (bootstrap, transacted, partitions, transactional_id)),
            (reader_by_librdkafka, (bootstrap, transacted, partitions)),
            (member_by_librdkafka, (bootstrap, plain, group)),
        )
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# -- aiokafka and the bundled client: tasks of one loop, all but their constructors and errors alike


async def send_plain(producer: Any, topic: str, partition: int) -> None:
    """One record at a time."""
    number = 0
    while not _stop.is_set():
        try:
            await (await producer.send(topic, b"%d" % number, partition=partition))
        except Exception as error:
            tell("refused", partition, repr(error))
        else:
            tell("acknowledged", partition, str(number))
        number += 1
        await asyncio.sleep(PACE_SECONDS)


async def commit_transactions(producer: Any, topic: str, partitions: int) -> None:
    """One record a partition, a transaction each."""
    number = 0
    while not _stop.is_set():
        try:
            await producer.begin_transaction()
            sent = [await producer.send(topic, b"%d" % number, partition=partition) for partition in range(partitions)]
            await producer.commit_transaction()
            # aiokafka commits a transaction of which a record was refused, and says so only here.
            for partition, each in enumerate(sent):
                if each.exception() is not None:
                    tell("refused", partition, f"transaction {number}: {each.exception()!r}")
        except Exception as error:
            tell("aborted", -1, repr(error))
            await producer.abort_transaction()
        else:
            for partition in range(partitions):
                tell("committed", partition, str(number))
        number += 1
        await asyncio.sleep(PACE_SECONDS)


async def read_committed(consumer: Any) -> None:
    """What transactions wrote."""
    while not _stop.is_set():
        for tp, records in (await consumer.getmany(timeout_ms=50)).items():
            for record in records:
                tell("read", tp.partition, record.value.decode())


async def read_as_member(consumer: Any) -> None:
    """Reads and commits."""
    while not _stop.is_set():
        polled = await consumer.getmany(timeout_ms=20)
        if polled:
            try:
                await consumer.commit()
            except Exception as error:
                tell("refused", -1, f"commit: {error!r}")
                continue
            tp, records = next(iter(polled.items()))
            tell("grouped", tp.partition, records[-1].value.decode())


async def run_asynchronously(
    client: Any,
    partition_of: Any,
    bootstrap: str,
    plain: str,
    transacted: str,
    transactional_id: str,
    group: str,
    partitions: int,
) -> None:
    """Runs all four as tasks; `client` has the constructors."""
    make_producer, make_consumer = client
    producer = make_producer(bootstrap_servers=bootstrap, enable_idempotence=True)
    transactional = make_producer(bootstrap_servers=bootstrap, transactional_id=transactional_id)
    reader = make_consumer(
        bootstrap_servers=bootstrap,
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    member = make_consumer(
        plain,
        bootstrap_servers=bootstrap,
        group_id=group,
        session_timeout_ms=SESSION_MS,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    async with producer, transactional, reader, member:
        reader.assign([partition_of(transacted, partition) for partition in range(partitions)])
        await asyncio.gather(
            *(send_plain(producer, plain, partition) for partition in range(partitions)),
            commit_transactions(transactional, transacted, partitions),
            read_committed(reader),
            read_as_member(member),
        )


def run_aiokafka(bootstrap: str, *how: Any) -> None:
    """aiokafka, with its defaults."""
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

    asyncio.run(run_asynchronously((AIOKafkaProducer, AIOKafkaConsumer), TopicPartition, bootstrap, *how))


def run_barnabas(bootstrap: str, *how: Any) -> None:
    """The bundled client, with its defaults."""
    from barnabas.client import Consumer, Producer, TopicPartition

    asyncio.run(run_asynchronously((Producer, Consumer), TopicPartition, bootstrap, *how))


CLIENTS: dict[str, Callable[..., None]] = {
    "librdkafka": run_librdkafka,
    "aiokafka": run_aiokafka,
    "barnabas": run_barnabas,
}


def main(
    client: str, bootstrap: str, plain: str, transacted: str, transactional_id: str, group: str, partitions: str
) -> None:
    """Entry of the process."""
    signal.signal(signal.SIGTERM, lambda *_: _stop.set())
    CLIENTS[client](bootstrap, plain, transacted, transactional_id, group, int(partitions))


if __name__ == "__main__":
    main(*sys.argv[1:])
