#!/usr/bin/env python3
"""How much memory of a broker a partition, a connection, a producer, a group and an offset take.

usage: sizes.py [--count 10000]

One broker of its own, plain settings. Printed: its resident memory without anything, and the growth for each thing, measured over
`--count` of them (connections: a fifth). The growth of a partition includes its open log, of a producer one record that it has written,
of a group its empty state, of an offset its commit. Memory that the broker has freed and keeps for later counts as used.
"""

from __future__ import annotations

import argparse
import resource
import socket
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # the tests' tools

from barnabas.protocol.messages import admin, groups, metadata, transactions  # after the path
from barnabas.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch
from tests.support.oracle.wire import Wire
from tests.support.processes.served import ServedBroker

TOPICS_A_REQUEST = 500
OFFSETS_A_REQUEST = 250


def create(wire: Wire, name: str, topics: int, partitions: int) -> None:
    for start in range(0, topics, TOPICS_A_REQUEST):
        request = admin.CreateTopicsRequest(
            topics=[
                admin.CreatableTopic(name=f"{name}{number}", num_partitions=partitions, replication_factor=1)
                for number in range(start, min(start + TOPICS_A_REQUEST, topics))
            ],
            timeout_ms=60_000,
        )
        assert all(topic.error_code == 0 for topic in wire.call(request, 7).topics)


def produce(wire: Wire, topic: str, partition: int, producer_id: int = -1) -> None:
    epoch, sequence = (0, 0) if producer_id >= 0 else (-1, -1)
    batch = build_batch(
        [NewRecord(None, b"x", int(time.time() * 1000))],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
    data = PartitionProduceData(index=partition, records=batch)
    request = ProduceRequest(
        acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
    )
    answer = wire.call(request, 9)
    assert answer.responses[0].partition_responses[0].error_code == 0, answer


def producers(wire: Wire, count: int) -> None:
    for _ in range(count):
        found = wire.call(transactions.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000), 4)
        produce(wire, "written0", 0, found.producer_id)


def commit(wire: Wire, group: str, count: int) -> None:
    for start in range(0, count, OFFSETS_A_REQUEST):
        parts = [
            groups.OffsetCommitRequestPartition(partition_index=number, committed_offset=0)
            for number in range(start, min(start + OFFSETS_A_REQUEST, count))
        ]
        topics = [groups.OffsetCommitRequestTopic(name="wide0", partitions=parts)]
        wire.call(groups.OffsetCommitRequest(group_id=group, generation_id_or_member_epoch=-1, topics=topics), 8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=10_000)
    count = parser.parse_args().count
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory(prefix="sizes-") as folder:
        broker = ServedBroker(Path(folder) / "data", "offsets.topic.num.partitions=10", descriptors_max=hard).start()
        try:
            with Wire(broker.address) as wire:
                wire.call(metadata.MetadataRequest(topics=None), 9)
                before = broker.rss_bytes()
                print(f"without anything: {before / 2**20:.1f} MiB")

                def report(what: str, number: int) -> None:
                    nonlocal before
                    after = broker.rss_bytes()
                    print(f"{what}: {(after - before) / number / 1024:.2f} KiB each ({number})", flush=True)
                    before = after

                create(wire, "narrow", count, 1)
                report("topic of one partition", count)
                create(wire, "wide", 1, count)
                report("partition of one topic", count)
                for number in range(count):
                    produce(wire, "wide0", number)
                report("partition that is written to", count)
                create(wire, "written", 1, 1)
                before = broker.rss_bytes()
                producers(wire, count)
                report("producer id that has written", count)
                wire.find_coordinator("one", 0)
                before = broker.rss_bytes()
                commit(wire, "one", count)
                report("committed offset", count)
                for number in range(count):
                    commit(wire, f"group{number}", 1)
                report("group with one offset", count)
                peers = [socket.create_connection(("127.0.0.1", broker.port)) for _ in range(count // 5)]
                wire.call(metadata.MetadataRequest(topics=[]), 9)
                report("idle connection", len(peers))
                for peer in peers:
                    peer.close()
        finally:
            broker.kill()


if __name__ == "__main__":
    main()
