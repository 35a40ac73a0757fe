"""What `barnabas dump` shows of files, folders and ranges, and of what is damaged."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.image.records import ConfigRecord, MetadataRecord, UserScramCredentialRecord, encode_record
from barnabas.cli.dump import lines_of
from barnabas.errors import RemoteProtocolError
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch
from barnabas.runtime.files import FileDisk
from barnabas.storage.log_config import LogConfig
from barnabas.storage.saved_state import SYNCED_STATE
from tests.support.processes.cli import called
from tests.support.storage.batches import append, append_transactional, end_transaction, idempotent, open_log


def test_dump_shows_a_saved_state(tmp_path: Path) -> None:
    log = open_log(FileDisk(str(tmp_path)))
    append_transactional(log, 5, 0, 2)
    end_transaction(log, 5, commit=False)
    append(log, idempotent(4, 0), leader_epoch=3)
    log.save_state()
    log.close()
    shown = list(lines_of(tmp_path / "t-0" / SYNCED_STATE, records=True))
    assert shown[0].startswith(f"end offset {log.log_end_offset} at byte {log.size_bytes} of segment 0")
    assert "epoch 3 from offset 3" in shown
    for expected in ("aborted producer 5 first 0 last 2", "producer 4 epoch", "producer 5 epoch"):
        assert any(line.startswith(expected) for line in shown)


def test_dump_shows_an_emptied_state_and_names_a_damaged_one(tmp_path: Path) -> None:
    (tmp_path / SYNCED_STATE).write_bytes(b"")
    assert next(iter(lines_of(tmp_path / SYNCED_STATE, records=True))).startswith("empty")
    (tmp_path / SYNCED_STATE).write_bytes(b"BLS2" + bytes(100))
    with pytest.raises(RemoteProtocolError, match="torn or damaged"):
        list(lines_of(tmp_path / SYNCED_STATE, records=True))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with the folder t-0: ten batches, one record each, in two segments."""
    log = open_log(FileDisk(str(tmp_path / "data")), LogConfig(segment_bytes=600))
    for number in range(10):
        append(log, idempotent(4, number))
    log.close()
    (tmp_path / "data" / "meta.properties").write_text("version=1\n")
    (tmp_path / "data" / ".lock").touch()
    return tmp_path / "data"


def documents(*arguments: str, code: int = 0) -> list[dict[str, Any]]:
    shown = called("dump", *arguments, "--json")
    assert shown.returncode == code, shown.stdout[-1000:]
    return [json.loads(line) for line in shown.stdout.splitlines()]


def test_a_folder_is_shown_with_all_its_files(data: Path) -> None:
    assert len(list((data / "t-0").glob("*.log"))) > 1
    found = documents(str(data))
    assert [each["offset"] for each in found if each["kind"] == "record"] == list(range(10))
    assert {"batch", "record", "text"} <= {each["kind"] for each in found}
    assert not any(each["file"].endswith(".lock") for each in found)
    assert {each["file"] for each in documents(str(data / "t-0"))} <= {each["file"] for each in found}


@pytest.mark.parametrize(
    ("offsets", "expected"), [("3..5", [3, 4, 5]), ("8..", [8, 9]), ("..1", [0, 1]), ("7", [7]), ("99..", [])]
)
def test_a_range_of_offsets(data: Path, offsets: str, expected: list[int]) -> None:
    found = documents(str(data / "t-0"), "--offsets", offsets)
    assert [each["offset"] for each in found if each["kind"] == "record"] == expected
    assert {each["kind"] for each in found} <= {"batch", "record"}


@pytest.mark.parametrize("offsets", ["..", "5..3", "x", "-1", "1...2", ""])
def test_a_wrong_range(data: Path, offsets: str) -> None:
    refused = called("dump", str(data), f"--offsets={offsets}")
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)


def test_what_is_before_a_damage_is_shown(data: Path) -> None:
    log = max((data / "t-0").glob("*.log"))
    contents = bytearray(log.read_bytes())
    contents[-1] ^= 1
    log.write_bytes(contents)
    found = documents(str(data / "t-0"), code=1)
    assert [each["offset"] for each in found if each["kind"] == "record"] == list(range(9))
    (error,) = [each for each in found if each["kind"] == "error"]
    assert "does not match its checksum" in error["error"]


def test_preallocated_zeros_are_no_damage(data: Path) -> None:
    log = max((data / "t-0").glob("*.log"))
    log.write_bytes(log.read_bytes() + bytes(2_000_000))
    assert documents(str(log))[-1]["offset"] == 9


def test_paths_without_files(data: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "missing", tmp_path / "data" / ".lock"):
        shown = called("dump", str(path))
        assert (shown.returncode, shown.stdout.count("  ! ")) == (1, 1)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    for name in ("none", "none.log"):
        result = called("dump", str(tmp_path / name))
        assert (result.returncode, result.stdout) == (1, f"{tmp_path / name}:\n  ! there is no such file or folder\n")


def test_metadata_snapshots_are_decoded(tmp_path: Path) -> None:
    assert called("storage", "format", str(tmp_path / "d"), "--node-id", "1").returncode == 0
    found = documents(str(tmp_path / "d" / "bootstrap.checkpoint"))
    values = [each["value"] for each in found if each["kind"] == "record"]
    assert {"type": "FeatureLevelRecord", "name": "metadata.version", "feature_level": 30} in values
    assert [each["type"] for each in found if each["kind"] == "control"] == ["SNAPSHOT_HEADER", "SNAPSHOT_FOOTER"]


@pytest.mark.parametrize("form", [(), ("--json",)], ids=("text", "json"))
def test_secrets_of_the_metadata_log_are_hidden(tmp_path: Path, form: tuple[str, ...]) -> None:
    def config(name: str, value: str, kind: int = 4) -> ConfigRecord:
        return ConfigRecord(resource_type=kind, resource_name="1", name=name, value=value)

    planted = "planted-secret"
    records: list[MetadataRecord] = [
        UserScramCredentialRecord(
            name="alice", mechanism=1, salt=b"planted-salt", stored_key=b"planted-1", server_key=b"planted-2"
        ),
        config("listener.name.x.plain.sasl.jaas.config", f'a.B required password="{planted}";'),
        config("ssl.key.password", planted),
        config("some.unknown.key", planted),
        config("log.retention.ms", "7654321"),
        config("retention.ms", "8765432", 2),
    ]
    path = tmp_path / "__cluster_metadata-0" / "00000000000000000000.log"
    path.parent.mkdir()
    path.write_bytes(build_batch([NewRecord(None, encode_record(each), 0) for each in records]))
    shown = called("dump", str(path), *form).stdout
    assert "planted" not in shown
    assert planted.encode().hex() not in shown
    for text in ("alice", "some.unknown.key", "[hidden]", "7654321", "8765432"):
        assert text in shown


def test_a_large_log_needs_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    with path.open("wb") as file:
        for number in range(64):
            record = NewRecord(None, bytes([number]) * 500_000, 0)
            file.write(build_batch([record], base_offset=number))
    assert path.stat().st_size > 30_000_000
    tracemalloc.start()
    try:
        lines = sum(1 for _ in lines_of(path, records=True))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert lines == 128
    assert peak < 8_000_000
