"""A transaction with very many partitions is described in slices, with its topics and partitions in order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from barnabas.broker.coordinator.transactions.state import TransactionMetadata
from barnabas.broker.handlers.transaction_listing import describe_transactions
from barnabas.broker.scheduling.slices import WorkResult, advance
from barnabas.protocol.messages.transactions import DescribeTransactionsRequest
from tests.support.broker.calls import call_of

TOPICS, PARTITIONS = 200, 100


def test_a_transaction_of_many_partitions_is_described_in_slices() -> None:
    names = [f"t{number:03}" for number in range(TOPICS)]
    partitions = frozenset((name, number) for name in names for number in range(PARTITIONS))
    metadata = TransactionMetadata("tx", 7, partitions=partitions)
    needs: Any = SimpleNamespace(transactions=SimpleNamespace(describe=lambda _: metadata))
    rest: Any = describe_transactions(needs, call_of(DescribeTransactionsRequest(transactional_ids=["tx"])))
    slices = 0
    while not isinstance(rest, WorkResult):
        rest = advance(rest)
        slices += 1
    assert slices > 3
    (state,) = cast(Any, rest.result).transaction_states
    assert [topic.topic for topic in state.topics] == names
    assert {tuple(topic.partitions) for topic in state.topics} == {tuple(range(PARTITIONS))}
