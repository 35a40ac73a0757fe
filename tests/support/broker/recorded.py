"""Correct histories of a small modelled Kafka, for the checks of histories: the events that brokers note, and what they hold in the end.

From a seed: producers without and with producer ids, transactions V1 and V2 over several partitions that commit or abort, offsets within
transactions, members of a group that read and commit. The model has one clock and one broker, and it does nothing wrong.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from barnabas.testing.history.core.events import (
    Delivered,
    GroupChanged,
    HistoryEvent,
    OffsetsCommitted,
    PartitionsAdded,
    Produced,
    ProducerIdGiven,
    TransactionEnded,
)
from barnabas.testing.history.core.final_state import FinalState, HeldLog, LoggedBatch, TransactionStep

GROUP = "readers"
PARTITIONS = [("orders", 0), ("orders", 1), ("paid", 0)]
Partition = tuple[str, int]


@dataclass
class Recorded:
    """A history: lists, so that a test can change them."""

    events: list[HistoryEvent] = field(default_factory=list)
    logs: dict[Partition, list[LoggedBatch]] = field(default_factory=lambda: {each: [] for each in PARTITIONS})
    steps: list[TransactionStep] = field(default_factory=list)
    offsets: dict[tuple[str, str, int], int] = field(default_factory=dict)

    def state(self) -> FinalState:
        """As the checker takes it."""
        logs = {
            (topic, partition): HeldLog(
                topic, partition, 0, batches[-1].last_offset + 1 if batches else 0, tuple(batches)
            )
            for (topic, partition), batches in self.logs.items()
        }
        return FinalState(logs, tuple(self.steps), dict(self.offsets))


class _Model:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.with_offsets = seed % 3 > 0  # in transactions
        self.made = Recorded()
        self.now = 1_700_000_000_000
        self.number = 0
        self.sequences: dict[tuple[int, Partition], int] = {}
        self.epochs = {4000: 0, 4001: 0, 4002: 0}
        self.positions = dict.fromkeys(PARTITIONS, 0)
        self.open: set[int] = set()
        self.first_open: dict[Partition, dict[int, int]] = {each: {} for each in PARTITIONS}

    def note(self, kind: type[HistoryEvent], client: str, **fields: Any) -> HistoryEvent:
        self.number += 1
        self.now += self.rng.randrange(3)
        common: dict[str, Any] = {"number": self.number, "at_ms": self.now, "broker": 1, "client": client}
        event = kind(**common, address="127.0.0.1:4000", connection=1, **fields)
        self.made.events.append(event)
        return event

    def append(self, partition: Partition, count: int, **fields: Any) -> int:
        log = self.made.logs[partition]
        base = log[-1].last_offset + 1 if log else 0
        log.append(LoggedBatch(base, base + count - 1, at_ms=self.now, **fields))
        return base

    def produce(self, partition: Partition, client: str, producer_id: int = -1, transactional: bool = False) -> None:
        count, crc = self.rng.randrange(1, 4), self.rng.getrandbits(32)
        epoch = self.epochs.get(producer_id, -1)
        sequence = -1
        if producer_id >= 0:
            sequence = self.sequences.get((producer_id, partition), 0)
            self.sequences[producer_id, partition] = sequence + count
        identity: dict[str, Any] = {
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "base_sequence": sequence,
            "transactional": transactional,
            "crc": crc,
        }
        base = self.append(partition, count, **identity)
        if transactional:
            self.first_open[partition].setdefault(producer_id, base)
        topic, number = partition
        name = f"id-{producer_id}" if transactional else ""
        self.note(
            Produced,
            client,
            topic=topic,
            partition=number,
            base_offset=base,
            count=count,
            size_bytes=100,
            transactional_id=name,
            **identity,
        )

    def transaction(self, producer_id: int, *, v2: bool) -> None:
        rng, client, name = self.rng, f"writer-{producer_id}", f"id-{producer_id}"
        partitions = rng.sample(PARTITIONS, rng.randrange(1, 4))
        identity: dict[str, Any] = {"producer_id": producer_id, "producer_epoch": self.epochs[producer_id]}
        if not v2:
            self.note(PartitionsAdded, client, transactional_id=name, partitions=tuple(partitions), **identity)
        self.step(name, "Ongoing", partitions, **identity)
        for partition in partitions:
            self.produce(partition, client, producer_id, transactional=True)
        offset = None
        if self.with_offsets and rng.random() < 0.5:
            offset = self.consume(rng.choice(PARTITIONS), commit=False)
        if offset is not None:
            (topic, number), position = offset
            self.note(
                OffsetsCommitted,
                client,
                group=GROUP,
                generation=1,
                member="m",
                offsets=((topic, number, position),),
                transactional_id=name,
                **identity,
            )
        self.end(name, client, partitions, identity, offset, v2=v2)

    def end(
        self, name: str, client: str, partitions: list[Partition], identity: dict[str, Any], offset: Any, *, v2: bool
    ) -> None:
        committed = self.rng.random() < 0.7
        producer_id, epoch = identity["producer_id"], identity["producer_epoch"] + (1 if v2 else 0)
        word = "Commit" if committed else "Abort"
        bumped = {"producer_id": producer_id, "producer_epoch": epoch}
        self.step(name, f"Prepare{word}", partitions, **bumped)
        later = {"next_id": producer_id, "next_epoch": epoch} if v2 else {}
        self.note(TransactionEnded, client, transactional_id=name, committed=committed, **identity, **later)
        for partition in partitions:
            self.append(partition, 1, **bumped, marker=word.lower())
            self.first_open[partition].pop(producer_id, None)
        self.step(name, f"Complete{word}", [], **bumped)
        if v2:
            self.epochs[producer_id] = epoch
            for partition in PARTITIONS:
                self.sequences.pop((producer_id, partition), None)
        if offset is not None:
            (topic, number), position = offset
            if committed:
                self.made.offsets[GROUP, topic, number] = position
            else:
                held = self.made.offsets.get((GROUP, topic, number), 0)
                self.positions[topic, number] = held  # an application goes back to what is committed

    def step(self, name: str, state: str, partitions: list[Partition], **identity: Any) -> None:
        self.made.steps.append(TransactionStep(name, state, partitions=tuple(partitions), at_ms=self.now, **identity))

    def consume(self, partition: Partition, *, commit: bool = True) -> tuple[Partition, int] | None:
        position = self.positions[partition]
        stable = min(self.first_open[partition].values(), default=None)
        log = self.made.logs[partition]
        end = log[-1].last_offset + 1 if log else 0
        stable = end if stable is None else stable
        batches = [each for each in log if position <= each.base_offset and each.last_offset < stable]
        if not batches:
            return None
        batches = batches[: self.rng.randrange(1, 6)]
        topic, number = partition
        segments = HeldLog(topic, number, 0, end, tuple(log)).segments
        aborted = tuple(
            (each.producer_id, each.first_offset)
            for each in segments
            if each.outcome == "abort" and each.batches and each.marker_offset >= position
        )
        self.note(
            Delivered,
            "reader",
            topic=topic,
            partition=number,
            isolation="read_committed",
            fetch_offset=position,
            first_offset=batches[0].base_offset,
            last_offset=batches[-1].last_offset,
            high_watermark=end,
            last_stable_offset=stable,
            batches=tuple(
                (
                    each.base_offset,
                    each.last_offset,
                    each.producer_id,
                    each.producer_epoch,
                    each.transactional,
                    bool(each.marker),
                )
                for each in batches
            ),
            aborted=aborted,
        )
        self.positions[partition] = batches[-1].last_offset + 1
        if commit:
            position = self.positions[partition]
            self.made.offsets[GROUP, topic, number] = position
            self.now += 1
            self.note(
                OffsetsCommitted, "reader", group=GROUP, member="m", generation=1, offsets=((topic, number, position),)
            )
            self.now += 1
        return partition, self.positions[partition]


def recorded(seed: int) -> Recorded:
    """A correct history of forty steps, for the caller to change."""
    made = _correct(seed)
    logs = {partition: [*batches] for partition, batches in made.logs.items()}
    return Recorded([*made.events], logs, [*made.steps], dict(made.offsets))


@cache
def _correct(seed: int) -> Recorded:
    model = _Model(seed)
    model.note(GroupChanged, "reader", api="JoinGroup", group=GROUP, member="m", generation=1)
    for producer_id in (4001, 4002):
        model.note(
            ProducerIdGiven,
            f"writer-{producer_id}",
            transactional_id=f"id-{producer_id}",
            producer_id=producer_id,
            producer_epoch=0,
        )
    for _ in range(40):
        partition = model.rng.choice(PARTITIONS)
        match model.rng.randrange(6):
            case 0:
                model.produce(partition, "plain")
            case 1:
                model.produce(partition, "idempotent", 4000)
            case 2:
                model.transaction(4001, v2=True)
            case 3:
                model.transaction(4002, v2=False)
            case _:
                model.consume(partition)
    return model.made
