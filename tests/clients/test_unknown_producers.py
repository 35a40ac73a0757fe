"""How real idempotent clients take OUT_OF_ORDER_SEQUENCE_NUMBER for a producer that the leader does not know, and when they must not get it.

A proxy takes the first Produce request of a client for itself, lets the second one through, and then answers the first with
NOT_LEADER_OR_FOLLOWER: what a client meets that turns from a leader which was cut off to the next one. A broker that accepts
the second batch makes librdkafka infer that the first was written. Every client must write every record once, in order. The bundled
client and aiokafka send no second batch of a new producer before the first is answered.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from struct import pack, unpack
from typing import Any

import pytest

from barnabas.client import Admin, NewTopic
from barnabas.client.admin import AclBinding, AclBindingFilter, AclOperation, AclPermission, AclResourceType
from barnabas.errors import ErrorCode
from barnabas.protocol import registry
from barnabas.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from barnabas.protocol.records import decode_records, iter_batches
from barnabas.protocol.schema import decode, encode
from barnabas.testing import Broker
from tests.support.oracle.wire import Wire
from tests.support.processes.fixtures import Serve, end, process_broker
from tests.support.processes.ports import free_ports

confluent_kafka = pytest.importorskip("confluent_kafka")
aiokafka = pytest.importorskip("aiokafka")

pytestmark = pytest.mark.clients

PRODUCE = 0
COUNT = 40


class RefusingProxy:
    """Stands before a broker, and answers the first Produce request itself once the second one has passed it.

    `caught` is set when it has the first one, `refused` when that is answered. Requests and answers of other kinds pass, in their order.
    """

    def __init__(self, port: int, listen: int) -> None:
        self.caught = threading.Event()
        self.refused = threading.Event()
        self._port = port
        self._first: tuple[socket.socket, bytes] | None = None
        self._listener = socket.create_server(("127.0.0.1", listen))
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            broker = socket.create_connection(("127.0.0.1", self._port))
            for side in (client, broker):
                side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            in_order = threading.Event()
            in_order.set()
            threading.Thread(target=self._there, args=(client, broker, in_order), daemon=True).start()
            threading.Thread(target=self._back, args=(client, broker, in_order), daemon=True).start()

    def _there(self, client: socket.socket, broker: socket.socket, in_order: threading.Event) -> None:
        while (frame := _frame(client)) is not None:
            if unpack(">h", frame[:2])[0] == PRODUCE and not self.refused.is_set():
                if self._first is None:
                    self._first = client, frame
                    in_order.clear()
                    self.caught.set()
                    continue
                assert self._first[0] is client, "both requests come over one connection"
                broker.sendall(pack(">i", len(frame)) + frame)
                answer = _refusal(self._first[1])
                client.sendall(pack(">i", len(answer)) + answer)
                self.refused.set()
                in_order.set()
                continue
            broker.sendall(pack(">i", len(frame)) + frame)
        broker.close()

    def _back(self, client: socket.socket, broker: socket.socket, in_order: threading.Event) -> None:
        while (frame := _frame(broker)) is not None:
            in_order.wait()
            try:
                client.sendall(pack(">i", len(frame)) + frame)
            except OSError:
                return
        client.close()


def _frame(source: socket.socket) -> bytes | None:
    parts = b""
    size = 4
    while len(parts) < size:
        try:
            piece = source.recv(size - len(parts))
        except OSError:
            return None
        if not piece:
            return None
        parts += piece
        if size == 4 and len(parts) == 4:
            size += int(unpack(">i", parts)[0])
    return parts[4:]


def _refusal(frame: bytes) -> bytes:
    """NOT_LEADER_OR_FOLLOWER for every partition of a Produce request."""
    _, version, _, client_id_size = unpack(">hhih", frame[:10])
    at = 10 + max(client_id_size, 0) + (1 if registry.request_header_version(PRODUCE, version) >= 2 else 0)
    request = decode(ProduceRequest, frame, version, at)
    answer = ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    PartitionProduceResponse(
                        index=data.index, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER, base_offset=-1
                    )
                    for data in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )
    tags = b"\0" if registry.response_header_version(PRODUCE, version) else b""
    return frame[4:8] + tags + encode(answer, version)


@pytest.fixture
def proxied() -> Iterator[tuple[str, RefusingProxy, str]]:
    """The address of a broker, the proxy before it, and the address that clients are given."""
    port, listen = free_ports(2)
    address = f"127.0.0.1:{listen}"
    proxy = RefusingProxy(port, listen)
    broker = process_broker(f"advertised.listeners=PLAINTEXT://{address}", port=port)
    try:
        broker.start()
        with Wire(f"127.0.0.1:{port}") as wire:
            wire.create_topic("t")
        yield f"127.0.0.1:{port}", proxy, address
        end(broker)
    finally:
        broker.stop()
        proxy.close()


def values_of(address: str, topic: str = "t") -> list[bytes | None]:
    with Wire(address) as wire:
        records = wire.fetch(topic, 0, 0).records
    return [record.value for at, header in iter_batches(records) for record in decode_records(records, at, header)]


def test_a_first_batch_that_never_came_is_written_before_the_second_one(
    proxied: tuple[str, RefusingProxy, str],
) -> None:
    broker, proxy, address = proxied
    refused: list[str] = []
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 0, "log_level": 0}
    )
    for number in range(COUNT):
        producer.produce(
            "t", b"%d" % number, partition=0, on_delivery=lambda error, _: refused.append(str(error)) if error else None
        )
        assert proxy.caught.wait(60)  # its first batch has one record: it sends no second one behind five
        producer.poll(0.02)
    assert producer.flush(60) == 0
    assert proxy.refused.is_set()
    assert refused == []
    assert values_of(broker) == [b"%d" % number for number in range(COUNT)]


# -- producers that are well: a log that was made anew or deleted from, records that the topic refuses


async def by_aiokafka_one_by_one(address: str, topic: str, values: list[bytes]) -> list[str]:
    """Errors by client of records that are sent one after the other."""
    errors = []
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=address, enable_idempotence=True) as producer:
        for value in values:
            try:
                await producer.send_and_wait(topic, value, partition=0)
            except aiokafka.errors.KafkaError as error:
                errors.append(f"{len(value)} bytes: {type(error).__name__}")
    return errors


async def test_aiokafka_goes_on_after_a_first_record_that_the_topic_refuses(shared_broker: Broker) -> None:
    """It counts the refused record's sequence and begins no new epoch."""
    name = "u" + uuid.uuid4().hex[:8]
    with Wire(shared_broker.bootstrap_servers) as wire:
        wire.create_topic(name, **{"max.message.bytes": "1000"})
    values = [b"x" * 5_000, b"a", b"b", b"c"]
    assert await by_aiokafka_one_by_one(shared_broker.bootstrap_servers, name, values) == [
        "5000 bytes: MessageSizeTooLargeError"
    ]
    assert values_of(shared_broker.bootstrap_servers, name) == [b"a", b"b", b"c"]


async def test_aiokafka_goes_on_after_a_first_record_that_it_was_not_allowed_to_write(serve: Serve) -> None:
    """It counts the refused record's sequence and begins no new epoch."""
    broker = serve(
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found=true",
    )
    name = "u" + uuid.uuid4().hex[:8]
    address = broker.bootstrap_servers
    async with (
        Admin(bootstrap_servers=address) as admin,
        aiokafka.AIOKafkaProducer(bootstrap_servers=address, enable_idempotence=True) as producer,
    ):
        await admin.create_topics([NewTopic(name, 1, 1)])
        allowed = AclBinding(AclResourceType.TOPIC, name, "User:ANONYMOUS", AclOperation.ALL)
        denied = AclBinding(
            AclResourceType.TOPIC, name, "User:ANONYMOUS", AclOperation.WRITE, permission=AclPermission.DENY
        )
        await admin.create_acls([allowed, denied])
        for value in (b"a", b"b"):
            with pytest.raises(aiokafka.errors.TopicAuthorizationFailedError):
                await producer.send_and_wait(name, value, partition=0)
        await admin.delete_acls([AclBindingFilter(permission=AclPermission.DENY)])
        for value in (b"c", b"d"):
            await producer.send_and_wait(name, value, partition=0)
    assert values_of(address, name) == [b"c", b"d"]


@pytest.mark.parametrize("restarts", [False, True], ids=["at once", "after a restart"])
@pytest.mark.parametrize("client", ["aiokafka", "librdkafka"])
async def test_a_producer_outlives_a_topic_that_is_made_anew(serve: Serve, client: str, restarts: bool) -> None:
    name = "u" + uuid.uuid4().hex[:8]
    broker = serve("auto.create.topics.enable=false")
    address = broker.bootstrap_servers
    outcomes: list[str] = []
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(Admin(bootstrap_servers=address))
        send: Callable[[bytes], Any]
        if client == "aiokafka":
            theirs = await stack.enter_async_context(
                aiokafka.AIOKafkaProducer(bootstrap_servers=address, enable_idempotence=True)
            )

            async def send(value: bytes) -> None:
                await theirs.send_and_wait(name, value, partition=0)
        else:
            ours = confluent_kafka.Producer(
                {"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 0, "log_level": 0}
            )

            async def send(value: bytes) -> None:
                ours.produce(
                    name,
                    value,
                    partition=0,
                    on_delivery=lambda error, _: outcomes.append(str(error)) if error else None,
                )
                assert await asyncio.to_thread(ours.flush, 60) == 0

        await admin.create_topics([NewTopic(name, 1, 1)])
        for number in range(3):
            await send(b"%d" % number)
        await admin.delete_topics([name])
        if restarts:
            await asyncio.to_thread(broker.broker(1).restart)
        await admin.create_topics([NewTopic(name, 1, 1)])
        for number in range(3, 6):
            await send(b"%d" % number)
    assert outcomes == []
    assert values_of(address, name) == [b"3", b"4", b"5"]
