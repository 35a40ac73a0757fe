"""`barnabas serve` as users meet it: the ready line, stops and crashes, refusals to start."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.protocol.records import decode_records, iter_batches
from tests.support.oracle.wire import Wire
from tests.support.processes.cli import barnabas, called
from tests.support.processes.ports import free_ports
from tests.support.processes.served import ServedBroker  # not the kit: the command is tested

pytestmark = pytest.mark.process


@pytest.fixture
def served_broker(tmp_path: Path) -> Iterator[ServedBroker]:
    """`barnabas serve` itself, as a user runs it, not a broker of the test kit."""
    broker = ServedBroker(tmp_path / "data").start()
    yield broker
    broker.end()


def values(wire: Wire, topic: str) -> list[bytes | None]:
    """All of a partition's records, read page by page."""
    found: list[bytes | None] = []
    offset = 0
    while True:
        one = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = FetchRequest(max_bytes=1 << 20, topics=[FetchTopic(topic=topic, partitions=[one])])
        data = wire.call(request, 11).responses[0].partitions[0]
        assert data.error_code == 0
        if not data.records:
            return found
        for at, header in iter_batches(data.records):
            found += [record.value for record in decode_records(data.records, at, header) if record.offset >= offset]
            offset = header.next_offset


def test_what_was_acknowledged_is_there_after_each_restart(served_broker: ServedBroker) -> None:
    """After clean stops and after a crash, each time in a new leader epoch."""
    expected: list[bytes] = []
    epochs: list[int] = []
    with Wire(served_broker.address) as wire:
        wire.create_topic("t")
    for crash in (False, True, False):
        with Wire(served_broker.address) as wire:
            assert values(wire, "t") == expected
            for n in range(20):
                value = b"%d of epoch %d" % (n, len(epochs))
                answer = wire.produce(9, "t", 0, [value])
                assert (answer.error_code, answer.base_offset) == (0, len(expected))
                expected.append(value)
            epochs.append(next(header.leader_epoch for _, header in iter_batches(last_batch(wire))))
        served_broker.restart(kill=crash)
        marker = served_broker.data / ".kafka_cleanshutdown"
        assert not marker.exists(), "taken away before anything is written"
    with Wire(served_broker.address) as wire:
        assert values(wire, "t") == expected
    assert epochs[0] < epochs[1] < epochs[2]


def last_batch(wire: Wire) -> bytes:
    data = wire.fetch("t", 0, 0)
    data = wire.fetch("t", 0, data.high_watermark - 1)
    return bytes(data.records)


def test_a_clean_stop_leaves_what_kafka_wants_to_find(served_broker: ServedBroker) -> None:
    with Wire(served_broker.address) as wire:
        wire.create_topic("t")
        for _ in range(3):
            assert wire.produce(9, "t", 0, [b"x"]).error_code == 0
    assert served_broker.stop() == 0
    data = served_broker.data
    mark = json.loads((data / ".kafka_cleanshutdown").read_text())
    assert mark["version"] == 0
    assert mark["brokerEpoch"] > 0
    names = {path.name for path in (data / "t-0").iterdir()}
    assert {
        "00000000000000000000.log",
        "00000000000000000000.index",
        "00000000000000000000.timeindex",
        "00000000000000000003.snapshot",
        "leader-epoch-checkpoint",
        "partition.metadata",
    } <= names
    for checkpoint in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        assert "t 0 3" in (data / checkpoint).read_text().splitlines()
    assert (data / "log-start-offset-checkpoint").exists()
    assert (data / "cleaner-offset-checkpoint").exists()


def test_a_stop_does_not_wait_for_idle_peers(served_broker: ServedBroker) -> None:
    with Wire(served_broker.address) as wire:
        wire.create_topic("t")
        one = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        topics = [FetchTopic(topic="t", partitions=[one])]
        wire.send(FetchRequest(max_wait_ms=600_000, min_bytes=1, max_bytes=1 << 20, topics=topics), 11)
        began = time.monotonic()
        assert served_broker.stop() == 0
        assert time.monotonic() - began < 60, "the peer waits ten minutes"


def test_hosts_and_directories_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    ran = barnabas("serve", "--listen", "no-such-host.invalid:9092", "--data", str(tmp_path / "data"))
    assert ran.returncode == 1
    assert "cannot bind no-such-host.invalid:9092: no address of this host is known (" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--listen", "nonsense"], "HOST:PORT"),
        (["--listen", "SSL://127.0.0.1:0"], "--listen SSL://127.0.0.1:0: write HOST:PORT"),
        (["--set", "nonsense"], "key=value"),
        (["--set", "num.partitions=0"], "num.partitions"),
        (["--set", "num.partitions=many"], "num.partitions"),
        (["--config", "missing.properties"], "--config missing.properties: cannot be read (No such file"),
        (["--log-level", "loud"], "log-level"),
    ],
)
def test_wrong_calls_exit_with_2_and_say_why(tmp_path: Path, arguments: list[str], complaint: str) -> None:
    ran = called("serve", "--data", str(tmp_path / "data"), *arguments)
    assert ran.returncode == 2, ran.stderr
    assert complaint in ran.stderr + ran.stdout
    assert "Traceback" not in ran.stderr


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    binary = tmp_path / "binary.properties"
    binary.write_bytes(b"\xff\xfe\x00")
    ran = called("serve", "--data", str(tmp_path / "data"), "--config", str(binary))
    assert (ran.returncode, f"--config {binary}: not a text in UTF-8" in ran.stderr) == (2, True), ran.stderr
    ran = called("serve", "--data", "", "--listen", "127.0.0.1:0")
    assert (ran.returncode, "no data directory: give --data DIR" in ran.stderr) == (2, True), ran.stderr
    ran = called("serve", "--data", str(binary), "--listen", "127.0.0.1:0")
    assert (ran.returncode, f"data directory {binary} is a file" in ran.stderr) == (2, True), ran.stderr
    ran = called("serve", "--data", "/dev/null", "--listen", "127.0.0.1:0")
    assert (ran.returncode, "data directory /dev/null is no directory" in ran.stderr) == (2, True), ran.stderr
    ran = called("serve", "--data", str(binary / "data"), "--listen", "127.0.0.1:0")
    assert (ran.returncode, f"{binary / 'data'} cannot be created (Not a directory)" in ran.stderr) == (2, True)


def test_settings_from_a_file_and_above_it(tmp_path: Path) -> None:
    properties = tmp_path / "server.properties"
    properties.write_text("# ours\nnum.partitions=2\nauto.create.topics.enable = false\nno.such.key=1\n")
    data = tmp_path / "configured"
    command = [sys.executable, "-m", "barnabas.cli.main", "serve", "--config", str(properties), "--data", str(data)]
    command += ["--listen", "127.0.0.1:0", "--set", "num.partitions=5", "--set", "auto.create.topics.enable=true"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            address = line.split("listen=")[1].split()[0]
            from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

            with Wire(address) as wire:
                answer = wire.call(MetadataRequest(topics=[MetadataRequestTopic(name="made")]), 8)
            assert len(answer.topics[0].partitions) == 5
        finally:
            process.terminate()
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0
    assert stderr.count("no.such.key") == 1


def test_a_node_that_waits_for_the_others_stops_when_told(tmp_path: Path) -> None:
    ports = free_ports(2)
    data = tmp_path / "data"
    node = subprocess.Popen(
        [
            *(sys.executable, "-m", "barnabas.cli.main", "serve", "--node-id", "1", "--listen", "127.0.0.1:0"),
            *("--quorum", f"1@127.0.0.1:{ports[0]},2@127.0.0.1:{ports[1]},3@127.0.0.1:1", "--data", str(data)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (data / "__cluster_metadata-0").exists():
        assert node.poll() is None, node.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    node.send_signal(signal.SIGTERM)
    out, err = node.communicate(timeout=60)
    assert (node.returncode, out) == (0, "")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (["--node-id", "4", "--quorum", "1@127.0.0.1:1,2@127.0.0.1:2"], "node 4 .* must be one of the voters"),
        (["--quorum", "1@127.0.0.1:1,1@127.0.0.1:2"], "voter 1 is there twice"),
        (["--quorum", "127.0.0.1:1"], "write ID@HOST:PORT"),
        (["--controller-listen", "nowhere"], "--controller-listen nowhere: write HOST:PORT"),
    ],
)
def test_a_quorum_that_cannot_be_meant_is_refused(tmp_path: Path, arguments: list[str], wrong: str) -> None:
    refused = called("serve", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "data"), *arguments)
    assert refused.returncode == 2
    assert re.search(wrong, refused.stderr), refused.stderr
    assert not (tmp_path / "data").exists()
