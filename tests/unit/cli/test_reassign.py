"""Reassignments that cannot be started, are interrupted or are cancelled by somebody else: what is said, and which throttles stay."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.cli.reassign import finish, start_reassignment
from barnabas.client.admin import ConfigResource, PartitionReassignment
from barnabas.client.errors import IllegalState, KafkaError
from barnabas.client.types import TopicPartition

T0 = TopicPartition("t", 0)
MOVE = PartitionReassignment((1, 2), (2,), ())


class OneTopic:
    """As an Admin: topic t with a partition on broker 1 of two brokers; configs are kept, reassignments as a test sets them."""

    def __init__(self) -> None:
        self.replicas: tuple[int, ...] = (1,)
        self.moves: dict[TopicPartition, PartitionReassignment] = {}
        self.refusal: KafkaError | None = None
        self.configs: dict[ConfigResource, dict[str, str]] = {}

    async def list_topics(self, **_: Any) -> list[str]:
        return ["t"]

    async def describe_topics(self, _: Any) -> Any:
        return {"t": SimpleNamespace(partitions=[SimpleNamespace(partition=0, replicas=self.replicas)])}

    async def list_brokers(self) -> Any:
        return [SimpleNamespace(node_id=node, is_fenced=False) for node in (1, 2)]

    async def list_partition_reassignments(self) -> dict[TopicPartition, PartitionReassignment]:
        return self.moves

    async def alter_partition_reassignments(self, _: Any) -> None:
        if self.refusal is not None:
            raise self.refusal

    async def alter_config_resource(self, resource: ConfigResource, changes: dict[str, str | None]) -> None:
        kept = self.configs.setdefault(resource, {})
        for name, value in changes.items():
            kept.pop(name, None)
            if value is not None:
                kept[name] = value

    async def describe_config_resources(self, resources: Any, names: Any) -> Any:
        (resource,) = resources
        source = 1 if resource.type == "topic" else 2
        kept = self.configs.get(resource, {})
        return {resource: {name: SimpleNamespace(source=source) for name in names if name in kept}}

    @property
    def throttled(self) -> bool:
        return any(self.configs.values())


def start(admin: Any) -> Any:
    return start_reassignment(admin, {T0: (2,)}, rate=9, additional=False)


def wait(admin: Any) -> Any:
    return finish(admin, {T0: (2,)}, every=0.1, watch=False, keep_throttles=False)


async def test_a_refused_reassignment_leaves_no_throttle() -> None:
    admin = OneTopic()
    admin.refusal = KafkaError("the controller refuses it")
    with pytest.raises(KafkaError, match="the controller refuses it"):
        await start(admin)
    assert not admin.throttled


async def test_a_refusal_of_some_says_that_throttles_remain(capsys: pytest.CaptureFixture[str]) -> None:
    admin = OneTopic()

    async def refuse(_: Any) -> None:
        admin.moves = {T0: MOVE}
        raise KafkaError("one of them is refused")

    admin.alter_partition_reassignments = refuse  # type: ignore[method-assign]  # this test's own behaviour
    with pytest.raises(KafkaError):
        await start(admin)
    assert admin.throttled
    assert "throttles may remain" in capsys.readouterr().err


async def test_an_interrupted_wait_says_that_the_move_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    admin = OneTopic()
    admin.moves = {T0: MOVE}
    waiting = asyncio.create_task(wait(admin))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert "the reassignment goes on; `partition reassign --verify`" in capsys.readouterr().err


async def test_a_reassignment_that_somebody_cancelled_is_not_complete() -> None:
    with pytest.raises(IllegalState, match=r"1 of 1 partitions are not as planned: t-0 has the replicas \[1\]"):
        await wait(OneTopic())


async def test_a_reassignment_that_has_ended_is_complete() -> None:
    admin = OneTopic()
    admin.replicas = (2,)
    await wait(admin)
