"""Answers of one decision to very many members of a group."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.broker.coordinator import group_coordinator as coordinator
from barnabas.broker.coordinator.groups.effects import JoinCall
from barnabas.broker.node.node import Node
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.groups import FindCoordinatorRequest, JoinGroupRequest, JoinGroupRequestProtocol
from tests.support.broker.nodes import Nodes
from tests.support.waiting import until

MEMBERS = 50
AT_ONCE = 8


class Reply:
    """Notes the answer and the turn of the loop in which it came."""

    def __init__(self, node: Node, turns: list[int]) -> None:
        self.node = node
        self.turns = turns
        self.answers: list[Any] = []

    def send(self, response: Any) -> None:
        self.answers.append(response)
        self.turns[-1] += 1

    def refuse(self, code: ErrorCode) -> None:
        self.answers.append(code)


async def test_the_answers_of_a_rebalance_are_sent_a_few_in_each_turn(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "ANSWERS_AT_ONCE", AT_ONCE)
    node = await nodes.start(None, offsets_topic_num_partitions="1", group_initial_rebalance_delay_ms="50")
    peer = await nodes.peer(node)
    await peer.call(FindCoordinatorRequest(key="g"), 3)
    turns = [0]
    replies = [Reply(node, turns) for _ in range(MEMBERS)]
    for number, reply in enumerate(replies):
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        node.groups.join(JoinCall(request, 3, "", "/", f"member-{number}", reply))

    def complete() -> bool:
        turns.append(0)
        return all(reply.answers for reply in replies)

    await until(complete)
    assert [len(reply.answers) for reply in replies] == [1] * MEMBERS
    assert {reply.answers[0].generation_id for reply in replies} == {1}
    assert max(turns) == AT_ONCE
