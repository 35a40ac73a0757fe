"""Positions of a consumer's partitions: seeks, pauses, and offset look-ups (KIP-79)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from barnabas.client.committable import checked_partition, committable, searchable
from barnabas.client.consumer.core.fetch_state import PartitionState, Reset
from barnabas.client.consumer.core.fetching import Fetcher
from barnabas.client.consumer.reader import Reader
from barnabas.client.errors import IllegalState, RequestTimedOut
from barnabas.client.net.cluster import NetworkClient
from barnabas.client.net.offsets import EARLIEST, LATEST, list_offsets
from barnabas.client.types import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition


class Positions:
    """Positions of one consumer. `Consumer` documents the methods."""

    def __init__(self, cluster: NetworkClient, fetcher: Fetcher, reader: Reader) -> None:
        self._cluster = cluster
        self._clock = cluster.clock
        self._fetcher = fetcher
        self._reader = reader

    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Moves the position of a partition."""
        self._state(partition)
        for tp, at in committable({partition: offset}).items():
            self._fetcher.seek(tp, at.offset, epoch=at.leader_epoch)
        self._reader.wake()

    def seek_by(self, reset: str, partitions: Iterable[TopicPartition]) -> None:
        for tp in list(partitions) or list(self._fetcher.partitions):
            self._state(tp)
            self._fetcher.seek(TopicPartition(*tp), None, reset)
        self._reader.wake()

    async def seek_to_time(self, timestamp_ms: int, partitions: Iterable[TopicPartition]) -> None:
        wanted = {TopicPartition(*tp): self._state(tp) for tp in list(partitions) or list(self._fetcher.partitions)}
        found = await self.offsets_for_times(dict.fromkeys(wanted, timestamp_ms))
        for tp, state in wanted.items():
            if self._fetcher.partitions.get(tp) is state:
                at = found[tp]
                self._fetcher.seek(tp, *((None, Reset.LATEST) if at is None else (at.offset, None)))
        self._reader.wake()

    async def position(self, partition: TopicPartition, timeout_ms: int | None) -> int:
        deadline = self._clock.monotonic_ms() + (self._cluster.request_timeout_ms if timeout_ms is None else timeout_ms)
        while True:
            state = self._state(partition)
            if state.position is not None:
                return state.position
            if self._fetcher.errors:
                raise self._fetcher.errors.pop(0)
            self._reader.wake()
            if not await self._reader.changed(deadline):
                raise RequestTimedOut("no position in time", topic=state.tp.topic, partition=state.tp.partition)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            self._state(tp).paused = True

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            state = self._state(tp)
            state.paused = False
            state.urgent = True
        self._reader.wake()

    def paused(self) -> set[TopicPartition]:
        return {tp for tp, state in self._fetcher.partitions.items() if state.paused}

    def highwater(self, partition: TopicPartition) -> int | None:
        found = self._state(partition).high_watermark
        return found if found >= 0 else None

    def last_stable_offset(self, partition: TopicPartition) -> int | None:
        found = self._state(partition).last_stable_offset
        return found if found >= 0 else None

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        self._reader.check_open()
        found = await list_offsets(
            self._cluster, searchable(timestamps), read_committed=self._fetcher.config.read_committed
        )
        return {tp: found[tp] if found[tp].offset >= 0 else None for tp in timestamps}

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return await self._bounds(partitions, EARLIEST)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return await self._bounds(partitions, LATEST)

    async def _bounds(self, partitions: Iterable[TopicPartition], which: int) -> dict[TopicPartition, int]:
        self._reader.check_open()
        wanted = {TopicPartition(*tp): which for tp in partitions}
        found = await list_offsets(self._cluster, wanted, read_committed=self._fetcher.config.read_committed)
        return {tp: found[tp].offset for tp in wanted}

    def _state(self, partition: TopicPartition) -> PartitionState:
        state = self._fetcher.partitions.get(checked_partition(partition))
        if state is None:
            raise IllegalState(
                "the partition is not assigned to this consumer", topic=partition[0], partition=partition[1]
            )
        return state
