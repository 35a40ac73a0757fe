"""Produce, Fetch, ListOffsets, OffsetForLeaderEpoch and Metadata beside Kafka: the same raw requests, the same codes, offsets and bytes."""

from __future__ import annotations

import itertools
import struct
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from barnabas.errors import ErrorCode
from barnabas.protocol.compression import compress
from barnabas.protocol.internal_topics import COORDINATOR_TOPICS, INTERNAL_TOPICS
from barnabas.protocol.messages.admin import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from barnabas.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from barnabas.protocol.messages.metadata import (
    ApiVersionsRequest,
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    MetadataRequest,
    MetadataRequestTopic,
    TopicRequest,
)
from barnabas.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch, encode_records, frame_batch, iter_batches, read_header
from tests.support.oracle.produce_requests import BASE_MS, Outcome, batch, patched, produce, put
from tests.support.oracle.wire import Wire

pytestmark = pytest.mark.oracle

BIG = 1 << 24
Script = Callable[[Wire, str], Iterator[Outcome]]


def lying_batches(wire: Wire, topic: str) -> Iterator[Outcome]:
    """What is wrong with one batch, and what it is called.

    Left out are two on which Kafka stumbles: null records are never answered there (here INVALID_RECORD), an unknown codec is
    an UNKNOWN_SERVER_ERROR (here UNSUPPORTED_COMPRESSION_TYPE).
    """
    wire.create_topic(topic)
    wire.create_topic(topic + "-c", **{"cleanup.policy": "compact"})
    cases: dict[str, bytes | bytearray | None] = {
        "fine": batch(b"a", b"b"),
        "empty": b"",
        "short": batch(b"a")[:40],
        "cut by one": batch(b"a")[:-1],
        "two": batch(b"a") + batch(b"b"),
        "crc": patched(batch(b"a"), 17, ">I", 1, seal=False),
        "magic 1": patched(batch(b"a"), 16, ">b", 1),
        "magic 0": patched(batch(b"a"), 16, ">b", 0),
        "magic 3": patched(batch(b"a"), 16, ">b", 3),
        "magic -1": patched(batch(b"a"), 16, ">b", -1),
        "count above": patched(batch(b"a", b"b"), 57, ">i", 3),
        "count below": patched(batch(b"a", b"b"), 57, ">i", 1),
        "count 0": patched(batch(b"a"), 57, ">i", 0),
        "count -1": patched(batch(b"a"), 57, ">i", -1),
        "last offset delta": patched(batch(b"a", b"b"), 23, ">i", 5),
        "control": batch(b"a", control=True, producer_id=1, producer_epoch=0),
        "log append time": patched(batch(b"a"), 21, ">h", 8),
        "length 0": patched(batch(b"a"), 8, ">i", 0),
        "length -5": patched(batch(b"a"), 8, ">i", -5),
        "base offset 77": patched(batch(b"a"), 0, ">q", 77),
        "leader epoch 9": patched(batch(b"a"), 12, ">i", 9),
        "producer without sequence": batch(b"a", producer_id=5, producer_epoch=0),
        "sequence without producer": batch(b"a", base_sequence=4),
        "far ahead in time": batch(b"a", at_ms=100_000 + 2 * 3_600_000),
        "no timestamp": build_batch([NewRecord(None, b"a", -1)]),
        "null value": batch(None),
        "large": batch(bytes(1_100_000)),
    }
    for name, records in cases.items():
        yield (name, *produce(wire, topic, records))
    yield ("zstd in 6", *produce(wire, topic, batch(b"a", compression=4), 6))
    yield ("zstd in 7", *produce(wire, topic, batch(b"a", compression=4), 7))
    yield ("keyless and compacted", *produce(wire, topic + "-c", batch(b"a", b"b")))
    yield ("keyed and compacted", *produce(wire, topic + "-c", batch(b"a", keys=True)))
    yield ("keyless, compacted and compressed", *produce(wire, topic + "-c", batch(b"a", b"b", compression=1)))


def framed(payload: bytes, count: int, codec: int, **fields: int) -> bytearray:
    """A batch around any payload, uncompressed here, that claims `count` records."""
    named = {"base_timestamp": BASE_MS, "max_timestamp": BASE_MS} | fields
    header = read_header(batch(b""))._replace(
        attributes=codec, last_offset_delta=count - 1, record_count=count, **named
    )
    return frame_batch(header, compress(codec, payload))


def lying_records(wire: Wire, topic: str) -> Iterator[Outcome]:
    """Records that disagree with their header, with each other or with themselves; what is stored of those that are taken.

    Left out is where Kafka is lenient (gaps in the offsets of uncompressed records, wrong lengths of compressed ones: taken) or
    stumbles (gaps in the offsets of compressed records, compressed data that is none: UNKNOWN_SERVER_ERROR); here each is an
    INVALID_RECORD.
    """
    wire.create_topic(topic)
    wire.create_topic(topic + "-c", **{"cleanup.policy": "compact"})
    rows = [NewRecord(b"k", b"v", BASE_MS + n, [("h", b"x")]) for n in range(3)]
    three = bytes(encode_records(rows).data)
    one = bytes(encode_records(rows[:1]).data)
    for codec in (0, 1, 4):
        cases = {
            "fine": framed(three, 3, codec, max_timestamp=BASE_MS + 2),
            "more than there are": framed(three, 4, codec),
            "fewer than there are": framed(three, 2, codec),
            "2147483647": framed(one, 2**31 - 1, codec),
            "one byte less": framed(three[:-1], 3, codec),
            "one byte more": framed(three + b"\0", 3, codec),
            "a longer record": framed(b"\x40" + one[1:], 1, codec),
            "a shorter record": framed(bytes([one[0] - 2]) + one[1:], 1, codec),
            "a negative length": framed(b"\x01" + one[1:], 1, codec),
            "a longer key": framed(one[:4] + b"\x7e" + one[5:], 1, codec),
            "a negative header count": framed(one[:8] + b"\x01" + one[9:], 1, codec),
            "more headers": framed(one[:8] + b"\x04" + one[9:], 1, codec),
            "no records": framed(b"", 1, codec),
        }
        for name, records in cases.items():
            if not (codec and name in ("a longer record", "a shorter record", "a negative length")):
                yield (codec, name, *produce(wire, topic, records))
        late = encode_records([NewRecord(b"k", b"v", BASE_MS + n * 4_000_000) for n in range(2)]).data
        yield (codec, "late", *produce(wire, topic, framed(bytes(late), 2, codec)))
        keyless = encode_records([NewRecord(None, b"v", BASE_MS)] * 3).data
        yield (codec, "keyless", *produce(wire, topic + "-c", framed(bytes(keyless), 3, codec)))
        yield (codec, "largest", *produce(wire, topic, framed(three, 3, codec, max_timestamp=BASE_MS + 9_999)))
        yield (codec, "smallest", *produce(wire, topic, framed(three, 3, codec, max_timestamp=BASE_MS - 9_999)))
    answer = wire.fetch(topic, 0, 0)
    yield (
        "stored",
        [(one.compression, one.record_count, one.max_timestamp) for _, one in iter_batches(answer.records)],
    )


def acks_and_places(wire: Wire, topic: str) -> Iterator[Outcome]:
    """Who may write where, and what acks say."""
    wire.create_topic(topic)
    for acks in (-2, -1, 1, 2, 7):
        yield ("acks", acks, *produce(wire, topic, batch(b"a"), acks=acks))
    yield ("acks 0, unknown topic", *produce(wire, topic + "-none", batch(b"a"), acks=0))
    for partition in (-1, 1):
        yield ("partition", partition, *produce(wire, topic, batch(b"a"), partition=partition))
    yield ("unknown topic", *produce(wire, topic + "-none", batch(b"a")))
    yield ("unknown id", *produce(wire, topic, batch(b"a"), 13, topic_id=bytes(range(16))))
    yield ("zero id", *produce(wire, topic, batch(b"a"), 13))
    wire.await_coordinators()
    yield ("internal topic", *produce(wire, "__consumer_offsets", batch(b"a", keys=True)))
    for version in range(3, 13):
        yield ("version", version, *produce(wire, topic, batch(b"a"), version))
    wire.create_topic(topic + "-lat", **{"message.timestamp.type": "LogAppendTime"})
    yield ("log append time", *produce(wire, topic + "-lat", batch(b"a")))
    transactional: dict[str, Any] = {
        "producer_id": 99_999,
        "producer_epoch": 0,
        "base_sequence": 0,
        "transactional": True,
    }
    yield ("transactional, no id", *produce(wire, topic, batch(b"a", **transactional)))
    for version in (9, 11, 12):
        deadline = time.monotonic() + 60
        while True:  # not enough replicas is what a coordinator that is not reached yet is called
            records = batch(b"a", **transactional)
            outcome = produce(wire, topic, records, version, transactional_id="nobody-" + topic)
            if outcome[0] != ErrorCode.NOT_ENOUGH_REPLICAS or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        yield ("unknown producer", version, *outcome)


def idempotence(wire: Wire, topic: str) -> Iterator[Outcome]:
    """Sequences, epochs and the wrap, in a log that may have forgotten producers: an unknown one begins anywhere, as in Kafka."""
    wire.create_topic(topic)
    produce(wire, topic, batch(b"first"))
    first = DeleteRecordsTopic(name=topic, partitions=[DeleteRecordsPartition(partition_index=0, offset=1)])
    (deleted,) = wire.call(DeleteRecordsRequest(topics=[first], timeout_ms=10_000), 2).topics[0].partitions
    yield deleted.error_code, deleted.low_watermark
    last = 2**31 - 1
    script = [
        (5, 0, 0),
        (5, 0, 1),
        (5, 0, 1),
        (5, 0, 0),
        (5, 0, 3),
        (5, 1, 1),
        (5, 1, 0),
        (5, 0, 1),
        (5, 1, 1),
        (6, 3, 4),
        (6, 3, 5),
    ]
    script += [(7, 0, last), (7, 0, 0), (7, 0, 1), (7, 0, last)]
    for producer_id, epoch, sequence in script:
        records = batch(b"a", producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
        yield (producer_id, epoch, sequence, *produce(wire, topic, records))


def fetch(wire: Wire, *topics: FetchTopic, version: int = 12, **fields: Any) -> Any:
    defaults: dict[str, Any] = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": BIG}
    return wire.call(FetchRequest(topics=list(topics), **(defaults | fields)), version)


def wanted(topic: str, partition: int, offset: int, max_bytes: int = BIG, **fields: Any) -> FetchTopic:
    one = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes, **fields)
    return FetchTopic(topic=topic, partitions=[one])


def seen(response: Any) -> Outcome:
    return (
        response.error_code,
        [
            (
                part.partition_index,
                part.error_code,
                part.high_watermark,
                part.last_stable_offset,
                part.log_start_offset,
                part.diverging_epoch.epoch,
                part.diverging_epoch.end_offset,
                part.aborted_transactions,
                part.preferred_read_replica,
                [header.base_offset for _, header in iter_batches(part.records or b"")],
            )
            for topic in response.responses
            for part in topic.partitions
        ],
    )


def fetching(wire: Wire, topic: str) -> Iterator[Outcome]:
    """Offsets, limits, epochs; every version."""
    wire.create_topic(topic, 2)
    for n in range(4):
        put(wire, topic, 0, [b"x" * 500, b"y"], n)
        put(wire, topic, 1, [b"z" * 500], n)
    for version in range(4, 13):
        yield ("version", version, seen(fetch(wire, wanted(topic, 0, 3), version=version)))
    for offset in (-1, 0, 7, 8, 9, 2**40):
        yield ("offset", offset, seen(fetch(wire, wanted(topic, 0, offset))))
    both = [wanted(topic, 0, 0), wanted(topic, 1, 0)]
    for max_bytes in (0, 1, 600, 1_300, 3_000):
        yield ("max bytes", max_bytes, seen(fetch(wire, *both, max_bytes=max_bytes)))
        small = [wanted(topic, 0, 0, max_bytes), wanted(topic, 1, 0, max_bytes)]
        yield ("partition max bytes", max_bytes, seen(fetch(wire, *small)))
    for epoch in (0, 1, 5):
        yield ("current leader epoch", epoch, seen(fetch(wire, wanted(topic, 0, 0, current_leader_epoch=epoch))))
        yield ("last fetched epoch", epoch, seen(fetch(wire, wanted(topic, 0, 4, last_fetched_epoch=epoch))))
    yield ("isolation", seen(fetch(wire, wanted(topic, 0, 0), isolation_level=1)))
    yield ("unknown topic", seen(fetch(wire, wanted(topic + "-none", 0, 0))))
    yield ("unknown partition", seen(fetch(wire, wanted(topic, 2, 0))))
    unknown = FetchTopic(topic_id=bytes(range(16)), partitions=[FetchPartition(partition=0, partition_max_bytes=BIG)])
    yield ("unknown id", seen(fetch(wire, unknown, version=13)))
    yield ("nothing", seen(fetch(wire)))


def sessions(wire: Wire, topic: str) -> Iterator[Outcome]:
    """KIP-227 on the wire."""
    wire.create_topic(topic, 3)
    for partition in range(3):
        put(wire, topic, partition, [b"a"])
    first = fetch(wire, *(wanted(topic, n, 0) for n in range(3)), session_epoch=0)
    session = first.session_id
    yield ("new", session > 0, seen(first))

    def go_on(epoch: int, *topics: FetchTopic, **fields: Any) -> Outcome:
        response = fetch(wire, *topics, session_id=session, session_epoch=epoch, **fields)
        return (response.session_id == session, response.session_id == 0, seen(response))

    yield ("read on", *go_on(1, *(wanted(topic, n, 1) for n in range(3))))
    yield ("no news", *go_on(2))
    put(wire, topic, 1, [b"b"])
    yield ("news", *go_on(3))
    yield ("unacknowledged", *go_on(4))
    yield ("wrong epoch", *go_on(4))
    yield ("wrong epoch again", *go_on(9))
    yield ("an unknown partition comes in", *go_on(5, wanted(topic, 7, 0)))
    yield ("and stays an error", *go_on(6))
    forgotten = [ForgottenTopic(topic=topic, partitions=[1, 7])]
    yield ("forgotten", *go_on(7, forgotten_topics_data=forgotten))
    yield ("out of range", *go_on(8, wanted(topic, 0, 99)))
    yield ("back in range", *go_on(9, wanted(topic, 0, 1)))
    forgotten = [ForgottenTopic(topic=topic, partitions=[0, 2])]
    yield ("all forgotten", *go_on(10, forgotten_topics_data=forgotten))
    yield ("gone", *go_on(11))
    unknown = fetch(wire, session_id=12345, session_epoch=1)
    yield ("unknown", unknown.session_id, seen(unknown))
    again = fetch(wire, wanted(topic, 0, 0), session_epoch=0)
    full = fetch(wire, wanted(topic, 0, 0), session_id=again.session_id, session_epoch=0)
    yield ("replaced", full.session_id not in (0, again.session_id), seen(full))
    closed = fetch(wire, wanted(topic, 0, 0), session_id=full.session_id, session_epoch=-1)
    yield ("closed", closed.session_id, seen(closed))
    after = fetch(wire, session_id=full.session_id, session_epoch=1)
    yield ("after", after.session_id, seen(after))


def offsets(wire: Wire, topic: str) -> Iterator[Outcome]:
    """ListOffsets by timestamp and special timestamps; OffsetForLeaderEpoch."""
    wire.create_topic(topic)
    wire.create_topic(topic + "-empty")
    for at_ms in (0, 1_000, 500, 3_000):
        produce(wire, topic, batch(b"a", b"b", at_ms=at_ms))
        produce(wire, topic, batch(b"a", b"b", at_ms=at_ms + 10, compression=1))

    def ask(name: str, timestamp: int, version: int, **fields: int) -> Outcome:
        one = ListOffsetsPartition(partition_index=fields.pop("partition", 0), timestamp=timestamp, **fields)
        topics = [ListOffsetsTopic(name=name, partitions=[one])]
        answer = wire.call(ListOffsetsRequest(replica_id=-1, topics=topics), version).topics[0].partitions[0]
        known = answer.timestamp - BASE_MS if answer.timestamp >= 0 else -1
        return (answer.error_code, answer.offset, known, answer.leader_epoch)

    for version, name in itertools.product((1, 3, 4, 6, 7, 8, 9, 10, 11), (topic, topic + "-empty")):
        for special in (-1, -2, -3, -4, -5, -6, -7):
            yield (version, name == topic, special, *ask(name, special, version))
    for at_ms in (-1, 0, 1, 2, 10, 11, 12, 500, 999, 1_001, 1_012, 3_000, 3_011, 3_012, 9_000):
        yield ("at", at_ms, *ask(topic, BASE_MS + at_ms, 8))
    for epoch in (-1, 0, 1):
        yield ("current epoch", epoch, *ask(topic, -1, 8, current_leader_epoch=epoch))
    yield ("unknown partition", *ask(topic, -1, 8, partition=4))
    one = ListOffsetsPartition(partition_index=0, timestamp=-1)
    twice = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[one, one])])
    yield ("twice", [(part.error_code, part.offset) for part in wire.call(twice, 8).topics[0].partitions])
    for version, epoch, current, name in itertools.product(
        (2, 3, 4), (-1, 0, 1, 5), (-1, 0, 1), (topic, topic + "-empty")
    ):
        asked = OffsetForLeaderPartition(partition=0, current_leader_epoch=current, leader_epoch=epoch)
        request = OffsetForLeaderEpochRequest(
            replica_id=-1, topics=[OffsetForLeaderTopic(topic=name, partitions=[asked])]
        )
        answer = wire.call(request, version).topics[0].partitions[0]
        yield (
            "epoch",
            version,
            epoch,
            current,
            name == topic,
            answer.error_code,
            answer.leader_epoch,
            answer.end_offset,
        )


def metadata(wire: Wire, topic: str) -> Iterator[Outcome]:
    """Names and ids that are there or not; pages; the cluster."""
    wire.create_topic(topic, 2)

    def told(version: int, *asked: MetadataRequestTopic, **fields: Any) -> Outcome:
        try:
            answer = wire.call(MetadataRequest(topics=list(asked), **fields), version)
        except ConnectionError:
            return ("closed",)
        return (
            answer.error_code,
            answer.cluster_authorized_operations,
            [
                (
                    one.error_code,
                    one.name and one.name.replace(topic, "TOPIC"),
                    one.topic_id == bytes(16),
                    one.is_internal,
                    one.topic_authorized_operations,
                    [(part.error_code, part.partition_index, part.leader_epoch) for part in one.partitions],
                )
                for one in answer.topics
            ],
        )

    for version in range(14):
        yield ("there", version, *told(version, MetadataRequestTopic(name=topic)))
    for name in ("", ".", "..", "a b", "ä", "x" * 250, topic + "-none"):
        yield (
            "name",
            name.replace(topic, "TOPIC"),
            *told(9, MetadataRequestTopic(name=name), allow_auto_topic_creation=False),
        )
    yield (
        "operations",
        *told(
            8,
            MetadataRequestTopic(name=topic),
            include_cluster_authorized_operations=True,
            include_topic_authorized_operations=True,
        ),
    )
    for name in sorted(INTERNAL_TOPICS - COORDINATOR_TOPICS):
        wire.create_topic(name)
        yield ("internal topic", *told(9, MetadataRequestTopic(name=name)), *produce(wire, name, batch(b"a")))
    yield ("unknown id", *told(12, MetadataRequestTopic(topic_id=bytes(range(16)), name=None)))
    yield ("unknown id in 10", *told(10, MetadataRequestTopic(topic_id=bytes(range(16)), name="")))
    for endpoint_type in (1, 2, 3):
        answer = wire.call(DescribeClusterRequest(endpoint_type=endpoint_type), 2)
        yield (
            "cluster",
            endpoint_type,
            answer.error_code,
            answer.error_message,
            len(answer.brokers),
            answer.cluster_authorized_operations,
        )
    for limit in (0, 1, 2, 5):
        request = DescribeTopicPartitionsRequest(
            topics=[TopicRequest(name=topic), TopicRequest(name=topic + "-none")], response_partition_limit=limit
        )
        try:
            page = wire.call(request, 0)
        except ConnectionError:
            yield ("page", limit, "closed")
            return
        cursor = page.next_cursor and (page.next_cursor.topic_name == topic, page.next_cursor.partition_index)
        yield (
            "page",
            limit,
            [
                (
                    one.error_code,
                    (one.name or "").replace(topic, "TOPIC"),
                    one.topic_authorized_operations,
                    [
                        (p.error_code, p.partition_index, p.eligible_leader_replicas, p.last_known_elr)
                        for p in one.partitions
                    ],
                )
                for one in page.topics
            ],
            cursor,
        )


def versions(wire: Wire, topic: str) -> Iterator[Outcome]:
    """ApiVersions: errors, features; a version of the future."""
    for version in range(5):
        request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
        answer = wire.call(request, version)
        finalized = {one.name: one.max_version_level for one in answer.finalized_features}
        supported = {one.name: (one.min_version, one.max_version) for one in answer.supported_features}
        yield (version, answer.error_code, finalized.get("transaction.version"), finalized.get("metadata.version"))
        yield (version, supported.get("transaction.version"), answer.zk_migration_ready)
    for name, release in (("", "1"), ("a", ""), ("-a", "1"), ("a b", "1"), ("a", "1-"), ("a.b-c", "1.2")):
        answer = wire.call(ApiVersionsRequest(client_software_name=name, client_software_version=release), 3)
        yield (name, release, answer.error_code, len(answer.api_keys) > 0)
    with Wire(wire.bootstrap) as own:
        header = struct.pack(">hhih", 18, 77, 4711, -1) + b"\0"
        own.socket.sendall(struct.pack(">i", len(header)) + header)
        yield ("future", own.next_frame())


SCRIPTS: list[Script] = [
    lying_batches,
    lying_records,
    acks_and_places,
    idempotence,
    fetching,
    sessions,
    offsets,
    metadata,
    versions,
]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: str(script.__name__))
def test_both_say_the_same(kafka: str, barnabas: str, script: Script) -> None:
    topic = "d" + uuid.uuid4().hex[:8]
    with Wire(kafka) as theirs, Wire(barnabas) as ours:
        expected, found = list(script(theirs, topic)), list(script(ours, topic))
    different = [(theirs_, ours_) for theirs_, ours_ in zip(expected, found, strict=True) if theirs_ != ours_]
    assert not different, "\n".join(f"Kafka    {theirs_}\nBarnabas {ours_}" for theirs_, ours_ in different)
