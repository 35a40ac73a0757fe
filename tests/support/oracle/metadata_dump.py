"""A metadata log as Kafka's DumpLogSegments prints it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

from tests.support.oracle.real_kafka import KAFKA_UP, needs_java

TOOL = "org.apache.kafka.tools.DumpLogSegments"
PAYLOAD = re.compile(r"payload: (\{.*\})")


def dump(*files: Path) -> str:
    needs_java("Kafka's tool cannot run")
    command = ["bash", str(KAFKA_UP), "tool", TOOL, "--cluster-metadata-decoder", "--files", ",".join(map(str, files))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def records_in(output: str) -> list[dict[str, Any]]:
    return [json.loads(found[1]) for line in output.splitlines() if (found := PAYLOAD.search(line))]
