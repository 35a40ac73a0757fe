"""A fetcher of the client and its one broker, whose answers the test gives."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from barnabas.client.consumer.core.config import ConsumerConfig
from barnabas.client.consumer.core.fetching import Fetcher, InFlightFetch
from barnabas.client.net.core.metadata import ClusterMetadata
from barnabas.client.types import TopicPartition
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from barnabas.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from barnabas.protocol.messages.shared import LeaderIdAndEpoch
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch
from barnabas.protocol.schema import decode, encode
from tests.support.rng import SeededRng

ID = bytes(15) + b"\x01"
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def metadata(leaders: dict[int, int], topic_id: bytes = ID, epoch: int = 3) -> ClusterMetadata:
    view = ClusterMetadata()
    partitions = [
        MetadataResponsePartition(partition_index=p, leader_id=leader, leader_epoch=epoch)
        for p, leader in leaders.items()
    ]
    response = MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=n) for n in sorted(set(leaders.values()))],
        topics=[MetadataResponseTopic(name="t", topic_id=topic_id, partitions=partitions)],
    )
    view.update(response, 0, whole=False)
    return view


def batch(base_offset: int, *values: bytes | None, producer_id: int = -1, transactional: bool = False) -> bytes:
    records = [NewRecord(None, v, 1_000 + i) for i, v in enumerate(values)]
    return bytes(
        build_batch(
            records, base_offset=base_offset, leader_epoch=3, producer_id=producer_id, transactional=transactional
        )
    )


class FetcherBench:
    """A fetcher and its one broker, whose answers the test gives."""

    def __init__(
        self, positions: dict[TopicPartition, int | None], leaders: dict[int, int] | None = None, **config: Any
    ):
        self.now = 1_000
        self.fetcher = Fetcher(ConsumerConfig(**config), metadata(leaders or {0: 1, 1: 1}), SeededRng())
        self.fetcher.assign(positions)
        self.session = 0

    def fetches(self) -> list[InFlightFetch]:
        return self.fetcher.next_fetches(self.now, lambda _: True)

    def fetch(self) -> InFlightFetch:
        (fetch,) = self.fetches()
        return fetch

    def answer(
        self,
        fetch: InFlightFetch,
        data: dict[int, bytes] | None = None,
        *,
        code: ErrorCode = ErrorCode.NONE,
        codes: dict[int, ErrorCode] | None = None,
        aborted: Iterable[tuple[int, int]] = (),
        leader: tuple[int, int] = (-1, -1),
    ) -> None:
        partitions = [
            PartitionData(
                partition_index=p,
                high_watermark=100,
                last_stable_offset=90,
                aborted_transactions=[AbortedTransaction(producer_id=i, first_offset=o) for i, o in aborted],
                records=records,
            )
            for p, records in (data or {}).items()
        ]
        partitions += [
            PartitionData(
                partition_index=p,
                error_code=c,
                current_leader=LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1]),
            )
            for p, c in (codes or {}).items()
        ]
        response = FetchResponse(
            error_code=code,
            session_id=self.session,
            responses=[FetchableTopicResponse(topic_id=ID, partitions=partitions)] if partitions else [],
        )
        self.fetcher.on_answer(fetch, decode(FetchResponse, encode(response, 16), 16), self.now)

    def values(self, **how: object) -> list[Any]:
        return [r.value for rs in self.fetcher.take(**how).values() for r in rs]  # type: ignore[arg-type]


def offsets(request: FetchRequest) -> dict[int, int]:
    return {p.partition: p.fetch_offset for t in request.topics for p in t.partitions}
