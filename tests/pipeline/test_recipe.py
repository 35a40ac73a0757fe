"""The recipe for Spark in examples/testing passes, in a process and a session of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra `pipeline` is not installed")

from tests.support.pipeline.spark_cluster import JAVA_OPTIONS

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "testing"
ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT), "JAVA_TOOL_OPTIONS": JAVA_OPTIONS}
SECONDS_MAX = 500  # Spark starts, and its first query compiles


def test_the_recipe_passes() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "barnabas.testing.plugin", "-p", "no:cacheprovider"]
    command += ["-W", "error::barnabas.testing.LeakedClientWarning", "-c", "/dev/null", "--rootdir", str(EXAMPLES)]
    done = subprocess.run(
        [*command, str(EXAMPLES / "test_sales.py")],
        cwd=EXAMPLES,
        capture_output=True,
        text=True,
        env={**os.environ, **ALONE},
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
