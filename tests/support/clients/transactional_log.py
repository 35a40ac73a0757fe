"""One log with markers, written by real producers from a script, and a model of what it must hold.

A script names the writers in order. `play` has producers carry it out one step after the other, so that every broker
assigns the same offsets. `Model` computes the expected log from the script. `scan` sends raw Fetch requests from every
offset; `read_librdkafka` and `read_bundled` return what consumers deliver.

Steps, one a line: `a 3` the producer writes three records in its transaction (begun if need be), `. 2` two plain
records, `a commit`, `a abort`, `trim 5` DeleteRecords before offset 5. `a`, `b`, … are librdkafka's producers, `y` and
`z` the bundled client's (whose epoch rises with each transaction). Transactions that are not ended are left open; not
`y`'s and `z`'s, who abort theirs when they close.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from confluent_kafka import Consumer as LibrdkafkaConsumer
from confluent_kafka import Producer as LibrdkafkaProducer
from confluent_kafka import TopicPartition as LibrdkafkaPartition

from barnabas.client import Consumer, Producer, TopicPartition
from barnabas.client.types import IsolationLevel
from barnabas.protocol.records import decode_records, iter_batches, read_control
from tests.support.clients.librdkafka import place_of, value_of
from tests.support.oracle.wire import Wire
from tests.support.requests import request_of

BUNDLED = ("y", "z")
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
LEVELS: tuple[IsolationLevel, IsolationLevel] = ("read_uncommitted", "read_committed")
OPEN_MS = 900_000  # the most that a broker allows: what is left open stays open
WAIT_SECONDS_MAX = 60.0
LINGER_MS = 60_000  # a flush ends it: what is written at once is one batch, on a busy machine too

INTERLEAVED = """
. 3
a 2
b 1
. 1
c 3
a 1
b abort
c commit
. 1
b 2
z 2
b 1
a abort
z abort
. 2
z 1
d 2
b abort
z commit
c 1
a 2
trim 4
a commit
. 1
d abort
e 1
c abort
a 1
. 2
a abort
z 1
z abort
"""


def made_up(seed: int, steps: int) -> str:
    """A random script; some transactions stay open at its end."""
    rng = random.Random(seed)
    lines: list[str] = []
    busy: set[str] = set()
    for _ in range(steps):
        who = rng.choice(".abcdz")
        if who in busy and rng.random() < 0.45:
            lines.append(f"{who} {rng.choice(['commit', 'abort', 'abort'])}")
            busy.discard(who)
        else:
            lines.append(f"{who} {rng.randint(1, 3)}")
            busy.update(who.strip("."))
    if "z" in busy:
        lines.append("z abort")
    return "\n".join(lines)


class Batch(NamedTuple):
    """A batch of a Fetch answer; its writer by name, or by the order of first appearance."""

    first_offset: int
    last_offset: int
    writer: str
    kind: str  # "plain", "transactional", "COMMIT" or "ABORT"


class Aborted(NamedTuple):
    """An aborted transaction."""

    writer: str
    first_offset: int
    last_offset: int  # of its marker


class Seen(NamedTuple):
    """The contents of one Fetch answer."""

    offset: int
    isolation_level: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    # (writer, first offset), sorted; of those that begin within the batches.
    aborted: tuple[tuple[str, int], ...] | None
    batches: tuple[Batch, ...]
    epochs: tuple[tuple[int, int], ...]  # producer epoch and base sequence of each batch
    size_bytes: int


class Model:
    """The log that a script must produce.

    Attributes:
        batches: one a step that writes, and one a marker.
        values: of every record by its offset.
        undecided: the first offset of each open transaction.
    """

    def __init__(self, size_bytes: int = 10) -> None:
        self.size_bytes = size_bytes
        self.batches: list[Batch] = []
        self.values: dict[int, bytes] = {}
        self.undecided: dict[str, int] = {}
        self.aborted: list[Aborted] = []
        self.log_start_offset = 0

    @property
    def high_watermark(self) -> int:
        return self.batches[-1].last_offset + 1 if self.batches else 0

    @property
    def last_stable_offset(self) -> int:
        return min(self.undecided.values(), default=self.high_watermark)

    def next_values(self, who: str, count: int) -> list[bytes]:
        """What a step writes: each value names its writer and offset."""
        first = self.high_watermark
        return [f"{who} {first + n} ".encode().ljust(self.size_bytes, b"v") for n in range(count)]

    def write(self, who: str, count: int) -> None:
        first = self.high_watermark
        self.values.update(enumerate(self.next_values(who, count), first))
        self.batches.append(Batch(first, first + count - 1, who, "plain" if who == "." else "transactional"))
        if who != ".":
            self.undecided.setdefault(who, first)

    def end(self, who: str, *, commit: bool) -> None:
        offset = self.high_watermark
        first = self.undecided.pop(who)
        self.batches.append(Batch(offset, offset, who, "COMMIT" if commit else "ABORT"))
        if not commit:
            self.aborted.append(Aborted(who, first, offset))

    def delivered(self, offset: int, isolation_level: int) -> list[tuple[int, bytes]]:
        """Offset and value of what a consumer gets from an offset on."""
        end = (self.high_watermark, self.last_stable_offset)[isolation_level]
        dropped = {
            n
            for batch in self.batches
            for n in range(batch.first_offset, batch.last_offset + 1)
            for each in self.aborted
            if isolation_level and each.writer == batch.writer and each.first_offset <= n <= each.last_offset
        }
        return [(n, value) for n, value in self.values.items() if offset <= n < end and n not in dropped]

    def check(self, seen: Seen) -> None:
        """Checks a Fetch answer."""
        assert seen.high_watermark == self.high_watermark or seen.error_code
        if not self.log_start_offset <= seen.offset <= self.high_watermark:
            assert (seen.error_code, seen.batches) == (1, ()), seen
            return
        assert seen.error_code == 0, seen
        assert seen.last_stable_offset == self.last_stable_offset, seen
        assert seen.log_start_offset == self.log_start_offset, seen
        end = (self.high_watermark, self.last_stable_offset)[seen.isolation_level]
        due = [batch for batch in self.batches if seen.offset <= batch.last_offset and batch.first_offset < end]
        # A fetch ends at the end of a segment or at its limit; it never skips a batch and is never empty.
        assert list(seen.batches) == due[: len(seen.batches)], seen
        assert bool(seen.batches) == bool(due), seen
        if seen.isolation_level == READ_UNCOMMITTED:
            assert seen.aborted is None, seen
            return
        upper = seen.batches[-1].last_offset + 1 if seen.batches else 0
        assert list(seen.aborted or ()) == sorted(
            (each.writer, each.first_offset)
            for each in self.aborted
            if each.last_offset >= seen.offset and each.first_offset < upper
        ), seen


class Player:
    """Carries out a script with producers of one broker.

    Args:
        run: makes the transactional ids of this run its own.
        began_ms: the timestamp of every record: brokers that are compared get the same, so that batches have the
            same size.
    """

    def __init__(self, address: str, topic: str, run: str, model: Model, began_ms: int | None = None) -> None:
        self.address = address
        self.topic = topic
        self.run = run
        self.model = model
        self.wire = Wire(address)
        self.began_ms = int(time.time() * 1000) if began_ms is None else began_ms
        self._librdkafka: dict[str, LibrdkafkaProducer] = {}
        self._bundled: dict[str, Producer] = {}

    async def play(self, script: str, after_each: Callable[[], None] | None = None) -> None:
        """Carries out the script, then closes the producers."""
        try:
            for line in script.split("\n"):
                if line.strip():
                    await self.step(*line.split())
                    if after_each is not None:
                        after_each()
        finally:
            self._librdkafka.clear()
            for producer in self._bundled.values():
                await producer.stop()

    async def step(self, who: str, what: str) -> None:
        """One line of the script; returns when the log shows it."""
        model = self.model
        if who == "trim":
            self._trim(int(what))
            return
        if what in ("commit", "abort"):
            await self._end(who, commit=what == "commit")
            model.end(who, commit=what == "commit")
        else:
            await self._write(who, model.next_values(who, int(what)))
            model.write(who, int(what))
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while (end := self._fetch_end()) < model.high_watermark:  # markers follow the answer
            assert time.monotonic() < deadline, f"{who} {what}: the log ends at {end}, not at {model.high_watermark}"
            await asyncio.sleep(0.002)
        assert end == model.high_watermark

    def close(self) -> None:
        self.wire.close()

    async def _write(self, who: str, values: Sequence[bytes]) -> None:
        if who in BUNDLED:
            bundled = await self._bundled_producer(who)
            if who not in self.model.undecided:
                await bundled.begin_transaction()
            for value in values:
                await bundled.send(self.topic, value, partition=0, timestamp_ms=self.began_ms)
            await bundled.flush()
            return
        producer = self._librdkafka_producer(who)
        if who not in (".", *self.model.undecided):
            producer.begin_transaction()
        failures: list[Any] = []
        for value in values:
            producer.produce(
                self.topic,
                value,
                partition=0,
                timestamp=self.began_ms,
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )
        assert producer.flush(WAIT_SECONDS_MAX) == 0
        assert not failures, failures

    async def _end(self, who: str, *, commit: bool) -> None:
        if who in BUNDLED:
            bundled = self._bundled[who]
            await (bundled.commit_transaction() if commit else bundled.abort_transaction())
        else:
            producer = self._librdkafka[who]
            (producer.commit_transaction if commit else producer.abort_transaction)(WAIT_SECONDS_MAX)

    def _librdkafka_producer(self, who: str) -> LibrdkafkaProducer:
        producer = self._librdkafka.get(who)
        if producer is None:
            settings: dict[str, Any] = {
                "bootstrap.servers": self.address,
                "linger.ms": LINGER_MS,
                "retry.backoff.ms": 10,
            }
            if who != ".":
                settings |= {"transactional.id": f"{who}-{self.run}", "transaction.timeout.ms": OPEN_MS}
            producer = self._librdkafka[who] = LibrdkafkaProducer(settings)
            if who != ".":
                producer.init_transactions(WAIT_SECONDS_MAX)
            # It knows the leader before the first record: records that wait for metadata may become two batches.
            producer.list_topics(self.topic, WAIT_SECONDS_MAX)
        return producer

    async def _bundled_producer(self, who: str) -> Producer:
        producer = self._bundled.get(who)
        if producer is None:
            producer = self._bundled[who] = Producer(
                bootstrap_servers=self.address,
                transactional_id=f"{who}-{self.run}",
                transaction_timeout_ms=OPEN_MS,
                linger_ms=LINGER_MS,
                max_batch_size=1 << 20,
                retry_backoff_ms=10,
            )
            await producer.start()
        return producer

    def _trim(self, offset: int) -> None:
        asked = {"name": self.topic, "partitions": [{"partition_index": 0, "offset": offset}]}
        part = self.wire.call(request_of("DeleteRecords", topics=[asked], timeout_ms=10_000), 2).topics[0].partitions[0]
        assert (part.error_code, part.low_watermark) == (0, offset)
        self.model.log_start_offset = offset

    def _fetch_end(self) -> int:
        return int(self.wire.fetch(self.topic, 0, self.model.log_start_offset, max_bytes=1).high_watermark)


def writers(wire: Wire, topic: str, model: Model) -> dict[int, str]:
    """The writer of each producer id, by the order of first appearance in the log."""
    found: dict[int, str] = {-1: "."}
    names = iter(dict.fromkeys(batch.writer for batch in model.batches if batch.writer != "."))
    offset = 0
    while offset < model.high_watermark:
        part = wire.fetch(topic, 0, max(offset, model.log_start_offset))
        for _, header in iter_batches(part.records or b""):
            if header.producer_id not in found:
                found[header.producer_id] = next(names)
            offset = header.next_offset
    return found


def scan(
    wire: Wire, topic: str, model: Model, names: dict[int, str], offsets: Sequence[int] = (), max_bytes: int = 1 << 24
) -> list[Seen]:
    """A Fetch from every offset (by default from 0 to one past the end), at both isolation levels."""
    return [
        look(wire, topic, names, offset, isolation_level, max_bytes)
        for isolation_level in (READ_UNCOMMITTED, READ_COMMITTED)
        for offset in offsets or range(model.high_watermark + 2)
    ]


def look(wire: Wire, topic: str, names: dict[int, str], offset: int, isolation_level: int, max_bytes: int) -> Seen:
    """Sends one Fetch. Kafka names aborted transactions up to the next index entry; those that begin after its records
    are left out."""
    part = wire.fetch(topic, 0, offset, isolation_level=isolation_level, max_bytes=max_bytes)
    records = part.records or b""
    batches, epochs = [], []
    for at, header in iter_batches(records):
        kind = "transactional" if header.is_transactional else "plain"
        if header.is_control:
            kind = ("ABORT", "COMMIT")[read_control(decode_records(records, at, header)[0]).type]
        writer = "." if kind == "plain" else names.get(header.producer_id, "?")
        batches.append(Batch(header.base_offset, header.last_offset, writer, kind))
        epochs.append((header.producer_epoch, header.base_sequence))
    end = batches[-1].last_offset + 1 if batches else 0
    aborted = part.aborted_transactions
    return Seen(
        offset,
        isolation_level,
        part.error_code,
        part.high_watermark,
        part.last_stable_offset,
        part.log_start_offset,
        None
        if aborted is None
        else tuple(sorted((names.get(a.producer_id, "?"), a.first_offset) for a in aborted if a.first_offset < end)),
        tuple(batches),
        tuple(epochs),
        len(records),
    )


def read_librdkafka(
    address: str, topic: str, offsets: Sequence[int], isolation_level: int
) -> list[list[tuple[int, bytes]]]:
    """What librdkafka delivers from each of these offsets to the end it sees."""
    consumer = LibrdkafkaConsumer(
        {
            "bootstrap.servers": address,
            "group.id": "reader",
            "isolation.level": LEVELS[isolation_level],
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 5,
        }
    )
    found = []
    try:
        for offset in offsets:
            consumer.assign([LibrdkafkaPartition(topic, 0, offset)])
            delivered: list[tuple[int, bytes]] = []
            while True:
                message = consumer.poll(WAIT_SECONDS_MAX)
                assert message is not None, f"neither a message nor the end for {WAIT_SECONDS_MAX} s"
                error = message.error()
                if error is not None:
                    assert error.code() == -191, error  # _PARTITION_EOF
                    break
                delivered.append((place_of(message)[2], value_of(message)))
            found.append(delivered)
    finally:
        consumer.close()
    return found


async def read_bundled(
    address: str, topic: str, offsets: Sequence[int], isolation_level: int
) -> list[list[tuple[int, bytes]]]:
    """What the bundled client delivers from each of these offsets to the end it sees."""
    tp = TopicPartition(topic, 0)
    found = []
    async with Consumer(
        bootstrap_servers=address,
        isolation_level=LEVELS[isolation_level],
        auto_offset_reset="none",
        enable_auto_commit=False,
        fetch_max_wait_ms=5,
    ) as consumer:
        end = (await consumer.end_offsets([tp]))[tp]
        consumer.assign([tp])
        for offset in offsets:
            consumer.seek(tp, offset)
            delivered: list[tuple[int, bytes]] = []
            async with asyncio.timeout(WAIT_SECONDS_MAX):
                while await consumer.position(tp) < end:
                    for records in (await consumer.getmany(timeout_ms=100)).values():
                        delivered += [(record.offset, record.value or b"") for record in records]
            found.append(delivered)
    return found
