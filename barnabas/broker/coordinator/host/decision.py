"""What a coordinator shard decides, and what `ShardHost` calls on it.

Cores: the shards of groups and transactions implement `Shard`; `host/shard.py` describes the five steps of a write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from barnabas.broker.replica.machine import VerificationGuard

__all__ = ["Decision", "ProducerStamp", "Shard", "Undo"]

A = TypeVar("A")
R = TypeVar("R")
Undo = Callable[[], None]


class ProducerStamp(NamedTuple):
    """Producer of a transactional batch (TxnOffsetCommit). `guard` comes from `Replica.verification_guard` (KIP-890)."""

    producer_id: int
    producer_epoch: int
    guard: VerificationGuard | None = None


@dataclass(frozen=True, slots=True)
class Decision(Generic[A, R]):
    """What a shard decided: the answer, and the records that must be committed before it leaves."""

    answer: A
    records: Sequence[R] = ()
    producer: ProducerStamp | None = None


class Shard(Protocol[R]):
    """One partition's state machine. Every method is synchronous; R is its record in memory."""

    def encode(self, record: R) -> tuple[bytes, bytes | None]:
        """Key and value for the log; None is a tombstone."""
        ...

    def decode(self, key: bytes | None, value: bytes | None) -> R | None:
        """The record of a key and value read back; None for one of an unknown kind, which is passed over."""
        ...

    def stage(self, record: R, producer: ProducerStamp | None) -> Undo:
        """A decided record, not yet appended. Returns what takes it back if the append fails."""
        ...

    def on_committed(self, record: R) -> None:
        """A staged record is committed; its answer leaves next."""
        ...

    def replay(self, record: R, producer_id: int, producer_epoch: int) -> None:
        """A record read from the log while loading. -1, -1 where its batch is not transactional."""
        ...

    def replay_marker(self, producer_id: int, producer_epoch: int, *, commit: bool) -> None:
        """A transaction marker read from the log while loading."""
        ...

    def on_active(self) -> None:
        """Loading is complete: deadlines may be armed, interrupted work resumed."""
        ...

    def on_resigned(self) -> None:
        """Leadership is lost: disarm deadlines, refuse what waits. No other method is called afterwards."""
        ...
