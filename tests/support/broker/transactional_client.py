"""A transactional client of raw requests to a node in the test's process."""

from __future__ import annotations

from typing import Any

from barnabas.errors import ErrorCode
from barnabas.protocol.messages.groups import FindCoordinatorRequest
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)
from tests.support.broker.nodes import Peer, batch

FEW = {"transaction_state_log_num_partitions": "2", "offsets_topic_num_partitions": "2"}


class Client:
    """A transactional producer that sends exactly the requests that the test names."""

    def __init__(self, peer: Peer, transactional_id: str = "tx") -> None:
        self.peer = peer
        self.transactional_id = transactional_id
        self.producer_id = -1
        self.epoch = -1

    async def init(self, version: int = 4, timeout_ms: int = 60_000, **fields: Any) -> ErrorCode:
        await self.peer.call(FindCoordinatorRequest(key=self.transactional_id, key_type=1), 3)
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id, transaction_timeout_ms=timeout_ms, **fields
        )
        answer = await self.peer.call(request, version)
        if answer.error_code == 0:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        return ErrorCode(answer.error_code)

    def producing(self, topic: str = "t", partition: int = 0, sequence: int = 0) -> ProduceRequest:
        records = batch(
            b"x",
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=partition, records=records)])
        return ProduceRequest(transactional_id=self.transactional_id, acks=-1, timeout_ms=5_000, topic_data=[data])

    async def produce(self, topic: str = "t", partition: int = 0, version: int = 12, sequence: int = 0) -> ErrorCode:
        answer = await self.peer.call(self.producing(topic, partition, sequence), version)
        return ErrorCode(answer.responses[0].partition_responses[0].error_code)

    def ending(self, *, commit: bool = True) -> EndTxnRequest:
        return EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )

    async def end(self, *, commit: bool = True, version: int = 5) -> ErrorCode:
        answer = await self.peer.call(self.ending(commit=commit), version)
        if answer.error_code == 0 and version >= 5:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        return ErrorCode(answer.error_code)

    async def add_offsets(self, group: str = "g", version: int = 3) -> ErrorCode:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id=group,
        )
        return ErrorCode((await self.peer.call(request, version)).error_code)

    async def state(self) -> str:
        (described,) = (
            await self.peer.call(DescribeTransactionsRequest(transactional_ids=[self.transactional_id]), 0)
        ).transaction_states
        return str(described.transaction_state)
