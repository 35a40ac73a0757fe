"""The last epochs of a producer id: transactions go on under a new id, over restarts, and no client sees an epoch above 32,766.

The epoch is brought near its end by a record of the state log that the coordinator loads, as if 32,000 transactions had been.
"""

from __future__ import annotations

import time

import pytest

from barnabas.broker.coordinator.host.partitioning import partition_for
from barnabas.broker.coordinator.transactions.records import TransactionRecord, encode_record
from barnabas.broker.coordinator.transactions.state import TransactionMetadata
from barnabas.limits import PRODUCER_EPOCH_MAX
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.protocol.messages.transactions import EndTxnRequest, InitProducerIdRequest
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch, decode_records, iter_batches
from barnabas.testing import Broker
from tests.support.oracle.wire import Wire
from tests.support.processes.fixtures import Serve, restart

pytestmark = pytest.mark.process

TOPIC, STATE_TOPIC = "last-epochs", "__transaction_state"
STATE_PARTITIONS = 5


def age(broker: Broker, transactional_id: str, epoch: int) -> int:
    """Gives a transactional id a history, and starts the broker again so that it knows; returns the producer id."""
    with Wire(
        broker.bootstrap_servers, client_id="__admin_client"
    ) as wire:  # may write to internal topics, as in Kafka
        wire.find_coordinator(transactional_id, 1)
        begun = wire.patiently(
            InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000), 4
        )
        aged = TransactionMetadata(
            transactional_id,
            begun.producer_id,
            begun.producer_id,
            producer_epoch=epoch,
            timeout_ms=60_000,
            updated_ms=1,
        )
        key, value = encode_record(TransactionRecord(transactional_id, aged), 1)
        batch = build_batch([NewRecord(key, value, int(time.time() * 1000))])
        data = PartitionProduceData(index=partition_for(transactional_id, STATE_PARTITIONS), records=batch)
        request = ProduceRequest(acks=-1, topic_data=[TopicProduceData(name=STATE_TOPIC, partition_data=[data])])
        assert wire.call(request, 9).responses[0].partition_responses[0].error_code == 0
    restart(broker, kill=True)
    return int(begun.producer_id)


def test_transactions_go_on_under_a_new_producer_id(serve: Serve) -> None:
    broker = serve(f"transaction.state.log.num.partitions={STATE_PARTITIONS}")
    with Wire(broker.bootstrap_servers) as wire:
        wire.create_topic(TOPIC, 2)
    first_id = age(broker, "tired", PRODUCER_EPOCH_MAX - 6)
    wire = Wire(broker.bootstrap_servers)
    begun = wire.patiently(InitProducerIdRequest(transactional_id="tired", transaction_timeout_ms=60_000), 4)
    assert (begun.producer_id, begun.producer_epoch) == (first_id, PRODUCER_EPOCH_MAX - 5)
    identities = [(begun.producer_id, begun.producer_epoch)]
    expected = []
    for number in range(20):
        producer_id, epoch = identities[-1]
        commit = number % 3 != 2
        for partition in range(2):
            value = b"%d-%d" % (number, partition)
            answer = wire.produce(
                12,
                TOPIC,
                partition,
                [value],
                transactional_id="tired",
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=0,
            )
            assert answer.error_code == 0, (number, answer)
            if commit:
                expected.append(value)
        if number in (4, 5, 6, 12):  # also while the last epoch's transaction is open, and after the change of ids
            wire.close()
            restart(broker, kill=True)
            wire = Wire(broker.bootstrap_servers)
        end = EndTxnRequest(transactional_id="tired", producer_id=producer_id, producer_epoch=epoch, committed=commit)
        ended = wire.patiently(end, 5)
        assert ended.error_code == 0
        again = wire.patiently(end, 5)  # the answer was lost: the same one, whatever id it was given to
        assert (again.error_code, again.producer_id, again.producer_epoch) == (
            0,
            ended.producer_id,
            ended.producer_epoch,
        )
        identities.append((ended.producer_id, ended.producer_epoch))
    assert max(epoch for _, epoch in identities) == PRODUCER_EPOCH_MAX
    assert len({producer_id for producer_id, _ in identities}) == 2
    assert identities[6] != identities[5] == (first_id, PRODUCER_EPOCH_MAX)
    assert identities[6][1] == 0
    delivered = []
    for partition in range(2):
        fetched = wire.fetch(TOPIC, partition, 0, isolation_level=1)
        assert fetched.last_stable_offset == fetched.high_watermark
        aborted = {(one.producer_id, one.first_offset) for one in fetched.aborted_transactions}
        for at, header in iter_batches(fetched.records):
            if not header.is_control and (header.producer_id, header.base_offset) not in aborted:
                delivered += [record.value for record in decode_records(fetched.records, at, header)]
    assert sorted(delivered) == sorted(expected)
    wire.close()
