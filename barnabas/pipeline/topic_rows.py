"""Row sender: chooses topic and partition of Spark's rows and groups them into batches.
The partition is that of the column, else of the key (murmur2, as Java's producer), else round robin by group.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barnabas.client import Producer, SendFailed
from barnabas.client.errors import RecordTooLarge
from barnabas.pipeline.columns import ARROW_TYPES
from barnabas.pipeline.encoding import (
    BATCH_BYTES_MAX,
    as_binary,
    encode_rows,
    lengths_of,
    partitions_of_keys,
    row_bytes,
)
from barnabas.pipeline.errors import PipelineError
from barnabas.ports import Clock

_AHEAD_MAX = 64  # unchecked results of batches
_REQUEST_OVERHEAD_MAX = 512  # bytes of a request besides one record, or the batch around it


class TopicRows:
    """Sends the rows of one task.

    Args:
        topic: topic of all rows; None to use their column `topic`.
        clock: for record timestamps.
        spread: first partition for rows without key and partition.
        dead_topic: receives the key of each row that does not fit `request_bytes_max`, with the reason in its headers.
    """

    def __init__(
        self,
        topic: str | None,
        clock: Clock,
        *,
        spread: int = 0,
        dead_topic: str | None = None,
        request_bytes_max: int = 2 * BATCH_BYTES_MAX,
    ) -> None:
        self.topic = topic
        self._dead_topic = dead_topic
        self._row_bytes_max = request_bytes_max - _REQUEST_OVERHEAD_MAX
        self.count = 0
        self._clock = clock
        self._next = spread
        self._partition_counts: dict[str, int] = {}
        self._waiting: list[Any] = []

    async def send(self, producer: Producer, batch: pa.RecordBatch) -> None:
        """Queues the rows of a batch.

        Raises:
            PipelineError: a row has no topic, or its partition does not exist.
            KafkaError: see Producer.send_batch; also for an earlier batch.
        """
        now_ms = self._clock.now_ms()
        bytes_max = min(BATCH_BYTES_MAX, self._row_bytes_max)
        for topic, rows in self._by_topic(batch):
            count = await self._partition_count(producer, topic)
            for partition, part in self._by_partition(rows, topic, count):
                for records in encode_rows(*_record_columns(part), now_ms, bytes_max):
                    try:
                        self._waiting.append(await producer.send_batch(topic, partition, records, divisible=True))
                    except RecordTooLarge as error:
                        remedy = (
                            "raise it, and max.message.bytes of the topic, write smaller rows, or set dead.letter.topic"
                        )
                        raise PipelineError("kafka.max.request.size", None, remedy, f"({error}) is too small") from None
        self.count += batch.num_rows
        if len(self._waiting) > _AHEAD_MAX:
            self._waiting = [future for future in self._waiting if not self._settled(future)]

    async def finish(self, producer: Producer) -> None:
        """Waits for all acknowledgements. Raises KafkaError."""
        try:
            await producer.flush()
        except SendFailed as failed:
            raise failed.errors[0] from None
        for future in self._waiting:
            self._settled(future)
        self._waiting.clear()

    @staticmethod
    def _settled(future: Any) -> bool:
        if not future.done():
            return False
        future.result()  # raises the error of the batch, if it has one
        return True

    async def _partition_count(self, producer: Producer, topic: str) -> int:
        count = self._partition_counts.get(topic, 0)
        if not count:
            count = self._partition_counts[topic] = len(await producer.partitions_for(topic))
        return count

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, dict[str, pa.Array]]]:
        columns = {name.lower(): column for name, column in zip(batch.schema.names, batch.columns, strict=True)}
        if not batch.num_rows:
            return
        if self._dead_topic is not None:
            sizes = row_bytes(*_record_columns(columns))
            fits = sizes <= self._row_bytes_max
            if not fits.all():
                yield self._dead_topic, self._dead_letters(_filtered(columns, pa.array(~fits)), sizes[~fits])
                columns = _filtered(columns, pa.array(fits))
                if not fits.any():
                    return
        if self.topic is not None:
            yield self.topic, columns
            return
        topics = columns["topic"]
        if topics.null_count:
            raise PipelineError("topic", None, "fill the column 'topic', or set the option 'topic'", "is null in a row")
        for topic in pc.unique(topics).to_pylist():
            yield topic, _filtered(columns, pc.equal(topics, topic))

    def _dead_letters(self, rows: dict[str, pa.Array], sizes: np.ndarray) -> dict[str, pa.Array]:
        """Rows without values in place of rows that are too large; without keys where these alone are too large."""
        count = len(sizes)
        topics = [self.topic] * count if self.topic is not None else rows["topic"].to_pylist()
        error = f"the record does not fit kafka.max.request.size = {self._row_bytes_max + _REQUEST_OVERHEAD_MAX}"
        headers = [
            [
                {"key": "error", "value": error.encode()},
                {"key": "topic", "value": (topic or "").encode()},
                {"key": "bytes", "value": str(size).encode()},
            ]
            for topic, size in zip(topics, sizes.tolist(), strict=True)
        ]
        found = {"value": pa.nulls(count, pa.binary()), "headers": pa.array(headers, ARROW_TYPES["headers"])}
        if "key" in rows:
            keys = as_binary(rows["key"])
            too_long = pa.array(lengths_of(keys) > self._row_bytes_max // 2)
            found["key"] = pc.if_else(too_long, pa.scalar(None, keys.type), keys)
        return found

    def _by_partition(
        self, columns: dict[str, pa.Array], topic: str, count: int
    ) -> Iterator[tuple[int, dict[str, pa.Array]]]:
        rows = len(columns["value"])
        partitions = np.full(rows, -1, dtype=np.int64)
        if "partition" in columns:
            partitions = columns["partition"].cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False).copy()
            wrong = (partitions >= count) | (partitions < -1)
            if wrong.any():
                value = int(partitions[wrong][0])
                raise PipelineError("partition", value, f"use 0 to {count - 1}", f"is no partition of topic {topic!r}")
        if "key" in columns and (partitions < 0).any():
            keys = as_binary(columns["key"])
            keyed = np.flatnonzero((partitions < 0) & (lengths_of(keys) >= 0))
            if len(keyed):
                partitions[keyed] = partitions_of_keys(keys.take(pa.array(keyed)), count)
        free = partitions < 0
        if free.any():
            partitions[free] = self._next % count
            self._next += 1
        if (partitions == partitions[0]).all():
            yield int(partitions[0]), columns
            return
        order = np.argsort(partitions, kind="stable")
        taken = pa.array(order)
        ordered = {name: column.take(taken) for name, column in columns.items() if name not in ("topic", "partition")}
        found, starts = np.unique(partitions[order], return_index=True)
        for partition, start, end in zip(found, starts, [*starts[1:], rows], strict=True):
            yield int(partition), {name: column.slice(start, end - start) for name, column in ordered.items()}


def _record_columns(rows: dict[str, pa.Array]) -> tuple[pa.Array | None, pa.Array, pa.Array | None]:
    """Keys, values and headers."""
    keys = as_binary(rows["key"]) if "key" in rows else None
    return keys, as_binary(rows["value"]), rows.get("headers")


def _filtered(rows: dict[str, pa.Array], chosen: pa.Array) -> dict[str, pa.Array]:
    return {name: column.filter(chosen) for name, column in rows.items()}
