"""`__cluster_metadata` as Kafka's own tool reads it: every record of every batch, and the snapshots."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from barnabas.broker.image.records import ForeignRecord, decode_record, encode_record
from barnabas.broker.quorum.core.snapshots import decode_snapshot
from barnabas.protocol.messages.admin import (
    AlterableConfig,
    AlterConfigsResource,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
    IncrementalAlterConfigsRequest,
)
from barnabas.protocol.messages.transactions import InitProducerIdRequest
from barnabas.protocol.records import decode_records, iter_batches
from tests.support.oracle.group_script import RETRY, insist
from tests.support.oracle.tools import dumped, records_in
from tests.support.oracle.wire import Wire
from tests.support.processes.served import ServedBroker

pytestmark = pytest.mark.oracle


def as_kafka_names_it(class_name: str) -> str:
    """TopicRecord → TOPIC_RECORD."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", class_name).upper()


def named(values: list[bytes]) -> list[str]:
    return [as_kafka_names_it(type(decode_record(value)).__name__) for value in values]


def live(address: str, name: str) -> None:
    """Every kind of change that this broker writes."""
    with Wire(address) as wire:
        wire.create_topic(name, 3, **{"cleanup.policy": "compact", "retention.ms": "1000"})
        wire.create_topic(f"{name}.gone")
        wire.call(
            CreatePartitionsRequest(
                topics=[CreatePartitionsTopic(name=name, count=5, assignments=None)], timeout_ms=5_000
            ),
            3,
        )
        changes = [
            (2, name, "retention.ms", None, 1),
            (2, name, "min.insync.replicas", "1", 0),
            (4, "", "log.cleaner.backoff.ms", "20000", 0),
            (4, "1", "log.cleaner.threads", "2", 0),
        ]
        for kind, resource, key, value, operation in changes:
            config = AlterableConfig(name=key, value=value, config_operation=operation)
            changed = AlterConfigsResource(resource_type=kind, resource_name=resource, configs=[config])
            answer = wire.call(IncrementalAlterConfigsRequest(resources=[changed]), 1)
            assert answer.responses[0].error_code == 0
        wire.call(DeleteTopicsRequest(topics=[DeleteTopicState(name=f"{name}.gone")], timeout_ms=5_000), 6)
        identity = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
        insist(lambda: wire.call(identity, 4), *RETRY)  # Kafka's broker fetches its first block only then
        wire.find_coordinator("a group", 0)


def test_kafkas_tool_decodes_every_record_of_log_and_snapshots(tmp_path: Path) -> None:
    broker = ServedBroker(tmp_path / "data", "metadata.log.max.record.bytes.between.snapshots=5000").start()
    try:
        live(broker.address, "first")
        broker.restart()
        live(broker.address, "second")
        broker.restart(kill=True)
        live(broker.address, "third")
        assert broker.stop() == 0, broker.log()
    finally:
        broker.kill()
    folder = tmp_path / "data" / "__cluster_metadata-0"
    (log,) = folder.glob("*.log")
    snapshots = sorted(folder.glob("*.checkpoint"))
    assert len(snapshots) > 1

    output = dumped([log], "--cluster-metadata-decoder")
    assert "isvalid: false" not in output
    assert "Could not" not in output
    assert output.count("LeaderChange: ") == 3
    data = log.read_bytes()
    values = [
        record.value or b""
        for position, header in iter_batches(data)
        if not header.is_control
        for record in decode_records(data, position, header)
    ]
    assert [record["type"] for record in records_in(output)] == named(values)
    types = {record["type"] for record in records_in(output)}
    assert types >= {
        "BEGIN_TRANSACTION_RECORD",
        "BROKER_REGISTRATION_CHANGE_RECORD",
        "CLEAR_ELR_RECORD",
        "CONFIG_RECORD",
        "END_TRANSACTION_RECORD",
        "FEATURE_LEVEL_RECORD",
        "PARTITION_CHANGE_RECORD",
        "PARTITION_RECORD",
        "PRODUCER_IDS_RECORD",
        "REGISTER_BROKER_RECORD",
        "REGISTER_CONTROLLER_RECORD",
        "REMOVE_TOPIC_RECORD",
        "TOPIC_RECORD",
    }
    registrations = [
        record["data"]["brokerEpoch"] for record in records_in(output) if record["type"] == "REGISTER_BROKER_RECORD"
    ]
    offsets = re.findall(r"offset: (\d+) .*REGISTER_BROKER_RECORD", output)
    assert registrations == [int(offset) for offset in offsets]  # the epoch is the offset of the record

    for snapshot in snapshots:
        output = dumped([snapshot], "--cluster-metadata-decoder")
        assert output.count("SnapshotHeader") == output.count("SnapshotFooter") == 1
        assert [record["type"] for record in records_in(output)] == named(list(decode_snapshot(snapshot.read_bytes())))


def test_the_first_records_of_a_cluster_are_kafkas(tmp_path: Path, kafka_data: tuple[str, Path]) -> None:
    broker = ServedBroker(tmp_path / "data").start()
    assert broker.stop() == 0, broker.log()
    ours, kafkas = (
        (folder / "__cluster_metadata-0" / f"{0:020d}.log").read_bytes()
        for folder in (tmp_path / "data", kafka_data[1] / "node-1" / "data")
    )

    def first(data: bytes) -> tuple[bytes, list[bytes]]:
        """The leader change, and the records of the first batch after it."""
        (position, header), (after, bootstrap), *_ = iter_batches(data)
        assert header.is_control
        change = decode_records(data, position, header)[0].value or b""
        return change, [record.value or b"" for record in decode_records(data, after, bootstrap)]

    change, kafkas_records = first(kafkas)
    unserved = (b"share.version", b"streams.version")  # not turned on by us
    served = [record for record in kafkas_records if not any(name in record for name in unserved)]
    assert len(served) == len(kafkas_records) - len(unserved)
    assert first(ours) == (change, served)


def test_what_kafka_writes_is_read_and_written_alike(kafka_data: tuple[str, Path]) -> None:
    address, folder = kafka_data
    live(address, "written-by-kafka")
    data = (folder / "node-1" / "data" / "__cluster_metadata-0" / f"{0:020d}.log").read_bytes()
    for position, header in iter_batches(data):
        if header.is_control:
            continue
        for record in decode_records(data, position, header):
            decoded = decode_record(record.value or b"")
            assert not isinstance(decoded, ForeignRecord), decoded
            assert encode_record(decoded) == record.value
