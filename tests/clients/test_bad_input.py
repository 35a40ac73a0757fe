"""What users get wrong: each is answered by an error that says what to do, the client stays usable or says that it is not, and no
record is dropped unseen.

Addresses that are none or belong to something else (HTTP, TLS, silence, a listener that demands authentication), topics and
partitions that are not there, callables that raise, partitions that were lost, clients that are closed, tasks that share a transaction.
"""

from __future__ import annotations

import asyncio
import enum
import json
import logging
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from barnabas.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from barnabas.client.errors import (
    BrokerUnreachable,
    BufferExhausted,
    ClientClosed,
    CommitFailed,
    IllegalState,
    InvalidTopic,
    KafkaError,
    NotKafka,
    SendFailed,
    SerializationFailed,
    UnknownTopicOrPartition,
)
from barnabas.client.producer.core.transaction_state import TransactionPhase
from barnabas.protocol.messages.metadata import ApiVersion, ApiVersionsRequest, ApiVersionsResponse, MetadataRequest
from barnabas.protocol.registry import API
from barnabas.protocol.schema import encode
from barnabas.testing import Broker
from tests.support.clients.bundled import admin, make_topic, name
from tests.support.processes.fixtures import end, process_broker
from tests.support.waiting import until

__all__ = ["admin", "name"]

pytestmark = pytest.mark.clients

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    broker = process_broker("auto.create.topics.enable=false").start()
    yield broker
    end(broker)


@pytest.fixture
def bootstrap(broker: Broker) -> str:
    return broker.bootstrap_servers


# -- addresses ---------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def stranger(answer: Answer, **how: Any) -> AsyncIterator[str]:
    """Something that listens; its address."""
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        try:
            await answer(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass

    server = await asyncio.start_server(serve, "127.0.0.1", 0, **how)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for writer in writers:
            writer.transport.abort()


async def refusal(address: str, says: str) -> KafkaError:
    """The error of a producer that says this. A producer tries until its time limit: the first one has a short limit."""
    for timeout_ms in (500, 15_000):
        with pytest.raises(KafkaError) as refused:
            await Producer(bootstrap_servers=address, request_timeout_ms=timeout_ms).start()
        if says in str(refused.value):
            return refused.value
    raise AssertionError(f"not {says!r} but {refused.value}")


async def test_a_name_that_nobody_has() -> None:
    with pytest.raises(BrokerUnreachable, match=r"no-such-host\.invalid:9092"):
        await Producer(bootstrap_servers="no-such-host.invalid", request_timeout_ms=500).start()


async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(100)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    await writer.drain()
    writer.close()


async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(1000):
        pass


async def test_an_http_server_is_told_at_once() -> None:
    async with stranger(http) as address:
        async with asyncio.timeout(60):
            with pytest.raises(NotKafka, match="speaks HTTP; use the address of a broker"):
                await Admin(bootstrap_servers=address, request_timeout_ms=60_000).start()


async def test_one_right_address_is_enough(bootstrap: str) -> None:
    async with stranger(http) as address, Admin(bootstrap_servers=f"{address},{bootstrap}") as admin:
        assert await admin.describe_cluster()


@pytest.fixture
def tls(tmp_path: Path) -> ssl.SSLContext:
    """A server's, with a certificate of its own making."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    try:
        subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openssl to make a certificate with")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


async def test_a_tls_port(tls: ssl.SSLContext) -> None:
    async with stranger(mute, ssl=tls) as address:
        refused = await refusal(address, "TLS")
    assert isinstance(refused, NotKafka | BrokerUnreachable), "an alert, or a connection closed in silence"


async def test_something_that_says_nothing() -> None:
    async with stranger(mute) as address:
        refused = await refusal(address, "accepts connections and does not answer; is it a Kafka broker")
    assert isinstance(refused, BrokerUnreachable)


async def tell_versions(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *but: int) -> None:
    """Answers ApiVersions with all APIs but these."""
    size = int.from_bytes(await reader.readexactly(4), "big")
    frame = await reader.readexactly(size)
    version = int.from_bytes(frame[2:4], "big")
    keys = [
        ApiVersion(api_key=key, min_version=api.versions[0], max_version=api.versions[1])
        for key, api in API.items()
        if key not in but
    ]
    body = encode(ApiVersionsResponse(api_keys=keys), min(version, ApiVersionsRequest.VERSIONS[1]))
    writer.write((len(body) + 4).to_bytes(4, "big") + frame[4:8] + body)


async def demands_authentication(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """As a SASL listener of Kafka: it tells what it speaks, and closes at the first request that is no SaslHandshake."""
    await tell_versions(reader, writer)
    await reader.readexactly(4)
    writer.close()


async def test_a_listener_that_demands_authentication() -> None:
    async with stranger(demands_authentication) as address:
        refused = await refusal(address, "require authentication (SASL)? Set security_protocol")
    assert isinstance(refused, BrokerUnreachable)


async def controller(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await tell_versions(reader, writer, MetadataRequest.API_KEY)
    await mute(reader, writer)


async def test_the_port_of_a_controller_is_told_at_once() -> None:
    async with stranger(controller) as address, asyncio.timeout(60):
        with pytest.raises(NotKafka, match=f"{address} is a controller's port; use the address of a broker"):
            await Consumer(bootstrap_servers=address, request_timeout_ms=600_000).start()


@pytest.fixture
def refusing() -> Iterator[str]:
    """An address that is bound and refuses connections."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


async def test_a_client_warns_once_that_no_broker_answers_and_goes_on_trying(
    refusing: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "barnabas.client.net")  # commands that ran in this process silence it
    starting = asyncio.create_task(Producer(bootstrap_servers=refusing, request_timeout_ms=600_000).start())
    await until(lambda: caplog.records)
    await asyncio.sleep(0.2)  # many more attempts
    assert not starting.done()
    starting.cancel()
    await asyncio.wait([starting])
    text = (
        "no Kafka broker answers at {}: connection refused; trying for 600 s; is one running? `barnabas up` starts one"
    )
    warned = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert warned == [("WARNING", text.format(refusing))]


def test_the_warning_is_seen_in_a_program_that_configures_no_logging(refusing: str) -> None:
    program = f"""if True:
        import asyncio
        from barnabas.client import Consumer

        async def main():
            async with Consumer("orders", bootstrap_servers="{refusing}", request_timeout_ms=1_500):
                pass

        asyncio.run(main())
    """
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert ran.stderr.startswith(f"no Kafka broker answers at {refusing}: connection refused; trying for 1.5 s"), (
        ran.stderr
    )


# -- topics and partitions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", ["", "a b", "..", "x" * 250, "é"])
async def test_names_that_no_topic_can_have(bootstrap: str, topic: str) -> None:
    async with Producer(bootstrap_servers=bootstrap) as producer:
        with pytest.raises(InvalidTopic):
            await producer.send(topic, b"x")
    with pytest.raises(InvalidTopic, match="is not a valid topic name"):
        Consumer(topic, bootstrap_servers=bootstrap)
    async with Consumer(bootstrap_servers=bootstrap) as consumer:
        with pytest.raises(InvalidTopic, match="is not a valid topic name"):
            consumer.assign([TopicPartition(topic, 0)])


@pytest.mark.parametrize("topic", [None, 7, b"bytes"])
async def test_topics_that_are_no_names(bootstrap: str, topic: Any) -> None:
    async with Producer(bootstrap_servers=bootstrap) as producer:
        with pytest.raises(InvalidTopic, match="topic name must be a str"):
            await producer.send(topic, b"x")
    with pytest.raises(InvalidTopic, match="topic name must be a str"):
        Consumer(topic, bootstrap_servers=bootstrap)


async def test_a_number_that_no_request_can_carry(admin: Admin, name: str) -> None:
    with pytest.raises(IllegalState, match="cannot carry this value"):
        await admin.create_topics([NewTopic(name, 1 << 40)])


class Partitions(enum.IntEnum):
    """Integers that are no plain ints."""

    SECOND = 1


async def test_sending_to_a_topic_that_is_not_there(bootstrap: str, admin: Admin, name: str) -> None:
    async with Producer(bootstrap_servers=bootstrap, max_block_ms=2_000) as producer:
        with pytest.raises(BufferExhausted, match=r"UNKNOWN_TOPIC_OR_PARTITION: .*; create the topic first") as refused:
            await producer.send(name, b"lost?")
        assert refused.value.topic == name
        await make_topic(admin, name, 2)
        for partition in (2, -1):
            with pytest.raises(UnknownTopicOrPartition, match="partitions 0 to 1"):
                await producer.send(name, b"x", partition=partition)
        for wrong in ("1", [1]):
            with pytest.raises(IllegalState, match="a partition must be an int"):
                await producer.send(name, b"x", partition=wrong)  # type: ignore[arg-type]  # which is tried
        assert (await producer.send_and_wait(name, b"there", partition=1)).offset == 0
        assert (await producer.send_and_wait(name, b"there", partition=Partitions.SECOND)).offset == 1


@pytest.mark.parametrize("group", [False, True])
async def test_reading_a_topic_that_is_not_there_says_so_and_waits(
    bootstrap: str, admin: Admin, name: str, group: bool, caplog: pytest.LogCaptureFixture
) -> None:
    settings: dict[str, Any] = {"group_id": name} if group else {}
    async with Consumer(
        name, bootstrap_servers=bootstrap, auto_offset_reset="earliest", metadata_max_age_ms=100, **settings
    ) as consumer:
        said: list[str] = []
        with caplog.at_level(logging.WARNING):
            async with asyncio.timeout(60):
                while not said:
                    assert await consumer.getmany(timeout_ms=300) == {}
                    said = [record.getMessage() for record in caplog.records if "does not exist" in record.getMessage()]
        assert said == [f"topic {name!r} does not exist; the consumer reads it once it is created"]
        await make_topic(admin, name)
        async with Producer(bootstrap_servers=bootstrap) as producer:
            await producer.send(name, b"at last")
        async with asyncio.timeout(60):
            assert (await consumer.getone()).value == b"at last"


async def test_a_partition_that_the_topic_does_not_have(bootstrap: str, admin: Admin, name: str) -> None:
    await make_topic(admin, name, 2)
    async with (
        Producer(bootstrap_servers=bootstrap) as producer,
        Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer,
    ):
        await producer.send_and_wait(name, b"x", partition=1)
        consumer.assign([TopicPartition(name, 1), TopicPartition(name, 2)])
        with pytest.raises(UnknownTopicOrPartition, match="partitions 0 to 1; assign others") as refused:
            await consumer.getmany(timeout_ms=60_000)
        assert refused.value.partition == 2
        async with asyncio.timeout(60):
            assert (await consumer.getone()).value == b"x", "the other is read, and the error was told once"


async def test_partitions_that_are_not_assigned(bootstrap: str, admin: Admin, name: str) -> None:
    tp = TopicPartition(await make_topic(admin, name, 2), 0)
    async with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(name, 1)])
        uses: list[Callable[[], None]] = [
            lambda: consumer.seek(tp, 0),
            lambda: consumer.pause(tp),
            lambda: consumer.resume(tp),
        ]
        for use in uses:
            with pytest.raises(IllegalState, match="not assigned to this consumer"):
                use()
        with pytest.raises(IllegalState, match="not assigned to this consumer"):
            await consumer.position(tp)


async def test_a_commit_of_a_lost_partition(bootstrap: str, admin: Admin, name: str) -> None:
    await make_topic(admin, name, 2)
    settings: dict[str, Any] = {"bootstrap_servers": bootstrap, "group_id": name, "enable_auto_commit": False}
    async with Consumer(name, **settings) as first, Consumer(name, **settings) as second:
        async with asyncio.timeout(60):
            while len(first.assignment()) < 2:
                await first.getmany(timeout_ms=50)
            await first.commit({TopicPartition(name, 0): 3, TopicPartition(name, 1): 3})
            while not second.assignment() or len(first.assignment()) > 1:
                await asyncio.gather(first.getmany(timeout_ms=50), second.getmany(timeout_ms=50))
        (lost,) = second.assignment()
        (kept,) = first.assignment()
        with pytest.raises(CommitFailed, match="nothing was committed: the partition is not this member's") as refused:
            await first.commit({kept: 9, lost: 9})
        assert (refused.value.topic, refused.value.partition) == lost
        with pytest.raises(CommitFailed, match="nothing was committed: the partition is not this member's"):
            await first.commit_soon({lost: 9})
        assert [await first.committed(tp) for tp in (kept, lost)] == [3, 3]
        await first.commit({kept: 5})
        assert await first.committed(kept) == 5


# -- callables that raise ----------------------------------------------------------------------------------------------


def picky(value: Any) -> bytes:
    if value == "bad":
        raise ValueError("not this one")
    return str(value).encode()


async def test_a_serializer_that_raises_in_a_transaction(bootstrap: str, admin: Admin, name: str) -> None:
    """The record is refused to its sender; a caller that goes on has it not in the transaction, one that does not has none."""
    await make_topic(admin, name)
    async with Producer(bootstrap_servers=bootstrap, transactional_id=name, value_serializer=picky) as producer:
        with pytest.raises(SerializationFailed, match="value serializer raised ValueError"):  # noqa: PT012 - the block is left by it
            async with producer.transaction():
                await producer.send(name, "aborted with it")
                await producer.send(name, "bad")
        assert producer.transaction_state is TransactionPhase.READY
        async with producer.transaction():
            await producer.send(name, "one")
            with pytest.raises(SerializationFailed):
                await producer.send(name, "bad")
            await producer.send(name, "two")
    assert await read_committed(bootstrap, name, 2) == [b"one", b"two"]


@pytest.mark.parametrize("what", ["key", "value"])
async def test_a_serializer_that_returns_str_is_named(bootstrap: str, admin: Admin, name: str, what: str) -> None:
    topic = await make_topic(admin, name)
    serializer: dict[str, Any] = {f"{what}_serializer": json.dumps}
    record: dict[str, Any] = {what: {"cups": 2}}
    async with Producer(bootstrap_servers=bootstrap, **serializer) as producer:
        with pytest.raises(SerializationFailed, match=f"^{what}_serializer returned str; it must return bytes"):
            await producer.send(topic, **record)


async def test_a_consumer_without_topics_raises_when_it_polls(bootstrap: str) -> None:
    async with Consumer(bootstrap_servers=bootstrap) as consumer:
        for poll in (consumer.getone, consumer.getmany, consumer.__anext__):
            with pytest.raises(IllegalState, match="not subscribed to any topics or assigned any partitions"):
                await poll()
        consumer.assign([])  # others may follow
        assert await consumer.getmany() == {}
        consumer.unsubscribe()
        with pytest.raises(IllegalState, match="not subscribed"):
            await consumer.getone()


async def test_a_deserializer_that_raises_can_be_passed(bootstrap: str, admin: Admin, name: str) -> None:
    tp = TopicPartition(await make_topic(admin, name), 0)
    async with Producer(bootstrap_servers=bootstrap) as producer:
        for value in (b"1", b"one", b"2"):
            await producer.send(name, value)  # one batch
    async with Consumer(bootstrap_servers=bootstrap, value_deserializer=int) as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 0)
        assert (await consumer.getone()).value == 1, "what comes before it in the same batch is delivered"
        for _ in range(2):
            with pytest.raises(KafkaError, match="at offset 1; seek past it to continue") as refused:
                await consumer.getone()
            assert isinstance(refused.value.__cause__, ValueError)
        consumer.seek(tp, 2)
        async with asyncio.timeout(60):
            assert (await consumer.getone()).value == 2


async def read_committed(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    async with Consumer(
        topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        async with asyncio.timeout(60):
            return [(await consumer.getone()).value for _ in range(count)]


# -- closed clients, shared transactions -------------------------------------------------------------------------------


async def test_use_after_close(bootstrap: str, admin: Admin, name: str) -> None:
    tp = TopicPartition(await make_topic(admin, name), 0)
    producer = Producer(bootstrap_servers=bootstrap, transactional_id=name)
    async with producer:
        pass
    consumer = Consumer(bootstrap_servers=bootstrap, group_id=name)
    async with consumer:
        pass
    other = Admin(bootstrap_servers=bootstrap)
    async with other:
        pass
    uses: list[Callable[[], Any]] = [
        producer.start,
        lambda: producer.send(name, b"x"),
        producer.flush,
        producer.begin_transaction,
        consumer.start,
        consumer.getone,
        consumer.getmany,
        consumer.commit,
        lambda: consumer.committed(tp),
        lambda: consumer.end_offsets([tp]),
        lambda: consumer.subscribe([name]),
        lambda: consumer.assign([tp]),
        other.list_topics,
    ]
    for use in uses:
        with pytest.raises(ClientClosed, match="closed"):
            await called(use)
    for client in (producer, consumer, other):
        await client.stop()


async def called(use: Callable[[], Any]) -> None:
    """Calls it, and waits where it is a coroutine."""
    found = use()
    if found is not None:
        await found


async def test_closing_tells_every_record_that_was_not_sent(broker: Broker, admin: Admin, name: str) -> None:
    await make_topic(admin, name)
    producer = Producer(bootstrap_servers=broker.bootstrap_servers)
    await producer.start()
    await producer.send_and_wait(name, b"sent")
    broker.pause()
    try:
        futures = [await producer.send(name, b"%d" % number) for number in range(10)]
        with pytest.raises(SendFailed, match="10 records"):
            await producer.stop(timeout_ms=200)
    finally:
        broker.resume()
    outcomes = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ClientClosed] * 10


async def test_two_tasks_in_one_transaction(bootstrap: str, admin: Admin, name: str) -> None:
    """The second is refused and harms the first in nothing; a record that comes too late is refused to its sender."""
    await make_topic(admin, name)
    async with Producer(bootstrap_servers=bootstrap, transactional_id=name) as producer:
        begun = asyncio.Event()

        async def first() -> None:
            async with producer.transaction():
                await producer.send(name, b"first")
                begun.set()
                await asyncio.sleep(0.05)
                await producer.send(name, b"first again")

        async def second() -> None:
            await begun.wait()
            with pytest.raises(IllegalState, match="one transaction at a time: commit or abort first"):
                async with producer.transaction():
                    await producer.send(name, b"second")

        await asyncio.gather(first(), second())
        await producer.begin_transaction()
        await producer.send(name, b"third")
        committing = asyncio.create_task(producer.commit_transaction())
        await asyncio.sleep(0)
        with pytest.raises(IllegalState, match="no transaction is open"):
            await producer.send(name, b"too late")
        with pytest.raises(IllegalState, match="no transaction to abort"):
            await producer.abort_transaction()
        await committing
        async with producer.transaction():
            await producer.send(name, b"fourth")
    assert await read_committed(bootstrap, name, 4) == [b"first", b"first again", b"third", b"fourth"]
