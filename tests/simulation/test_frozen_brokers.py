"""A broker that hangs as after SIGSTOP: its connections stay open, nothing is answered, and others take over when its session ends.

The bundled client then leaves requests that the frozen broker owes an answer, long before their time limit (30 s).
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from barnabas.broker.coordinator.host.partitioning import partition_for
from barnabas.client import Consumer, Producer, TopicPartition
from barnabas.testing.simulation.world import Ports
from tests.support.simulation.trio import IDS, SESSION_S, Trio, simulate

pytestmark = pytest.mark.simulation

ELECTION_S = 3.0  # of another controller: the fetch timeout of the voters (2 s) and a vote
NOTICED_S = 2.0  # from the takeover until a client has left the frozen broker and is served by another one
BOOTSTRAP = ",".join(f"n{each}:9092" for each in IDS)
STATE_PARTITIONS = 3


def coordinated_by(trio: Trio, node_id: int) -> str:
    """A transactional id whose coordinator is that node."""
    topic = trio.node(node_id).image.topics_by_name["__transaction_state"]
    names = (f"id-{number}" for number in range(100))
    return next(name for name in names if topic.partitions[partition_for(name, STATE_PARTITIONS)].leader == node_id)


@pytest.mark.parametrize("whose", ["a broker", "the controller"])
@pytest.mark.parametrize("seed", [0, 1])
def test_clients_leave_a_frozen_broker_when_others_have_taken_over(seed: int, whose: str) -> None:
    async def story(trio: Trio) -> None:
        loop = asyncio.get_running_loop()
        await trio.create(trio.controller, "t")
        await asyncio.sleep(1)
        frozen = trio.controller if whose == "the controller" else trio.others(trio.controller)[0]
        (number,) = [
            n for n, part in enumerate(trio.node(frozen).image.topics_by_name["t"].partitions) if part.leader == frozen
        ]
        within_s = SESSION_S + NOTICED_S + (ELECTION_S if whose == "the controller" else 0)

        async def program(ports: Ports) -> None:
            clients: dict[str, Any] = {
                "bootstrap_servers": BOOTSTRAP,
                "clock": ports.clock,
                "rng": ports.rng,
                "network": ports.network,
            }
            async with Producer(transactional_id="first", **clients):
                pass  # makes the topic of the coordinators
            await asyncio.sleep(1)
            async with (
                Producer(**clients) as plain,
                Producer(transactional_id=coordinated_by(trio, frozen), **clients) as transactional,
                Consumer(isolation_level="read_committed", auto_offset_reset="earliest", **clients) as consumer,
            ):
                consumer.assign([TopicPartition("t", number)])
                seen: list[bytes | None] = []

                async def write(value: bytes) -> None:
                    await plain.send_and_wait("t", value, partition=number)

                async def transact(value: bytes) -> None:
                    async with transactional.transaction():
                        await transactional.send("t", value, partition=number)

                async def read(count: int) -> None:
                    while len(seen) < count:
                        seen.append((await consumer.getone()).value)

                await asyncio.gather(write(b"plain 1"), transact(b"transaction 1"), read(2))
                trio.processes[frozen].machine.pause()
                began = loop.time()
                await asyncio.gather(write(b"plain 2"), transact(b"transaction 2"), read(4))
                assert loop.time() - began < within_s
                trio.processes[frozen].machine.resume()
                await asyncio.sleep(SESSION_S)
                await asyncio.gather(write(b"plain 3"), transact(b"transaction 3"), read(6))
                assert sorted(map(str, seen)) == sorted(
                    str(b"%s %d" % (kind, n)) for kind in (b"plain", b"transaction") for n in (1, 2, 3)
                )

        await trio.world.machine("client").start(program)

    simulate(seed, story, **{"transaction.state.log.num.partitions": str(STATE_PARTITIONS)})
