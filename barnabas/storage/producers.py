"""Producer state of one partition: last batches of each producer, and open transactions (KIP-98, KIP-360, KIP-890).
Checks do not change the state, so it stays correct after a failed write.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from barnabas.errors import BrokerError, ErrorCode, InvariantViolated
from barnabas.limits import REFUSED_PRODUCERS_MAX, RETAINED_BATCHES, SEQUENCE_MAX
from barnabas.ports import Buffer
from barnabas.storage.aborted import AbortedTxn
from barnabas.storage.producer_entries import (
    NO_EPOCH,
    ProducerCapture,
    ProducerEntry,
    RetainedBatch,
    read_earlier,
    read_snapshot,
    wrapped,
)
from barnabas.work import finished

LOADED_AT_ONCE: Final = 1_024  # producers of a snapshot: about 2 ms


class CompletedTransaction(NamedTuple):
    """A transaction whose marker was appended; `last_offset` is the marker's."""

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool
    last_stable_offset: int

    def index_entry(self) -> AbortedTxn | None:
        if not self.aborted:
            return None
        return AbortedTxn(self.producer_id, self.first_offset, self.last_offset, self.last_stable_offset)


class _Verification:
    """A transaction in verification (KIP-890). The object is the guard, unique per attempt."""

    __slots__ = ("created_ms", "epoch", "lowest_sequence", "supports_epoch_bump")

    def __init__(self, epoch: int, sequence: int, supports_epoch_bump: bool) -> None:
        self.epoch = epoch
        self.lowest_sequence = sequence
        self.supports_epoch_bump = supports_epoch_bump
        self.created_ms = -1  # set by the first expiry round that sees it

    def ended_by(self, marker_epoch: int) -> bool:
        """Whether a marker ends the transaction in verification, not the one before it."""
        # If the end of a transaction bumps the epoch, its marker has the epoch of the next one.
        return self.epoch < marker_epoch if self.supports_epoch_bump else self.epoch <= marker_epoch


class PartitionProducers:
    """All producers of one partition.

    A producer has at most RETAINED_BATCHES batches of its current epoch, oldest first, and at most one open
    transaction. If the state is complete, an unknown producer must begin at sequence 0 unless it is older than the
    topic. An incomplete state accepts any first sequence, as Kafka does below transaction version 2 (KAFKA-5793,
    KIP-360).

    Attributes:
        end_offset: end of the log to which the state belongs, exclusive.
        first_id: as `TopicImage.first_producer_id`.
        complete: the log began at offset 0 and the state has all of its producers: none expired, no record was deleted
            or cleaned.
        ongoing: first offset -> producer id of the open transactions, by offset. Other modules only read it.
        unreplicated: first offset -> marker's offset of completed transactions whose marker the high watermark may not
            have passed. Other modules only read it.
    """

    __slots__ = (
        "_captures",
        "_refused",
        "_verifications",
        "complete",
        "end_offset",
        "entries",
        "first_id",
        "ongoing",
        "unreplicated",
    )

    def __init__(self) -> None:
        self.entries: dict[int, ProducerEntry] = {}
        self.end_offset = 0
        self.complete = True
        self.first_id = 0
        self._captures: list[ProducerCapture] = []  # not packed yet
        self._refused: dict[int, tuple[int, int]] = {}  # epoch and next sequence by producer id, oldest first
        self.ongoing: dict[int, int] = {}
        self.unreplicated: dict[int, int] = {}
        self._verifications: dict[int, _Verification] = {}

    # -- offsets --------------------------------------------------------------------------------------------------

    @property
    def first_undecided_offset(self) -> int | None:
        return next(iter(self.ongoing)) if self.ongoing else None

    @property
    def ongoing_count(self) -> int:
        return len(self.ongoing)

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        first = next(iter(self.ongoing)) if self.ongoing else None
        for first_offset, marker_offset in self.unreplicated.items():
            if marker_offset >= high_watermark and (first is None or first_offset < first):
                first = first_offset
        return first

    def on_high_watermark(self, high_watermark: int) -> None:
        if self.unreplicated:
            for first_offset, marker_offset in list(self.unreplicated.items()):
                if marker_offset >= high_watermark:
                    break
                del self.unreplicated[first_offset]

    def has_ongoing_transaction(self, producer_id: int, epoch: int) -> bool:
        entry = self.entries.get(producer_id)
        return entry is not None and entry.transaction_first_offset >= 0 and entry.epoch == epoch

    def ongoing_transactions(self) -> list[tuple[int, int]]:
        return [(producer_id, first_offset) for first_offset, producer_id in self.ongoing.items()]

    # -- verification (KIP-890) -----------------------------------------------------------------------------------

    def verification_guard(
        self, producer_id: int, epoch: int, sequence: int, *, supports_epoch_bump: bool
    ) -> object | None:
        """Begins or continues a verification; None if the transaction is ongoing here and needs none."""
        # A late V1 batch is a duplicate. Kafka verifies it, and then rejects the next transaction's sequence.
        if self.has_ongoing_transaction(producer_id, epoch) or self._is_past(producer_id, epoch, sequence):
            return None
        verification = self._verifications.get(producer_id)
        if verification is None or epoch > verification.epoch:
            verification = self._verifications[producer_id] = _Verification(epoch, sequence, supports_epoch_bump)
        elif epoch == verification.epoch and sequence < verification.lowest_sequence:
            # Batches of one producer may fail their verification in any order: only the lowest may be written first.
            verification.lowest_sequence = sequence
        return verification

    def _is_past(self, producer_id: int, epoch: int, sequence: int) -> bool:
        entry = self.entries.get(producer_id)
        if entry is None or entry.epoch != epoch or not entry.batches or sequence < 0:
            return False
        return wrapped(entry.last_sequence - sequence + SEQUENCE_MAX + 1) <= SEQUENCE_MAX // 2

    # -- checks before an append ----------------------------------------------------------------------------------

    def find_duplicate(
        self, producer_id: int, epoch: int, first_sequence: int, offset_delta: int
    ) -> RetainedBatch | None:
        entry = self.entries.get(producer_id)
        if entry is not None and entry.epoch == epoch and entry.batches:
            if first_sequence == entry.batches[-1].last_sequence + 1:
                return None  # it continues the sequence: the retained batches are too few to wrap around to the same sequence
            last_sequence = wrapped(first_sequence + offset_delta)
            for batch in entry.batches:
                if batch.first_sequence == first_sequence and batch.last_sequence == last_sequence:
                    return batch
        return None

    def check_verified(self, producer_id: int, epoch: int, guard: object | None) -> None:
        """Checks for an open transaction or the guard. Raises BrokerError: INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE."""
        entry = self.entries.get(producer_id)
        if entry is not None:
            if entry.transaction_first_offset >= 0 and entry.epoch == epoch:
                return
            if epoch < entry.epoch:
                raise self._stale(producer_id, epoch, entry.epoch)
        if guard is None or self._verifications.get(producer_id) is not guard:
            raise BrokerError(
                ErrorCode.INVALID_TXN_STATE, f"batch of producer {producer_id} is not part of an ongoing transaction"
            )

    def check_data(
        self, producer_id: int, epoch: int, first_sequence: int, transactional: bool, *, sequenced: bool
    ) -> None:
        """Checks that a batch may follow the producer's earlier ones. Coordinators' batches are not `sequenced`.

        Raises BrokerError: INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_TXN_STATE.
        """
        entry = self.entries.get(producer_id)
        if entry is not None and epoch < entry.epoch:
            raise self._stale(producer_id, epoch, entry.epoch)
        if sequenced:
            self._check_sequence(producer_id, epoch, first_sequence, entry)
        if entry is not None and entry.transaction_first_offset >= 0 and not transactional:
            raise BrokerError(
                ErrorCode.INVALID_TXN_STATE, f"producer {producer_id} has a transaction open and sent a plain batch"
            )

    def _check_sequence(self, producer_id: int, epoch: int, sequence: int, entry: ProducerEntry | None) -> None:
        if self._verifications:
            verification = self._verifications.get(producer_id)
            if verification is not None:
                if verification.supports_epoch_bump and sequence != 0 and (entry is None or not entry.batches):
                    raise self._out_of_order(
                        producer_id, sequence, "0, as the partition has no state of this producer (TV2)"
                    )
                if sequence > verification.lowest_sequence:
                    raise self._out_of_order(
                        producer_id, sequence, f"at most {verification.lowest_sequence}, the lowest being verified"
                    )
        if entry is None or entry.epoch == NO_EPOCH:
            young = producer_id >= self.first_id
            if sequence != 0 and young and self.complete and self._refused.get(producer_id) != (epoch, sequence):
                raise self._out_of_order(producer_id, sequence, "0, as this producer has never written here")
            return
        if epoch != entry.epoch:
            if sequence != 0:
                raise self._out_of_order(producer_id, sequence, f"0 in the new epoch {epoch}")
            return
        last = entry.last_sequence
        if sequence != last + 1 and not (sequence == 0 and last == SEQUENCE_MAX):
            raise self._out_of_order(producer_id, sequence, f"{wrapped(last + 1)}")

    def on_refused(self, producer_id: int, epoch: int, first_sequence: int, offset_delta: int) -> None:
        """A client's batch was rejected for good: its producer (aiokafka) may continue with the next sequence."""
        if producer_id in self.entries or first_sequence < 0:
            return
        if first_sequence == 0 or self._refused.get(producer_id) == (epoch, first_sequence):
            self._refused.pop(producer_id, None)
            self._refused[producer_id] = epoch, wrapped(first_sequence + offset_delta + 1)
            if len(self._refused) > REFUSED_PRODUCERS_MAX:
                del self._refused[next(iter(self._refused))]

    def check_marker(self, producer_id: int, epoch: int, coordinator_epoch: int, transaction_version: int) -> None:
        """Checks that an end-of-transaction marker may be appended.

        From transaction version 2 on each transaction bumps the epoch, so a marker of the present epoch is late. If no
        transaction is open, it repeats a written marker (KAFKA-19999) and is written again. Raises BrokerError:
        INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED.
        """
        entry = self.entries.get(producer_id)
        if entry is None:
            return
        repeats = epoch == entry.epoch and entry.transaction_first_offset < 0
        if epoch < entry.epoch or (transaction_version >= 2 and epoch == entry.epoch and not repeats):
            raise self._stale(producer_id, epoch, entry.epoch)
        if coordinator_epoch < entry.coordinator_epoch:
            raise BrokerError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"marker for producer {producer_id} from coordinator epoch {coordinator_epoch}, the log has {entry.coordinator_epoch}",
            )

    @staticmethod
    def _stale(producer_id: int, epoch: int, current: int) -> BrokerError:
        return BrokerError(
            ErrorCode.INVALID_PRODUCER_EPOCH, f"producer {producer_id} has epoch {epoch}, the log has epoch {current}"
        )

    @staticmethod
    def _out_of_order(producer_id: int, sequence: int, expected: str) -> BrokerError:
        return BrokerError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {producer_id} sent sequence {sequence}, expected {expected}",
        )

    # -- changes after an append or in a replay -------------------------------------------------------------------

    def append_data(
        self,
        producer_id: int,
        epoch: int,
        first_sequence: int,
        first_offset: int,
        last_offset: int,
        timestamp: int,
        transactional: bool,
    ) -> None:
        entry = self.entries.get(producer_id)
        if entry is None:
            entry = self.entries[producer_id] = ProducerEntry()
            if self._refused:
                self._refused.pop(producer_id, None)
        elif self._captures:
            self._keep(producer_id, entry)
        batches = entry.batches
        if epoch != entry.epoch:
            entry.epoch = epoch
            batches.clear()
        if len(batches) == RETAINED_BATCHES:
            del batches[0]
        batches.append(RetainedBatch.of(first_sequence, first_offset, last_offset, timestamp))
        entry.last_timestamp = timestamp
        if transactional:
            if entry.transaction_first_offset < 0:
                entry.transaction_first_offset = first_offset
                self.ongoing[first_offset] = producer_id
            if self._verifications:
                self._verifications.pop(producer_id, None)

    def _keep(self, producer_id: int, entry: ProducerEntry) -> None:
        for capture in self._captures:
            capture.keep(producer_id, entry)

    def remember(self, producer_id: int, batches: list[RetainedBatch]) -> None:
        """Adds batches of a producer's present epoch, oldest first: those before the batch in the snapshot."""
        entry = self.entries.get(producer_id)
        if entry is None or len(batches) <= len(entry.batches):
            return
        if batches[-1].last_offset == entry.last_offset:
            entry.batches = batches[-RETAINED_BATCHES:]

    def append_marker(
        self, producer_id: int, epoch: int, coordinator_epoch: int, offset: int, timestamp: int, *, aborted: bool
    ) -> CompletedTransaction | None:
        """Returns the transaction that the marker ends; None if none was open."""
        entry = self.entries.get(producer_id)
        if entry is None:
            entry = self.entries[producer_id] = ProducerEntry()
        elif self._captures:
            self._keep(producer_id, entry)
        if epoch != entry.epoch:
            entry.epoch = epoch
            entry.batches.clear()
        entry.coordinator_epoch = coordinator_epoch
        entry.last_timestamp = timestamp
        verification = self._verifications.get(producer_id)
        if verification is not None and verification.ended_by(epoch):
            del self._verifications[producer_id]
        first_offset = entry.transaction_first_offset
        if first_offset < 0:
            return None
        entry.transaction_first_offset = -1
        if self.ongoing.pop(first_offset, None) is None:
            raise InvariantViolated(f"transaction of producer {producer_id} from offset {first_offset} was not listed")
        self.unreplicated[first_offset] = offset
        first_undecided = self.first_undecided_offset
        stable = offset + 1 if first_undecided is None else first_undecided
        return CompletedTransaction(producer_id, first_offset, offset, aborted, stable)

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Removes producers idle for `expiration_ms`, and unused verifications. Returns the number of producers."""
        expired = [
            producer_id for producer_id, entry in self.entries.items() if _is_expired(entry, now_ms, expiration_ms)
        ]
        for producer_id in expired:
            del self.entries[producer_id]
            self.complete = False
        for producer_id, verification in list(self._verifications.items()):
            if verification.created_ms < 0:
                verification.created_ms = now_ms
            elif now_ms - verification.created_ms >= expiration_ms:
                del self._verifications[producer_id]
        return len(expired)

    def clear(self, end_offset: int) -> None:
        """The log is empty and begins at `end_offset`. Verifications stay: they concern later batches."""
        self.complete = end_offset == 0
        self.entries = {}
        self.ongoing.clear()
        self.unreplicated.clear()
        self.end_offset = end_offset

    def become(self, rebuilt: PartitionProducers) -> None:
        """Takes the state of `rebuilt`, which is not used afterwards. Verifications stay, as in `clear`."""
        self.complete = rebuilt.complete
        self.entries = rebuilt.entries
        self.ongoing = rebuilt.ongoing
        self.unreplicated = rebuilt.unreplicated
        self.end_offset = rebuilt.end_offset

    # -- snapshots ------------------------------------------------------------------------------------------------

    def capture(self) -> ProducerCapture:
        """Run its `packing`, or close it: until then each changed entry costs a copy."""
        return ProducerCapture(self.entries, self._captures)

    def to_snapshot(self) -> bytes:
        return finished(self.capture().packing()).snapshot

    def load_snapshot(self, data: Buffer, end_offset: int, now_ms: int | None, expiration_ms: int) -> None:
        for _ in self.loading(data, end_offset, now_ms, expiration_ms):
            pass

    def loading(
        self, data: Buffer, end_offset: int, now_ms: int | None, expiration_ms: int, *, complete: bool = False
    ) -> Iterator[int]:
        """Replaces the state by that of a snapshot of `end_offset`, `complete` or not, without expired producers.

        Yields 0 after some milliseconds of work. Raises MalformedSnapshot; then the state is unchanged.
        """
        rest = iter(read_snapshot(data))
        loaded = list(islice(rest, LOADED_AT_ONCE))  # raises before anything is changed
        self.clear(end_offset)
        self.complete = complete
        opened: list[tuple[int, int]] = []
        while loaded:
            for producer_id, entry in loaded:
                if now_ms is None or not _is_expired(entry, now_ms, expiration_ms):
                    self.entries[producer_id] = entry
                    if entry.transaction_first_offset >= 0:
                        opened.append((entry.transaction_first_offset, producer_id))
                else:
                    self.complete = False
            yield 0
            loaded = list(islice(rest, LOADED_AT_ONCE))
        self.ongoing.update(sorted(opened))

    def loading_earlier(self, data: Buffer) -> Iterator[int]:
        """Adds the batches of `PackedProducers.earlier`. Yields and raises as `loading`."""
        for count, (producer_id, batch) in enumerate(read_earlier(data), 1):
            entry = self.entries.get(producer_id)  # None: it has expired
            if entry is not None and entry.batches:
                entry.batches.insert(-1, batch)
            if not count % LOADED_AT_ONCE:
                yield 0


def _is_expired(entry: ProducerEntry, now_ms: int, expiration_ms: int) -> bool:
    return entry.transaction_first_offset < 0 and now_ms - entry.last_timestamp >= expiration_ms
