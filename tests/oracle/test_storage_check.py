"""What `barnabas storage check` says of a directory is what Apache Kafka does with it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.oracle.real_kafka import KAFKA_UP, START_SECONDS_MAX, needs_java, stop_kafka
from tests.support.processes.cli import called
from tests.support.processes.ports import free_port_block
from tests.support.processes.served import ServedBroker
from tests.support.storage.damaged_directories import DAMAGES, damaged

pytestmark = pytest.mark.oracle

FEW = ("offsets.topic.num.partitions=1", "transaction.state.log.num.partitions=1")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a stopped Barnabas: orders-0 with three segments, orders-1 with one."""
    needs_java()
    data = tmp_path_factory.mktemp("stopped") / "data"
    broker = ServedBroker(data, *FEW).start()
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


class Opened:
    """Kafka, started on directories: whether it serves, and its log."""

    def __init__(self, folder: Path, directories: list[Path]) -> None:
        self._folder = folder
        command = ["bash", str(KAFKA_UP), "open", "--data", str(directories[0]), "--node-id", "1", "--dir", str(folder)]
        command += ["--port", str(free_port_block(2)), "--set", f"log.dirs={','.join(map(str, directories))}"]
        with (folder.parent / "open.log").open("w") as output:
            started = subprocess.run(command, stdout=output, stderr=output, timeout=START_SECONDS_MAX, check=False)
        self.serves = started.returncode == 0

    @property
    def log(self) -> str:
        return (self._folder / "node-1" / "server.log").read_text()

    def stop(self) -> None:
        stop_kafka(self._folder)


@pytest.fixture
def data(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "data"))


def worst(directories: list[Path]) -> str:
    found = json.loads(called("storage", "check", *map(str, directories), "--json").stdout)
    return str(found[0]["severity"]) if found else ""


@pytest.mark.parametrize("name", ["a folder of no partition", "bad epochs", "bad high watermarks", "two clusters"])
def test_what_is_refused(data: Path, tmp_path: Path, name: str) -> None:
    assert DAMAGES[name][1] == "refuse"
    directories = damaged(data, name)
    assert worst(directories) == "refuse"
    kafka = Opened(tmp_path / "kafka", directories)
    kafka.stop()
    assert not kafka.serves


def test_what_is_lost_set_aside_and_rebuilt(data: Path, tmp_path: Path) -> None:
    """In one start: a torn log, a folder without id and one of no partition, an index without its entries."""
    for name in ("a torn log after a crash", "a partition that is gone", "no index", "an index with a short name"):
        damaged(data, name)
    (data / "orders-1" / "partition.metadata").unlink()
    found = json.loads(called("storage", "check", str(data), "--json").stdout)
    said = {(each["severity"], Path(each["path"]).relative_to(data).parts[0]) for each in found}
    assert said == {("lose", "orders-0"), ("stray", "orders-1"), ("stray", "orders-7"), ("rebuild", "orders-0")}
    (cut,) = [each["effect"].split("offset ")[1].split(":")[0] for each in found if each["severity"] == "lose"]
    kafka = Opened(tmp_path / "kafka", [data])
    assert kafka.serves, kafka.log[-1000:]
    kafka.stop()
    (info,) = called("storage", "info", str(data), "--json").document
    assert {each["log_end_offset"] for each in info["partitions"] if each["topic"] == "orders"} == {int(cut), 0}
    assert not (data / "orders-0" / "5.index").exists()
    aside = sorted(path.name.partition(".")[0] for path in data.glob("*-stray"))
    assert aside == ["orders-1", "orders-7"]


def test_directories_that_a_kafka_wrote(kafka_data: tuple[str, Path], tmp_path: Path) -> None:
    """Kafka runs on the one, has left the other, and starts on one that we formatted."""
    bootstrap, folder = kafka_data
    assert called("topic", "create", "stored", "-b", bootstrap).returncode == 0
    assert called("produce", "stored", "-b", bootstrap, stdin="a\n").returncode == 0
    running = folder / "node-1" / "data"
    (info,) = called("storage", "info", str(running), "--json").document
    assert info["running_pid"] == int((folder / "node-1" / "pid").read_text())
    assert [each["log_end_offset"] for each in info["partitions"] if each["topic"] == "stored"] == [1]

    data = tmp_path / "data"
    assert called("storage", "format", str(data), "--node-id", "1").returncode == 0
    kafka = Opened(tmp_path / "kafka", [data])
    assert kafka.serves
    kafka.stop()
    assert called("storage", "check", str(data)).stdout == "Kafka starts on it, and has nothing to repair\n"
    (left,) = called("storage", "info", str(data), "--json").document
    assert left["clean_shutdown"]
    assert left["metadata"]["metadata_version"] == "4.3-IV0"
