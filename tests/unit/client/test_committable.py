"""Offsets, groups and times that a caller gives are checked where they are given."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.client import ConsumerGroupMetadata, IllegalState, OffsetAndMetadata, TopicPartition
from barnabas.client.committable import committable, group_of, searchable

TEA = TopicPartition("tea", 0)


def test_offsets_get_their_metadata() -> None:
    given: Any = {TEA: 5, ("tea", 1): OffsetAndMetadata(0, "why", 3)}
    assert committable(given) == {TEA: OffsetAndMetadata(5), TopicPartition("tea", 1): OffsetAndMetadata(0, "why", 3)}


@pytest.mark.parametrize(
    ("offsets", "why"),
    [
        ({TEA: -2}, "offset -2 must be from 0"),
        ({TEA: 1 << 63}, "offset 9223372036854775808 must be from 0"),
        ({TEA: "5"}, "an offset must be an int or an OffsetAndMetadata, not '5'"),
        ({TEA: OffsetAndMetadata(None)}, "an offset must be"),  # type: ignore[arg-type]  # the error is tested
        ({"tea": 5}, "a partition must be a TopicPartition, not 'tea'"),
        ({("tea", "0"): 5}, "a partition must be a TopicPartition"),
    ],
)
def test_wrong_offsets_are_refused(offsets: Any, why: str) -> None:
    with pytest.raises(IllegalState, match=why):
        committable(offsets)


def test_a_group_is_an_id_or_the_metadata_of_a_member() -> None:
    member = ConsumerGroupMetadata("kitchen", 3, "m")
    assert (group_of("kitchen"), group_of(member)) == (ConsumerGroupMetadata("kitchen"), member)
    nothing: Any = None
    with pytest.raises(IllegalState, match=r"group_metadata must be .* or a group id, not None"):
        group_of(nothing)


@pytest.mark.parametrize("timestamp_ms", [-1, -5, 1 << 63, "now", None, 1.5])
def test_times_are_no_special_offsets(timestamp_ms: Any) -> None:
    assert searchable({TEA: 0}) == {TEA: 0}
    with pytest.raises(IllegalState, match="must be an int from 0"):
        searchable({TEA: timestamp_ms})
