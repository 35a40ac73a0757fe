"""Producer state: the rules of idempotence and transactions, one table each."""

from __future__ import annotations

import struct

import pytest

from barnabas.errors import BrokerError, ErrorCode
from barnabas.limits import RETAINED_BATCHES, SEQUENCE_MAX
from barnabas.protocol.checksum import crc32c
from barnabas.storage.producer_entries import MalformedSnapshot
from barnabas.storage.producers import CompletedTransaction, PartitionProducers

P = 7
DAY = 86_400_000


def state_after(*batches: tuple[int, int, int], epoch: int = 0, transactional: bool = False) -> PartitionProducers:
    """State after data batches of (first sequence, first offset, last offset) of producer P."""
    state = PartitionProducers()
    for sequence, first_offset, last_offset in batches:
        state.append_data(P, epoch, sequence, first_offset, last_offset, 1000, transactional)
        state.end_offset = last_offset + 1
    return state


def code_of(call: object, *args: object, **kwargs: object) -> ErrorCode | None:
    try:
        call(*args, **kwargs)  # type: ignore[operator]
    except BrokerError as error:
        return error.code
    return None


def check(state: PartitionProducers, epoch: int, sequence: int, *, transactional: bool = False) -> ErrorCode | None:
    return code_of(state.check_data, P, epoch, sequence, transactional, sequenced=True)


OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
STALE = ErrorCode.INVALID_PRODUCER_EPOCH


class TestSequences:
    def test_an_unknown_producer_begins_at_zero_unless_a_producer_may_have_been_forgotten(self) -> None:
        state = PartitionProducers()
        assert check(state, 0, 0) is None
        assert check(state, 3, 17) == OUT_OF_ORDER
        state.complete = False
        assert check(state, 3, 17) is None

    @pytest.mark.parametrize(
        ("epoch", "sequence", "expected"),
        [
            (0, 5, None),
            (0, 6, OUT_OF_ORDER),
            (0, 4, OUT_OF_ORDER),
            (0, 0, OUT_OF_ORDER),
            (1, 0, None),
            (1, 5, OUT_OF_ORDER),
        ],
    )
    def test_the_next_is_last_plus_one_and_a_new_epoch_begins_at_zero(
        self, epoch: int, sequence: int, expected: ErrorCode | None
    ) -> None:
        assert check(state_after((0, 10, 14)), epoch, sequence) == expected

    def test_an_older_epoch_is_fenced(self) -> None:
        assert check(state_after((0, 10, 14), epoch=3), 2, 5) == STALE

    @pytest.mark.parametrize(
        ("first", "last", "following"),
        [(SEQUENCE_MAX, SEQUENCE_MAX, 0), (SEQUENCE_MAX - 1, SEQUENCE_MAX, 0), (SEQUENCE_MAX - 1, 1, 2)],
    )
    def test_sequences_wrap_to_zero(self, first: int, last: int, following: int) -> None:
        count = (last - first) % (SEQUENCE_MAX + 1)
        state = state_after((first, 100, 100 + count))
        assert state.entries[P].last_sequence == last
        assert check(state, 0, following) is None
        assert check(state, 0, following + 1) == OUT_OF_ORDER
        duplicate = state.find_duplicate(P, 0, first, count)
        assert duplicate is not None
        assert (duplicate.first_offset, duplicate.last_offset) == (100, 100 + count)

    def test_after_a_marker_bumped_the_epoch_the_sequence_begins_at_zero(self) -> None:
        state = state_after((0, 10, 14), transactional=True)
        state.append_marker(P, 1, 0, 15, 1000, aborted=False)
        assert check(state, 1, 0) is None
        assert check(state, 1, 5) == OUT_OF_ORDER
        assert check(state, 0, 5) == STALE

    def test_coordinators_have_no_sequences_but_epochs(self) -> None:
        state = state_after((0, 10, 14), epoch=2)
        assert code_of(state.check_data, P, 2, -1, True, sequenced=False) is None
        assert code_of(state.check_data, P, 1, -1, True, sequenced=False) == STALE


class TestDuplicates:
    def test_the_last_five_batches_are_recognised_and_no_older_one(self) -> None:
        state = state_after(*((n * 3, 100 + n * 10, 102 + n * 10) for n in range(8)))
        found = [state.find_duplicate(P, 0, n * 3, 2) for n in range(8)]
        assert [None if batch is None else batch.first_offset for batch in found] == [
            None,
            None,
            None,
            130,
            140,
            150,
            160,
            170,
        ]
        assert len(state.entries[P].batches) == RETAINED_BATCHES

    @pytest.mark.parametrize(
        ("producer", "epoch", "sequence", "delta"), [(P, 0, 0, 3), (P, 0, 1, 2), (P, 1, 0, 2), (8, 0, 0, 2)]
    )
    def test_only_the_same_batch_is_a_duplicate(self, producer: int, epoch: int, sequence: int, delta: int) -> None:
        assert state_after((0, 10, 12)).find_duplicate(producer, epoch, sequence, delta) is None

    def test_a_new_epoch_forgets_the_batches_of_the_old(self) -> None:
        state = state_after((0, 10, 12))
        state.append_data(P, 1, 0, 13, 13, 1000, False)
        assert state.find_duplicate(P, 0, 0, 2) is None
        assert state.find_duplicate(P, 1, 0, 2) is None


class TestTransactions:
    def test_open_transactions_hold_the_stable_offset_until_their_marker_is_replicated(self) -> None:
        state = state_after((0, 10, 14), transactional=True)
        state.append_data(8, 0, 0, 20, 22, 1000, True)
        assert state.ongoing_transactions() == [(P, 10), (8, 20)]
        assert state.first_unstable_offset(50) == 10
        completed = state.append_marker(P, 0, 0, 25, 1000, aborted=True)
        assert completed == CompletedTransaction(P, 10, 25, True, 20)
        assert state.first_unstable_offset(25) == 10  # the marker is not below the high watermark
        assert state.first_unstable_offset(26) == 20
        completed = state.append_marker(8, 0, 0, 26, 1000, aborted=False)
        assert completed == CompletedTransaction(8, 20, 26, False, 27)
        assert state.first_unstable_offset(26) == 20
        assert state.first_unstable_offset(27) is None

    def test_a_plain_batch_within_a_transaction_is_refused(self) -> None:
        state = state_after((0, 10, 14), transactional=True)
        assert check(state, 0, 5) == ErrorCode.INVALID_TXN_STATE
        assert check(state, 0, 5, transactional=True) is None

    def test_a_marker_without_a_transaction_completes_nothing_but_fences(self) -> None:
        state = PartitionProducers()
        assert state.append_marker(P, 4, 1, 0, 1000, aborted=True) is None
        assert check(state, 3, 0) == STALE
        assert state.first_unstable_offset(10) is None

    @pytest.mark.parametrize(
        ("epoch", "version", "expected"),
        [(1, 1, STALE), (2, 1, None), (3, 1, None), (1, 2, STALE), (2, 2, STALE), (3, 2, None)],
    )
    def test_marker_epochs_within_a_transaction(self, epoch: int, version: int, expected: ErrorCode | None) -> None:
        state = state_after((0, 10, 14), epoch=2, transactional=True)
        assert code_of(state.check_marker, P, epoch, 0, version) == expected

    @pytest.mark.parametrize(
        ("epoch", "version", "expected"), [(2, 2, STALE), (3, 2, None), (4, 2, None), (3, 1, None)]
    )
    def test_the_same_marker_again_is_accepted(self, epoch: int, version: int, expected: ErrorCode | None) -> None:
        state = state_after((0, 10, 14), epoch=2, transactional=True)
        state.append_marker(P, 3, 0, 15, 1000, aborted=False)
        assert code_of(state.check_marker, P, epoch, 0, version) == expected

    def test_a_late_tv2_marker_does_not_end_the_next_transaction(self) -> None:
        state = state_after((0, 10, 14), epoch=2, transactional=True)
        state.append_marker(P, 3, 0, 15, 1000, aborted=False)
        state.append_data(P, 3, 0, 16, 17, 1000, True)
        assert code_of(state.check_marker, P, 3, 0, 2) == STALE

    def test_an_old_coordinator_is_fenced(self) -> None:
        state = PartitionProducers()
        state.append_marker(P, 0, 5, 0, 1000, aborted=False)
        assert code_of(state.check_marker, P, 1, 4, 1) == ErrorCode.TRANSACTION_COORDINATOR_FENCED
        assert code_of(state.check_marker, P, 1, 5, 1) is None


class TestVerification:
    def test_a_transactional_batch_needs_its_guard(self) -> None:
        state = PartitionProducers()
        guard = state.verification_guard(P, 0, 0, supports_epoch_bump=False)
        assert guard is not None
        assert code_of(state.check_verified, P, 0, None) == ErrorCode.INVALID_TXN_STATE
        assert code_of(state.check_verified, P, 0, object()) == ErrorCode.INVALID_TXN_STATE
        assert code_of(state.check_verified, P, 0, guard) is None
        assert state.verification_guard(P, 0, 0, supports_epoch_bump=False) is guard

    def test_within_the_transaction_none_is_needed_and_the_old_guard_is_spent(self) -> None:
        state = PartitionProducers()
        guard = state.verification_guard(P, 0, 0, supports_epoch_bump=False)
        state.append_data(P, 0, 0, 10, 10, 1000, True)
        assert state.verification_guard(P, 0, 1, supports_epoch_bump=False) is None
        assert code_of(state.check_verified, P, 0, None) is None
        state.append_marker(P, 0, 0, 11, 1000, aborted=True)
        assert code_of(state.check_verified, P, 0, guard) == ErrorCode.INVALID_TXN_STATE
        assert code_of(state.check_verified, P, 0, None) == ErrorCode.INVALID_TXN_STATE

    def test_the_marker_before_leaves_the_next_transaction_its_guard(self) -> None:
        state = PartitionProducers()
        guard = state.verification_guard(P, 1, 0, supports_epoch_bump=True)
        state.append_marker(P, 1, 0, 5, 0, aborted=False)  # of the transaction under epoch 0, late
        assert code_of(state.check_verified, P, 1, guard) is None
        state.append_marker(P, 2, 0, 6, 0, aborted=True)
        assert code_of(state.check_verified, P, 1, guard) == STALE
        assert code_of(state.check_verified, P, 2, guard) == ErrorCode.INVALID_TXN_STATE

    def test_a_new_epoch_has_a_guard_of_its_own(self) -> None:
        state = PartitionProducers()
        old = state.verification_guard(P, 1, 0, supports_epoch_bump=True)
        new = state.verification_guard(P, 2, 0, supports_epoch_bump=True)
        assert code_of(state.check_verified, P, 1, old) == ErrorCode.INVALID_TXN_STATE
        assert code_of(state.check_verified, P, 2, new) is None

    def test_a_marker_between_verification_and_append_spends_the_guard(self) -> None:
        state = PartitionProducers()
        guard = state.verification_guard(P, 0, 0, supports_epoch_bump=False)
        state.append_marker(P, 0, 0, 5, 1000, aborted=True)
        again = state.verification_guard(P, 0, 0, supports_epoch_bump=False)
        assert again is not guard
        assert code_of(state.check_verified, P, 0, guard) == ErrorCode.INVALID_TXN_STATE

    def test_a_late_batch_of_an_ended_transaction_does_not_hold_up_the_next(self) -> None:
        state = PartitionProducers()
        for sequence in (0, 1, 2):
            state.append_data(P, 0, sequence, 10 + sequence, 10 + sequence, 1000, True)
        state.append_marker(P, 0, 0, 13, 1000, aborted=False)
        for late in (0, 2):
            guard = state.verification_guard(P, 0, late, supports_epoch_bump=False)
            assert guard is None
            assert code_of(state.check_verified, P, 0, guard) == ErrorCode.INVALID_TXN_STATE
        assert state.find_duplicate(P, 0, 2, 0) is not None
        guard = state.verification_guard(P, 0, 3, supports_epoch_bump=False)
        assert guard is not None
        assert code_of(state.check_verified, P, 0, guard) is None
        assert code_of(state.check_data, P, 0, 3, True, sequenced=True) is None

    def test_what_is_late_is_told_over_the_wrap_of_sequences(self) -> None:
        state = PartitionProducers()
        state.append_data(P, 0, SEQUENCE_MAX, 10, 10, 1000, True)
        state.append_marker(P, 0, 0, 11, 1000, aborted=False)
        assert state.verification_guard(P, 0, SEQUENCE_MAX - 1, supports_epoch_bump=False) is None
        assert state.verification_guard(P, 0, 0, supports_epoch_bump=False) is not None

    def test_a_fenced_producer_learns_of_its_epoch_first(self) -> None:
        state = PartitionProducers()
        state.append_marker(P, 4, 0, 0, 1000, aborted=True)
        assert code_of(state.check_verified, P, 3, None) == STALE
        assert code_of(state.check_verified, P, 4, None) == ErrorCode.INVALID_TXN_STATE

    def test_the_lowest_sequence_tried_must_come_first(self) -> None:
        state = PartitionProducers()
        state.complete = False
        for sequence in (5, 3, 9):
            state.verification_guard(P, 0, sequence, supports_epoch_bump=False)
        assert check(state, 0, 5, transactional=True) == OUT_OF_ORDER
        assert check(state, 0, 3, transactional=True) is None
        state.verification_guard(P, 1, 7, supports_epoch_bump=False)  # a new epoch forgets the old one's
        assert check(state, 1, 7, transactional=True) is None
        assert check(state, 1, 8, transactional=True) == OUT_OF_ORDER

    def test_under_tv2_an_unknown_producer_begins_at_zero(self) -> None:
        state = PartitionProducers()
        state.verification_guard(P, 0, 4, supports_epoch_bump=True)
        assert check(state, 0, 4, transactional=True) == OUT_OF_ORDER
        state.verification_guard(P, 0, 0, supports_epoch_bump=True)
        assert check(state, 0, 0, transactional=True) is None


class TestExpiry:
    def test_idle_producers_are_forgotten_open_transactions_are_not(self) -> None:
        state = state_after((0, 10, 14))
        state.append_data(8, 0, 0, 20, 22, 1000, True)
        assert state.expire(1000 + DAY - 1, DAY) == 0
        assert state.expire(1000 + DAY, DAY) == 1
        assert list(state.entries) == [8]

    def test_verifications_never_used_go_a_round_later(self) -> None:
        state = PartitionProducers()
        guard = state.verification_guard(P, 0, 0, supports_epoch_bump=False)
        state.expire(0, DAY)
        assert state.verification_guard(P, 0, 0, supports_epoch_bump=False) is guard
        state.expire(DAY, DAY)
        assert state.verification_guard(P, 0, 0, supports_epoch_bump=False) is not guard


class TestSnapshots:
    def test_the_bytes_are_kafkas(self) -> None:
        state = state_after((5, 10, 14), epoch=2, transactional=True)
        body = struct.pack(">i", 1) + struct.pack(">qhiqiqiq", P, 2, 9, 14, 4, 1000, -1, 10)
        assert state.to_snapshot() == struct.pack(">hI", 1, crc32c(body)) + body
        assert PartitionProducers().to_snapshot() == struct.pack(">hIi", 1, crc32c(bytes(4)), 0)

    def test_what_is_loaded_goes_on_where_it_was(self) -> None:
        state = state_after((SEQUENCE_MAX - 1, 10, 14), epoch=2, transactional=True)
        state.append_data(9, 1, 0, 15, 15, 1000, True)
        state.append_marker(8, 4, 6, 16, 1000, aborted=True)
        loaded = PartitionProducers()
        loaded.load_snapshot(state.to_snapshot(), 17, 2000, DAY)
        assert loaded.end_offset == 17
        assert loaded.ongoing_transactions() == [(P, 10), (9, 15)]
        assert loaded.entries[8].coordinator_epoch == 6
        assert check(loaded, 2, 3, transactional=True) is None
        assert loaded.find_duplicate(P, 2, SEQUENCE_MAX - 1, 4) is not None
        assert loaded.to_snapshot() == state.to_snapshot()

    def test_expired_producers_are_not_loaded(self) -> None:
        state = state_after((0, 10, 14))
        state.append_data(8, 0, 0, 20, 22, 1000, True)
        loaded = PartitionProducers()
        loaded.load_snapshot(state.to_snapshot(), 23, 1000 + DAY, DAY)
        assert list(loaded.entries) == [8]
        loaded.load_snapshot(state.to_snapshot(), 23, None, DAY)
        assert list(loaded.entries) == [P, 8]

    def test_a_snapshot_of_very_many_producers_is_loaded_in_steps(self) -> None:
        state = PartitionProducers()
        for number in range(3_000):
            state.append_data(number, 0, 0, number, number, 1000, transactional=number % 1_000 == 0)
        loaded = PartitionProducers()
        sizes = [len(loaded.entries) for _ in loaded.loading(state.to_snapshot(), 3_000, 1000, DAY)]
        assert sizes == [1_024, 2_048, 3_000]
        assert loaded.to_snapshot() == state.to_snapshot()
        assert loaded.ongoing == state.ongoing == {0: 0, 1_000: 1_000, 2_000: 2_000}

    def test_any_damage_is_noticed_and_changes_nothing(self) -> None:
        data = state_after((0, 10, 14)).to_snapshot()
        state = state_after((3, 0, 0))
        before = state.to_snapshot()
        damaged = [data[:n] for n in range(len(data))] + [
            data[:n] + bytes([data[n] ^ 1]) + data[n + 1 :] for n in range(len(data))
        ]
        for each in damaged:
            with pytest.raises(MalformedSnapshot):
                state.load_snapshot(each, 15, 1000, DAY)
        assert state.to_snapshot() == before
