"""A transactional client of raw requests to a node in the test's process."""

from __future__ import annotations

from typing import Any

from barnabas.errors import ErrorCode
from tests.support.broker.nodes import Peer, batch
from tests.support.requests import request_of

FEW = {"transaction_state_log_num_partitions": "2", "offsets_topic_num_partitions": "2"}


class Client:
    """A transactional producer that sends exactly the requests that the test names."""

    def __init__(self, peer: Peer, transactional_id: str = "tx") -> None:
        self.peer = peer
        self.transactional_id = transactional_id
        self.producer_id = -1
        self.epoch = -1

    async def init(self, version: int = 4, timeout_ms: int = 60_000, **fields: Any) -> ErrorCode:
        await self.peer.call(request_of("FindCoordinator", key=self.transactional_id, key_type=1), 3)
        request = request_of(
            "InitProducerId", transactional_id=self.transactional_id, transaction_timeout_ms=timeout_ms, **fields
        )
        answer = await self.peer.call(request, version)
        if answer.error_code == 0:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        return ErrorCode(answer.error_code)

    def producing(self, topic: str = "t", partition: int = 0, sequence: int = 0) -> Any:
        records = batch(
            b"x",
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        data = {"name": topic, "partition_data": [{"index": partition, "records": records}]}
        return request_of(
            "Produce", transactional_id=self.transactional_id, acks=-1, timeout_ms=5_000, topic_data=[data]
        )

    async def produce(self, topic: str = "t", partition: int = 0, version: int = 12, sequence: int = 0) -> ErrorCode:
        answer = await self.peer.call(self.producing(topic, partition, sequence), version)
        return ErrorCode(answer.responses[0].partition_responses[0].error_code)

    def ending(self, *, commit: bool = True) -> Any:
        return request_of(
            "EndTxn",
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
        request = request_of(
            "AddOffsetsToTxn",
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id=group,
        )
        return ErrorCode((await self.peer.call(request, version)).error_code)

    async def state(self) -> str:
        (described,) = (
            await self.peer.call(request_of("DescribeTransactions", transactional_ids=[self.transactional_id]), 0)
        ).transaction_states
        return str(described.transaction_state)
