"""Settings whose effect shows between nodes: how long one waits for another, and how much it asks for at once."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from barnabas.broker.coordinator.transactions.shard import ProducerIdAndEpoch
from barnabas.broker.coordinator.transactions.verification import Question
from barnabas.broker.node.node import Node
from barnabas.errors import ErrorCode
from barnabas.protocol.internal_topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from barnabas.protocol.messages.groups import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from barnabas.protocol.messages.transactions import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from barnabas.protocol.records import iter_batches
from barnabas.protocol.registry import API
from tests.support.simulation.trio import STATE_TOPICS, Trio, coordinator, simulate

pytestmark = pytest.mark.simulation

FETCH, ADD_PARTITIONS_TO_TXN, FETCH_SNAPSHOT = 1, 24, 59
NETWORK_S = 0.1  # longer than a few messages take in the simulated network


def test_a_follower_gives_up_a_leader_that_does_not_answer_in_time(caplog: pytest.LogCaptureFixture) -> None:
    async def story(trio: Trio) -> None:
        active = trio.controller
        leader = trio.others(active)[0]
        await trio.create(active, "t")
        await asyncio.sleep(2)
        caplog.clear()
        caplog.set_level("INFO", "barnabas.kafka.server.ReplicaFetcherThread")
        trio.processes[leader].machine.pause()
        gave_up = f"leader={leader} error=node {leader} at n{leader}:9092 (fetch) did not answer Fetch in time"
        waited_s = await trio.until(lambda: any(gave_up in record.getMessage() for record in caplog.records), 5)
        assert 2.0 - 0.5 <= waited_s <= 2.0 + NETWORK_S  # the request was sent at most replica.fetch.wait.max.ms before

    simulate(1, story, **{"replica.socket.timeout.ms": "2000", "replica.fetch.wait.max.ms": "500"})


def test_an_offset_commit_waits_for_its_replicas_as_long_as_the_setting_says() -> None:
    async def story(trio: Trio) -> None:
        await trio.create(1, "t")
        node = await coordinator(trio, GROUP_METADATA_TOPIC)
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=0, committed_metadata="")
        topic_id = node.image.topics_by_name["t"].topic_id
        topic = OffsetCommitRequestTopic(name="t", topic_id=topic_id, partitions=[partition])
        answers: list[Any] = []

        def commit() -> None:
            peer = node.peers.to(f"n{node.node_id}", 9092, "test", node_id=node.node_id)
            peer.send(OffsetCommitRequest(group_id="g", topics=[topic]), answers.append, timeout_ms=30_000)

        commit()
        await trio.until(lambda: answers, 1)
        for other in trio.others(node.node_id):
            trio.processes[other].machine.pause()
        commit()
        waited_s = await trio.until(lambda: len(answers) == 2, 20)
        codes = [answer.topics[0].partitions[0].error_code for answer in answers]
        assert codes == [ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE]
        assert 1.5 <= waited_s <= 1.5 + NETWORK_S

    simulate(2, story, **{"offsets.commit.timeout.ms": "1500", **STATE_TOPICS})


def test_a_coordinator_that_cannot_add_partitions_yet_is_asked_again_after_the_backoff() -> None:
    async def story(trio: Trio) -> None:
        node = await coordinator(trio, TRANSACTION_STATE_TOPIC)
        asking = trio.node(trio.others(node.node_id)[0])
        route = node.router.route(ADD_PARTITIONS_TO_TXN, API[ADD_PARTITIONS_TO_TXN].versions[1])
        asked_at: list[float] = []

        def busy(_node: Node, _call: Any) -> AddPartitionsToTxnResponse:
            asked_at.append(asyncio.get_running_loop().time())
            code = AddPartitionsToTxnPartitionResult(
                partition_index=0, partition_error_code=ErrorCode.CONCURRENT_TRANSACTIONS
            )
            topic = AddPartitionsToTxnTopicResult(name="t", results_by_partition=[code])
            return AddPartitionsToTxnResponse(
                results_by_transaction=[AddPartitionsToTxnResult(transactional_id="x", topic_results=[topic])]
            )

        route.handler = busy
        outcomes: list[Any] = []
        question = Question(
            "x", ProducerIdAndEpoch(1, 0), [("t", 0)], add=True, done=outcomes.append, is_gone=lambda: False
        )
        asking.transactions.verifications.ask(question)
        await trio.until(lambda: outcomes, 5)
        assert outcomes == [{("t", 0): ErrorCode.CONCURRENT_TRANSACTIONS}]
        pauses = [later - earlier for earlier, later in itertools.pairwise(asked_at)]
        assert len(pauses) == 3
        assert all(0.25 <= pause <= 0.25 + NETWORK_S for pause in pauses)

    backoff = {
        "add.partitions.to.txn.retry.backoff.ms": "250",
        "add.partitions.to.txn.retry.backoff.max.ms": "1000",
    }
    simulate(3, story, **backoff, **STATE_TOPICS)


# -- how much of the metadata log goes into one answer


def record(node: Node, api_key: int, seen: list[tuple[Any, Any]]) -> None:
    """Notes the requests of an API to a controller, with what was answered at once."""
    route = node.controller_router.route(api_key, API[api_key].versions[1])
    own = route.handler

    def handle(node: Node, call: Any) -> Any:
        response = own(node, call)
        seen.append((call.request, response))
        return response

    route.handler = handle


async def behind(trio: Trio, victim: int, *, topics: int) -> None:
    """Kills a follower of the metadata log, and makes topics without it."""
    active = trio.controller
    trio.processes[victim].kill()
    for number in range(topics):
        await trio.create(active, f"t{number}", replicas=2)
        await asyncio.sleep(0.5)


async def back(trio: Trio, victim: int, **settings: str) -> None:
    trio.processes[victim].settings.update(settings)
    trio.processes[victim].start()
    await trio.until(lambda: trio.processes[victim].serves, 10)


@pytest.mark.parametrize("at", ["asks", "answers"])
def test_an_answer_of_the_metadata_log_has_as_many_bytes_as_both_sides_allow(at: str) -> None:
    async def story(trio: Trio) -> None:
        active = trio.controller
        victim = trio.others(active)[0]
        await behind(trio, victim, topics=10)
        seen: list[tuple[Any, Any]] = []
        record(trio.node(active), FETCH, seen)
        await back(trio, victim, **{"controller.quorum.fetch.max.bytes": "400" if at == "asks" else "1000000"})
        answers = [
            answer.responses[0].partitions[0].records
            for request, answer in seen
            if request.replica_state.replica_id == victim and hasattr(answer, "responses") and answer.responses
        ]
        found = [bytes(answer) for answer in answers if answer]
        assert len(found) > 5
        assert all(len(each) <= 400 or len(list(iter_batches(each))) == 1 for each in found)

    simulate(4, story, **{"controller.quorum.fetch.max.bytes": "400"} if at == "answers" else {})


@pytest.mark.parametrize("at", ["asks", "answers"])
def test_an_answer_of_a_snapshot_has_as_many_bytes_as_both_sides_allow(at: str) -> None:
    def limit(holds: bool) -> dict[str, str]:
        return {"controller.quorum.fetch.snapshot.max.bytes": "300" if holds else "1000000"}

    async def story(trio: Trio) -> None:
        active = trio.controller
        victim = trio.others(active)[0]
        await behind(trio, victim, topics=10)
        seen: list[tuple[Any, Any]] = []
        record(trio.node(active), FETCH_SNAPSHOT, seen)
        await back(trio, victim, **limit(at == "asks"))
        parts = [answer.topics[0].partitions[0] for _, answer in seen]
        # The last piece of a snapshot is shorter; a newer snapshot may follow it.
        sizes = [
            len(part.unaligned_records) for part in parts if part.position + len(part.unaligned_records) < part.size
        ]
        assert len(sizes) > 1
        assert set(sizes) == {300}

    snapshots = {"metadata.log.max.snapshot.interval.ms": "500", "metadata.max.retention.ms": "1"}
    simulate(5, story, **snapshots, **limit(at == "answers"))
