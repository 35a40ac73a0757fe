"""The metadata log of a sole voter on a memory disk whose power can be cut."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from barnabas.broker.config import BrokerConfig
from barnabas.broker.metadata.image import MetadataImage
from barnabas.broker.metadata.records import BeginTransactionRecord, ConfigRecord, TopicRecord
from barnabas.broker.quorum.metadata_log import METADATA_DIRECTORY, MetadataLog
from barnabas.broker.quorum.snapshots import SnapshotId, list_snapshots, snapshot_name
from barnabas.errors import InvariantViolated
from barnabas.protocol.records import decode_records, iter_batches, read_control
from barnabas.runtime.clock import SystemClock
from barnabas.runtime.randomness import SystemRng
from barnabas.storage.disk import MemoryDisk


class Voter:
    """A metadata log with its tasks; `start` again is the next process on the same disk."""

    def __init__(self, disk: MemoryDisk | None = None, **settings: str) -> None:
        self.disk = disk or MemoryDisk()
        self.config = BrokerConfig({"node.id": "1"} | {key.replace("_", "."): value for key, value in settings.items()})
        self.tasks: list[asyncio.Task[None]] = []
        self.failures: list[Exception] = []
        self.image = MetadataImage()

    def _start_task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(coroutine))

    def start(self, *, clean: bool = False) -> MetadataLog:
        log = MetadataLog(
            self.disk,
            self.config,
            SystemClock(),
            start=self._start_task,
            on_failure=self.failures.append,
            clean=clean,
        )
        self.image = log.load().image()
        log.begin_epoch()
        return log


def topic(number: int) -> TopicRecord:
    return TopicRecord(name=f"t{number}", topic_id=number.to_bytes(16, "big"))


async def commit(log: MetadataLog) -> None:
    done = asyncio.Event()
    log.when_committed(log.log_end_offset, done.set)
    await asyncio.wait_for(done.wait(), 5)


async def test_every_start_begins_an_epoch_with_a_leader_change() -> None:
    voter = Voter()
    for epoch in (1, 2, 3):
        log = voter.start()
        assert log.leader_epoch == epoch
        assert voter.disk.read(f"{METADATA_DIRECTORY}/quorum-state").count(f'"leaderEpoch":{epoch}'.encode()) == 1
        assert log.high_watermark == log.log_end_offset == epoch
    found = log.partition_log.read(0, 1 << 20, end_offset=log.log_end_offset)
    kinds = [
        (header.leader_epoch, read_control(decode_records(found.records, position, header)[0]).type)
        for position, header in iter_batches(found.records)
    ]
    assert kinds == [(1, 2), (2, 2), (3, 2)]


async def test_the_first_leader_change_is_kafkas_but_for_its_time() -> None:
    log = Voter().start()
    ours = bytes(log.partition_log.read(0, 1 << 20, end_offset=1).records)
    assert len(ours) == 91
    (record,) = decode_records(ours)
    assert record.key == bytes([0, 0, 0, 2])
    assert record.value == bytes.fromhex("0000 00000001 02 00000001 00 02 00000001 00 00".replace(" ", ""))


async def test_a_record_is_committed_when_it_is_synced_and_not_before() -> None:
    voter = Voter()
    log = voter.start()
    order: list[str] = []
    assert log.append([topic(1)]) == 1
    log.when_committed(log.log_end_offset, lambda: order.append("first"))
    assert (order, log.high_watermark) == ([], 1)
    log.append([topic(2), topic(3)])
    log.when_committed(log.log_end_offset, lambda: order.append("second"))
    await commit(log)
    assert (order, log.high_watermark, log.log_end_offset) == (["first", "second"], 4, 4)
    log.when_committed(2, lambda: order.append("at once"))
    assert order[-1] == "at once"


@pytest.mark.parametrize("seed", range(20))
async def test_what_was_committed_survives_a_power_loss(seed: int) -> None:
    voter = Voter()
    log = voter.start()
    for number in range(1, 6):
        log.append([topic(number)])
        await commit(log)
    log.append([topic(6), topic(7)])  # never synced
    rng = random.Random(seed)
    voter.disk.crash(_Rng(rng))
    log = voter.start()
    names = list(voter.image.topics_by_name)
    assert names[:5] == ["t1", "t2", "t3", "t4", "t5"]
    assert names[5:] in ([], ["t6", "t7"])  # a batch is there as a whole or not at all
    assert log.leader_epoch == 2


class _Rng(SystemRng):
    """A seeded source for the disk's decisions."""

    def __init__(self, seeded: random.Random) -> None:
        super().__init__()
        self._seeded = seeded

    def random(self) -> float:
        return self._seeded.random()

    def randrange(self, stop: int) -> int:
        return self._seeded.randrange(stop)


async def test_a_failed_sync_stops_the_node_and_commits_nothing() -> None:
    voter = Voter()
    log = voter.start()
    log.append([topic(1)])
    committed: list[int] = []
    voter.disk.fail(["sync"])
    log.when_committed(log.log_end_offset, lambda: committed.append(1))
    await asyncio.gather(*voter.tasks)
    assert [type(error) for error in voter.failures] == [OSError]
    assert committed == []
    assert log.high_watermark == 1


async def test_a_snapshot_stands_for_the_log_below_it() -> None:
    voter = Voter()
    log = voter.start()
    log.append([topic(number) for number in range(1, 4)])
    await commit(log)
    log.close()
    log = voter.start(clean=True)
    image = voter.image
    assert log.take_snapshot(image) == SnapshotId(4, 1)
    log.append([topic(4)])
    await commit(log)
    # Without the log's beginning the same image comes from the snapshot.
    log.partition_log.truncate_fully_and_start_at(4)
    log.close()
    voter.start(clean=True)
    assert list(voter.image.topics_by_name) == ["t1", "t2", "t3"]


async def test_a_damaged_snapshot_is_passed_over() -> None:
    voter = Voter()
    log = voter.start()
    log.append([topic(1)])
    await commit(log)
    log.close()
    log = voter.start(clean=True)
    snapshot = log.take_snapshot(voter.image)
    log.close()
    path = f"{METADATA_DIRECTORY}/{snapshot_name(snapshot)}"
    voter.disk.replace(path, voter.disk.read(path)[:-1])
    log = voter.start(clean=True)
    assert list(voter.image.topics_by_name) == ["t1"]
    # But where the log no longer reaches back there is nothing to start from.
    log.partition_log.truncate_fully_and_start_at(2)
    log.close()
    with pytest.raises(InvariantViolated, match=r"restore its \.checkpoint files"):
        voter.start(clean=True)


async def test_snapshots_and_log_are_dropped_beyond_the_retention() -> None:
    voter = Voter(metadata_max_retention_bytes="1", metadata_log_segment_bytes=str(8 * 1024 * 1024))
    log = voter.start()
    image = voter.image
    for number in range(1, 4):
        log.append([topic(number)])
        log.partition_log.roll(0)
        await commit(log)
        log.close()
        log = voter.start(clean=True)
        image = voter.image
        log.take_snapshot(image)
    assert list_snapshots(voter.disk, METADATA_DIRECTORY) == [SnapshotId(image.offset + 1, image.epoch)]
    assert log.partition_log.log_start_offset > 0
    log.close()
    voter.start(clean=True)
    assert list(voter.image.topics_by_name) == ["t1", "t2", "t3"]


async def test_when_a_snapshot_is_due() -> None:
    voter = Voter(metadata_log_max_record_bytes_between_snapshots="500")
    log = voter.start()
    assert not log.snapshot_due()
    log.append([ConfigRecord(resource_type=2, resource_name="t", name="k", value="v" * 500)])
    assert log.snapshot_due()
    await commit(log)
    log.take_snapshot(voter.image)
    assert not log.snapshot_due()


async def test_a_transaction_left_open_is_seen() -> None:
    voter = Voter()
    log = voter.start()
    log.append([BeginTransactionRecord(), topic(1)])
    await commit(log)
    log.close()
    again = Voter(voter.disk)
    builder = MetadataLog(
        again.disk, again.config, SystemClock(), start=again._start_task, on_failure=again.failures.append, clean=True
    ).load()
    assert builder.in_transaction
    assert builder.image().topics_by_name == {}
