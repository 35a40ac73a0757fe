"""kcat against a served process: the shell's way to produce and consume. Skipped where kcat is not installed."""

from __future__ import annotations

import json
import shutil
import subprocess
import uuid

import pytest

from barnabas.testing import Broker

KCAT = shutil.which("kcat") or shutil.which("kafkacat")

pytestmark = [pytest.mark.clients, pytest.mark.skipif(KCAT is None, reason="kcat is not installed")]


def kcat(broker: Broker, *arguments: str, stdin: str = "") -> str:
    ran = subprocess.run(
        [KCAT or "kcat", "-b", broker.bootstrap_servers, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4"])
def test_lines_come_back(shared_broker: Broker, codec: str) -> None:
    topic = "k" + uuid.uuid4().hex[:8]
    lines = "".join(f"key {n}:line {n}\n" for n in range(300))
    kcat(shared_broker, "-P", "-t", topic, "-K:", "-z", codec, "-H", "from=kcat", stdin=lines)
    assert kcat(shared_broker, "-C", "-t", topic, "-K:", "-o", "beginning", "-e", "-q") == lines
    (last,) = kcat(shared_broker, "-C", "-t", topic, "-o", "-1", "-e", "-q", "-J").splitlines()
    message = json.loads(last)
    assert (message["offset"], message["payload"], message["headers"]) == (299, "line 299", ["from", "kcat"])


def test_metadata_and_offsets(shared_broker: Broker) -> None:
    topic = "k" + uuid.uuid4().hex[:8]
    kcat(shared_broker, "-P", "-t", topic, "-p", "0", stdin="a\nb\nc\n")
    listed = json.loads(kcat(shared_broker, "-L", "-t", topic, "-J"))
    assert [broker["id"] for broker in listed["brokers"]] == [1]
    assert listed["topics"][0]["partitions"] == [
        {"partition": 0, "leader": 1, "replicas": [{"id": 1}], "isrs": [{"id": 1}]}
    ]
    assert "offset 3" in kcat(shared_broker, "-Q", "-t", f"{topic}:0:-1")
    assert "offset 0" in kcat(shared_broker, "-Q", "-t", f"{topic}:0:-2")
