"""Freed memory is kept where the C library can be told so."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
from barnabas.runtime.memory import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    answer = [bytearray(1 << 20) for _ in range(4)]  # what one answer to Fetch reads
    for block in answer:
        block[::4096] = bytes(256)
    del answer, block
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told to keep freed memory")
def test_large_blocks_are_not_faulted_in_anew() -> None:
    def faults(mode: str) -> int:
        shown = subprocess.run([sys.executable, "-c", FAULTS, mode], capture_output=True, text=True, check=True)
        return int(shown.stdout)

    pages = 4 * 256
    assert faults("leave") > 10 * pages
    assert faults("keep") < 5 * pages
