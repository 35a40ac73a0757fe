"""Where a consumer reads: the part of its interface that is about partitions and offsets, with or without a group.

Driven by: the caller. Emits: seeks and pauses to the fetcher; ListOffsets requests.

Follows KIP-79 (offsets by time) and Kafka's client in names and meanings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from barnabas.client.consumer.fetch_state import PartitionState, Reset
from barnabas.client.consumer.fetching import Fetcher
from barnabas.client.consumer.reader import Reader
from barnabas.client.errors import ClientClosed, IllegalState, RequestTimedOut
from barnabas.client.net.cluster import Cluster
from barnabas.client.net.offsets import EARLIEST, LATEST, list_offsets
from barnabas.client.types import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition

__all__ = ["Positions"]


class Positions:
    """The positions of one consumer, which is one of these."""

    def __init__(self, cluster: Cluster, fetcher: Fetcher, reader: Reader) -> None:
        self._cluster = cluster
        self._clock = cluster.clock
        self._fetcher = fetcher
        self._reader = reader
        self._started = False

    def assignment(self) -> set[TopicPartition]:
        """The partitions read at the moment."""
        return set(self._fetcher.partitions)

    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """The next record of the partition is the first at or after `offset` (≥ 0).

        Args:
            offset: with the leader epoch of the record before it, the leader is asked whether its log has that record; where
                it does not, the log was truncated (KIP-320).
        """
        at = offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)
        if at.offset < 0:
            raise IllegalState(f"offset {at.offset} is negative; seek_to_beginning and seek_to_end find theirs")
        self._state(partition)
        self._fetcher.seek(TopicPartition(*partition), at.offset, epoch=at.leader_epoch)
        self._reader.wake()

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """To the first offset of the log; all assigned partitions where none is named."""
        self._seek_by(Reset.EARLIEST, partitions)

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Behind the last record (under read_committed: the last stable one)."""
        self._seek_by(Reset.LATEST, partitions)

    async def seek_to_committed(self, *partitions: TopicPartition) -> None:
        """To the group's committed offsets."""
        self._seek_by(Reset.COMMITTED, partitions)

    async def seek_to_time(self, timestamp_ms: int, *partitions: TopicPartition) -> None:
        """To the first record at or after a time (ms since the Unix epoch), or behind the last where there is none.

        All assigned partitions where none is named. A partition that is taken away meanwhile is left alone.

        Raises:
            KafkaError: the offsets cannot be looked up. No position has changed then.
        """
        wanted = {TopicPartition(*tp): self._state(tp) for tp in list(partitions) or list(self._fetcher.partitions)}
        found = await self.offsets_for_times(dict.fromkeys(wanted, timestamp_ms))
        for tp, state in wanted.items():
            if self._fetcher.partitions.get(tp) is state:
                at = found[tp]
                self._fetcher.seek(tp, *((None, Reset.LATEST) if at is None else (at.offset, None)))
        self._reader.wake()

    async def position(self, partition: TopicPartition, *, timeout_ms: int | None = None) -> int:
        """The offset of the next record to be returned; looked up where it is not known yet.

        Raises:
            NoOffsetForPartition, RequestTimedOut: it cannot be found (in time).
        """
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

    def pause(self, *partitions: TopicPartition) -> None:
        """Polls return nothing of these partitions; positions and the membership stay."""
        for tp in partitions:
            self._state(tp).paused = True

    def resume(self, *partitions: TopicPartition) -> None:
        """Ends a pause."""
        for tp in partitions:
            state = self._state(tp)
            state.paused = False
            state.hurried = True
        self._reader.wake()

    def paused(self) -> set[TopicPartition]:
        return {tp for tp, state in self._fetcher.partitions.items() if state.paused}

    def highwater(self, partition: TopicPartition) -> int | None:
        """The high watermark in the last answer: the offset after the last committed record. None before the first."""
        found = self._state(partition).high_watermark
        return found if found >= 0 else None

    def last_stable_offset(self, partition: TopicPartition) -> int | None:
        """The last stable offset in the last answer: what read_committed may read is below it."""
        found = self._state(partition).last_stable_offset
        return found if found >= 0 else None

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """For each partition the first record at or after a timestamp (ms since the Unix epoch); None where there is none."""
        self._check_open()
        found = await list_offsets(self._cluster, timestamps, read_committed=self._fetcher.config.read_committed)
        return {tp: found[tp] if found[tp].offset >= 0 else None for tp in timestamps}

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset of each partition's log."""
        return await self._bounds(partitions, EARLIEST)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset after the last record; under read_committed the last stable offset."""
        return await self._bounds(partitions, LATEST)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._reader.closed:
            raise ClientClosed("the consumer is closed")
        if not self._started:
            raise ClientClosed("the consumer is not started: await start(), or use it in 'async with'")

    def _state(self, partition: TopicPartition) -> PartitionState:
        state = self._fetcher.partitions.get(TopicPartition(*partition))
        if state is None:
            raise IllegalState(
                "the partition is not assigned to this consumer", topic=partition[0], partition=partition[1]
            )
        return state

    def _seek_by(self, reset: str, partitions: Iterable[TopicPartition]) -> None:
        for tp in list(partitions) or list(self._fetcher.partitions):
            self._state(tp)
            self._fetcher.seek(TopicPartition(*tp), None, reset)
        self._reader.wake()

    async def _bounds(self, partitions: Iterable[TopicPartition], which: int) -> dict[TopicPartition, int]:
        self._check_open()
        wanted = {TopicPartition(*tp): which for tp in partitions}
        found = await list_offsets(self._cluster, wanted, read_committed=self._fetcher.config.read_committed)
        return {tp: found[tp].offset for tp in wanted}
