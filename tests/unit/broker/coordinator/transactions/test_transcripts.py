"""Scenario transcripts of the transaction shard: what is asked, what is answered and written, as text to be reviewed.

A transcript in tests/transcripts/transactions is a list of blocks: a command, a line of dashes, and what came of it. Run with
REWRITE_TRANSCRIPTS=1 to write the present outcome into the files, and read the difference.

Commands (PRODUCER is id/epoch; times in ms; `tv2` after a command makes it one of a TV2 client):
    server VERSION                      transaction.version that is finalized from here on (2 at the beginning)
    init ID [timeout=N] [keep] [as PRODUCER]  InitProducerId; timeout=none of a two-phase producer; keep: keepPreparedTxn
    add ID PRODUCER PARTITION… [tv2]    AddPartitionsToTxn
    verify ID PRODUCER PARTITION…       AddPartitionsToTxn, verify only
    end ID PRODUCER commit|abort [tv2]  EndTxn
    written ID                          every marker of the prepared transaction is written
    near_end ID                         by hand, and not in the log: the last epoch of the client's producer id
    hold / commit / fail                keep what is decided from the log's commit; commit it; lose it
    pass N                              time passes; timeouts are looked for
    expire N                            ids untouched for N ms are expired
    load [after=N]                      a new coordinator reads the log, N ms later by the wall clock alone
    show                                all transactional ids
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.coordinator.host.decision import Decision
from barnabas.broker.coordinator.transactions.records import TransactionRecord
from barnabas.broker.coordinator.transactions.shard import ProducerIdAndEpoch, TransactionAnswer, TransactionShard
from barnabas.broker.coordinator.transactions.state import NO_TIMEOUT_MS, TransactionMetadata
from barnabas.errors import BrokerError

FOLDER = Path(__file__).parents[4] / "transcripts" / "transactions"
RULE = "----"


class Stage:
    """A shard with its log, its clocks and the markers it owes; it is also the shard's owner."""

    def __init__(self) -> None:
        self.log: list[tuple[bytes, bytes | None]] = []
        self.out: list[str] = []
        self.wall_ms = 1_000_000
        self.monotonic_ms = 0
        self.server_version = 2
        self.next_id = 1000
        self.holding = False
        self.staged: list[tuple[TransactionRecord, Callable[[], None], tuple[bytes, bytes | None]]] = []
        self.shard = self._new_shard()

    def _new_shard(self) -> TransactionShard:
        return TransactionShard(0, 5, self, lambda: 1 if self.server_version >= 1 else 0)

    def new_producer_id(self) -> int:
        self.next_id += 1
        return self.next_id - 1

    # --- the owner of the shard

    def on_shard_active(self, shard: TransactionShard) -> None:
        shard.restart_deadlines(self.wall_ms, self.monotonic_ms)
        for prepared in shard.prepared():
            self.out.append(f"owes markers: {tell(prepared)}")

    def on_transition_committed(self, shard: TransactionShard, metadata: TransactionMetadata) -> None:
        self.out.append(f"committed: {tell(metadata)}")

    def on_shard_resigned(self, shard: TransactionShard) -> None:
        raise AssertionError("nothing here resigns")

    # --- the log

    def write(self, decide: Callable[[], Decision[Any, TransactionRecord]]) -> Any:
        try:
            decision = decide()
        except BrokerError as error:
            self.out.append(error.code.name)
            return None
        for record in decision.records:
            # Encoded at once, as the host does before the append.
            self.staged.append((record, self.shard.stage([record], None), self.shard.encode(record)))
        if not decision.records:
            self.out.append("nothing to write")
        if not self.holding:
            self.commit()
        return decision.answer

    def commit(self) -> None:
        staged, self.staged = self.staged, []
        for record, _, encoded in staged:
            self.log.append(encoded)
            self.shard.on_committed(record)
            if record.metadata is None:
                self.out.append(f"committed: {record.transactional_id} forgotten")

    def lose(self) -> None:
        staged, self.staged = self.staged, []
        for _, undo, _ in reversed(staged):
            undo()

    # --- commands

    def run(self, line: str) -> list[str]:
        self.out = []
        words = line.split()
        version = 2 if words[-1] == "tv2" else 0
        if version:
            words.pop()
        getattr(self, "on_" + words[0])(words[1:], version)
        return self.out

    def on_server(self, words: list[str], _version: int) -> None:
        self.server_version = int(words[0])

    def on_init(self, words: list[str], _version: int) -> None:
        timeout_ms, expected, keep = 60_000, None, False
        for word in words[1:]:
            if word.startswith("timeout="):
                given = word.removeprefix("timeout=")
                timeout_ms = NO_TIMEOUT_MS if given == "none" else int(given)
            elif word == "keep":
                keep = True
            elif word != "as":
                expected = producer(word)
        answer: TransactionAnswer | None = self.write(
            lambda: self.shard.init_producer_id(
                words[0],
                timeout_ms,
                expected,
                self.new_producer_id,
                self.server_version,
                self.wall_ms,
                keep_prepared=keep,
            )
        )
        if answer is not None and answer.prepared:
            self.out.append("aborting first")
        elif answer is not None:
            kept = f" keeps {tell_producer(answer.kept)}" if answer.kept.producer_id >= 0 else ""
            self.out.append(f"NONE {tell_producer(answer.identity)}{kept}")

    def on_add(self, words: list[str], version: int) -> None:
        before = len(self.out)
        self.write(
            lambda: self.shard.add_partitions(
                words[0], producer(words[1]), partitions(words[2:]), version, self.wall_ms, self.monotonic_ms
            )
        )
        if not any("_" in said for said in self.out[before:]):
            self.out.append("NONE")

    def on_verify(self, words: list[str], _version: int) -> None:
        try:
            errors = self.shard.verify_partitions(words[0], producer(words[1]), partitions(words[2:]))
        except BrokerError as error:
            self.out.append(error.code.name)
            return
        self.out.extend(f"{topic}-{number} {code.name}" for (topic, number), code in errors.items())

    def on_end(self, words: list[str], version: int) -> None:
        answer: TransactionAnswer | None = self.write(
            lambda: self.shard.end_transaction(
                words[0],
                producer(words[1]),
                commit=words[2] == "commit",
                transaction_version=version,
                new_producer_id=self.new_producer_id,
                now_ms=self.wall_ms,
            )
        )
        if answer is not None:
            self.out.append(f"NONE {tell_producer(answer.identity)}")

    def on_written(self, words: list[str], _version: int) -> None:
        prepared = self.shard.transactions[words[0]]
        self.write(lambda: self.shard.complete(prepared, self.wall_ms))

    def on_near_end(self, words: list[str], _version: int) -> None:
        before = self.shard.transactions[words[0]]
        if before.is_kept:
            self.shard.transactions[words[0]] = before._replace(next_producer_epoch=32_766, last_producer_epoch=-1)
        else:
            self.shard.transactions[words[0]] = before._replace(producer_epoch=32_766, last_producer_epoch=-1)

    def on_hold(self, _words: list[str], _version: int) -> None:
        self.holding = True

    def on_commit(self, _words: list[str], _version: int) -> None:
        self.holding = False
        self.commit()

    def on_fail(self, _words: list[str], _version: int) -> None:
        self.holding = False
        self.lose()

    def on_pass(self, words: list[str], _version: int) -> None:
        self.wall_ms += int(words[0])
        self.monotonic_ms += int(words[0])
        for late in self.shard.timed_out(self.monotonic_ms):
            self.out.append(f"timed out: {late.transactional_id}")
            abort = partial(self.shard.abort_timed_out, late)
            self.write(partial(abort, self.new_producer_id, self.server_version, self.wall_ms))
        deadline = self.shard.next_deadline_ms()
        if deadline is not None:
            self.out.append(f"next deadline in {deadline - self.monotonic_ms}")

    def on_expire(self, words: list[str], _version: int) -> None:
        before = self.wall_ms - int(words[0])
        for transactional_id in self.shard.expirable(before):
            self.write(partial(self.shard.expire, transactional_id, before))

    def on_load(self, words: list[str], _version: int) -> None:
        for word in words:
            self.wall_ms += int(word.removeprefix("after="))
        self.staged = []
        self.shard = self._new_shard()
        for key, value in self.log:
            record = self.shard.decode(key, value)
            assert record is not None
            self.shard.replay(record, -1, -1)
        self.shard.on_active()
        self.on_show([], 0)

    def on_show(self, _words: list[str], _version: int) -> None:
        for transactional_id, metadata in self.shard.transactions.items():
            pending = self.shard.pending.get(transactional_id)
            self.out.append(tell(metadata) + (f" → {pending.state.label}" if pending else ""))


def producer(word: str) -> ProducerIdAndEpoch:
    producer_id, epoch = word.split("/")
    return ProducerIdAndEpoch(int(producer_id), int(epoch))


def partitions(words: list[str]) -> list[tuple[str, int]]:
    return [(word.rsplit("-", 1)[0], int(word.rsplit("-", 1)[1])) for word in words]


def tell_producer(identity: ProducerIdAndEpoch) -> str:
    return f"{identity.producer_id}/{identity.producer_epoch}"


def tell(metadata: TransactionMetadata) -> str:
    told = f"{metadata.transactional_id} {metadata.state.label} {metadata.producer_id}/{metadata.producer_epoch}"
    if metadata.last_producer_epoch >= 0:
        told += f" last={metadata.last_producer_epoch}"
    if metadata.previous_producer_id != metadata.producer_id:
        told += f" previous={metadata.previous_producer_id}"
    if metadata.next_producer_id >= 0:
        told += f" next={metadata.next_producer_id}"
        if metadata.is_kept:
            told += f"/{metadata.next_producer_epoch}"
    for topic, number in sorted(metadata.partitions):
        told += f" {topic}-{number}"
    return told + (" tv2" if metadata.client_transaction_version == 2 else "")


def play(text: str) -> str:
    """The transcript as it is told now; comments and blank lines stay."""
    stage = Stage()
    told: list[str] = []
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        line = lines[at]
        told.append(line)
        at += 1
        if not line.strip() or line.startswith("#"):
            continue
        if at < len(lines) and lines[at] == RULE:
            at += 1
        while at < len(lines) and lines[at].strip():
            at += 1
        told.append(RULE)
        told.extend(stage.run(line))
    return "\n".join(told) + "\n"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    text = path.read_text()
    told = play(text)
    if os.environ.get("REWRITE_TRANSCRIPTS"):
        path.write_text(told)
        return
    assert told == text
