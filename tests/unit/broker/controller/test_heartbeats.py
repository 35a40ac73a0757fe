"""What brokers become by their heartbeats, and what the controller believes of the silent ones."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.broker.controller.core.heartbeats import broker_heartbeat
from barnabas.broker.controller.core.registration import register_broker
from barnabas.broker.controller.core.sessions import (
    CRASH_WINDOW_MS,
    CRASHES_FREE,
    PROBE_FENCE_INTERVAL_MS,
    SHUTDOWN_PATIENCE_MS,
    UNFENCE_DELAY_MS,
    UNFENCE_DELAY_MS_MAX,
    BrokerSessions,
)
from barnabas.broker.image.image import MetadataImage
from barnabas.broker.image.records import ConfigRecord, PartitionChangeRecord
from barnabas.errors import BrokerError
from barnabas.protocol.messages.cluster import BrokerHeartbeatRequest
from tests.support.broker.metadata_images import (
    cluster,
    directory_of,
    register,
    registration,
    replayed,
    view,
    with_topic,
)

TOPIC = bytes(15) + b"t"


class Brokers:
    """A cluster whose brokers beat."""

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self.sessions = BrokerSessions(9_000)
        self.sessions.begin(image.brokers.values(), 0)
        self.now_ms = 0

    def beat(self, broker_id: int, *, offset: int | None = None, **wants: Any) -> tuple[bool, bool]:
        """One heartbeat. Returns whether the broker is fenced, and whether it should stop."""
        broker = self.image.brokers[broker_id]
        request = BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=broker.epoch,
            current_metadata_offset=self.image.offset if offset is None else offset,
        )
        for name, value in wants.items():
            setattr(request, name, value)
        decision = broker_heartbeat(view(self.image), self.sessions, request, self.now_ms)
        self.sessions.on_heartbeat(
            broker_id, broker.epoch, request.current_metadata_offset, f"connection {broker_id}", self.now_ms
        )
        if request.want_shut_down and decision.records and not decision.answer.should_shut_down:
            self.sessions.on_shutting_down(broker_id, self.image.offset + len(decision.records), self.now_ms)
        self.image = replayed(self.image, decision.records)
        assert self.image.brokers[broker_id].fenced == decision.answer.is_fenced
        return decision.answer.is_fenced, decision.answer.should_shut_down

    def leaders(self) -> list[int]:
        return [partition.leader for _, _, partition in self.image.partitions()]


def test_a_broker_is_unfenced_when_it_has_seen_its_registration() -> None:
    brokers = Brokers(register(cluster((1,)), 2, unfence=False))
    epoch = brokers.image.brokers[2].epoch
    assert brokers.beat(2, want_fence=True) == (True, False)
    assert brokers.beat(2, offset=epoch - 1) == (True, False)
    assert brokers.beat(2, offset=epoch) == (False, False)
    assert brokers.beat(2, want_fence=True) == (True, False)


def test_a_stale_epoch_must_register() -> None:
    brokers = Brokers(cluster((1,)))
    with pytest.raises(BrokerError, match="STALE_BROKER_EPOCH"):
        brokers.beat(1, broker_epoch=brokers.image.brokers[1].epoch - 1)
    with pytest.raises(BrokerError, match="STALE_BROKER_EPOCH"):
        broker_heartbeat(view(brokers.image), brokers.sessions, BrokerHeartbeatRequest(broker_id=7), 0)


def test_a_controlled_shutdown_moves_leaderships_and_waits_for_the_others() -> None:
    brokers = Brokers(with_topic(cluster((1, 2, 3)), "t", TOPIC, ((1, 2, 3), (1, 2, 3), 1)))
    for broker_id in (1, 2, 3):
        brokers.beat(broker_id)
    assert brokers.beat(1, want_shut_down=True) == (False, False)
    assert brokers.leaders() == [2]
    assert brokers.image.brokers[1].in_controlled_shutdown
    assert brokers.beat(1, want_shut_down=True) == (False, False)  # the others have not seen it
    brokers.beat(2)
    assert brokers.beat(1, want_shut_down=True) == (False, False)
    brokers.beat(3)
    assert brokers.beat(1, want_shut_down=True) == (True, True)
    assert brokers.image.partition("t", 0).isr == (2, 3)  # type: ignore[union-attr]


def test_a_controlled_shutdown_does_not_wait_for_ever() -> None:
    brokers = Brokers(with_topic(cluster((1, 2)), "t", TOPIC, ((1, 2), (1, 2), 1)))
    assert brokers.beat(1, want_shut_down=True) == (False, False)
    brokers.now_ms = SHUTDOWN_PATIENCE_MS - 1
    assert brokers.beat(1, want_shut_down=True) == (False, False)
    brokers.now_ms += 1
    assert brokers.beat(1, want_shut_down=True) == (True, True)


def test_who_leads_nothing_may_stop_at_once() -> None:
    brokers = Brokers(cluster((1, 2)))
    assert brokers.beat(1, want_shut_down=True) == (True, True)
    assert brokers.beat(1, want_shut_down=True) == (True, True)


OTHER = b"o" * 16


def test_replicas_in_a_lost_directory_lead_no_more() -> None:
    image = cluster((1, 2))
    image = replayed(image, register_broker(view(image), registration(3, log_dirs=[directory_of(3), OTHER])).records)
    brokers = Brokers(with_topic(image, "t", TOPIC, ((3, 2), (2,), 2), ((3,), (), -1)))
    # What a broker lost before it was unfenced does not elect it.
    assert brokers.beat(3, offline_log_dirs=[directory_of(3)]) == (True, False)
    assert brokers.image.brokers[3].directories == (OTHER,)
    assert brokers.beat(3, offline_log_dirs=[directory_of(3)]) == (False, False)
    assert brokers.leaders() == [2, -1]
    offset = brokers.image.offset
    brokers.beat(3, offline_log_dirs=[directory_of(3)])
    assert brokers.image.offset == offset  # known already


def test_a_directory_lost_in_service_moves_its_partitions_only() -> None:
    image = cluster((2,))
    image = replayed(image, register_broker(view(image), registration(1, log_dirs=[directory_of(1), OTHER])).records)
    brokers = Brokers(image)
    brokers.beat(1)
    image = with_topic(brokers.image, "t", TOPIC, ((1, 2), (1, 2), 1))
    image = with_topic(image, "u", bytes(15) + b"u", ((1, 2), (1, 2), 1))
    elsewhere = PartitionChangeRecord(partition_id=0, topic_id=bytes(15) + b"u", directories=[OTHER, directory_of(2)])
    brokers.image = replayed(image, [elsewhere])
    assert brokers.beat(1, offline_log_dirs=[directory_of(1)]) == (False, False)
    assert brokers.leaders() == [2, 1]


def test_a_replica_in_a_lost_directory_is_no_eligible_leader() -> None:
    """Its directory may come back as an empty one, after a clean stop of all others."""
    image = cluster((2,))
    image = replayed(image, register_broker(view(image), registration(1, log_dirs=[directory_of(1), OTHER])).records)
    brokers = Brokers(image)
    brokers.beat(1)
    min_isr = ConfigRecord(resource_type=2, resource_name="t", name="min.insync.replicas", value="2")
    brokers.image = replayed(with_topic(brokers.image, "t", TOPIC, ((2, 1), (2, 1), 2)), [min_isr])
    brokers.beat(1, offline_log_dirs=[directory_of(1)])
    partition = brokers.image.partition("t", 0)
    assert partition is not None
    assert (partition.isr, partition.eligible_leader_replicas) == ((2,), ())


def test_a_broker_without_directories_is_fenced() -> None:
    brokers = Brokers(with_topic(cluster((1, 2)), "t", TOPIC, ((1, 2), (1, 2), 1)))
    assert brokers.beat(1, offline_log_dirs=[directory_of(1)]) == (True, False)
    assert brokers.leaders() == [2]
    assert brokers.beat(1, offline_log_dirs=[directory_of(1)], want_shut_down=True) == (True, True)


def test_sessions_end_after_silence() -> None:
    image = cluster((1, 2))
    unfenced = list(image.brokers.values())
    sessions = BrokerSessions(9_000)
    sessions.begin(unfenced, 1_000)
    sessions.on_heartbeat(1, image.brokers[1].epoch, 5, None, 4_000)
    assert sessions.next_check_ms(unfenced) == 10_001
    assert sessions.expired(unfenced, 10_000) == []
    assert sessions.expired(unfenced, 10_001) == [2]
    assert sessions.expired(unfenced, 14_000) == [2, 1]
    assert sessions.alive(1, 13_000)
    assert not sessions.alive(1, 13_001)
    sessions.extend_sessions(4_000)
    assert sessions.expired(unfenced, 14_000) == []
    sessions.end()
    assert sessions.expired(unfenced, 99_000) == []


def test_only_the_newest_connection_is_a_sign() -> None:
    image = cluster((1,))
    epoch = image.brokers[1].epoch
    sessions = BrokerSessions(9_000)
    sessions.begin(image.brokers.values(), 0)
    assert not sessions.connected(1)
    sessions.on_heartbeat(1, epoch, 5, "old", 1)
    sessions.on_heartbeat(1, epoch, 5, "new", 2)
    assert sessions.on_closed(1, "old") is None
    assert sessions.connected(1)
    assert sessions.on_closed(1, "new") == epoch
    assert not sessions.connected(1)
    assert sessions.on_closed(9, "new") is None


def test_probes_fence_an_incarnation_once_in_a_while() -> None:
    sessions = BrokerSessions(9_000)
    assert sessions.probe_fence_in_ms(1, 10, 0) == 0
    sessions.on_probe_fenced(1, 10, 0)
    assert sessions.probe_fence_in_ms(1, 10, PROBE_FENCE_INTERVAL_MS - 1) == 1
    assert sessions.probe_fence_in_ms(2, 10, 1) == 0
    assert sessions.probe_fence_in_ms(1, 11, 1) == 0  # it has registered anew
    assert sessions.probe_fence_in_ms(1, 10, PROBE_FENCE_INTERVAL_MS) == 0


def test_crashes_delay_the_unfencing() -> None:
    brokers = Brokers(cluster((1, 2)))
    sessions = brokers.sessions
    delays_ms = []
    for number in range(CRASHES_FREE + 8):
        brokers.now_ms = now_ms = 1_000 * number
        sessions.on_died(2, now_ms)
        sessions.on_registered(2, 100 + number, now_ms)
        assert sessions.steady(2, now_ms) is (number == 0)
        delays_ms.append(sessions.unfence_in_ms(2, now_ms))
    assert delays_ms[: CRASHES_FREE + 2] == [0] * CRASHES_FREE + [UNFENCE_DELAY_MS, 2 * UNFENCE_DELAY_MS]
    assert delays_ms[-1] == UNFENCE_DELAY_MS_MAX
    assert sessions.unfence_in_ms(2, now_ms + 100) == UNFENCE_DELAY_MS_MAX - 100
    assert sessions.unfence_in_ms(1, now_ms) == 0
    assert sessions.unfence_in_ms(2, now_ms + CRASH_WINDOW_MS) == 0
    assert sessions.steady(2, now_ms + CRASH_WINDOW_MS)


def test_a_heartbeat_does_not_unfence_a_broker_that_crashed_too_often() -> None:
    brokers = Brokers(register(cluster((1,)), 2, unfence=False))
    for _ in range(CRASHES_FREE + 1):
        brokers.sessions.on_died(2, 0)
    assert brokers.beat(2) == (True, False)
    brokers.now_ms = UNFENCE_DELAY_MS - 1
    assert brokers.beat(2) == (True, False)
    brokers.now_ms = UNFENCE_DELAY_MS
    assert brokers.beat(2) == (False, False)
