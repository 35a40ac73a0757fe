"""What a coordinator costs to load: seconds and microseconds a batch, as a table for docs/benchmarks.md.

usage: loading.py [--transactions 27000] [--rounds 5]

The logs are those of transactions of one producer and one offset each, as a copy from topic to topic writes them: four batches of one
record in `__transaction_state`, and a batch and a marker in `__consumer_offsets`. They lie in files of a temporary directory.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from barnabas.broker.coordinator.groups.record_codec import encode_record as encode_group_record
from barnabas.broker.coordinator.groups.records import CommittedOffset, OffsetRecord
from barnabas.broker.coordinator.groups.settings import GroupSettings
from barnabas.broker.coordinator.groups.shard import GroupShard
from barnabas.broker.coordinator.host.loading import Replayed, replay_log
from barnabas.broker.coordinator.transactions.records import TransactionRecord, encode_record
from barnabas.broker.coordinator.transactions.shard import TransactionShard
from barnabas.broker.coordinator.transactions.state import TransactionMetadata, TransactionState
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import build_batch, build_end_txn_marker
from barnabas.runtime.files import FileDisk
from barnabas.storage.log_config import LogConfig
from barnabas.storage.opening import LogOpening
from barnabas.storage.partition_log import PartitionLog

NOW = 1_700_000_000_000
STATES = (
    (TransactionState.ONGOING, 1),
    (TransactionState.ONGOING, 2),
    (TransactionState.PREPARE_COMMIT, 2),
    (TransactionState.COMPLETE_COMMIT, 0),
)
PRODUCERS = 4
OWNER: Any = None  # loading asks nothing of it


def transaction_state(transactions: int) -> list[bytes]:
    batches: list[bytes] = []
    for number in range(transactions):
        for state, partitions in STATES:
            metadata = TransactionMetadata(
                f"copy-{number % PRODUCERS}",
                number % PRODUCERS,
                producer_epoch=number // PRODUCERS % 30_000,
                timeout_ms=60_000,
                state=state,
                partitions=frozenset(("output", partition) for partition in range(partitions)),
                started_ms=NOW + number,
                updated_ms=NOW + number,
                client_transaction_version=2,
            )
            key, value = encode_record(TransactionRecord(metadata.transactional_id, metadata), 1)
            batches.append(
                bytes(build_batch([NewRecord(key, value, NOW + number)], base_offset=len(batches), leader_epoch=0))
            )
    return batches


def consumer_offsets(transactions: int) -> list[bytes]:
    batches: list[bytes] = []
    for number in range(transactions):
        producer, epoch = number % PRODUCERS, number // PRODUCERS % 30_000
        committed = CommittedOffset(number * 10, 0, "", NOW + number)
        key, value = encode_group_record(OffsetRecord(f"copy-{producer}", "input", producer, committed))
        batch = build_batch(
            [NewRecord(key, value, NOW + number)],
            base_offset=len(batches),
            leader_epoch=0,
            producer_id=producer,
            producer_epoch=epoch,
            transactional=True,
        )
        batches.append(bytes(batch))
        marker = build_end_txn_marker(
            producer,
            epoch,
            commit=True,
            coordinator_epoch=0,
            timestamp=NOW + number,
            base_offset=len(batches),
            leader_epoch=0,
        )
        batches.append(bytes(marker))
    return batches


def measure(folder: str, name: str, batches: list[bytes], make: Callable[[], Replayed], rounds: int) -> str:
    log = PartitionLog.open(FileDisk(folder), name, LogConfig(), LogOpening(now_ms=NOW, topic_id=bytes(range(16))))
    for start in range(0, len(batches), 1_000):
        log.append_as_follower(b"".join(batches[start : start + 1_000]), now_ms=NOW)
    log.mark_synced(log.log_end_offset)
    replica: Any = SimpleNamespace(log=log)
    best, turns, longest = float("inf"), 0, 0.0
    for _ in range(rounds):
        turns, took, slowest = 0, 0.0, 0.0
        steps = replay_log(make(), replica, log.log_end_offset)
        while True:
            began = time.thread_time()
            done = next(steps, "end") == "end"
            turn = time.thread_time() - began
            turns, took, slowest = turns + 1, took + turn, max(slowest, turn)
            if done:
                break
        if took < best:
            best, longest = took, slowest
    size = sum(map(len, batches))
    return (
        f"| {name} | {size / 1e6:.1f} MB | {len(batches):,} | {best:.2f} s | {best / len(batches) * 1e6:.1f} µs "
        f"| {turns} | {longest * 1e3:.1f} ms |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transactions", type=int, default=27_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print("| log | size | batches | CPU | a batch | turns | longest turn |\n|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, batches, make in (
            (
                "__transaction_state",
                transaction_state(options.transactions),
                lambda: TransactionShard(0, 0, OWNER, lambda: 1),
            ),
            (
                "__consumer_offsets",
                consumer_offsets(options.transactions),
                lambda: GroupShard(0, GroupSettings(), OWNER),
            ),
        ):
            print(measure(folder, name, batches, make, options.rounds))


if __name__ == "__main__":
    main()
