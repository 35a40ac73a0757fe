"""Arguments and files that name partitions: Kafka's formats, and what is wrong with others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from barnabas.cli import kafka_files
from barnabas.cli.kafka_files import (
    WrongFile,
    as_reassignment,
    offset_argument,
    partition_argument,
    read_offsets_file,
    read_partitions_file,
    read_reassignment_file,
    read_topics_file,
    replicas_argument,
)


def test_arguments() -> None:
    assert partition_argument("a.b-c:7") == ("a.b-c", 7)
    assert replicas_argument("orders:0=3,1") == (("orders", 0), (3, 1))
    assert offset_argument("orders:0:12") == (("orders", 0), 12)
    assert offset_argument("orders:0:latest") == offset_argument("orders:0:-1") == (("orders", 0), -1)


@pytest.mark.parametrize(
    "text", ["", "orders", "orders:", ":0", "orders:-1", "orders:x", "orders:²", "orders:" + "9" * 5000]
)
def test_wrong_partitions(text: str) -> None:
    with pytest.raises(WrongFile, match="is not TOPIC:PARTITION"):
        partition_argument(text)


@pytest.mark.parametrize(
    "text",
    [
        "orders:0",
        "orders:0=",
        "orders:0=1,1",
        "orders:0=1,,2",
        "orders:0=-1",
        "orders:0=2147483648",
        "orders:0=" + "9" * 5000,
    ],
)
def test_wrong_replicas(text: str) -> None:
    with pytest.raises(WrongFile):
        replicas_argument(text)


@pytest.mark.parametrize("text", ["orders:0", "orders:0:-2", "orders:0:9223372036854775808", "orders:0:1.5", "0:1"])
def test_wrong_offsets(text: str) -> None:
    with pytest.raises(WrongFile):
        offset_argument(text)


def test_a_reassignment_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    replicas = {partition_argument("a:1"): (3, 1), partition_argument("a:0"): (2,)}
    path.write_text(json.dumps(as_reassignment(replicas)))
    assert dict(read_reassignment_file(path)) == replicas
    with pytest.raises(WrongFile, match="unknown key"):
        read_partitions_file(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "cannot read"),
        ("{", "cannot read"),
        ("[]", "has no list"),
        ('{"partitions": {}}', "has no list"),
        ('{"partitions": [1]}', "has no list"),
        ('{"version": 2, "partitions": []}', "version 2"),
        ('{"partitions": [{"topic": "a"}]}', 'needs "topic"'),
        ('{"partitions": [{"topic": 1, "partition": 0}]}', 'needs "topic"'),
        ('{"partitions": [{"topic": "a", "partition": -1}]}', 'needs "topic"'),
        ('{"partitions": [{"topic": "a", "partition": true}]}', 'needs "topic"'),
        ('{"partitions": [{"topic": "a", "partition": 0, "offest": 1}]}', "unknown key 'offest'"),
        ('{"partitions": [{"topic": "a", "partition": 0, "offset": "1"}]}', "whole number"),
        ('{"partitions": [{"topic": "a", "partition": 0}]}', "whole number"),
        ('{"partitions": [{"topic": "a", "partition": 0, "offset": -2}]}', "-2 is no offset"),
        ("[" * 100_000, "cannot read"),
    ],
)
def test_wrong_offsets_files(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "offsets.json"
    path.write_text(text)
    with pytest.raises(WrongFile, match=said):
        read_offsets_file(path)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({}, 'needs "replicas"'),
        ({"replicas": "1"}, 'needs "replicas"'),
        ({"replicas": [1, "2"]}, 'needs "replicas"'),
        ({"replicas": []}, "at least one broker"),
        ({"replicas": [1, 1]}, "only once"),
        ({"replicas": [1], "log_dirs": ["/data"]}, "log_dirs"),
    ],
)
def test_wrong_reassignment_files(tmp_path: Path, entry: dict[str, object], said: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"version": 1, "partitions": [{"topic": "a", "partition": 0, **entry}]}))
    with pytest.raises(WrongFile, match=said):
        read_reassignment_file(path)


def test_topics(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    path.write_text('{"topics": [{"topic": "a"}, {"topic": "b"}], "version": 1}')
    assert read_topics_file(path) == ["a", "b"]
    path.write_text('{"topics": [{}]}')
    with pytest.raises(WrongFile):
        read_topics_file(path)


@pytest.mark.parametrize("directories", [5, "any", ["/disk1"], {"any": 1}])
def test_other_directories_than_any_are_refused(tmp_path: Path, directories: object) -> None:
    path = tmp_path / "plan.json"
    entry = {"topic": "a", "partition": 0, "replicas": [1], "log_dirs": directories}
    path.write_text(json.dumps({"version": 1, "partitions": [entry]}))
    with pytest.raises(WrongFile, match="are not served"):
        read_reassignment_file(path)


def test_a_file_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_files, "FILE_BYTES_MAX", 1000)
    with pytest.raises(WrongFile, match="larger than 1000 bytes"):
        read_partitions_file(Path("/dev/zero"))
