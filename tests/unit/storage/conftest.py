"""An empty memory disk, and a log on it."""

from __future__ import annotations

import pytest

from barnabas.storage.partition_log import PartitionLog
from barnabas.testing.world.disks import FaultyMemoryDisk
from tests.support.storage.batches import open_log


@pytest.fixture
def disk() -> FaultyMemoryDisk:
    return FaultyMemoryDisk()


@pytest.fixture
def log(disk: FaultyMemoryDisk) -> PartitionLog:
    return open_log(disk)
