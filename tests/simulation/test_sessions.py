"""Brokers whose session with the controller may be over for a while: what they refuse meanwhile, and what they go on with."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.broker.coordinator.host.decision import Decision
from barnabas.broker.coordinator.host.partitioning import partition_for
from barnabas.broker.coordinator.transactions.shard import ProducerIdAndEpoch
from barnabas.broker.coordinator.transactions.state import TransactionState
from barnabas.broker.node import Node
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.internal_topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from barnabas.protocol.messages.cluster import BrokerHeartbeatResponse
from tests.support.simulation.trio import STATE_TOPICS, Trio, coordinator, simulate

pytestmark = pytest.mark.simulation

ID = "writer"


def lapse(node: Node) -> None:
    """Its last heartbeat that was answered is a session ago; the next one that is renews the session."""
    node.lifecycle._session_until_ms = 0


def test_a_transaction_is_completed_after_its_coordinators_session_has_lapsed() -> None:
    async def story(trio: Trio) -> None:
        await trio.create(1, "output", partitions=3)
        node = await coordinator(trio, TRANSACTION_STATE_TOPIC)
        transactions = node.transactions
        answers: list[Any] = []

        transactions.init_producer_id(ID, 60_000, None, answers.append)
        await trio.until(lambda: len(answers) == 1, 5)
        producer: ProducerIdAndEpoch = answers[0].identity
        output = node.image.topics_by_name["output"].partitions
        elsewhere = [("output", number) for number, each in enumerate(output) if each.leader != node.node_id]
        transactions.add_partitions(ID, producer, elsewhere, 2, answers.append)
        await trio.until(lambda: len(answers) == 2, 5)

        def prepared(outcome: Any) -> None:
            answers.append(outcome)
            lapse(node)

        transactions.end_transaction(ID, producer, commit=True, transaction_version=2, done=prepared)
        await trio.until(lambda: len(answers) == 3, 5)
        assert not isinstance(answers[2], BrokerError)
        await trio.until(lambda: transactions.describe(ID).state is TransactionState.COMPLETE_COMMIT, 5)

    simulate(1, story, **STATE_TOPICS)


def test_a_broker_that_is_told_it_is_fenced_accepts_nothing_until_its_metadata_says_what_became_of_it() -> None:
    async def story(trio: Trio) -> None:
        node = trio.node(trio.others(trio.controller)[0])
        await trio.until(node.lifecycle.may_lead, 1)
        node.lifecycle._on_answer(BrokerHeartbeatResponse(is_fenced=True), node.reactor.clock.monotonic_ms(), ())
        assert not node.lifecycle.may_lead()
        await trio.until(node.lifecycle.may_lead, 1)

    simulate(3, story)


def test_who_may_be_a_coordinator_no_more_tells_no_offsets_and_verifies_nothing() -> None:
    async def story(trio: Trio) -> None:
        node = await coordinator(trio, GROUP_METADATA_TOPIC)
        assert partition_for("group", 1) == 0
        read: list[Any] = []
        node.groups.write("group", lambda shard, at: Decision("read"), read.append)
        assert read == ["read"]
        lapse(node)
        node.groups.write("group", lambda shard, at: Decision("read"), read.append)
        assert isinstance(read[1], BrokerError)
        assert read[1].code is ErrorCode.NOT_COORDINATOR

        await trio.create(1, "output", partitions=1)
        node = await coordinator(trio, TRANSACTION_STATE_TOPIC)
        answers: list[Any] = []
        node.transactions.init_producer_id(ID, 60_000, None, answers.append)
        await trio.until(lambda: len(answers) == 1, 5)
        producer: ProducerIdAndEpoch = answers[0].identity
        node.transactions.add_partitions(ID, producer, [("output", 0)], 0, answers.append)
        await trio.until(lambda: len(answers) == 2, 5)
        verified = {("output", 0): ErrorCode.NONE}
        assert node.transactions.verify_partitions(ID, producer, [("output", 0)]) == verified
        lapse(node)
        with pytest.raises(BrokerError) as refused:
            node.transactions.verify_partitions(ID, producer, [("output", 0)])
        assert refused.value.code is ErrorCode.NOT_COORDINATOR

    simulate(2, story, **STATE_TOPICS)
