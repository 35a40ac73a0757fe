"""Bug: each start has a new transactional id, so nobody ends the transaction of a process that was killed; its readers wait."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from barnabas.client import Admin
from tests.testing_kit.zoo.keeper import Zoo

SYMPTOM = "hanging"


class Killed(Exception):
    """The process ends here."""


def save(servers: str, correct: bool, written: Callable[[], None]) -> None:
    """Writes a record in a transaction."""
    name = "save" if correct else f"save-{uuid4()}"
    producer = Producer({"bootstrap.servers": servers, "transactional.id": name})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("out", b"row")
    producer.flush(60)
    written()
    producer.commit_transaction(60)


def check(zoo: Zoo, correct: bool) -> None:
    """The process is killed within a transaction, and starts again."""

    def killed() -> None:
        raise Killed

    with pytest.raises(Killed):
        save(zoo.servers, correct, killed)
    save(zoo.servers, correct, lambda: None)

    async def ongoing(admin: Admin) -> list[str]:
        return [each.transactional_id for each in await admin.list_transactions(states=["Ongoing"])]

    hanging = zoo.ask(ongoing)
    assert not hanging, f"hanging: {hanging}"
