"""A sink that writes under two-phase commit with SQLite as the other participant, until it is killed.

Called as `python -m tests.support.processes.two_phase_worker BOOTSTRAP DATABASE TOPIC TRANSACTIONAL_ID`. The database
decides: a row of `decision` commits a batch and names the prepared transaction; `owner` fences off processes that came
before.
"""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import sys

from barnabas.client import KafkaError, PreparedTransaction, Producer

RECORDS = 6
PARTITIONS = 2


def values_of(batch: int) -> list[bytes]:
    return [b"%d.%d" % (batch, number) for number in range(RECORDS)]


def open_database(path: str) -> sqlite3.Connection:
    database = sqlite3.connect(path, isolation_level=None, timeout=30)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("CREATE TABLE IF NOT EXISTS decision (batch INTEGER PRIMARY KEY, prepared TEXT NOT NULL)")
    database.execute("CREATE TABLE IF NOT EXISTS owner (only_row INTEGER PRIMARY KEY, pid INTEGER NOT NULL)")
    return database


def own(database: sqlite3.Connection) -> None:
    """Takes the ownership of the database from every other process."""
    database.execute("INSERT OR REPLACE INTO owner VALUES (1, ?)", (os.getpid(),))


def decided(database: sqlite3.Connection) -> list[PreparedTransaction]:
    return [
        PreparedTransaction.parse(text) for (text,) in database.execute("SELECT prepared FROM decision ORDER BY batch")
    ]


def decide(database: sqlite3.Connection, batch: int, prepared: PreparedTransaction) -> None:
    database.execute("BEGIN IMMEDIATE")
    (owner,) = database.execute("SELECT pid FROM owner").fetchone()
    if owner != os.getpid():
        database.execute("ROLLBACK")
        raise SystemExit(f"another process ({owner}) owns the database")
    database.execute("INSERT INTO decision VALUES (?, ?)", (batch, str(prepared)))
    database.execute("COMMIT")


async def pause() -> None:
    await asyncio.sleep(random.random() * 0.05)


async def work(bootstrap: str, database: sqlite3.Connection, topic: str, transactional_id: str) -> None:
    own(database)
    async with Producer(
        bootstrap_servers=bootstrap, transactional_id=transactional_id, two_phase_commit=True, keep_prepared=True
    ) as producer:
        rows = decided(database)
        await producer.complete(rows[-1] if rows else None)
        while True:
            batch = len(decided(database))
            await producer.begin_transaction()
            for number, value in enumerate(values_of(batch)):
                await producer.send(topic, value, partition=number % PARTITIONS)
            prepared = await producer.prepare()
            await pause()
            if random.randrange(6) == 0:
                await producer.complete(None)
                continue
            decide(database, batch, prepared)
            await pause()
            await producer.complete(prepared)


async def main(bootstrap: str, path: str, topic: str, transactional_id: str) -> None:
    database = open_database(path)
    while True:
        try:
            await work(bootstrap, database, topic, transactional_id)
        except KafkaError as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            await asyncio.sleep(0.2)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
