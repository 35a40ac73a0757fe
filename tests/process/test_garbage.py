"""A broker at work makes no garbage in reference cycles, which the frozen heap would keep (`barnabas/runtime/memory.py`)."""

from __future__ import annotations

import os
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer

from tests.support.oracle.sasl_script import SaslWire
from tests.support.processes import collected_broker
from tests.support.processes.collected_broker import collected
from tests.support.processes.fuzzing import Fuzzer
from tests.support.processes.served import ServedBroker  # not the kit: a main program of its own
from tests.support.security.certificates import CertificateAuthority
from tests.support.security.stranger import USER, OpenBroker, Strangers  # not the kit: a main program of its own

FUZZED = 1_000
CONNECTIONS = 200


@pytest.fixture
def garbage(tmp_path: Path) -> Iterator[tuple[ServedBroker, Path]]:
    path = tmp_path / "garbage.json"
    os.environ[collected_broker.VARIABLE] = str(path)
    broker = ServedBroker(
        tmp_path / "data", "group.initial.rebalance.delay.ms=0", module="tests.support.processes.collected_broker"
    )
    try:
        yield broker.start(), path
        assert broker.stop() == 0, broker.log()
    finally:
        os.environ.pop(collected_broker.VARIABLE)
        broker.kill()


def connect_and_leave(broker: ServedBroker) -> None:
    for number in range(CONNECTIONS):
        with socket.create_connection((broker.host, broker.port)) as peer:
            if number % 3 == 0:  # the broker sees a reset
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if number % 3 == 1:  # half a request
                peer.sendall(struct.pack(">ihh", 100, 18, 3))


def work(broker: ServedBroker, name: str) -> None:
    """A transaction that commits, one that aborts, one that is fenced, and a group that reads."""
    settings = {"bootstrap.servers": broker.address, "transactional.id": name}
    producer = Producer(settings)
    producer.init_transactions(60)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        for number in range(100):
            producer.produce(name, b"%d" % number)
        producer.flush(60)
        end(30)
    producer.begin_transaction()
    producer.produce(name, b"fenced")
    producer.flush(60)
    Producer(settings).init_transactions(60)
    with pytest.raises(KafkaException):
        producer.commit_transaction(60)
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": name, "auto.offset.reset": "earliest"})
    consumer.subscribe([name])
    assert len(consumer.consume(100, timeout=60)) == 100
    consumer.commit()
    consumer.close()


@pytest.mark.process
def test_work_leaves_no_garbage_in_cycles(garbage: tuple[ServedBroker, Path]) -> None:
    broker, path = garbage
    work(broker, "first")  # imports handlers, makes codecs
    Fuzzer(broker.address, broker.log, 1).run(FUZZED // 3)
    connect_and_leave(broker)
    collected(broker.pid, path)

    for number in range(5):
        work(broker, f"again-{number}")
    assert not (found := collected(broker.pid, path)), f"{found}, after transactions and groups"
    connect_and_leave(broker)
    time.sleep(2)  # the tasks that the broker repeats each second
    assert not (found := collected(broker.pid, path)), f"{found}, after connections and idleness"
    Fuzzer(broker.address, broker.log, 2).run(FUZZED)
    assert not (found := collected(broker.pid, path)), f"{found}, after hostile requests"


def log_in(broker: OpenBroker, ca: CertificateAuthority) -> None:
    """Connections that log in, one whose requests are no TLS after the handshake, and one that tries a wrong password."""
    context = ssl.create_default_context(cafile=ca.certificate)
    for password in (USER[1], "wrong"):
        with SaslWire(f"127.0.0.1:{broker.ports['login']}") as wire:
            wire.handshake("PLAIN")
            wire.token(f"\0{USER[0]}\0{password}".encode())
        with socket.create_connection((broker.host, broker.ports["TLS"])) as plain:
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
            while True:
                try:
                    tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    plain.sendall(outgoing.read())
                    incoming.write(plain.recv(65_536))
            plain.sendall(outgoing.read() + b"\x17\x03\x03\x00\x20" + bytes(32))
            while plain.recv(65_536):
                pass


@pytest.mark.process
def test_logins_leave_no_garbage_in_cycles(
    tmp_path: Path, ca: CertificateAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "garbage.json"
    monkeypatch.setenv(collected_broker.VARIABLE, str(path))
    broker = OpenBroker(tmp_path, ca, module="tests.support.processes.collected_broker").start()
    try:
        strangers = Strangers(broker.ports, 1)
        strangers.run(FUZZED // 3)  # imports handlers, makes codecs
        log_in(broker, ca)
        collected(broker.pid, path)
        log_in(broker, ca)
        time.sleep(1)  # the last connections end
        assert not (found := collected(broker.pid, path)), f"{found}, after logins"
        strangers.run(FUZZED)
        time.sleep(1)
        assert not (found := collected(broker.pid, path)), f"{found}, after strangers"
        assert broker.stop() == 0, broker.log()
    finally:
        broker.kill()
