"""Which replica a leader advises: racks, the ISR, what it holds, and who comes first of several."""

from __future__ import annotations

import pytest

from barnabas.broker.image.image import BrokerImage
from barnabas.broker.image.records import RegisteredEndpoint
from barnabas.broker.replica.core.nearest import LEADER, nearest_replica
from tests.support.bench.replica import ReplicaBench


def broker(broker_id: int, rack: str | None, *, fenced: bool = False, listener: str = "PLAINTEXT") -> BrokerImage:
    point = RegisteredEndpoint(name=listener, host="localhost", port=9092, security_protocol=0)
    return BrokerImage(broker_id, 1, bytes(16), (point,), (), rack, fenced, False, ())


class Partition(ReplicaBench):
    """Led by broker 1 in rack a; 2 and 3 are in b, 4 in c, 5 in no rack."""

    def __init__(self) -> None:
        super().__init__(leads=False)
        self.brokers = {n: broker(n, rack) for n, rack in enumerate(("a", "b", "b", "c", None), start=1)}
        self.replica.lead(0, (1, 2, 3, 4, 5), 0, replicas=(1, 2, 3, 4, 5))
        self.append()
        self.append()
        for broker_id in (2, 3, 4, 5):
            self.holds(broker_id, 2)

    def holds(self, broker_id: int, end: int, start: int = 0, caught_up_ms: int = 0) -> None:
        follower = self.replica.in_sync.followers[broker_id]
        follower.log_end_offset, follower.log_start_offset, follower.last_caught_up_ms = end, start, caught_up_ms

    def advised(self, rack_id: str, offset: int = 1) -> int:
        return nearest_replica(self.replica, offset, rack_id, self.brokers, "PLAINTEXT")


def test_the_replica_in_the_rack_unless_the_leader_is_there_itself() -> None:
    partition = Partition()
    assert partition.advised("c") == 4
    assert partition.advised("a") == LEADER
    assert partition.advised("nowhere") == LEADER


def test_of_several_who_holds_most_then_who_was_caught_up_last_then_the_highest_id() -> None:
    partition = Partition()
    assert partition.advised("b") == 3
    partition.holds(2, 2, caught_up_ms=7)
    assert partition.advised("b") == 2
    partition.holds(3, 3)
    assert partition.advised("b") == 3


@pytest.mark.parametrize(
    ("end", "start", "offset", "fits"), [(2, 0, 2, True), (2, 0, 3, False), (2, 1, 0, False), (2, 1, 1, True)]
)
def test_only_who_holds_the_offset(end: int, start: int, offset: int, fits: bool) -> None:
    partition = Partition()
    partition.holds(4, end, start)
    assert partition.advised("c", offset) == (4 if fits else LEADER)


def test_only_who_is_in_sync_alive_and_within_reach() -> None:
    partition = Partition()
    partition.brokers[4] = broker(4, "c", fenced=True)
    assert partition.advised("c") == LEADER
    partition.brokers[4] = broker(4, "c", listener="INTERNAL")
    assert partition.advised("c") == LEADER
    partition.brokers[4] = broker(4, "c")
    partition.replica.lead(0, (1, 2, 3), 1, replicas=(1, 2, 3, 4))
    assert partition.advised("c") == LEADER
