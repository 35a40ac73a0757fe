"""Kafka's own tools, run on our brokers and on our files."""

from __future__ import annotations

import re
import subprocess

from tests.support.oracle.real_kafka import KAFKA_UP, needs_java

TOOL = "org.apache.kafka.tools.DumpLogSegments"


COMPLAINT = re.compile(
    r"mismatch|corrupt|error|exception|invalid|non-consecutive|out of order|isvalid: false", re.IGNORECASE
)


# The tool's own start value: it says so of each segment that begins above 0.
FIRST_OFFSET = re.compile(r"Non-consecutive offsets in \S+?0*(\d+)\.log\n +-1 is followed by \1\n")


def tool(name: str, *arguments: str, stdin: str = "", expected: int = 0) -> str:
    """Runs a class of Kafka's tools, or of kafka.admin, and returns its stdout. It must end with the expected code."""
    needs_java("no tools of Kafka")
    path = name if name.startswith("kafka.") else f"org.apache.kafka.tools.{name}"
    ran = subprocess.run(
        ["bash", str(KAFKA_UP), "tool", path, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == expected, ran.stdout[-1000:] + ran.stderr[-2000:]
    return ran.stdout
