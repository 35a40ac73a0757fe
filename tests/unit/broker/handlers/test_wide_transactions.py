"""A transaction with very many partitions is described in slices; many transactions of one request are decided in slices."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from barnabas.broker.api.call import Pending
from barnabas.broker.coordinator.transactions.state import TransactionMetadata
from barnabas.broker.handlers.transaction_listing import describe_transactions
from barnabas.broker.handlers.transactions import ADDITIONS_AT_ONCE, add_partitions_to_txn
from barnabas.broker.scheduling.slices import WorkResult, advance
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    DescribeTransactionsRequest,
)
from barnabas.work import UNITS_PER_SLICE
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


@pytest.mark.parametrize("verifies", [True, False])
def test_many_transactions_of_a_request_are_decided_in_slices_each_alone(verifies: bool) -> None:
    count = 5 * UNITS_PER_SLICE
    decided: list[str] = []

    def decide(transactional_id: str, *_: Any) -> Any:
        decided.append(transactional_id)
        if transactional_id == "tx3":
            raise BrokerError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return {("t", 0): ErrorCode.NONE}

    def add(transactional_id: str, *arguments: Any) -> None:
        done = arguments[-2]
        try:
            decide(transactional_id)
        except BrokerError as error:
            done(error)
        else:
            done(None)

    needs: Any = SimpleNamespace(
        current_image=SimpleNamespace(image=SimpleNamespace(partition_count=lambda _: 1)),
        transactions=SimpleNamespace(verify_partitions=decide, add_partitions=add),
    )

    def rest_of(count: int) -> Any:
        topics = [AddPartitionsToTxnTopic(name="t", partitions=[0])]
        transactions = [
            AddPartitionsToTxnTransaction(transactional_id=f"tx{number}", verify_only=verifies, topics=topics)
            for number in range(count)
        ]
        computed: Any = add_partitions_to_txn(needs, call_of(AddPartitionsToTxnRequest(transactions=transactions)))
        return computed.compute()

    assert isinstance(rest_of(ADDITIONS_AT_ONCE), Pending), "few are decided at once"
    decided.clear()
    rest = rest_of(count)
    progress = []
    while not isinstance(rest, WorkResult):
        rest = advance(rest)
        progress.append(len(decided))
    assert max(after - before for before, after in pairwise([0, *progress])) == UNITS_PER_SLICE
    results = cast(Any, rest.result).response.results_by_transaction
    codes = {
        each.transactional_id: each.topic_results[0].results_by_partition[0].partition_error_code for each in results
    }
    refused = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert codes == {f"tx{number}": refused if number == 3 else 0 for number in range(count)}
