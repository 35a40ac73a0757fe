"""Placement of replicas over the unfenced brokers in turn, on different brokers and if possible in different racks.
Refusals and fenced brokers as in Kafka; the order differs (Kafka's striped placer is random).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from barnabas.broker.image.image import MetadataImage, PartitionImage
from barnabas.errors import BrokerError, ErrorCode
from barnabas.work import Steps

UNASSIGNED_DIRECTORY = bytes(16)
UNITS_OF_A_PARTITION: Final = 1
BROKERS_PER_UNIT: Final = 32  # compared for one replica


def place_partitions(
    image: MetadataImage, count: int, replication_factor: int, start: int
) -> Steps[list[PartitionImage]]:
    """`count` new partitions with `replication_factor` replicas, the first on the `start`th broker (modulo their number).

    Fenced brokers are the last replicas, outside the ISR, if the unfenced ones are too few. Raises BrokerError(INVALID_REPLICATION_FACTOR).
    """
    alive = sorted(broker.broker_id for broker in image.alive_brokers())
    fenced = sorted(image.brokers.keys() - set(alive))
    if replication_factor > len(image.brokers):
        raise BrokerError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): The target replication factor of "
            f"{replication_factor} cannot be reached because only {len(image.brokers)} broker(s) are registered "
            f"or some brokers have all their log directories cordoned.",
        )
    if not alive:
        raise BrokerError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): All brokers are currently fenced "
            f"or have all their log directories cordoned.",
        )
    partitions = []
    for number in range(count):
        at = start + number
        taken: dict[str | None, int] = {}  # replicas of this partition by rack
        replicas = _over_racks(image, _turned(alive, at), replication_factor, taken)
        replicas += _over_racks(image, _turned(fenced, at), replication_factor - len(replicas), taken)
        partitions.append(_partition(image, replicas))
        yield UNITS_OF_A_PARTITION + replication_factor * len(image.brokers) // BROKERS_PER_UNIT
    return partitions


def _turned(brokers: Sequence[int], at: int) -> list[int]:
    return [brokers[(at + step) % len(brokers)] for step in range(len(brokers))]


def _over_racks(image: MetadataImage, brokers: Sequence[int], count: int, taken: dict[str | None, int]) -> list[int]:
    """The first `count` of `brokers`, skipping racks that have their share; all if there are fewer. Adds them to `taken`, by rack."""
    left = list(brokers)
    chosen: list[int] = []
    while left and len(chosen) < count:
        best = min(left, key=lambda broker_id: taken.get(image.brokers[broker_id].rack, 0))
        left.remove(best)
        chosen.append(best)
        rack = image.brokers[best].rack
        taken[rack] = taken.get(rack, 0) + 1
    return chosen


def assigned_partition(
    image: MetadataImage, number: int, replicas: Sequence[int], replication_factor: int | None
) -> PartitionImage:
    """A new partition on the brokers that the client named; `replication_factor` is that of the topic's other partitions, None without any.

    Raises BrokerError(INVALID_REPLICA_ASSIGNMENT), also if all brokers are fenced or their number is not `replication_factor`.
    """
    check_assignment(image, replicas)
    if replication_factor is not None and len(replicas) != replication_factor:
        raise _invalid(
            f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this is not "
            f"consistent with previous partitions, which have {replication_factor} replica(s)."
        )
    partition = _partition(image, replicas)
    if not partition.isr:
        raise _invalid(
            f"All brokers specified in the manual partition assignment for partition {number} are fenced "
            f"or in controlled shutdown."
        )
    return partition


def check_assignment(image: MetadataImage, replicas: Sequence[int]) -> None:
    """Raises BrokerError(INVALID_REPLICA_ASSIGNMENT) for no broker, a duplicate, or one that is not registered."""
    if not replicas:
        raise _invalid("The manual partition assignment includes an empty replica list.")
    checked = replicas[: len(image.brokers) + 1]  # a longer list has a duplicate or an unknown broker among these
    before = None
    for broker_id in sorted(checked):
        if broker_id not in image.brokers:
            raise _invalid(
                f"The manual partition assignment includes broker {broker_id}, but no such broker is registered."
            )
        if broker_id == before:
            raise _invalid(f"The manual partition assignment includes the broker {broker_id} more than once.")
        before = broker_id


def _invalid(message: str) -> BrokerError:
    return BrokerError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def _partition(image: MetadataImage, replicas: Sequence[int]) -> PartitionImage:
    isr = tuple(
        broker_id
        for broker_id in replicas
        if not image.brokers[broker_id].fenced and not image.brokers[broker_id].in_controlled_shutdown
    )
    return PartitionImage(
        leader=isr[0] if isr else -1,
        leader_epoch=0,
        partition_epoch=0,
        replicas=tuple(replicas),
        isr=isr,
        directories=tuple(directory_of_new_replica(image, broker_id) for broker_id in replicas),
    )


def directory_of_new_replica(image: MetadataImage, broker_id: int) -> bytes:
    """The broker's only directory; with several, the broker chooses and reports it later (KIP-858)."""
    directories = image.brokers[broker_id].directories
    return directories[0] if len(directories) == 1 else UNASSIGNED_DIRECTORY
