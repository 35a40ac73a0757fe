"""What a driver decides about a micro-batch, and how that is written down: values, and their text.

A `Handle` stands for the prepared part of one task at one participant. A `Decision` names the batch that comes next and every
handle of the batch before it; its commit is the one atomic point of a batch. Its text is the metadata of a committed offset
(the offset is the batch that comes next), cut into chunks where it is longer than a broker allows; all chunks are committed in
one transaction and carry the same token, so that a reader sees whether it has those of one decision.

Invariants: `Decision.decode(decision.encode())` is the decision; text that is none raises ValueError and nothing else.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["CHUNK_LENGTH_MAX", "Decision", "Handle", "Identity", "SlotMark"]

CHUNK_LENGTH_MAX = 4_000  # characters; `offset.metadata.max.bytes` is 4096 unless a broker is configured otherwise
_TEXT_BYTES_MAX = 64 * 1024 * 1024  # of a decision, decompressed


class Identity(NamedTuple):
    """Producer id and epoch: who a driver, or the transaction of a task, is."""

    producer_id: int
    epoch: int

    def __str__(self) -> str:
        return f"{self.producer_id}-{self.epoch}"

    @classmethod
    def parse(cls, text: str) -> Identity:
        """The identity whose `str()` this is.

        Raises:
            ValueError: it is none.
        """
        producer_id, _, epoch = text.partition("-")
        return cls(int(producer_id), int(epoch))


class Handle(NamedTuple):
    """The prepared part of one task at one participant: all that another process needs to commit or abort it."""

    participant: str  # name of the TwoPhaseCommitSink
    key: str  # what it is recognised by among what is open: a transactional id, the name of a staged file
    token: str  # what else its commit needs; nobody but the participant looks into it
    rows: int


class SlotMark(NamedTuple):
    """What a task commits with its records: proof, for its partition, that this transaction was committed."""

    next_batch: int
    query: str
    identity: Identity

    def encode(self) -> str:
        return f"{self.query} {self.identity}"

    @classmethod
    def decode(cls, next_batch: int, text: str) -> SlotMark:
        """The mark of which this is the text.

        Raises:
            ValueError: it is none.
        """
        query, _, identity = text.rpartition(" ")
        return cls(next_batch, query, Identity.parse(identity))


class Decision(NamedTuple):
    """The outcome of the batches before `next_batch`: the last of them consists of `handles`, and they are to be committed."""

    next_batch: int
    query: str  # whose batches these are: the id in Spark's checkpoint
    driver: Identity  # who decided
    epochs_spent: (
        int  # by which the driver's epoch has grown once the decision is committed: 1 under transactions V2, else 0
    )
    run: str  # of the names of first attempts, "" where they are not used again
    reusable: bool  # every task was the first attempt of its partition, so nobody else can hold these names
    handles: tuple[Handle, ...]

    def encode(self, length_max: int = CHUNK_LENGTH_MAX) -> list[str]:
        """The decision's text, in chunks of at most `length_max` characters."""
        participants = list(dict.fromkeys(handle.participant for handle in self.handles))
        value = [
            self.query,
            self.epochs_spent,
            self.run,
            int(self.reusable),
            participants,
            [[participants.index(h.participant), h.key, h.token, h.rows] for h in self.handles],
        ]
        packed = zlib.compress(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(), 9)
        text = base64.b64encode(packed).decode()
        room = length_max - 64  # for what stands before it
        pieces = [text[start : start + room] for start in range(0, len(text), room)]
        return [f"1 {self.driver} {number} {len(pieces)} {piece}" for number, piece in enumerate(pieces)]

    @staticmethod
    def chunk_count(first: str) -> int:
        """How many chunks the decision has of which this is the first.

        Raises:
            ValueError: it is no chunk of a decision.
        """
        return int(first.split(" ", 4)[3]) if first.count(" ") == 4 else int("no chunk")

    @classmethod
    def decode(cls, next_batch: int, chunks: Sequence[str]) -> Decision | None:
        """The decision of which these are the chunks, in order; None where they are of different ones: read them again.

        Raises:
            ValueError: that is no decision.
        """
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
            query, spent, run, reusable, participants, listed = json.loads(data)
            handles = tuple(Handle(participants[which], key, token, rows) for which, key, token, rows in listed)
        except (binascii.Error, zlib.error, TypeError, IndexError) as error:
            raise ValueError(f"a decision cannot be read: {error}") from error
        return cls(next_batch, query, Identity.parse(heads[0][0]), spent, run, bool(reusable), handles)
