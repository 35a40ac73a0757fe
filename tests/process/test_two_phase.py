"""An operator commits or aborts prepared transactions (KIP-939) with commands, when their producers do not return."""

from __future__ import annotations

import asyncio

import pytest

from barnabas.client import Admin, Consumer, Producer, TopicPartition
from barnabas.testing import Broker
from tests.support.processes.cli import called

pytestmark = pytest.mark.process


def test_an_operator_ends_what_nobody_comes_back_for(served_broker: Broker) -> None:
    at = ("-b", served_broker.bootstrap_servers)

    async def prepare(transactional_id: str) -> str:
        async with Producer(
            bootstrap_servers=served_broker.bootstrap_servers, transactional_id=transactional_id, two_phase_commit=True
        ) as producer:
            await producer.begin_transaction()
            await producer.send("out", transactional_id.encode(), partition=0)
            return str(await producer.prepare())

    kept, dropped = asyncio.run(prepare("kept")), asyncio.run(prepare("dropped"))
    listed = called("txn", "list", "--state", "Ongoing", *at).stdout
    assert listed.count("none (two-phase commit)") == 2, listed
    assert "no timeout (two-phase commit)" in called("txn", "describe", "kept", *at).stdout

    refused = called("txn", "commit", "kept", "--only", dropped, *at)
    assert (refused.returncode, "nothing was ended" in refused.stderr) == (1, True), refused.stderr
    assert called("txn", "commit", "kept", "--only", kept, *at).stdout == f"committed kept {kept}\n"
    assert called("txn", "abort", "dropped", *at).stdout == f"aborted dropped {dropped}\n"
    again = called("txn", "commit", "kept", *at)
    assert (again.returncode, "has no open transaction" in again.stderr) == (1, True), again.stderr

    async def read() -> dict[int, list[bytes]]:
        async with Admin(bootstrap_servers=served_broker.bootstrap_servers) as admin:
            assert await admin.list_transactions(states=["Ongoing"]) == []
        async with Consumer(
            bootstrap_servers=served_broker.bootstrap_servers,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
        ) as consumer:
            consumer.assign([TopicPartition("out", 0)])
            return {0: [r.value or b"" for rs in (await consumer.getmany(timeout_ms=5_000)).values() for r in rs]}

    assert asyncio.run(read()) == {0: [b"kept"]}
