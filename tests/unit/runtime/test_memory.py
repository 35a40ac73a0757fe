"""Freed memory is kept where the C library can be told so; the collector does not visit large requests."""

from __future__ import annotations

import gc
import platform
import subprocess
import sys
from itertools import pairwise

import pytest

from barnabas.runtime import memory
from barnabas.runtime.memory import hold_collector, release_collector

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


class Cycle:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.own = self


def test_what_was_made_while_the_collector_was_held_is_not_visited_by_young_collections() -> None:
    gc.collect()
    hold_collector()
    alive = [[number] for number in range(10 * memory.YOUNG_OBJECTS_MAX)]
    assert len(gc.get_objects(generation=0)) > len(alive)
    release_collector()
    assert gc.isenabled()
    assert len(gc.get_objects(generation=0)) + len(gc.get_objects(generation=1)) < memory.YOUNG_OBJECTS_MAX
    assert any(each is alive[0] for each in gc.get_objects(generation=2)), "a full collection visits it"


def test_garbage_in_cycles_goes_when_the_process_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "GROWTH_BLOCKS_MAX", 100_000)
    monkeypatch.setattr(memory, "_blocks_max", 0)
    found = []
    for _ in range(20):
        hold_collector()
        for _ in range(2 * memory.YOUNG_OBJECTS_MAX):
            Cycle()
        release_collector()
        found.append(sys.getallocatedblocks())
    assert max(found) - found[0] < 200_000
    assert any(later < earlier for earlier, later in pairwise(found))
