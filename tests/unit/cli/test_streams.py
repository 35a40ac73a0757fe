"""What happens to output that cannot be written."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from barnabas.cli.streams import drop_output, repair_streams, written_out
repair_streams()
try:
    print("x" * 10, flush=True)
except OSError:
    {after}
sys.exit(written_out(0))
"""


@pytest.mark.parametrize(("after", "code"), [("pass", 1), ("drop_output()", 0)])
def test_output_that_was_dropped_is_no_error_at_the_end(after: str, code: int) -> None:
    with open("/dev/full", "w") as full:
        found = subprocess.run([sys.executable, "-c", PROGRAM.format(after=after)], stdout=full, check=False)
    assert found.returncode == code
