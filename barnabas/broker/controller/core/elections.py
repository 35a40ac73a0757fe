"""Elections: change of a partition when brokers start, stop, lose data, or request another ISR.
Follows KIP-966, KIP-704 (recovery state), KIP-858 (directories) and Kafka's PartitionChangeBuilder.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.controller.core.placement import directory_of_new_replica
from barnabas.broker.image.assignment import Assignment
from barnabas.broker.image.image import NO_LEADER, RECOVERING, MetadataImage, PartitionImage, TopicImage
from barnabas.broker.image.records import NO_LEADER_CHANGE, PartitionChangeRecord

ELIGIBLE_LEADERS: Final = "eligible.leader.replicas.version"
UNCLEAN_KEY: Final = "unclean.leader.election.enable"

# Directory ids with a special meaning (KIP-858).
LOST_DIRECTORY: Final = (1).to_bytes(16, "big")
DIRECTORIES_WITHOUT_PLACE: Final = (bytes(16), (2).to_bytes(16, "big"))  # unassigned, migrating


class ElectionKind(Enum):
    """Kind of an election."""

    PREFERRED = "preferred"  # the first replica, if it is in the ISR
    ONLINE = "online"  # a replica that holds everything acknowledged
    UNCLEAN = "unclean"  # any active replica, if no other can lead


def unclean_elections_enabled(image: MetadataImage, config: BrokerConfig, topic: str) -> bool:
    """unclean.leader.election.enable of a topic: its own setting, else the cluster's, else the controller's."""
    own = image.topic_config(topic).get(UNCLEAN_KEY)
    return config.get_bool(UNCLEAN_KEY) if own is None else own.strip().lower() == "true"


class Elections:
    """Elections over one image.

    Invariants: the leader is NO_LEADER or in the new ISR; no eligible leader is in the ISR; a new leader means a new leader epoch, and
    every change a new partition epoch (`replay.changed_partition`). A broker about to be unfenced is `arriving` and may lead already; one
    about to be fenced or shut down is `departing` and leaves every ISR; one that restarted without its unsynced data is `lost` and leaves
    the eligible leaders, too.
    """

    def __init__(
        self,
        image: MetadataImage,
        config: BrokerConfig,
        *,
        arriving: int | None = None,
        departing: int | None = None,
        lost: int | None = None,
    ) -> None:
        self.image = image
        self.config = config
        self._leaving = (departing, lost)
        self._lost = lost
        self._active = {broker.broker_id for broker in image.alive_brokers()}
        if arriving is not None:
            self._active.add(arriving)
        self._active.difference_update(broker for broker in self._leaving if broker is not None)
        self._with_eligible = image.feature(ELIGIBLE_LEADERS) > 0

    def may_lead(self, partition: PartitionImage, broker_id: int) -> bool:
        """Whether the broker is active, and the directory of its replica online."""
        if broker_id not in self._active:
            return False
        broker = self.image.brokers.get(broker_id)
        if broker is None or broker_id not in partition.replicas:
            return False
        index = partition.replicas.index(broker_id)
        if not broker.directories or index >= len(partition.directories):
            return True
        directory = partition.directories[index]
        return directory in broker.directories or directory in DIRECTORIES_WITHOUT_PLACE

    def change(
        self,
        topic: TopicImage,
        number: int,
        *,
        isr: Sequence[int] | None = None,
        kind: ElectionKind | None = None,
        recovery: int | None = None,
        directories: Sequence[bytes] | None = None,
        assignment: Assignment | None = None,
    ) -> PartitionChangeRecord | None:
        """The change of a partition, or None. Completes a reassignment as soon as possible.

        `isr` is requested by the leader, by default the present one without the departing broker; `kind` follows the topic's configuration
        by default; `recovery` is the leader recovery state that the leader reports.
        """
        partition = topic.partitions[number]
        wanted = partition.isr if isr is None else isr
        new_isr = tuple(member for member in wanted if member not in self._leaving)
        held = assignment or Assignment.of(partition)
        held = held.completed(new_isr) or held
        new_isr = tuple(member for member in new_isr if member in held.replicas)
        if kind is None:
            unclean_too = unclean_elections_enabled(self.image, self.config, topic.name)
            kind = ElectionKind.UNCLEAN if unclean_too else ElectionKind.ONLINE
        eligible = self._eligible(topic, partition, held, new_isr)
        leader, unclean = self._elect(partition, held, new_isr, eligible, kind)
        if leader != partition.leader and unclean:
            new_isr, eligible, recovery = (leader,), (), RECOVERING
        elif leader in eligible:
            new_isr, eligible = (leader,), tuple(member for member in eligible if member != leader)
        # Without eligible.leader.replicas.version the last member stays in the ISR, leading or not.
        elif not new_isr and not self._with_eligible:
            new_isr = partition.isr
        change = PartitionChangeRecord(partition_id=number, topic_id=topic.topic_id)
        if new_isr != partition.isr:
            change.isr = list(new_isr)
        if leader != partition.leader:
            change.leader = leader
        if eligible != partition.eligible_leader_replicas:
            change.eligible_leader_replicas = list(eligible)
        last_known = self._last_known(partition, new_isr, leader)
        if last_known != partition.last_known_elr:
            change.last_known_elr = list(last_known)
        if recovery is not None and recovery != partition.leader_recovery_state:
            change.leader_recovery_state = recovery
        self._assign(change, partition, held, directories)
        if change.leader == NO_LEADER_CHANGE and not set(partition.replicas) <= set(held.replicas):
            change.leader = leader  # a removed replica must not take part in the leader's epoch
        return None if _says_nothing(change) else change

    def departures(self) -> list[PartitionChangeRecord]:
        changes = []
        for topic in self.image.topics_by_name.values():
            for number, partition in enumerate(topic.partitions):
                for broker_id in self._leaving:
                    if broker_id is None or broker_id not in partition.replicas:
                        continue
                    if broker_id in partition.isr or broker_id == partition.leader or broker_id == self._lost:
                        change = self.change(topic, number)
                        if change is not None:
                            changes.append(change)
        return changes

    def arrivals(self) -> list[PartitionChangeRecord]:
        return [
            change
            for topic in self.image.topics_by_name.values()
            for number, partition in enumerate(topic.partitions)
            if partition.leader == NO_LEADER and (change := self.change(topic, number)) is not None
        ]

    def _assign(
        self,
        change: PartitionChangeRecord,
        partition: PartitionImage,
        held: Assignment,
        directories: Sequence[bytes] | None,
    ) -> None:
        if held.replicas != partition.replicas:
            change.replicas = list(held.replicas)
            known = dict(zip(partition.replicas, partition.directories, strict=False))
            directories = [known.get(each) or directory_of_new_replica(self.image, each) for each in held.replicas]
        if held.adding != partition.adding_replicas:
            change.adding_replicas = list(held.adding)
        if held.removing != partition.removing_replicas:
            change.removing_replicas = list(held.removing)
        if directories is not None and tuple(directories) != partition.directories:
            change.directories = list(directories)

    def _is_below_min_isr(self, topic: TopicImage, isr: Sequence[int], replicas: Sequence[int]) -> bool:
        otherwise = self.config.get_int("min.insync.replicas")
        return len(isr) < self.image.min_insync_replicas(topic.name, len(replicas), otherwise)

    def _eligible(
        self, topic: TopicImage, partition: PartitionImage, held: Assignment, isr: tuple[int, ...]
    ) -> tuple[int, ...]:
        if not self._with_eligible or not self._is_below_min_isr(topic, isr, held.replicas):
            return ()
        former = partition.eligible_leader_replicas
        if not self._is_below_min_isr(topic, partition.isr, partition.replicas):
            former = ()  # from a controller that counts the replicas of partition 0: the leader commits without them
        members = dict.fromkeys((*former, *partition.isr))
        return tuple(
            member for member in members if member not in isr and member != self._lost and member in held.replicas
        )

    def _elect(
        self,
        partition: PartitionImage,
        held: Assignment,
        isr: tuple[int, ...],
        eligible: tuple[int, ...],
        kind: ElectionKind,
    ) -> tuple[int, bool]:
        """The leader, and whether it may lack acknowledged records."""
        # KIP-966, in this order: the ISR, else an eligible leader (it holds everything acknowledged, because below min ISR no high watermark
        # moves), else the last known leader, marked as recovering, else with unclean elections any active replica.
        complete = isr or eligible
        candidates = [partition.leader, *held.replicas]
        if kind is ElectionKind.PREFERRED:
            candidates = [held.replicas[0], *candidates]
        for replica in candidates:
            if replica in complete and self.may_lead(partition, replica):
                return replica, False
        last_known = partition.last_known_elr
        if self._with_eligible and not complete and len(last_known) == 1 and self.may_lead(partition, last_known[0]):
            return last_known[0], True
        if kind is ElectionKind.UNCLEAN:
            for replica in held.replicas:
                if self.may_lead(partition, replica):
                    return replica, True
        return NO_LEADER, False

    def _last_known(self, partition: PartitionImage, isr: tuple[int, ...], leader: int) -> tuple[int, ...]:
        if not self._with_eligible or leader != NO_LEADER:
            return ()
        if not isr and partition.leader != NO_LEADER:
            return (partition.leader,)
        return partition.last_known_elr


def _says_nothing(change: PartitionChangeRecord) -> bool:
    return (
        change.isr is None
        and change.leader == NO_LEADER_CHANGE
        and change.eligible_leader_replicas is None
        and change.last_known_elr is None
        and change.directories is None
        and change.replicas is None
        and change.adding_replicas is None
        and change.removing_replicas is None
        and change.leader_recovery_state < 0
    )
