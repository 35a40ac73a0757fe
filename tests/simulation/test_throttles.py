"""Replication throttles (KIP-73): a replica that is added is copied at the rate that is set, on either side; replicas in sync are not held up."""

from __future__ import annotations

import asyncio

import pytest

from barnabas.protocol.messages.admin import (
    AlterableConfig,
    AlterConfigsResource,
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    IncrementalAlterConfigsRequest,
)
from barnabas.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch
from tests.support.simulation.trio import IDS, Trio, simulate

pytestmark = pytest.mark.simulation

TOPIC, BROKER = 2, 4
BATCH_BYTES = 16_384
BATCHES = 100
RATE = 100_000  # bytes a second: 16 s for all of it
TAKES_S = BATCHES * BATCH_BYTES / RATE


def append(trio: Trio, name: str) -> None:
    now_ms = trio.node(1).reactor.clock.now_ms()
    trio.node(1).replicas.leader(name, 0).append(build_batch([NewRecord(None, bytes(BATCH_BYTES), now_ms)]))


async def create(trio: Trio, name: str, replicas: list[int], **configs: str) -> None:
    topic = CreatableTopic(
        name=name,
        num_partitions=-1,
        replication_factor=-1,
        assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=replicas)],
        configs=[CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()],
    )
    answer = await trio.ask(1, CreateTopicsRequest(topics=[topic]))
    assert answer.topics[0].error_code == 0, answer.topics[0].error_message
    await trio.until(lambda: trio.node(1).replicas.get(name, 0) is not None, 5)


async def limit(trio: Trio, side: str) -> None:
    setting = AlterableConfig(name=f"{side}.replication.throttled.rate", config_operation=0, value=str(RATE))
    resources = [AlterConfigsResource(resource_type=BROKER, resource_name=str(each), configs=[setting]) for each in IDS]
    answer = await trio.ask(1, IncrementalAlterConfigsRequest(resources=resources))
    assert {each.error_code for each in answer.responses} == {0}


async def seconds_to_copy(trio: Trio, name: str) -> float:
    """How long it takes to add broker 2 to a partition that is on broker 1 alone."""
    partition = ReassignablePartition(partition_index=0, replicas=[1, 2])
    await trio.ask(1, AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name=name, partitions=[partition])]))
    loop = asyncio.get_running_loop()
    began = loop.time()
    while 2 not in (isr := trio.node(1).replicas.leader(name, 0).isr):
        assert loop.time() - began < 5 * TAKES_S, isr
        await asyncio.sleep(0.02)
    return loop.time() - began


@pytest.mark.parametrize(
    ("side", "named", "throttled"),
    [
        ("leader", "0:1,0:2", True),  # as kafka-reassign-partitions names them
        ("follower", "0:2", True),
        ("follower", "*", True),
        ("leader", "0:2,1:1", False),  # other replicas
        ("follower", "0:1", False),
    ],
)
def test_a_new_replica_is_copied_at_the_rate_that_is_set(side: str, named: str, throttled: bool) -> None:
    async def story(trio: Trio) -> None:
        await create(trio, "moved", [1], **{f"{side}.replication.throttled.replicas": named})
        await create(trio, "steady", [1, 2, 3], **{f"{side}.replication.throttled.replicas": "*"})
        await limit(trio, side)
        for _ in range(BATCHES):
            append(trio, "moved")
        copied = asyncio.ensure_future(seconds_to_copy(trio, "moved"))
        steady = trio.node(1).replicas.leader("steady", 0)
        for number in range(1, 20):  # in sync, and the same followers
            append(trio, "steady")
            await trio.until(lambda number=number: steady.high_watermark == number, 2)  # type: ignore[misc]  # a default argument
            await asyncio.sleep(0.05)
        took_s = await copied
        if throttled:
            assert 0.6 * TAKES_S < took_s < 2.5 * TAKES_S
        else:
            assert took_s < 0.3 * TAKES_S

    simulate(3, story, **{"replica.fetch.max.bytes": str(4 * BATCH_BYTES)})
