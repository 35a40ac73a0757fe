"""What a coordinator loads from random logs: the same as by replaying every record in turn, whatever the slices."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.broker.coordinator.groups.record_codec import encode_record
from barnabas.broker.coordinator.groups.records import CommittedOffset, GroupRecord, OffsetRecord
from barnabas.broker.coordinator.groups.settings import GroupSettings
from barnabas.broker.coordinator.groups.shard import GroupShard
from barnabas.broker.coordinator.host import loading
from barnabas.broker.coordinator.host.loading import replay_log
from barnabas.broker.coordinator.transactions.records import TransactionRecord
from barnabas.broker.coordinator.transactions.records import encode_record as encode_transaction
from barnabas.broker.coordinator.transactions.shard import TransactionShard
from barnabas.broker.coordinator.transactions.state import TransactionMetadata, TransactionState
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.internal import GroupMetadataValue, MemberMetadata
from barnabas.protocol.record_codec import NewRecord
from barnabas.protocol.records import (
    CONTROL_LEADER_CHANGE,
    build_batch,
    build_control_batch,
    build_end_txn_marker,
    decode_records,
    iter_batches,
    read_control,
)
from barnabas.storage.disk import MemoryDisk
from barnabas.storage.log_config import LogConfig
from barnabas.storage.opening import LogOpening
from barnabas.storage.partition_log import PartitionLog
from barnabas.work import finished

NOW = 1_700_000_000_000
OWNER: Any = None  # loading asks nothing of it
SEEDS = range(150)


def new_group_shard() -> GroupShard:
    return GroupShard(0, GroupSettings(), OWNER)


def new_transaction_shard() -> TransactionShard:
    return TransactionShard(0, 0, OWNER, lambda: 1)


def stored(batches: list[bytes]) -> Any:
    """A replica with these batches, which have their offsets, in several segments."""
    log = PartitionLog.open(
        MemoryDisk(), "state-0", LogConfig(segment_bytes=8_000), LogOpening(now_ms=NOW, topic_id=bytes(range(16)))
    )
    for batch in batches:
        log.append_as_follower(batch, now_ms=NOW)
    return SimpleNamespace(log=log)


def load(batches: list[bytes], shard: Any) -> Any:
    replica = stored(batches)
    finished(replay_log(shard, replica, replica.log.log_end_offset))
    return shard


def replayed_one_by_one(batches: list[bytes], shard: Any) -> Any:
    for batch in batches:
        for at, header in iter_batches(batch):
            for record in decode_records(batch, at, header):
                if header.is_control:
                    kind = read_control(record).type
                    if kind in (0, 1):
                        shard.replay_marker(header.producer_id, header.producer_epoch, commit=kind == 1)
                    continue
                decoded = shard.decode(record.key, record.value)
                producer = (header.producer_id, header.producer_epoch) if header.is_transactional else (-1, -1)
                if decoded is not None:
                    shard.replay(decoded, *producer)
    return shard


def of_groups(shard: GroupShard) -> dict[str, Any]:
    """What requests are answered from: a group without a record and without an offset is as good as none."""
    store = shard.offsets
    written = [
        (entry[0], "committed", group, topic, partition, entry[1])
        for group, topics in store._committed.items()
        for topic, partitions in topics.items()
        for partition, entry in partitions.items()
    ]
    written += [
        (entry[0], str(producer), *key, entry[1])
        for producer, keys in store._pending.items()
        for key, entry in keys.items()
    ]
    return {
        "offsets in the order of the log": [row[1:] for row in sorted(written)],
        "open": {group: {key: set(of) for key, of in keys.items()} for group, keys in store._open.items()},
        "groups": {
            name: (group.protocol_type, group.generation, group.state, sorted(group.members))
            for name, group in shard.tables.classic.items()
            if group.protocol_type is not None or store.has_any(name)
        },
    }


class GroupLog:
    """A random log of `__consumer_offsets`: few keys, so that most records are written over."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.batches: list[bytes] = []
        self.offset = 0
        for _ in range(self.rng.randrange(1, 250)):
            self.add()
            if self.rng.random() < 0.05:
                self.offset += self.rng.randrange(1, 50)  # the cleaner took what was there

    def add(self) -> None:
        rng = self.rng
        kind = rng.choices(("plain", "transactional", "marker", "control"), (30, 30, 30, 2))[0]
        if kind == "marker":
            marker = build_end_txn_marker(
                rng.randrange(3),
                rng.randrange(3),
                commit=rng.random() < 0.75,
                coordinator_epoch=1,
                timestamp=NOW,
                base_offset=self.offset,
                leader_epoch=0,
            )
            self.put(bytes(marker), 1)
            return
        if kind == "control":
            control = build_control_batch(
                [(CONTROL_LEADER_CHANGE, b"\0\0")], timestamp=NOW, base_offset=self.offset, leader_epoch=0
            )
            self.put(bytes(control), 1)
            return
        count = rng.choice((1, 1, 1, 1, 2, 5))
        rows = [self.record(transactional=kind == "transactional") for _ in range(count)]
        producer = rng.randrange(3) if kind == "transactional" else -1
        batch = build_batch(
            rows,
            base_offset=self.offset,
            leader_epoch=0,
            compression=rng.choice((0, 0, 0, 0, 4)),
            producer_id=producer,
            producer_epoch=-1 if producer < 0 else rng.randrange(3),
            transactional=kind == "transactional",
        )
        self.put(bytes(batch), count)

    def put(self, batch: bytes, count: int) -> None:
        self.batches.append(batch)
        self.offset += count

    def record(self, *, transactional: bool) -> NewRecord:
        rng = self.rng
        group = f"g{rng.randrange(3)}"
        dice = rng.random()
        headers = [("h", b"v")] if rng.random() < 0.05 else []
        if dice < 0.03:
            return NewRecord(b"\0\x63of a later version", b"?", NOW, headers)
        if dice < 0.15 and not transactional:
            member = MemberMetadata(
                member_id=f"m{rng.randrange(3)}",
                client_id="c",
                client_host="h",
                session_timeout=1,
                subscription=b"",
                assignment=b"",
            )
            value = GroupMetadataValue(
                protocol_type="consumer",
                generation=rng.randrange(99),
                protocol="range",
                leader=None,
                current_state_timestamp=NOW,
                members=[member],
            )
            key, data = encode_record(GroupRecord(group, None if dice < 0.08 else value))
            return NewRecord(key, data, NOW, headers)
        metadata = rng.choice(("", "", "x" * rng.randrange(300)))
        committed = CommittedOffset(rng.randrange(1 << 40), rng.randrange(5), metadata, NOW + rng.randrange(1_000))
        absent = rng.random() < (0.02 if transactional else 0.2)
        key, data = encode_record(
            OffsetRecord(group, rng.choice("ab"), rng.randrange(2), None if absent else committed)
        )
        return NewRecord(key, data, NOW + rng.randrange(200), headers)


def slices(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(loading, "LOAD_SLICE_BYTES", rng.choice((200, 1_000, 5_000, 200_000)))
    monkeypatch.setattr(loading, "REPLAYED_RECORDS", rng.choice((1, 3, 256)))


@pytest.mark.parametrize("seed", SEEDS)
def test_groups_and_offsets_are_those_of_a_replay_one_by_one(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    slices(monkeypatch, seed)
    batches = GroupLog(seed).batches
    found, wanted = load(batches, new_group_shard()), replayed_one_by_one(batches, new_group_shard())
    assert of_groups(found) == of_groups(wanted)
    for producer in range(3):  # and what was still open comes to the same end
        found.replay_marker(producer, 9, commit=producer != 1)
        wanted.replay_marker(producer, 9, commit=producer != 1)
    assert of_groups(found) == of_groups(wanted)


def transaction(rng: random.Random) -> NewRecord:
    name = f"t{rng.randrange(4)}"
    if rng.random() < 0.03:
        return NewRecord(b"\0\x07of a later version", b"?", NOW)
    state = rng.choice((TransactionState.EMPTY, TransactionState.ONGOING, TransactionState.COMPLETE_ABORT))
    metadata = TransactionMetadata(
        name,
        rng.randrange(100),
        producer_epoch=rng.randrange(100),
        timeout_ms=1_000,
        state=state,
        partitions=frozenset(("topic", number) for number in range(rng.randrange(30)))
        if state is not TransactionState.EMPTY
        else frozenset(),
        started_ms=NOW,
        updated_ms=NOW,
    )
    key, value = encode_transaction(TransactionRecord(name, None if rng.random() < 0.1 else metadata), rng.randrange(2))
    return NewRecord(key, value, NOW)


@pytest.mark.parametrize("seed", SEEDS)
def test_transactions_are_those_of_a_replay_one_by_one(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    slices(monkeypatch, seed)
    rng = random.Random(seed)
    batches: list[bytes] = []
    offset = 0
    for _ in range(rng.randrange(1, 200)):
        rows = [transaction(rng) for _ in range(rng.choice((1, 1, 1, 3)))]
        batches.append(bytes(build_batch(rows, base_offset=offset, leader_epoch=0, compression=rng.choice((0, 0, 3)))))
        offset += len(rows) + rng.choice((0, 0, 0, 7))
    found, wanted = load(batches, new_transaction_shard()), replayed_one_by_one(batches, new_transaction_shard())
    assert found.transactions == wanted.transactions


@pytest.mark.parametrize("seed", range(30))
def test_any_damage_to_a_record_ends_the_loading(seed: int) -> None:
    """A wrong bit under the checksum, and a value that no version of Kafka writes under a right one."""
    rng = random.Random(seed)
    batches = GroupLog(1_000 + seed).batches
    number = rng.randrange(len(batches))
    replica = stored(batches)
    end_offset = replica.log.log_end_offset
    damaged = bytearray(batches[number])
    damaged[rng.randrange(17, len(damaged))] ^= 1 << rng.randrange(8)
    whole = b"".join([*batches[:number], damaged, *batches[number + 1 :]])
    replica.log = SimpleNamespace(
        log_start_offset=0,
        read=lambda offset, max_bytes, *, end_offset: SimpleNamespace(records=whole, next_offset=end_offset),
    )
    with pytest.raises(BrokerError) as refused:
        finished(replay_log(new_group_shard(), replica, end_offset))
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE

    key, value = encode_record(OffsetRecord("g0", "a", 0, CommittedOffset(1, 1, "", NOW)))
    assert value is not None
    strange = build_batch([NewRecord(key, value[:-9], NOW)], base_offset=end_offset, leader_epoch=0)
    with pytest.raises(BrokerError) as refused:
        load([*batches, bytes(strange)], new_group_shard())
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE


def test_committed_transactions_of_a_slice_cost_one_replay_a_key() -> None:
    batches: list[bytes] = []
    for number in range(600):
        key, value = encode_record(OffsetRecord("g", "topic", number % 2, CommittedOffset(number, 0, "", NOW)))
        batch = build_batch(
            [NewRecord(key, value, NOW)],
            base_offset=2 * number,
            leader_epoch=0,
            producer_id=number % 5,
            producer_epoch=1,
            transactional=True,
        )
        marker = build_end_txn_marker(
            number % 5, 1, commit=True, coordinator_epoch=0, timestamp=NOW, base_offset=2 * number + 1, leader_epoch=0
        )
        batches += [bytes(batch), bytes(marker)]

    class Counting(GroupShard):
        decoded = 0

        def decode(self, key: bytes | None, value: bytes | None) -> Any:
            Counting.decoded += 1
            return super().decode(key, value)

    shard = load(batches, Counting(0, GroupSettings(), OWNER))
    assert [shard.offsets.get("g", "topic", partition).offset for partition in (0, 1)] == [598, 599]
    segments_and_slices = sum(map(len, batches)) // 8_000 + 2
    assert Counting.decoded <= 2 * segments_and_slices
