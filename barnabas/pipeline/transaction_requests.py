"""Requests about other processes' transactions: fence, list, end, commit offsets (KIP-98, KIP-447, KIP-664, KIP-890).
Retries decided ones without limit, all others for `timeout_ms`.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Any

from barnabas.client import TopicPartition
from barnabas.client.errors import COORDINATOR_MOVED, KafkaError, RequestTimedOut, code_of, error_for
from barnabas.client.net.cluster import NetworkClient, Purpose
from barnabas.client.net.core.backoff import Backoff
from barnabas.errors import ErrorCode
from barnabas.pipeline.decision_record import Identity
from barnabas.protocol.internal_topics import GROUP_METADATA_TOPIC
from barnabas.protocol.messages.groups import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from barnabas.protocol.messages.shared import TopicPartitionIndexes
from barnabas.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

log = logging.getLogger("barnabas.pipeline")

# Offsets need an existing partition. Every cluster with groups has this one, even if the output topics are deleted.
POSITION = TopicPartition(GROUP_METADATA_TOPIC, 0)

_REFUSED = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    }
)
_TOLD_EVERY_MS = 10_000


class TransactionRequests:
    """Requests to transaction and group coordinators, over a started NetworkClient.

    `timeout_ms`: how long to retry a request that is not about a decided part.
    """

    def __init__(self, cluster: NetworkClient, *, timeout_ms: int = 60_000) -> None:
        self.cluster = cluster
        self.timeout_ms = timeout_ms

    async def version(self) -> int:
        return await self.cluster.learn_transaction_version()

    async def fence(self, transactional_id: str, *, transaction_timeout_ms: int) -> Identity:
        """Sends InitProducerId, which fences earlier producers with this id and ends their open transaction."""
        request = InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=transaction_timeout_ms
        )
        answer = await self._ask("transaction", transactional_id, request, lambda r: r.error_code, version_max=5)
        return Identity(answer.producer_id, answer.producer_epoch)

    async def end(self, transactional_id: str, identity: Identity, *, commit: bool, decided: bool = False) -> bool:
        """Sends EndTxn; `decided` retries without limit. Whether the transaction has this outcome, now or from before."""
        request = EndTxnRequest(
            transactional_id=transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            committed=commit,
        )
        version_max = 5 if await self.version() >= 2 else 4
        try:
            await self._ask(
                "transaction",
                transactional_id,
                request,
                lambda r: r.error_code,
                version_max=version_max,
                for_ever=decided,
            )
        except KafkaError as error:
            if error.code in _REFUSED:
                log.info("EndTxn(commit=%s) of %s %s: %s", commit, transactional_id, identity, error)
                return False
            raise
        return True

    async def identity_of(self, transactional_id: str) -> Identity:
        """The present producer id and epoch of a transactional id."""
        state = (await self._describe(transactional_id)).transaction_states[0]
        return Identity(state.producer_id, state.producer_epoch)

    async def list_open(self, prefix: str) -> list[tuple[str, Identity]]:
        """Transactional ids with this prefix and an open transaction, with identities."""
        while (names := await self._names(prefix)) is None:
            pass  # coordinators have moved: repeat
        found = []
        for name in names:
            try:
                answer = await self._describe(name)
            except KafkaError as error:
                if error.code in _REFUSED:
                    continue
                raise
            state = answer.transaction_states[0]
            if state.transaction_state == "Ongoing":
                found.append((name, Identity(state.producer_id, state.producer_epoch)))
        return found

    async def _describe(self, name: str) -> Any:
        request = DescribeTransactionsRequest(transactional_ids=[name])
        return await self._ask("transaction", name, request, lambda r: r.transaction_states[0].error_code)

    async def _names(self, prefix: str) -> list[str] | None:
        """Ids with this prefix and an open transaction on all brokers; None if a broker has left."""
        asked = sorted(self.cluster.metadata.brokers)
        names: dict[str, None] = {}
        for node_id in asked:
            listed = await self._list(node_id, prefix)
            if listed is None:
                return None
            names |= dict.fromkeys(listed)
        return list(names) if sorted(self.cluster.metadata.brokers) == asked else None

    async def _list(self, node_id: int, prefix: str) -> list[str] | None:
        pattern = re.escape(prefix) + ".*"

        async def send() -> Any:
            if node_id not in self.cluster.metadata.brokers:
                return None
            # ListTransactions has no pattern before version 2: such brokers list all ids, which are filtered here.
            connection = await self.cluster.ready_connection(node_id, Purpose.COORDINATOR)
            knows = connection.core.versions.get(ListTransactionsRequest.API_KEY, (0, 0))[1] >= 2
            request = ListTransactionsRequest(
                state_filters=["Ongoing"], transactional_id_pattern=pattern if knows else None
            )
            return await connection.request(request)

        answer = await self._until(
            send, lambda r: r.error_code if r is not None else 0, lambda _: None, f"ListTransactions of {prefix}*"
        )
        if answer is None:
            return None
        return [t.transactional_id for t in answer.transaction_states if t.transactional_id.startswith(prefix)]

    async def commit_offset(
        self, transactional_id: str, identity: Identity, group: str, offset: int, metadata: str
    ) -> bool:
        """Adds an offset at POSITION to the transaction of `identity`; False if fenced."""
        version = await self.version()
        try:
            if version < 2:
                adding = AddOffsetsToTxnRequest(
                    transactional_id=transactional_id,
                    producer_id=identity.producer_id,
                    producer_epoch=identity.epoch,
                    group_id=group,
                )
                await self._ask("transaction", transactional_id, adding, lambda r: r.error_code)
            request = TxnOffsetCommitRequest(
                transactional_id=transactional_id,
                group_id=group,
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                generation_id=-1,
                topics=[
                    TxnOffsetCommitRequestTopic(
                        name=POSITION.topic,
                        partitions=[
                            TxnOffsetCommitRequestPartition(
                                partition_index=POSITION.partition,
                                committed_offset=offset,
                                committed_leader_epoch=-1,
                                committed_metadata=metadata,
                            )
                        ],
                    )
                ],
            )
            version_max = 5 if version >= 2 else 4
            await self._ask(
                "group", group, request, lambda r: r.topics[0].partitions[0].error_code, version_max=version_max
            )
        except KafkaError as error:
            if error.code in _REFUSED:
                log.info("offset of %s by %s %s: %s", group, transactional_id, identity, error)
                return False
            raise
        return True

    async def read_offset(self, group: str, *, stable: bool = True) -> tuple[int, str] | None:
        """A group's offset at POSITION and its metadata, or None. `stable` waits for open transactions (KIP-447)."""
        request = OffsetFetchRequest(
            group_id=group,
            topics=[TopicPartitionIndexes(name=POSITION.topic, partition_indexes=[POSITION.partition])],
            groups=[
                OffsetFetchRequestGroup(
                    group_id=group,
                    topics=[OffsetFetchRequestTopics(name=POSITION.topic, partition_indexes=[POSITION.partition])],
                )
            ],
            require_stable=stable,
        )

        def judge(response: Any) -> int:
            answer = response.groups[0] if response.groups else response
            return int(answer.error_code or answer.topics[0].partitions[0].error_code)

        answer = await self._ask("group", group, request, judge, version_max=9)
        of_group = answer.groups[0] if answer.groups else answer
        found = of_group.topics[0].partitions[0]
        return None if found.committed_offset < 0 else (found.committed_offset, found.metadata or "")

    # -- inside --------------------------------------------------------------------------------------------------------

    async def _ask(
        self,
        kind: str,
        key: str,
        request: Any,
        code: Callable[[Any], int],
        *,
        version_max: int = 0x7FFF,
        for_ever: bool = False,
    ) -> Any:
        async def send() -> Any:
            node_id = await self.cluster.find_coordinator(kind, key, timeout_ms=_TOLD_EVERY_MS)
            return await self.cluster.request(
                request, node_id=node_id, purpose=Purpose.COORDINATOR, version_max=version_max
            )

        def on_trouble(error: KafkaError) -> None:
            if error.code is None or error.code in COORDINATOR_MOVED:
                self.cluster.forget_coordinator(kind, key)

        return await self._until(send, code, on_trouble, f"{type(request).__name__} of {key}", for_ever=for_ever)

    async def _until(
        self,
        send: Callable[[], Any],
        code: Callable[[Any], int],
        on_trouble: Callable[[KafkaError], None],
        what: str,
        *,
        for_ever: bool = False,
    ) -> Any:
        clock = self.cluster.clock
        pace = Backoff(self.cluster.retry_backoff_ms, self.cluster.rng)
        start = told = clock.monotonic_ms()
        while True:
            try:
                answer = await send()
                refused = code(answer)
                if not refused:
                    return answer
                error: KafkaError = error_for(refused, what)
            except KafkaError as raised:
                error = raised
            if not (error.retriable or code_of(error.code or 0) in COORDINATOR_MOVED):
                raise error
            on_trouble(error)
            now = clock.monotonic_ms()
            if not for_ever and now - start > self.timeout_ms:
                raise RequestTimedOut(f"gave up after {self.timeout_ms} ms: {error}", code=error.code) from error
            if now - told > _TOLD_EVERY_MS:
                told = now
                log.warning("%s has been repeated for %d ms: %s", what, now - start, error)
            await asyncio.sleep(pace.pause_ms(now) / 1000)
