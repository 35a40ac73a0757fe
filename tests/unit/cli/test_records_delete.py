"""`records delete` deletes what its plan has shown."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from barnabas.cli.records import HIGH_WATERMARK, _delete, _plan
from barnabas.client.types import TopicPartition

T0 = TopicPartition("t", 0)


class GrowingLog:
    """As an Admin: one partition whose log grows by a record with every request."""

    def __init__(self) -> None:
        self.end = 5

    async def list_offsets(self, wanted: dict[TopicPartition, str]) -> dict[TopicPartition, Any]:
        self.end += 1
        return {tp: SimpleNamespace(offset=0 if name == "earliest" else self.end) for tp, name in wanted.items()}

    async def delete_records(self, offsets: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        self.end += 1
        return {tp: self.end if offset == HIGH_WATERMARK else offset for tp, offset in offsets.items()}


async def test_records_that_were_written_since_the_plan_stay() -> None:
    admin: Any = GrowingLog()
    (row,) = await _plan(admin, {T0: HIGH_WATERMARK})
    await _delete(admin, row)
    assert row["records"] == row["low_watermark"] == 7
