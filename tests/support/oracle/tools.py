"""Kafka's own tools, run on our brokers and on our files."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.support.oracle.real_kafka import KAFKA_UP, TOOL_SECONDS_MAX, needs_java

COMPLAINT = re.compile(
    r"mismatch|corrupt|error|exception|invalid|non-consecutive|out of order|isvalid: false", re.IGNORECASE
)


# The tool's own start value: it says so of each segment that begins above 0.
FIRST_OFFSET = re.compile(r"Non-consecutive offsets in \S+?0*(\d+)\.log\n +-1 is followed by \1\n")


def tool(
    name: str,
    *arguments: str,
    stdin: str = "",
    expected: int = 0,
    errors: bool = False,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Runs a class of Kafka's tools or of kafka.admin, or the source file of one; returns its stdout.

    Args:
        expected: the exit code.
        errors: whether its stderr follows in the result.
        environment: variables that it gets in addition.
    """
    needs_java("no tools of Kafka")
    path = name if name.startswith("kafka.") or name.endswith(".java") else f"org.apache.kafka.tools.{name}"
    ran = subprocess.run(
        ["bash", str(KAFKA_UP), "tool", path, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=TOOL_SECONDS_MAX,
        check=False,
        env={**os.environ, **(environment or {})},
    )
    assert ran.returncode == expected, ran.stdout[-1000:] + ran.stderr[-2000:]
    return ran.stdout + (ran.stderr if errors else "")


def dumped(files: Iterable[Path], *options: str) -> str:
    """What DumpLogSegments says of log files and of the files beside them, complaints included."""
    return tool("DumpLogSegments", *options, "--files", ",".join(map(str, files)), errors=True)


def records_in(output: str) -> list[dict[str, Any]]:
    """The decoded records in what DumpLogSegments says."""
    return [json.loads(found[1]) for found in re.finditer(r"payload: (\{.*\})", output)]
