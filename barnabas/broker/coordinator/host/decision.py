"""Decisions of coordinator shards, and the interface of a shard to its host (`coordinator/shard_host.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from barnabas.broker.replica.core.verification_guard import VerificationGuard

A = TypeVar("A")
R = TypeVar("R")
Undo = Callable[[], None]
"""Takes staged records back."""


class ProducerStamp(NamedTuple):
    """Producer of a transactional batch; `guard` is from `Replica.verification_guard` (KIP-890)."""

    producer_id: int
    producer_epoch: int
    guard: VerificationGuard | None = None


@dataclass(frozen=True, slots=True)
class Decision(Generic[A, R]):
    """The answer, and the records that must be committed before the answer leaves; `encoded` has their bytes, if they are known."""

    answer: A
    records: Sequence[R] = ()
    producer: ProducerStamp | None = None
    encoded: Sequence[tuple[bytes, bytes | None]] = ()


class Shard(Protocol[R]):
    """The state machine of one partition. R is its record in memory."""

    def encode(self, record: R) -> tuple[bytes, bytes | None]:
        """The value of a tombstone is None."""
        ...

    def decode(self, key: bytes | None, value: bytes | None) -> R | None:
        """None for an unknown kind, which is skipped."""
        ...

    def stage(self, records: Sequence[R], producer: ProducerStamp | None) -> Undo:
        """Makes the records of a decision visible to later decisions; the undo is called if their append fails."""
        ...

    def on_committed(self, record: R) -> None:
        """A staged record is committed; its answer leaves next."""
        ...

    def replay(self, record: R, producer_id: int, producer_epoch: int) -> None:
        """Applies a record of the log while loading; -1, -1 if its batch is not transactional."""
        ...

    def replay_marker(self, producer_id: int, producer_epoch: int, *, commit: bool) -> None: ...

    def size(self) -> int:
        """Number of groups or transactional ids."""
        ...

    def on_active(self) -> None:
        """Loading is complete: starts deadlines, continues interrupted work."""
        ...

    def on_resigned(self) -> None:
        """Cancels deadlines and refuses waiting requests: the leadership is lost. No other method is called afterwards."""
        ...


def undo_all(undos: Sequence[Undo]) -> None:
    """Takes records back that were staged one after another: the last one first."""
    for undo in reversed(undos):
        undo()
