"""Freed memory is kept where the C library can be told so; the collector does not visit large requests."""

from __future__ import annotations

import gc
import platform
import subprocess
import sys
import weakref
from collections.abc import Iterator
from math import prod

import pytest

from barnabas.runtime import memory
from barnabas.runtime.memory import freeze_survivors, hold_collector, release_collector

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


@pytest.fixture
def collector() -> Iterator[None]:
    """Leaves the collector as it was."""
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.callbacks[:] = [each for each in gc.callbacks if each is not memory._freeze_after_collection]
    gc.unfreeze()


@pytest.mark.usefixtures("collector")
def test_what_was_made_while_the_collector_was_held_is_not_visited() -> None:
    freeze_survivors()
    hold_collector()
    alive = [[number] for number in range(10 * memory.YOUNG_OBJECTS_MAX)]
    assert len(gc.get_objects(generation=0)) > len(alive)
    release_collector()
    assert gc.isenabled()
    assert sum(len(gc.get_objects(generation=number)) for number in range(3)) < memory.YOUNG_OBJECTS_MAX
    assert gc.get_freeze_count() > len(alive)


@pytest.mark.usefixtures("collector")
def test_full_collections_visit_what_is_new() -> None:
    freeze_survivors()
    freeze_survivors()
    assert gc.callbacks.count(memory._freeze_after_collection) == 1
    visited = []

    def note(phase: str, info: dict[str, int]) -> None:
        if (phase, info["generation"]) == ("start", 2):
            visited.append(len(gc.get_objects(generation=2)))

    gc.callbacks.append(note)
    alive = [[number] for number in range(200_000)]
    gc.callbacks.remove(note)
    assert len(visited) > 5
    assert max(visited) <= 2 * prod(memory.THRESHOLDS)
    assert gc.get_freeze_count() > len(alive) - 3 * prod(memory.THRESHOLDS)
    assert gc.collect() == 0


@pytest.mark.usefixtures("collector")
def test_new_garbage_in_cycles_is_freed() -> None:
    freeze_survivors()
    before = sys.getallocatedblocks()
    for _ in range(500_000):
        Cycle()
    assert sys.getallocatedblocks() - before < 200_000


@pytest.mark.usefixtures("collector")
def test_a_process_that_has_doubled_is_visited_wholly(monkeypatch: pytest.MonkeyPatch) -> None:
    freeze_survivors()
    lost = [Cycle() for _ in range(1_000)]
    seen = [weakref.ref(each) for each in lost]
    gc.collect()
    assert gc.get_freeze_count() > len(lost)
    del lost
    gc.collect()
    assert all(each() is not None for each in seen), "frozen"
    monkeypatch.setattr(memory, "_blocks_max", sys.getallocatedblocks() // 2)
    gc.collect()
    assert all(each() is not None for each in seen), "thawed after this collection"
    gc.collect()
    assert not any(each() is not None for each in seen)
    assert gc.get_freeze_count() > 0, "and frozen again"
    assert memory._blocks_max > 2 * sys.getallocatedblocks() - memory.GROWTH_BLOCKS_MIN
