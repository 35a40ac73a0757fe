"""A broker whose files may grow no more: the same end as a full disk, which needs no file system of its own to try."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from barnabas.protocol.records import decode_records, iter_batches
from tests.support.oracle.wire import Wire
from tests.support.processes.served import ServedBroker  # not the kit: the command ends by itself

FILE_BYTES_MAX = 256 * 1024
BATCH_BYTES = 10_000


def fill(address: str, topic: str) -> list[bytes]:
    """Produces until the broker gives up; what was acknowledged, in order."""
    acknowledged: list[bytes] = []
    with Wire(address) as wire:
        wire.create_topic(topic)
        for number in range(100):
            value = number.to_bytes(4, "big") * (BATCH_BYTES // 4)
            try:
                answer = wire.produce(9, topic, 0, [value])
            except ConnectionError:
                break
            if answer.error_code:
                assert answer.error_code == 56, "KAFKA_STORAGE_ERROR"
                break
            acknowledged.append(value)
    return acknowledged


def read(address: str, topic: str) -> list[bytes]:
    with Wire(address) as wire:
        data = wire.fetch(topic, 0, 0).records
    return [record.value for position, _ in iter_batches(data) for record in decode_records(data, position)]


@pytest.mark.parametrize("settings", [(), ("flush.messages=1",)], ids=["page cache", "flushed"])
def test_a_broker_that_cannot_write_ends_and_names_the_directory(tmp_path: Path, settings: tuple[str, ...]) -> None:
    broker = ServedBroker(tmp_path / "data", *settings).start()
    try:
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, FILE_BYTES_MAX))
        acknowledged = fill(broker.address, "full")
        assert 10 < len(acknowledged) < 100
        assert broker.process is not None
        assert broker.process.wait(60) == 1
        assert f"[Errno 27] File too large: '{tmp_path / 'data'}'" in broker.log()
        assert "Traceback" not in broker.log()
        broker.start()
        assert read(broker.address, "full") == acknowledged
        assert broker.stop() == 0
    finally:
        broker.kill()


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="a small file system needs root")
def test_a_start_on_a_full_disk_names_the_directory_and_the_remedy(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    serve = f"{sys.executable} -m barnabas.cli.main serve --data {small}/data --listen 127.0.0.1:0"
    script = f"mount -t tmpfs -o size=12k tmpfs {small} && exec {serve}"
    ended = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    if ended.returncode == 32:
        pytest.skip("mounting is not allowed here")
    assert ended.returncode == 1, ended
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("barnabas serve:")]
    assert line.startswith(f"barnabas serve: [Errno 28] No space left on device: '{small}/data/")
    assert line.endswith(
        f": the volume of {small}/data is full; free space on it, or name a directory on another volume (--data)"
    )
