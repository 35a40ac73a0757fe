"""Decision of a driver about a micro-batch, and its text format in the metadata of a committed offset.
The offset is the number of the next batch. Its commit is the atomic point of a batch.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Sequence
from typing import NamedTuple

CHUNK_LENGTH_MAX = 4_000  # characters; `offset.metadata.max.bytes` is 4096 unless a broker is configured otherwise
_TEXT_BYTES_MAX = 64 * 1024 * 1024  # limit of a decompressed decision


class Identity(NamedTuple):
    """Producer id and epoch of a driver or of a task's transaction."""

    producer_id: int
    epoch: int

    def __str__(self) -> str:
        return f"{self.producer_id}-{self.epoch}"

    @classmethod
    def parse(cls, text: str) -> Identity:
        """Raises ValueError unless `text` is the `str()` of an identity."""
        producer_id, _, epoch = text.partition("-")
        return cls(int(producer_id), int(epoch))


class PreparedPart(NamedTuple):
    """Prepared part of one task at one participant: enough for another process to commit or abort it."""

    participant: str  # name of the TwoPhaseCommitSink
    key: str  # identifies the part in a listing of open parts: a transactional id, or the name of a staged file
    token: str  # further data for the commit; only the participant interprets it
    rows: int


class SlotMark(NamedTuple):
    """A mark committed with a task's records: it proves that its partition's transaction was committed."""

    next_batch: int
    query: str
    identity: Identity

    def encode(self) -> str:
        return f"{self.query} {self.identity}"

    @classmethod
    def decode(cls, next_batch: int, text: str) -> SlotMark:
        """Raises ValueError."""
        query, _, identity = text.rpartition(" ")
        return cls(next_batch, query, Identity.parse(identity))


class TransactionSlot(NamedTuple):
    """A transactional id that the tasks of one partition reuse, batch after batch (see `decisions`)."""

    key: str
    identity: Identity  # the only one that may begin the next transaction
    ticket: Identity  # the last one taken: only the next one allows the use of `identity`
    timeout_ms: int  # with which the id was initialized; 0 with two-phase commit


class BatchDecision(NamedTuple):
    """Outcome of the batches before `next_batch`; the parts of the last one, `handles`, must be committed."""

    next_batch: int
    query: str  # id of the query in Spark's checkpoint
    driver: Identity  # the driver that decided
    handles: tuple[PreparedPart, ...]
    slots: tuple[TransactionSlot, ...] = ()  # usable when `handles` are committed

    def encode(self, length_max: int = CHUNK_LENGTH_MAX) -> list[str]:
        """Text in chunks of at most `length_max` characters, committed together, with the same token."""
        participants = list(dict.fromkeys(handle.participant for handle in self.handles))
        value = [
            self.query,
            0,  # both zeros are unused; earlier versions had numbers there, and a text in place of the slots
            [[slot.key, str(slot.identity), str(slot.ticket), slot.timeout_ms] for slot in self.slots],
            0,
            participants,
            [[participants.index(h.participant), h.key, h.token, h.rows] for h in self.handles],
        ]
        packed = zlib.compress(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(), 9)
        text = base64.b64encode(packed).decode()
        room = length_max - 64  # reserves room for the prefix
        pieces = [text[start : start + room] for start in range(0, len(text), room)]
        return [f"1 {self.driver} {number} {len(pieces)} {piece}" for number, piece in enumerate(pieces)]

    @staticmethod
    def chunk_count(first: str) -> int:
        """Number of chunks, from the first one. Raises ValueError."""
        return int(first.split(" ", 4)[3]) if first.count(" ") == 4 else int("no chunk")

    @classmethod
    def decode(cls, next_batch: int, chunks: Sequence[str]) -> BatchDecision | None:
        """None for chunks of different decisions: read them again. Raises ValueError for other texts."""
        heads = []
        text = ""
        for number, chunk in enumerate(chunks):
            version, driver, index, count, piece = chunk.split(" ", 4)
            if version != "1" or int(index) != number:
                raise ValueError(f"chunk {number} of a decision begins with {chunk[:64]!r}")
            heads.append((driver, int(count)))
            text += piece
        if any(head != heads[0] for head in heads) or heads[0][1] != len(chunks):
            return None
        try:
            inflater = zlib.decompressobj()
            data = inflater.decompress(base64.b64decode(text, validate=True), _TEXT_BYTES_MAX)
            query, _, kept, _, participants, listed = json.loads(data)
            handles = tuple(PreparedPart(participants[which], key, token, rows) for which, key, token, rows in listed)
            slots = tuple(
                TransactionSlot(key, Identity.parse(identity), Identity.parse(ticket), timeout_ms)
                for key, identity, ticket, timeout_ms in (kept if isinstance(kept, list) else ())
            )
        except (binascii.Error, zlib.error, TypeError, IndexError) as error:
            raise ValueError(f"a decision cannot be read: {error}") from error
        return cls(next_batch, query, Identity.parse(heads[0][0]), handles, slots)
