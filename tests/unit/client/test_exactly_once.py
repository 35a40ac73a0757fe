"""Which consumers and producers `exactly_once` refuses, and what it says to do."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.client import Consumer, NewMessage, Producer, Record, exactly_once
from barnabas.client.errors import ClientClosed, IllegalState

READS: dict[str, Any] = {"group_id": "g", "enable_auto_commit": False, "isolation_level": "read_committed"}
WRITES: dict[str, Any] = {"transactional_id": "copy-1"}


def copied(record: Record[Any, Any]) -> list[NewMessage]:
    return [NewMessage("out", record.value)]


@pytest.mark.parametrize(
    ("reads", "writes", "setting"),
    [
        (READS | {"enable_auto_commit": True}, WRITES, "enable_auto_commit=False"),
        (READS | {"group_id": None}, WRITES, "group_id="),
        (READS | {"group_id": None, "enable_auto_commit": True}, WRITES, "group_id="),
        (READS | {"isolation_level": "read_uncommitted"}, WRITES, 'isolation_level="read_committed"'),
        (READS, {}, "transactional_id="),
        (READS, WRITES | {"two_phase_commit": True}, "two_phase_commit=False"),
        (READS, WRITES | {"two_phase_commit": True, "keep_prepared": True}, "two_phase_commit=False"),
    ],
)
async def test_a_setting_that_loses_or_repeats_records_is_refused(
    reads: dict[str, Any], writes: dict[str, Any], setting: str
) -> None:
    with pytest.raises(IllegalState) as refused:
        await exactly_once(Consumer("in", **reads), Producer(**writes), copied)
    assert setting in str(refused.value), "the text names the setting with the value to give it"
    assert not isinstance(refused.value, ClientClosed)


async def test_partitions_that_were_assigned_are_copied_in_the_name_of_a_group_and_not_without_one() -> None:
    consumer = Consumer(**READS | {"group_id": None})
    consumer.assign([("in", 0)])
    with pytest.raises(IllegalState, match="group_id="):
        await exactly_once(consumer, Producer(**WRITES), copied)
    consumer = Consumer(**READS)
    consumer.assign([("in", 0)])
    with pytest.raises(ClientClosed, match="not started"):  # the settings are taken
        await exactly_once(consumer, Producer(**WRITES), copied)
