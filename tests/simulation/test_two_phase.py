"""Two-phase commit (KIP-939) with a database as the other participant, through crashes of everybody: both always agree.

The database decides: a batch is committed by a row that names the prepared transaction. Whoever begins takes the database's
ownership over first, then the transaction that is left, and completes it by the last row.
`BARNABAS_SEEDS=17:18 pytest tests/simulation/test_two_phase.py` runs one seed again; `make soak` runs a hundred.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3

import pytest

from barnabas.client import Admin, KafkaError, PreparedTransaction, Producer, TopicPartition
from barnabas.client.producer.core.transaction_state import TransactionPhase
from barnabas.testing.simulation.world import Ports, World
from tests.support.simulation.chaos import Chaos
from tests.support.simulation.workload import BOOTSTRAP, Broker, Program, read_all

pytestmark = pytest.mark.simulation

SEEDS = range(*map(int, os.environ.get("BARNABAS_SEEDS", "0:10").split(":")))
SOAK_SEEDS = range(10, 100)
FAULTS = 12
FLUSH = {"log.flush.interval.messages": "1"}  # acknowledgements wait for the disk
OUT = [TopicPartition("out", partition) for partition in range(2)]
SETTLE_S = 120


class NotOwner(Exception):
    """Another process has taken the database over."""


class Database:
    """The other participant, durable at each commit."""

    def __init__(self) -> None:
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        self.connection.execute("CREATE TABLE decision (batch INTEGER PRIMARY KEY, prepared TEXT NOT NULL)")
        self.owner = 0

    def own(self) -> int:
        """Nobody else decides from now on.

        Only who has taken the transaction over may call this, and what is decided is read after it. The other way around two
        processes that begin together may each get one half: the one that owns the database decides upon a transaction that the
        one that owns the transaction has aborted, knowing of no decision.
        """
        self.owner += 1
        return self.owner

    def decide(self, owner: int, batch: int, prepared: PreparedTransaction) -> None:
        if owner != self.owner:
            raise NotOwner
        self.connection.execute("INSERT INTO decision VALUES (?, ?)", (batch, str(prepared)))

    def decided(self) -> list[tuple[int, PreparedTransaction]]:
        rows = self.connection.execute("SELECT batch, prepared FROM decision ORDER BY batch")
        return [(batch, PreparedTransaction.parse(prepared)) for batch, prepared in rows]


class Journal:
    """What the test knows of the run."""

    def __init__(self) -> None:
        self.committed = self.aborted = self.recovered = self.recovered_aborted = 0
        self.failures: list[str] = []


def values_of(batch: int) -> list[bytes]:
    return [b"%d.%d" % (batch, number) for number in range(4)]


def worker(database: Database, journal: Journal) -> Program:
    """Writes batches, each under a decision of the database, for as long as it lives."""

    async def live(ports: Ports) -> None:
        rng = ports.rng
        async with Producer(
            bootstrap_servers=BOOTSTRAP,
            transactional_id="sink",
            transaction_timeout_ms=1_000,  # which does not hold for two-phase transactions
            two_phase_commit=True,
            keep_prepared=True,
            clock=ports.clock,
            rng=rng,
            network=ports.network,
        ) as producer:
            owner = database.own()  # not before: see `Database.own`
            rows = database.decided()
            left = producer.prepared
            committed = await producer.complete(rows[-1][1] if rows else None)
            journal.recovered += committed
            journal.recovered_aborted += left is not None and not committed
            while True:
                batch = len(database.decided())
                await producer.begin_transaction()
                for number, value in enumerate(values_of(batch)):
                    await producer.send("out", value, partition=number % len(OUT))
                prepared = await producer.prepare()
                await asyncio.sleep(rng.random() * 3)
                if rng.randrange(5) == 0:
                    await producer.complete(None)
                    journal.aborted += 1
                    continue
                database.decide(owner, batch, prepared)
                await asyncio.sleep(rng.random() * 3)
                assert await producer.complete(prepared)
                journal.committed += 1

    async def program(ports: Ports) -> None:
        while True:
            try:
                await live(ports)
            except NotOwner:
                return
            except KafkaError as error:
                journal.failures.append(f"{type(error).__name__}: {error}")
            await asyncio.sleep(1)

    return program


async def agree(ports: Ports, database: Database) -> None:
    """Takes over what is left, completes it, and holds the topic against the database."""
    async with asyncio.timeout(SETTLE_S):
        async with Producer(
            bootstrap_servers=BOOTSTRAP,
            transactional_id="sink",
            two_phase_commit=True,
            keep_prepared=True,
            clock=ports.clock,
            rng=ports.rng,
            network=ports.network,
        ) as producer:
            database.own()
            rows = database.decided()
            await producer.complete(rows[-1][1] if rows else None)
            assert producer.transaction_state is TransactionPhase.READY
        async with Admin(bootstrap_servers=BOOTSTRAP, clock=ports.clock, rng=ports.rng, network=ports.network) as admin:
            while (await admin.describe_transaction("sink")).state.startswith("Prepare"):  # noqa: ASYNC110 -- nobody tells
                await asyncio.sleep(0.1)  # decided, and its markers are on their way
    expected: dict[int, list[bytes]] = {tp.partition: [] for tp in OUT}
    for batch, _ in rows:
        for number, value in enumerate(values_of(batch)):
            expected[number % len(OUT)].append(value)
    assert [batch for batch, _ in rows] == list(range(len(rows)))
    assert await read_all(ports, OUT, "read_committed") == expected
    assert len({prepared for _, prepared in rows}) == len(rows)  # no two transactions look the same


async def crashes(world: World, journal: Journal, faults: int) -> None:
    """Even seeds lose power, too."""
    power = world.seed % 2 == 0
    database = Database()
    broker = Broker(**(FLUSH if power else {}), **({"log.roll.ms": "3000"} if world.rng.randrange(2) else {}))
    program = worker(database, journal)
    world.machine("broker").start(broker)
    world.machine("worker").start(program)
    await Chaos(world, broker, program, power=power).run(faults)
    world.machine("worker").kill()
    await world.machine("judge").start(lambda ports: agree(ports, database))


def run_seed(seed: int, faults: int = FAULTS) -> Journal:
    journal = Journal()
    with World(seed) as world:
        world.run(crashes(world, journal, faults), time_limit_s=7200)
    return journal


def test_both_participants_agree_after_crashes() -> None:
    journals = [run_seed(seed) for seed in SEEDS]
    if len(SEEDS) >= 10:  # the runs came to what they are for
        assert sum(journal.committed for journal in journals) > 100
        assert sum(journal.aborted for journal in journals) > 10
        assert sum(journal.recovered for journal in journals) >= 5
        assert sum(journal.recovered_aborted for journal in journals) >= 5


@pytest.mark.soak
@pytest.mark.parametrize("first", SOAK_SEEDS[::10])
def test_both_participants_agree_after_a_thousand_crashes(first: int) -> None:
    for seed in range(first, first + 10):
        run_seed(seed)
