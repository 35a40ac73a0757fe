"""An empty memory disk, and a log on it."""

from __future__ import annotations

import pytest

from barnabas.storage.disk import MemoryDisk
from barnabas.storage.partition_log import PartitionLog
from tests.support.storage.batches import open_log


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


@pytest.fixture
def log(disk: MemoryDisk) -> PartitionLog:
    return open_log(disk)
