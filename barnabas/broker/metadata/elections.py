"""Who leads a partition when brokers come and go: pure functions from a partition to its PartitionChangeRecord, or to None.

Driven by: registration, fencing, unfencing and controlled shutdown of brokers.

Rules: a leader comes from the ISR, else from the eligible leaders (KIP-966: they hold everything that was acknowledged below min
ISR), else, where both are empty, the last known leader leads again, marked as recovering. A broker that leaves takes itself out
of the ISR; while the ISR is smaller than min ISR it goes to the eligible leaders. One that lost unsynced data (unclean
shutdown) belongs to neither.

Invariants: leader is NO_LEADER or a member of the new ISR; ISR and eligible leaders have no member in common.
"""

from __future__ import annotations

from collections.abc import Container

from barnabas.broker.metadata.image import NO_LEADER, PartitionImage
from barnabas.broker.metadata.records import NO_LEADER_CHANGE, PartitionChangeRecord

__all__ = ["RECOVERED", "RECOVERING", "after_arrival", "after_departure"]

RECOVERED, RECOVERING = 0, 1  # leader recovery states


def after_departure(
    topic_id: bytes,
    number: int,
    partition: PartitionImage,
    broker_id: int,
    *,
    alive: Container[int],
    min_isr: int,
    clean: bool,
) -> PartitionChangeRecord | None:
    """What changes when a broker is fenced, shuts down, or registers anew.

    Args:
        alive: brokers that may lead, without the one that leaves.
        min_isr: effective min.insync.replicas of the partition.
        clean: whether it still holds all that it acknowledged.
    """
    if broker_id not in partition.replicas:
        return None
    isr = tuple(member for member in partition.isr if member != broker_id)
    eligible = _eligible(partition, isr, min_isr)
    if not clean:
        eligible = tuple(member for member in eligible if member != broker_id)
    leader = partition.leader
    if leader == broker_id:
        leader = next((replica for replica in partition.replicas if replica in isr and replica in alive), NO_LEADER)
    last_known = () if isr else partition.last_known_elr
    if not isr and partition.leader != NO_LEADER:
        last_known = (partition.leader,)
    return _change(topic_id, number, partition, leader=leader, isr=isr, eligible=eligible, last_known=last_known)


def after_arrival(
    topic_id: bytes, number: int, partition: PartitionImage, *, alive: Container[int], min_isr: int
) -> PartitionChangeRecord | None:
    """What changes when a broker was unfenced: a partition without a leader may get one."""
    if partition.leader != NO_LEADER:
        return None
    candidates = (partition.isr, partition.eligible_leader_replicas)
    for members in candidates:
        leader = next((replica for replica in partition.replicas if replica in members and replica in alive), NO_LEADER)
        if leader != NO_LEADER:
            isr = partition.isr if leader in partition.isr else (*partition.isr, leader)
            return _change(
                topic_id,
                number,
                partition,
                leader=leader,
                isr=isr,
                eligible=_eligible(partition, isr, min_isr),
                last_known=(),
                recovery=RECOVERED,
            )
    if not any(candidates) and len(partition.last_known_elr) == 1 and partition.last_known_elr[0] in alive:
        leader = partition.last_known_elr[0]
        return _change(
            topic_id,
            number,
            partition,
            leader=leader,
            isr=(leader,),
            eligible=(),
            last_known=(),
            recovery=RECOVERING,
        )
    return None


def _eligible(partition: PartitionImage, isr: tuple[int, ...], min_isr: int) -> tuple[int, ...]:
    if len(isr) >= min_isr:
        return ()
    members = (*partition.eligible_leader_replicas, *partition.isr)
    return tuple(dict.fromkeys(member for member in members if member not in isr))


def _change(
    topic_id: bytes,
    number: int,
    partition: PartitionImage,
    *,
    leader: int,
    isr: tuple[int, ...],
    eligible: tuple[int, ...],
    last_known: tuple[int, ...],
    recovery: int | None = None,
) -> PartitionChangeRecord | None:
    """The record that says only what is new; None where nothing is."""
    change = PartitionChangeRecord(partition_id=number, topic_id=topic_id)
    if isr != partition.isr:
        change.isr = list(isr)
    if leader != partition.leader:
        change.leader = leader
    if eligible != partition.eligible_leader_replicas:
        change.eligible_leader_replicas = list(eligible)
    if last_known != partition.last_known_elr:
        change.last_known_elr = list(last_known)
    if recovery is not None and recovery != partition.leader_recovery_state:
        change.leader_recovery_state = recovery
    unchanged = (
        change.isr is None
        and change.leader == NO_LEADER_CHANGE
        and change.eligible_leader_replicas is None
        and change.last_known_elr is None
        and change.leader_recovery_state < 0
    )
    return None if unchanged else change
