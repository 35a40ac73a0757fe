"""Groups: their lag, and the CSV of offsets, which is that of kafka-consumer-groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from barnabas.cli.client_properties import WrongCall
from barnabas.cli.group import DESCRIBED, GroupReport, PartitionReport, _offsets_text, read_offsets_csv
from barnabas.client.admin import GroupDescription, GroupMemberDescription
from barnabas.client.types import TopicPartition


def read(path: Path, text: str) -> dict[tuple[str, int], int]:
    file = path / "offsets.csv"
    file.write_text(text)
    return {(tp.topic, tp.partition): offset for tp, offset in read_offsets_csv(file, "g").items()}


def test_lines_with_and_without_a_group(tmp_path: Path) -> None:
    assert read(tmp_path, 'orders,0,7\n\n"a-name-of-more-than-24-characters",1,8\r\n') == {
        ("orders", 0): 7,
        ("a-name-of-more-than-24-characters", 1): 8,
    }
    assert read(tmp_path, '"g","orders",0,7\nother,orders,1,9\n') == {("orders", 0): 7}


@pytest.mark.parametrize(
    "text",
    ["orders,0\n", "orders,zero,1\n", "orders,0,-1\n", "orders,0,1\nx\n", "a,b,c,d,e\n", f"orders,0,{2**63}\n", ""],
)
def test_other_lines_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(WrongCall, match=r"line|no offsets"):
        read(tmp_path, text)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(WrongCall, match="cannot read"):
        read_offsets_csv(tmp_path / "missing", "g")
    (tmp_path / "binary").write_bytes(b"\xff\x00")
    with pytest.raises(WrongCall, match="cannot read"):
        read_offsets_csv(tmp_path / "binary", "g")


def test_the_lag_is_not_known_where_nothing_is_committed() -> None:
    place = TopicPartition("unread", 0)
    member = GroupMemberDescription("m-1", None, "c", "/127.0.0.1", (place,))
    group = GroupDescription("idle", "Stable", "consumer", "range", (member,))
    report = GroupReport(group, 1, (PartitionReport(place, None, 5, member),))
    first, _, row = _offsets_text(report).splitlines()
    assert first == "idle  Stable  classic  range  1 member  lag -"
    assert row.split()[:4] == ["unread-0", "-", "5", "-"]
    assert DESCRIBED.document(report)["lag"] is None
