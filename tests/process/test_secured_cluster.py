"""Three brokers with SASL_SSL on every listener, of clients, brokers and controllers: killed and restarted during a copy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.client import (
    Admin,
    AuthenticationFailed,
    Consumer,
    CopyProgress,
    NewMessage,
    NewTopic,
    Producer,
    exactly_once,
)
from tests.support.processes.secured_nodes import (
    secured_nodes,  # not the kit: the brokers' own listeners have TLS and logins
)
from tests.support.processes.served import ServedBroker  # not the kit: the brokers' own listeners have TLS and logins
from tests.support.security.certificates import CertificateAuthority

pytestmark = pytest.mark.process

RECORDS = 3_000
NODE_PASSWORD, USER_PASSWORD = "planted-node-secret", "planted-user-secret"
LOGIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.fixture
def cluster(tmp_path: Path, ca: CertificateAuthority) -> Iterator[list[ServedBroker]]:
    """Nodes log in by PLAIN; sessions end after two seconds, and are renewed."""
    jaas = (
        f'{LOGIN_MODULE} required username="node" password="{NODE_PASSWORD}" user_node="{NODE_PASSWORD}" '
        f'user_alice="{USER_PASSWORD}";'
    )
    settings = {
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.secure.plain.sasl.jaas.config": jaas,
        "listener.name.controller.plain.sasl.jaas.config": jaas,
        "connections.max.reauth.ms": "2000",
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.num.partitions": "4",
        "group.initial.rebalance.delay.ms": "0",
        **ca.truststore(),
    }
    with secured_nodes(tmp_path, "SASL_SSL", settings, lambda node: ca.issue(f"secured-{node}").by_file()) as nodes:
        yield nodes
    for node in nodes:
        assert "does not let this node log in" not in node.log()


def settings_of(nodes: list[ServedBroker], ca: CertificateAuthority) -> dict[str, Any]:
    return {
        "bootstrap_servers": ",".join(node.address for node in nodes),
        "security_protocol": "SASL_SSL",
        "ssl_cafile": str(ca.certificate),
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "alice",
        "sasl_plain_password": USER_PASSWORD,
    }


async def read(settings: dict[str, Any], topic: str) -> AsyncIterator[bytes]:
    """The committed records of a topic, up to its end."""
    reading: Any = Consumer(topic, auto_offset_reset="earliest", isolation_level="read_committed", **settings)
    async with reading as consumer:
        seen = 0
        while seen < RECORDS:
            polled = await consumer.getmany(timeout_ms=60_000)
            assert polled, f"{topic} ends after {seen} records"
            for records in polled.values():
                for record in records:
                    seen += 1
                    yield record.value
        assert not await consumer.getmany(timeout_ms=500)


async def test_copied_exactly_once_while_brokers_are_killed(
    cluster: list[ServedBroker], ca: CertificateAuthority
) -> None:
    settings = settings_of(cluster, ca)
    async with Admin(**settings) as admin:
        await admin.create_topics([NewTopic("source", 4, 3), NewTopic("target", 4, 3)])
    copied = asyncio.Event()

    async def on_transaction(progress: CopyProgress) -> bool:
        if progress.records_in > RECORDS // 10:
            copied.set()
        return progress.records_in >= RECORDS

    async def copy() -> None:
        consumer: Any = Consumer(
            "source",
            group_id="copy",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            **settings,
        )
        producer: Any = Producer(transactional_id="copy", **settings)
        async with consumer, producer:
            await exactly_once(
                consumer,
                producer,
                lambda record: [NewMessage("target", record.value)],
                transaction_records_max=100,
                on_transaction=on_transaction,
            )

    async def feed() -> None:
        feeding: Any = Producer(**settings)
        async with feeding as producer:
            for number in range(RECORDS):
                await producer.send("source", b"%d" % number)
                if number % 100 == 0:
                    await producer.flush()
                    await asyncio.sleep(0.05)

    async def kill() -> None:
        await copied.wait()
        for node in cluster[:2]:
            node.kill()
            await asyncio.sleep(1.0)
            await asyncio.to_thread(node.start)

    async with asyncio.timeout(300):
        await asyncio.gather(feed(), copy(), kill())
        values = [value async for value in read(settings, "target")]
    assert sorted(values, key=int) == [b"%d" % number for number in range(RECORDS)]
    with pytest.raises(AuthenticationFailed, match="PLAIN: the broker refused the login"):
        await Admin(**{**settings, "sasl_plain_password": "wrong"}).start()
