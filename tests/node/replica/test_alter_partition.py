"""ISR changes on their way to the controller: very many of them go in several requests, one after the other."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.broker.node.node import Node
from barnabas.broker.replica.core.isr import IsrProposal
from barnabas.protocol.messages.cluster import AlterPartitionRequest
from tests.support.broker.nodes import Peer
from tests.support.waiting import until


async def test_changes_of_many_partitions_go_in_several_requests(
    node: Node, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("barnabas.broker.replica.alter_partition.PARTITIONS_PER_REQUEST", 3)
    await peer.create("t", 8)
    asked: list[list[int]] = []
    ask = node.controller.request

    def request(message: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(message, AlterPartitionRequest):
            asked.append([one.partition_index for topic in message.topics for one in topic.partitions])
        ask(message, *args, **kwargs)

    monkeypatch.setattr(node.controller, "request", request)
    replicas = list(node.replicas.all())
    for replica in replicas:
        proposal = IsrProposal(replica.leader_epoch, replica.in_sync.partition_epoch, ((1, -1),))
        replica.in_sync._proposal = proposal
        node.isr_changes.propose(replica, proposal)
    await until(lambda: all(replica.in_sync.proposal is None for replica in replicas))
    assert asked == [[0, 1, 2], [3, 4, 5], [6, 7]]
