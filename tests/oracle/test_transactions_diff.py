"""The same requests to Kafka and to Barnabas: transactions answer alike, code by code, epoch by epoch.

Each script is played on both and its observations compared. Producer ids stand by the order of their first appearance.
CONCURRENT_TRANSACTIONS while markers are written is a matter of speed: scripts wait until a transaction is complete, except
where that answer is certain.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from barnabas.broker.coordinator.host.partitioning import partition_for
from barnabas.broker.coordinator.transactions.state import TransactionState
from barnabas.protocol.messages.internal import TransactionLogKey, TransactionLogValue
from barnabas.protocol.messages.transactions import (
    InitProducerIdRequest,
    ListTransactionsRequest,
    WriteTxnMarkersRequest,
)
from barnabas.protocol.records import decode_records, iter_batches
from barnabas.protocol.schema import decode_versioned
from tests.support.oracle.transaction_script import PARTITIONS, SETTLING, Producer, Script, name, play

pytestmark = pytest.mark.oracle


def a_tv2_client(script: Script) -> None:
    p = script.producer("tv2")
    p.init()
    p.describe()
    start = script.next_offset(0)
    assert p.produce(version=12) == "NONE"
    p.describe()
    p.end("commit", 5)
    p.settled()
    script.note_log(0, start)
    for outcome, back in (("commit", 1), ("abort", 1), ("commit", 0), ("abort", 0)):
        p.end(outcome, 5, epoch=p.epoch - back)
    p.settled()
    p.end("abort", 5)
    p.settled()
    p.produce(version=12)
    p.end("commit", 5, epoch=p.epoch - 1)
    p.end("abort", 5, epoch=p.epoch - 1)
    p.end("abort", 5, epoch=p.epoch + 1)
    p.describe()
    p.end("abort", 5)
    p.settled()
    for outcome, back in (("abort", 1), ("commit", 1), ("commit", 0)):
        p.end(outcome, 5, epoch=p.epoch - back)
    p.produce(version=12, epoch=p.epoch - 1)
    p.produce(version=12, epoch=p.epoch + 1)
    script.note_log(0, start)


def a_tv1_client(script: Script) -> None:
    p = script.producer("tv1")
    p.init(version=1)
    start = script.next_offset(0)
    p.add(0, 1, version=0)
    p.produce(0)
    p.produce(0)
    p.describe()
    p.end("commit", 3)
    p.settled()
    script.note_log(0, start)
    p.end("commit", 3)
    p.end("abort", 3)
    p.add(0)
    p.end("abort", 3)
    p.settled()
    p.end("abort", 3)
    p.end("commit", 3)
    p.add(0, epoch=p.epoch + 1)
    p.add(0, epoch=p.epoch + 1, version=1)
    for version in (1, 3):
        p.end("commit", version, epoch=9)
    p.end("commit", 3, producer_id=2**40)
    p.add(0)
    p.add(0)
    p.add(0, 2)
    p.describe()
    p.end("commit", 1)
    p.settled()


def both_kinds_of_client_on_one_transaction(script: Script) -> None:
    p = script.producer("mixed")
    p.init()
    p.add(0)
    p.produce(0, version=12)
    p.produce(1, version=12)
    p.end("commit", 3)
    p.settled()
    p.add(0)
    p.produce(0)
    p.end("commit", 5)
    p.settled()
    p.produce(0, version=12)
    p.end("commit", 3)
    p.settled()
    p.end("commit", 5)
    p.end("commit", 5, epoch=p.epoch - 1)


def produce_without_a_transaction(script: Script) -> None:
    p = script.producer("unknown")
    p.init()
    for version in (11, 10, 9, 3):
        p.produce(0, version=version)
    p.add(1)
    for version in (11, 10):
        p.produce(0, version=version)
    p.produce(1)
    p.end("commit", 3)
    p.settled()
    # A delayed Produce after the markers (KIP-890).
    p.produce(1, version=11, sequence=1)
    p.produce(1, version=10, sequence=1)
    stranger = script.producer("stranger")
    stranger.producer_id, stranger.epoch = 2**40, 0
    for version in (10, 11, 12):
        stranger.produce(0, version=version)


def a_producer_that_goes_on(script: Script) -> None:
    p = script.producer("goes-on")
    p.init()
    epoch = p.epoch
    p.init(producer_id=p.producer_id, epoch=epoch)
    p.init(producer_id=p.producer_id, epoch=epoch)
    p.init(producer_id=p.producer_id, epoch=epoch + 1)
    p.init(producer_id=p.producer_id, epoch=epoch)
    p.init(producer_id=2**40, epoch=epoch)
    p.init(version=3, producer_id=2**40, epoch=epoch)
    p.init(producer_id=-1, epoch=3)
    p.init(producer_id=3, epoch=-1)


def fencing_by_a_second_producer(script: Script) -> None:
    for version in (11, 12):
        first = script.producer(f"fenced-{version}")
        first.init()
        start = script.next_offset(0)
        if version == 11:
            first.add(0)
        first.produce(0, version=version)
        old = (first.producer_id, first.epoch)
        second = Producer(script, first.transactional_id)
        assert second.init() == "CONCURRENT_TRANSACTIONS"
        second.settled()
        script.note_log(0, start)
        # The first one, before the second has come back.
        first.end("abort", 5, *old, adopt=False)
        first.end("commit", 5, *old, adopt=False)
        first.end("abort", 3, *old)
        first.produce(0, version=11)
        first.produce(0, version=12)
        first.add(0)
        second.init()
        second.describe()
        # And after.
        first.init(producer_id=old[0], epoch=old[1])
        first.end("abort", 5, *old)
        first.produce(0, version=12)
        first.add(0)
        script.note_log(0, start)


def naming_itself_over_its_own_transaction(script: Script) -> None:
    for version in (11, 12):
        p = script.producer(f"itself-{version}")
        p.init()
        if version == 11:
            p.add(0)
        p.produce(0, version=version)
        old = (p.producer_id, p.epoch)
        assert p.init(producer_id=old[0], epoch=old[1]) == "CONCURRENT_TRANSACTIONS"
        p.settled()
        p.init(producer_id=old[0], epoch=old[1])
        p.init(producer_id=old[0], epoch=old[1])
        p.describe()
        p.end("abort", 3, *old)
        p.end("abort", 5, *old)


def timeouts(script: Script) -> None:
    late = []
    for version in (11, 12):
        p = script.producer(f"late-{version}")
        p.init(timeout_ms=2_000)  # more than it takes to write on a busy machine
        if version == 11:
            p.add(0)
        p.produce(0, version=version)
        late.append(p)
    for p in late:
        p.settled(*SETTLING)  # Kafka looks every 10 s
    first, second = late
    first.end("commit", 3)
    first.end("abort", 3)
    first.add(0)
    first.produce(0)
    first.init(producer_id=first.producer_id, epoch=first.epoch)
    second.end("commit", 5)
    second.produce(0, version=12)
    second.end("abort", 5)
    second.produce(0, version=12)
    second.end("commit", 5)
    second.settled()


def refusals(script: Script) -> None:
    p = script.producer("refused")
    p.describe()
    p.producer_id, p.epoch = 2**40, 0
    for version in (3, 5):
        p.end("commit", version)
    p.add(0)
    p.add_offsets("g")
    for timeout_ms in (0, -1, 900_001, 2**31 - 1):
        p.init(timeout_ms=timeout_ms)
    p.init()
    p.add(0, topic="no-such-topic")
    p.add(0, PARTITIONS + 4)
    p.describe()
    nobody = Producer(script, "")
    nobody.init()
    nobody.end("commit", 3)
    nobody.end("commit", 5)
    nobody.add(0)
    nobody.add_offsets("g")
    nobody.describe()
    for version in (0, 1, 2, 3, 4, 5):
        idempotent = script.wire.call(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=-1), version)
        script.note(name(idempotent.error_code), script.producer_id(idempotent.producer_id), idempotent.producer_epoch)


def requests_of_brokers(script: Script) -> None:
    p = script.producer("by-broker")
    p.init()
    for version in (4, 5):
        p.by_broker(0, version=version, verify=True)
    p.by_broker(0, version=4, verify=False)
    p.by_broker(0, 1, version=4, verify=True)
    p.by_broker(1, version=5, verify=False)
    p.by_broker(0, 1, version=5, verify=True)
    p.by_broker(0, version=4, verify=True, epoch=p.epoch + 7)
    p.by_broker(0, version=4, verify=False, epoch=p.epoch + 7)
    p.by_broker(0, PARTITIONS + 1, version=4, verify=True)
    p.by_broker(0, version=4, verify=True, transactional_id="")
    p.by_broker(0, version=4, verify=True, transactional_id="never-seen")
    p.describe()
    p.end("commit", 5)
    p.settled()
    p.by_broker(0, version=4, verify=True)


def markers_of_administrators(script: Script) -> None:
    p = script.producer("markers")
    p.init()
    start = script.next_offset(2)
    p.produce(2, version=12)
    script.note_log(2, start)
    p.marker(2, p.epoch, "abort", 2)
    p.marker(2, p.epoch + 1, "abort", 2)
    p.marker(2, p.epoch + 1, "abort", 2)
    p.marker(2, p.epoch + 1, "commit", 2)
    script.note_log(2, start)
    p.marker(2, p.epoch + 1, "abort", 2, coordinator_epoch=-1)
    p.marker(1, p.epoch + 1, "abort", 2)
    p.marker(1, p.epoch, "abort", 2)
    p.marker(1, p.epoch + 2, "abort", 2, coordinator_epoch=5)
    p.marker(1, p.epoch + 2, "abort", 2, coordinator_epoch=4)
    p.marker(2, 0, "abort", 2, producer_id=2**41)
    p.marker(1, 0, "commit", 0, topic="no-such-topic")
    p.marker(2, 0, "commit", PARTITIONS + 9)
    script.note_log(2, start)
    p.describe()
    script.note(script.wire.call(WriteTxnMarkersRequest(markers=[]), 1))


def epochs_and_sequences_at_the_log(script: Script) -> None:
    p = script.producer("sequences")
    p.init()
    start = script.next_offset(1)
    p.produce(1, version=12)
    p.produce(1, version=12, sequence=0)  # a duplicate
    p.produce(1, version=12, sequence=5)
    p.produce(1, version=12)
    p.end("commit", 5)
    p.settled()
    p.produce(1, version=12, sequence=3)  # a new epoch begins at 0
    p.produce(1, version=12)
    p.end("abort", 5)
    p.settled()
    script.note_log(1, start)
    q = script.producer("tv1-sequences")
    q.init()
    q.add(1)
    q.produce(1)
    q.end("commit", 3)
    q.settled()
    q.add(1)
    q.produce(1, sequence=7)
    q.produce(1)
    q.end("commit", 3)
    q.settled()
    script.note_log(1, start)


def offsets_in_transactions(script: Script) -> None:
    group = f"txn-group-{script.run}"
    script.wire.find_coordinator(group, 0)
    p = script.producer("offsets")
    p.init()
    p.add_offsets(group)
    p.commit_offset(group, 5, 3)
    p.end("commit", 3)
    p.settled()
    for version in (3, 4):
        p.commit_offset(group, 6, version)  # not added to the transaction
    p.commit_offset(group, 6, 5)
    p.state()
    p.end("abort", 5)
    p.settled()
    p.add_offsets(group, epoch=p.epoch - 1)
    p.add_offsets(group, version=1, epoch=p.epoch - 1)
    for version in (2, 3, 5):
        p.commit_offset(group, 7, version, epoch=p.epoch - 1)
    stranger = script.producer("no-one")
    stranger.producer_id, stranger.epoch = 2**40, 0
    for version in (2, 5):
        stranger.commit_offset(group, 7, version)


def the_list(script: Script) -> None:
    p = script.producer("list-a")
    p.init()
    p.produce(0, version=12)
    q = script.producer("list-b")
    q.init()

    def listed(version: int, **filters: Any) -> None:
        answer = script.wire.call(ListTransactionsRequest(**filters), version)
        own = [
            (state.transactional_id.rsplit("-", 1)[0], script.producer_id(state.producer_id), state.transaction_state)
            for state in answer.transaction_states
            if state.transactional_id.endswith(script.run) and state.transactional_id.startswith("list-")
        ]
        script.note(version, name(answer.error_code), sorted(answer.unknown_state_filters), sorted(own))

    listed(0)
    listed(0, state_filters=["Ongoing"])
    listed(0, state_filters=["Ongoing", "Nonsense"])
    listed(0, state_filters=["Nonsense"])
    listed(0, producer_id_filters=[p.producer_id])
    listed(0, producer_id_filters=[2**40])
    listed(1, duration_filter=0)
    listed(1, duration_filter=3_600_000)
    listed(2, transactional_id_pattern="list-.*")
    listed(2, transactional_id_pattern="list-a")
    listed(2, transactional_id_pattern="")
    patterns = (
        "list-(",
        "(?i)LIST-A.*",
        "[[:alpha:]]+-a-\\d+",
        "list-[^b].*",
        "(list|tx)-(a|b)-.{10,30}",
        "\\Qlist-a\\E.*",
    )
    refused = (
        "list**",
        "*",
        "(?=list).*",
        "a{1001}",
        "a{2,1}",
        "[b-a]",
        "\\1",
        "(?x)a",
        "a{",
        "a{,2}",
        "list-a)",
        "[[:no:]]",
    )
    for pattern in (*patterns, *refused):
        listed(2, transactional_id_pattern=pattern)
    p.end("commit", 5)
    p.settled()


def what_the_state_log_says(script: Script) -> None:
    p = script.producer("logged")
    p.init()
    p.produce(0, version=12)
    p.produce(1, version=12)
    p.end("commit", 5)
    p.settled()
    p.add(2)
    p.end("abort", 3)
    p.settled()
    p.end("abort", 5)
    p.settled()
    p.produce(0, version=12)
    assert p.init() == "CONCURRENT_TRANSACTIONS"
    p.settled()
    p.init()
    partition = partition_for(p.transactional_id, 50)
    fetched = script.wire.fetch("__transaction_state", partition, 0)
    for at, header in iter_batches(fetched.records):
        for record in decode_records(fetched.records, at, header):
            key = decode_versioned(TransactionLogKey, record.key or b"")
            if key.transactional_id != p.transactional_id or record.value is None:
                continue
            value = decode_versioned(TransactionLogValue, record.value)
            script.note(
                record.value[:2],
                TransactionState(value.transaction_status).label,
                [
                    script.producer_id(i)
                    for i in (value.producer_id, value.previous_producer_id, value.next_producer_id)
                ],
                (value.producer_epoch, value.next_producer_epoch, value.client_transaction_version),
                value.transaction_timeout_ms,
                None
                if value.transaction_partitions is None
                else sorted((topic.topic, sorted(topic.partition_ids)) for topic in value.transaction_partitions),
                value.transaction_start_timestamp_ms > 0,
                value.transaction_last_update_timestamp_ms >= value.transaction_start_timestamp_ms,
            )


SCRIPTS: list[Callable[[Script], None]] = [
    a_tv2_client,
    a_tv1_client,
    both_kinds_of_client_on_one_transaction,
    produce_without_a_transaction,
    a_producer_that_goes_on,
    fencing_by_a_second_producer,
    naming_itself_over_its_own_transaction,
    timeouts,
    refusals,
    requests_of_brokers,
    markers_of_administrators,
    epochs_and_sequences_at_the_log,
    offsets_in_transactions,
    the_list,
    what_the_state_log_says,
]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_answers_as_kafka(kafka: str, barnabas: str, script: Callable[[Script], None]) -> None:
    run = str(time.time_ns())
    assert play(barnabas, script, run) == play(kafka, script, run)
