"""Renewal: a cluster of several brokers that a test has given back is as new for the next one, or is not taken again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from barnabas.client import Admin
from barnabas.testing import Cluster, KitError
from barnabas.testing.core import Core
from barnabas.testing.namespace import leaked_clients
from barnabas.testing.pool import AsNew, ClusterPool

SHAPE = 2


@pytest.fixture
def spares(monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterPool]:
    monkeypatch.setattr("barnabas.testing.pool.SPARES_MAX", 0)  # so the next one is the one that was given back
    found = ClusterPool()
    yield found
    found.close()


def _take(spares: ClusterPool) -> Cluster:
    return spares.take(SHAPE, lambda: Cluster(SHAPE))


def _transaction(kafka: Cluster) -> int:
    """Copies a record by a group and a transaction; returns its offset."""
    servers = {"bootstrap.servers": kafka.bootstrap_servers}
    consumer = confluent_kafka.Consumer({**servers, "group.id": "copiers", "auto.offset.reset": "earliest"})
    producer = confluent_kafka.Producer({**servers, "transactional.id": "copier"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("orders", b"one")
    producer.commit_transaction()
    consumer.subscribe(["orders"])
    record = consumer.poll(60)
    assert record is not None
    assert record.error() is None
    offset = record.offset()
    assert offset is not None
    producer.begin_transaction()
    producer.send_offsets_to_transaction(consumer.position(consumer.assignment()), consumer.consumer_group_metadata())
    producer.commit_transaction()
    consumer.close()
    return offset


async def _groups(core: Core) -> list[str]:
    return [each.group_id for each in await (await core.admin()).list_groups()]


async def _transactional_ids(core: Core) -> list[str]:
    return [each.transactional_id for each in await (await core.admin()).list_transactions()]


def test_a_cluster_that_was_given_back_holds_nothing(spares: ClusterPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barnabas.testing.pool.RENEWAL_S", 60.0)  # a busy machine takes its time
    used = _take(spares)
    core = used.core()
    used.create_topic("orders", 1)
    assert _transaction(used) == 0
    assert used.wait(_groups(core)) == ["copiers"]
    assert used.wait(_transactional_ids(core)) == ["copier"]
    used.wait(leaked_clients(core, 60, set()))
    spares.give_back(used)

    fresh = _take(spares)
    assert fresh.core() is core  # the same brokers
    assert fresh.topics() == []
    assert fresh.wait(_groups(core)) == []
    assert fresh.wait(_transactional_ids(core)) == []
    fresh.create_topic("orders", 1)
    assert _transaction(fresh) == 0  # offsets, and those of the group, begin anew
    assert [each.offset for each in fresh.history.events if hasattr(each, "offset")] == []
    with pytest.raises(KitError, match="has ended"):
        used.topics()
    fresh.wait(leaked_clients(fresh.core(), 60, set()))
    spares.give_back(fresh)


def _set_a_broker_config(kafka: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    entry = ConfigEntry("log.retention.ms", "1000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource("broker", "1", incremental_configs=[entry])
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(60)


def _set_a_quota(kafka: Cluster) -> None:
    async def work() -> None:
        async with Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
            await admin.alter_client_quotas({"client-id": "a"}, {"producer_byte_rate": 1.0})

    asyncio.run(work())


def _create_a_user(kafka: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    made = admin.alter_user_scram_credentials([UserScramCredentialUpsertion("alice", info, b"planted-secret")])
    made["alice"].result(60)


def _leave_a_transaction_open(kafka: Cluster) -> None:
    kafka.create_topic("orders", 1)
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": "copier"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("orders", b"one")
    producer.flush(60)


def _restart(kafka: Cluster) -> None:
    kafka.kill(2)
    kafka.restart(2)


def _undo_a_fault(kafka: Cluster) -> None:
    kafka.faults.on("EndTxn", strict=False).error("REQUEST_TIMED_OUT")
    kafka.faults.clear()


TRACES: dict[str, Callable[[Cluster], object]] = {
    "a setting of a broker": _set_a_broker_config,
    "a quota": _set_a_quota,
    "a user": _create_a_user,
    "an open transaction": _leave_a_transaction_open,
    "a killed broker": lambda kafka: kafka.kill(2),
    "a broker that was killed and restarted": _restart,
    "a paused broker": lambda kafka: kafka.pause(2),
    "a fault": _undo_a_fault,
    "a moved clock": lambda kafka: kafka.clock.advance(hours=1),
    "a link": lambda kafka: kafka.link(1, 2).latency(0.001),
    "a disk": lambda kafka: kafka.disk(1).slow(0.001),
}


@pytest.mark.parametrize("trace", TRACES)
def test_a_cluster_with_traces_of_a_test_is_not_taken_again(
    spares: ClusterPool, trace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("barnabas.testing.pool.RENEWAL_S", 0.2)
    used = _take(spares)
    core = used.core()
    TRACES[trace](used)
    used.wait(leaked_clients(core, 60, set()))
    spares.give_back(used)
    fresh = _take(spares)
    assert fresh.core() is not core
    assert fresh.topics() == []


def test_a_connected_client_is_not_given_to_the_next_test(spares: ClusterPool) -> None:
    used = _take(spares)
    core = used.core()
    used.create_topic("orders", 1)
    producer = confluent_kafka.Producer({"bootstrap.servers": used.bootstrap_servers})
    producer.produce("orders", b"one")
    producer.flush(60)
    assert used.wait(core.client_connections())
    spares.give_back(used)
    assert _take(spares).core() is not core
    assert producer is not None


def test_a_cluster_with_large_files_is_not_taken_again(spares: ClusterPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barnabas.testing.node_commands.DISK_BYTES_MAX", 10)
    used = _take(spares)
    assert not used.wait(_again(used))


async def _again(kafka: Cluster) -> bool:
    return await (await AsNew.of(kafka)).again(kafka.core())
