"""EndOffsets: high watermarks of partitions that other brokers lead, for the lag of groups coordinated here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from barnabas.broker.image.current_image import CurrentImage
from barnabas.broker.image.image import NO_LEADER
from barnabas.broker.metrics.awaited import awaited
from barnabas.broker.peers.peers import Peers
from barnabas.broker.scheduling.reactor import Reactor
from barnabas.broker.scheduling.slices import Slices
from barnabas.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from barnabas.work import Steps

PURPOSE: Final = "lag"  # of the connections
FRESH_MS: Final = 1_000
WAIT_S: Final = 0.5
ANSWER_MS: Final = 5_000
PARTITIONS_PER_REQUEST: Final = 1_000
PARTITIONS_PER_UNIT: Final = 8
CONSUMER: Final = -1
LATEST: Final = -1

_Wanted = Mapping[str, Iterable[int]]  # partitions by topic


class EndOffsets:
    """Requests end offsets only at a scrape, at most once every FRESH_MS, from leaders of partitions with commits (`wanted`).

    A scrape waits at most WAIT_S; a later answer serves the next one. After ANSWER_MS without an answer a leader's offsets are dropped:
    their lag is not exported. Offsets are requested before the commits are read, so a lag may be too small by commits in between, never
    below 0.
    """

    def __init__(
        self,
        reactor: Reactor,
        slices: Slices,
        peers: Peers,
        current: CurrentImage,
        *,
        node_id: int,
        listener: str,
        wanted: Callable[[], Steps[_Wanted]],
    ) -> None:
        self._reactor = reactor
        self._slices = slices
        self._peers = peers
        self._current = current
        self._node_id = node_id
        self._listener = listener
        self._wanted = wanted
        self._offsets: dict[tuple[str, int], int] = {}
        self._asked_ms = -FRESH_MS
        self._unanswered = 0
        self._answered = asyncio.Event()

    def get(self, topic: str, partition: int) -> int | None:
        """The last high watermark from the leader; None if unknown."""
        return self._offsets.get((topic, partition))

    async def refresh(self) -> None:
        now_ms = self._reactor.clock.monotonic_ms()
        if not self._unanswered and now_ms - self._asked_ms >= FRESH_MS:
            self._asked_ms = now_ms
            requests = await awaited(self._slices, self._requests())
            self._answered.clear()
            for leader_id, request in requests:
                self._send(leader_id, request)
        if self._unanswered:
            try:
                async with asyncio.timeout(WAIT_S):
                    await self._answered.wait()
            except TimeoutError:
                pass

    def _requests(self) -> Steps[list[tuple[int, ListOffsetsRequest]]]:
        """Requests to each leader; drops offsets of partitions without group."""
        image = self._current.image
        if len(image.brokers) <= 1:
            return []  # this broker leads everything
        wanted = yield from self._wanted()
        leaders: dict[int, list[tuple[str, int]]] = {}
        known: dict[tuple[str, int], int] = {}
        for topic, numbers in wanted.items():
            found = image.topic(topic)
            if found is None:
                continue
            partitions = found.partitions
            looked = 0
            for number in numbers:
                looked += 1
                leader = partitions[number].leader if number < len(partitions) else NO_LEADER
                if leader in (NO_LEADER, self._node_id):
                    continue
                key = (topic, number)
                leaders.setdefault(leader, []).append(key)
                if key in self._offsets:
                    known[key] = self._offsets[key]
            yield 1 + looked // PARTITIONS_PER_UNIT
        self._offsets = known
        requests = []
        for leader, keys in leaders.items():
            for start in range(0, len(keys), PARTITIONS_PER_REQUEST):
                chunk = keys[start : start + PARTITIONS_PER_REQUEST]
                requests.append((leader, _request(chunk)))
                yield 1 + len(chunk) // PARTITIONS_PER_UNIT
        return requests

    def _send(self, leader_id: int, request: ListOffsetsRequest) -> None:
        broker = self._current.image.brokers.get(leader_id)
        address = None if broker is None else broker.endpoint(self._listener)
        if address is None:
            self._forget(request)
            return
        self._unanswered += 1
        peer = self._peers.to(address.host, address.port, PURPOSE, node_id=leader_id)
        peer.send(request, partial(self._on_answer, request), timeout_ms=ANSWER_MS, long=True)

    def _on_answer(self, request: ListOffsetsRequest, answer: object) -> None:
        if isinstance(answer, ListOffsetsResponse):
            offsets = self._offsets
            for topic in answer.topics:
                for partition in topic.partitions:
                    key = (topic.name, partition.partition_index)
                    if partition.error_code:
                        offsets.pop(key, None)
                    else:
                        offsets[key] = partition.offset
        else:
            self._forget(request)
        self._unanswered -= 1
        if not self._unanswered:
            self._answered.set()

    def _forget(self, request: ListOffsetsRequest) -> None:
        for topic in request.topics:
            for partition in topic.partitions:
                self._offsets.pop((topic.name, partition.partition_index), None)


def _request(keys: Iterable[tuple[str, int]]) -> ListOffsetsRequest:
    topics: dict[str, ListOffsetsTopic] = {}
    for topic, number in keys:
        if topic not in topics:
            topics[topic] = ListOffsetsTopic(name=topic)
        topics[topic].partitions.append(ListOffsetsPartition(partition_index=number, timestamp=LATEST))
    return ListOffsetsRequest(
        replica_id=CONSUMER, isolation_level=0, topics=list(topics.values()), timeout_ms=ANSWER_MS
    )
