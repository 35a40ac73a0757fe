"""`barnabas storage`: info, check, format and random-uuid, on directories of stopped brokers, damaged ones and no ones."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from barnabas.storage.checkpoints import decode_uuid
from tests.support.processes.cli import called
from tests.support.processes.served import ServedBroker  # not the kit: the command reads its directory after the end
from tests.support.storage.damaged_directories import DAMAGES, damaged

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a stopped broker: orders-0 with three segments, orders-1 with one."""
    data = tmp_path_factory.mktemp("stopped") / "data"
    broker = ServedBroker(data, "offsets.topic.num.partitions=2", "transaction.state.log.num.partitions=2").start()
    at = ("-b", broker.address)
    assert (
        called("topic", "create", "orders", "--partitions", "2", "--config", "segment.bytes=1048576", *at).returncode
        == 0
    )
    text = "".join(f"{number} {'x' * 1000}\n" for number in range(2500))
    for partition, lines in (("0", text), ("1", "a\nb\n")):
        assert called("produce", "orders", "--partition", partition, *at, stdin=lines).returncode == 0
    broker.end()
    return data


@pytest.fixture
def data(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "data"))


def tree(path: Path) -> dict[str, bytes]:
    return {str(each.relative_to(path)): each.read_bytes() for each in sorted(path.rglob("*")) if each.is_file()}


def test_info_shows_what_is_there_and_changes_nothing(data: Path) -> None:
    before = tree(data)
    (shown,) = called("storage", "info", str(data), "--json").document
    assert (shown["node_id"], shown["clean_shutdown"], shown["running_pid"]) == (1, True, None)
    assert shown["metadata"]["metadata_version"] == "4.3-IV0"
    orders = [each for each in shown["partitions"] if each["topic"] == "orders"]
    assert [(each["log_start_offset"], each["log_end_offset"]) for each in orders] == [(0, 2500), (0, 2)]
    assert orders[0]["segments"] == 3
    assert orders[0]["high_watermark"] == orders[0]["recovery_point"] == 2500
    assert len(decode_uuid(orders[0]["topic_id"])) == 16
    text = called("storage", "info", str(data)).stdout
    assert "stopped cleanly" in text
    assert called("storage", "check", str(data)).stdout == "Kafka starts on it, and has nothing to repair\n"
    assert tree(data) == before


def test_a_running_broker_is_named(tmp_path: Path) -> None:
    broker = ServedBroker(tmp_path / "data").start()
    (shown,) = called("storage", "info", str(tmp_path / "data"), "--json").document
    assert shown["running_pid"] == broker.pid
    checked = called("storage", "check", str(tmp_path / "data"))
    assert (checked.returncode, f"process {broker.pid} runs on it" in checked.stdout) == (0, True)
    broker.end()


@pytest.mark.parametrize("name", DAMAGES)
def test_damages_are_found(data: Path, name: str) -> None:
    _, severity, where, what = DAMAGES[name]
    directories = damaged(data, name)
    before = tree(data.parent)
    checked = called("storage", "check", *map(str, directories), "--json")
    worst = json.loads(checked.stdout)[0]
    assert (worst["severity"], where in worst["path"], what in worst["what"]) == (severity, True, True), checked.stdout
    assert checked.returncode == (0 if severity in ("note", "rebuild") else 1)
    assert called("storage", "info", *map(str, directories)).returncode == 0
    assert tree(data.parent) == before


@pytest.mark.parametrize("arguments", [("format", "--node-id", "1"), ("info",), ("check",)], ids=lambda each: each[0])
def test_an_empty_name_is_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    refused = called("storage", arguments[0], "", *arguments[1:])
    assert (refused.returncode, refused.stdout, "an empty name is no directory" in refused.stderr) == (2, "", True)
    assert not list(tmp_path.iterdir())


def test_records_that_kafka_trusts_are_checked_if_asked_for(data: Path) -> None:
    log = min((data / "orders-0").glob("*.log"))
    contents = bytearray(log.read_bytes())
    contents[5000] ^= 1
    log.write_bytes(contents)
    assert called("storage", "check", str(data)).returncode == 0
    checked = called("storage", "check", str(data), "--all-records")
    assert (checked.returncode, "does not match its checksum" in checked.stdout) == (1, True)


def test_what_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "loop").symlink_to("loop")
    for verb in ("info", "check"):
        for path, said in (("file", "is a file"), ("missing", "does not exist"), ("loop", "")):
            refused = called("storage", verb, str(tmp_path / path))
            assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
            assert said in refused.stderr
        assert called("storage", verb).returncode == 2
    assert not (tmp_path / "missing").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every directory")
def test_a_directory_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    refused = called("storage", "check", str(tmp_path / "closed"))
    assert (refused.returncode, "cannot be read" in refused.stderr) == (2, True)


def test_a_formatted_directory_is_served(tmp_path: Path) -> None:
    data = tmp_path / "data"
    cluster_id = called("storage", "random-uuid").stdout.strip()
    assert len(decode_uuid(cluster_id)) == 16
    formatted = called("storage", "format", str(data), "--node-id", "1", "--cluster-id", cluster_id, "--release", "4.2")
    assert formatted.stdout == f"formatted {data}: cluster {cluster_id}, node 1, 4.2-IV1\n"
    broker = ServedBroker(data).start()
    features = called("features", "describe", "--json", "-b", broker.address).document
    quorum = called("quorum", "describe", "--json", "-b", broker.address).document
    broker.end()
    assert {each["name"]: each["finalized_level_name"] for each in features}["metadata.version"] == "4.2-IV1"
    assert quorum["cluster_id"] == cluster_id


def test_format_never_touches_what_is_there(data: Path, tmp_path: Path) -> None:
    before = tree(data)
    (tmp_path / "file").write_text("x")
    node = ("--node-id", "1")
    for arguments, code, said in (
        ((str(data), *node), 1, "--ignore-formatted"),
        ((str(data), "--node-id", "2", "--ignore-formatted"), 1, "belongs to node 1"),
        ((str(data), *node, "--ignore-formatted"), 2, "nothing to format"),
        ((str(tmp_path / "file"), *node), 2, "is a file"),
        ((str(tmp_path / "new"), *node, "--cluster-id", "short"), 2, "'short' is not an id"),
        ((str(tmp_path / "new"), *node, "--release", "9.9"), 2, "'9.9' is no metadata.version"),
        ((str(tmp_path / "new"), *node, "--release", "9"), 2, "'9' is no metadata.version; known releases are 3.0, "),
        ((str(tmp_path / "new"), *node, "--release", "3.2"), 2, "from 3.3-IV3 to 4.3-IV0"),
        ((str(tmp_path / "new"), "--node-id", "-1"), 2, "-1 is no node id"),
        ((str(tmp_path / "new"), str(tmp_path / "new"), *node), 2, "named twice"),
        ((), 2, ""),
    ):
        refused = called("storage", "format", *arguments)
        assert (refused.returncode, said in refused.stderr) == (code, True), refused
    (data / "meta.properties").unlink()
    assert "restore its meta.properties" in called("storage", "format", str(data), *node).stderr
    assert tree(data) == {name: each for name, each in before.items() if name != "meta.properties"}
    assert not (tmp_path / "new").exists()
