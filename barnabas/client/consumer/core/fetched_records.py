"""Prefetched records of all partitions of a consumer. Batches are decoded one by one, when their records are taken.
`position` moves only with returned records, and past batches without any.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from barnabas.client.consumer.core.config import ConsumerConfig
from barnabas.client.consumer.core.decoding import (
    Deserializers,
    corrupt,
    decoded,
    deserialized,
    from_offset,
    record_count,
)
from barnabas.client.consumer.core.fetch_state import Fetched, PartitionState
from barnabas.client.errors import KafkaError
from barnabas.client.types import Record, TopicPartition
from barnabas.errors import RemoteProtocolError
from barnabas.protocol.batch_layout import HEADER_SIZE
from barnabas.protocol.records import read_header


class FetchedRecords:
    """Prefetched records of one consumer."""

    def __init__(self, config: ConsumerConfig) -> None:
        self.errors: list[KafkaError] = []  # raised by the next polls, oldest first
        self.size_bytes = 0
        self._decoded = partial(decoded, check_crcs=config.check_crcs, raw=config.raw_records, runs=config.value_runs)
        deserializers = (config.key_deserializer, config.value_deserializer)
        self._deserializers: Deserializers | None = deserializers if any(deserializers) else None
        self._turns: dict[PartitionState, None] = {}  # partitions with records or an error, next first

    def add(self, state: PartitionState, fetched: Fetched) -> None:
        state.buffered.append(fetched)
        state.buffered_bytes += fetched.size_bytes
        self.size_bytes += fetched.size_bytes
        self._turns.setdefault(state)

    def add_error(self, state: PartitionState, error: KafkaError) -> None:
        state.error = error
        self._turns.setdefault(state)

    def drop(self, state: PartitionState) -> None:
        """Removes the records of a partition; the caller clears those in `state`."""
        self.size_bytes -= state.buffered_bytes
        self._turns.pop(state, None)

    def available(self) -> bool:
        return any(not state.paused for state in self._turns)

    def take(
        self, max_records: int | None = None, only: Iterable[TopicPartition] = ()
    ) -> dict[TopicPartition, list[Record[Any, Any]]]:
        """Returns records by partition, in turn, and moves the positions past them.

        Args:
            max_records: a ValueRun is not split: the last one may exceed it.
            only: the partitions to take from; empty means all.

        Raises:
            KafkaError: a reported error, or an unreadable batch (the position of its partition stays).
        """
        if self.errors:
            raise self.errors.pop(0)
        wanted = frozenset(only)
        taken: dict[TopicPartition, list[Record[Any, Any]]] = {}
        left = max_records
        for state in list(self._turns):
            if state.paused or (wanted and state.tp not in wanted):
                continue
            records: list[Record[Any, Any]] = []
            while left is None or left > 0:
                try:
                    more = self._take_from(state, left)
                except KafkaError:
                    if not taken and not records:
                        state.error = None  # if its cause remains, the next fetch reports it again
                        raise
                    break  # the records before the error are returned first; the next poll raises it
                if not more:
                    break
                records += more
                if left is not None:
                    left -= record_count(more)
            if records:
                taken[state.tp] = records
            if left is not None and left <= 0:
                if state in self._turns:  # the next poll begins with another partition
                    del self._turns[state]
                    self._turns[state] = None
                break
        return taken

    def take_one(self) -> tuple[PartitionState, Record[Any, Any]] | None:
        """The next record and its partition, which changes only after the last record of a batch. Raises as `take`."""
        if self.errors:
            raise self.errors.pop(0)
        for state in list(self._turns):
            if state.paused:
                continue
            try:
                records = self._take_from(state, 1)
            except KafkaError:
                state.error = None
                raise
            if records:
                if not state.ready and len(self._turns) > 1 and state in self._turns:
                    del self._turns[state]
                    self._turns[state] = None
                return state, records[0]
        return None

    def _take_from(self, state: PartitionState, limit: int | None) -> list[Record[Any, Any]]:
        ready = state.ready
        if not ready:
            ready = self._decode_next(state)
            if not ready:
                if state.error is not None:
                    raise state.error
                self._turns.pop(state, None)
                return ready
        index = state.index
        if index == 0 and (limit is None or limit >= len(ready)):
            records = ready
            stop = len(ready)
        else:
            stop = len(ready) if limit is None else min(len(ready), index + limit)
            records = ready[index:stop]
        if stop == len(ready):
            state.ready = []
            state.index = 0
            state.position = state.ready_next
            if not state.buffered and state.error is None:
                self._turns.pop(state, None)
        else:
            state.index = stop
            state.position = records[-1].offset + 1
        return records

    def _decode_next(self, state: PartitionState) -> list[Record[Any, Any]]:
        """The records of the next batch with any; the position moves past empty ones."""
        position = state.position
        while state.buffered and position is not None:
            fetched = state.buffered[0]
            if fetched.end - fetched.position < HEADER_SIZE:
                self._remove_first(state)
                continue
            try:
                header = read_header(fetched.records, fetched.position)
                if fetched.position + header.size_bytes > fetched.end:
                    self._remove_first(state)  # the size limit cut the batch off; the next fetch returns all of it
                    continue
                records = self._decoded(state.tp, fetched, header)
            except RemoteProtocolError as error:
                raise corrupt(state, error) from error
            if records and records[0].offset < position:
                records = from_offset(records, position)
            next_offset = max(header.next_offset, position)
            if records and self._deserializers is not None:
                records, failed_at = deserialized(records, self._deserializers)
                # The records before the failure are returned first; the next poll begins with the failed one.
                if failed_at is not None:
                    state.ready, state.index, state.ready_next = records, 0, failed_at
                    return records
            fetched.position += header.size_bytes
            if records:
                state.ready = records
                state.index = 0
                state.ready_next = next_offset
                if fetched.end - fetched.position < HEADER_SIZE:
                    self._remove_first(state)
                return records
            if state.safe_position == position:
                state.safe_position = next_offset
            position = state.position = next_offset
        return []

    def _remove_first(self, state: PartitionState) -> None:
        fetched = state.buffered.popleft()
        state.buffered_bytes -= fetched.size_bytes
        self.size_bytes -= fetched.size_bytes
