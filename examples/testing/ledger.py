"""Payments in SQLite and records in Kafka, both or neither: a two-phase commit (KIP-939) in which the database decides.

Kafka prepares the transaction, one commit of the database stores the payments and the decision, and Kafka completes it.
The next process completes what a dead one has left. `owner` refuses the decision of a process that was replaced meanwhile.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys

from barnabas.client import PreparedTransaction, Producer

__all__ = ["open_database", "pay"]

TABLES = """
    CREATE TABLE IF NOT EXISTS payments (value TEXT NOT NULL);
    CREATE TABLE IF NOT EXISTS decision (only_row INTEGER PRIMARY KEY, prepared TEXT, owner INTEGER NOT NULL);
    INSERT OR IGNORE INTO decision VALUES (1, NULL, 0);
"""


def open_database(path: str) -> sqlite3.Connection:
    """Opens the database, which has the payments and the last decision."""
    database = sqlite3.connect(path)
    database.executescript(TABLES)
    return database


async def pay(bootstrap_servers: str, database: sqlite3.Connection, topic: str, payments: list[str]) -> None:
    """Completes what the last process has left, then writes each payment in a transaction of its own."""
    async with Producer(
        bootstrap_servers=bootstrap_servers, transactional_id="ledger", two_phase_commit=True, keep_prepared=True
    ) as producer:  # fences the producer before it; only then is the database taken over, and the decision read
        with database:
            database.execute("UPDATE decision SET owner = owner + 1")
            decided, owner = database.execute("SELECT prepared, owner FROM decision").fetchone()
        await producer.complete(PreparedTransaction.parse(decided) if decided else None)
        for payment in payments:
            await producer.begin_transaction()
            await producer.send(topic, payment.encode())
            prepared = await producer.prepare()
            with database:  # the decision
                decide = "UPDATE decision SET prepared = ? WHERE owner = ?"
                if database.execute(decide, (str(prepared), owner)).rowcount == 0:
                    raise RuntimeError("another process has taken over the ledger")
                database.execute("INSERT INTO payments VALUES (?)", (payment,))
            await producer.complete(prepared)


if __name__ == "__main__":
    servers, path, topic, *payments = sys.argv[1:]
    asyncio.run(pay(servers, open_database(path), topic, payments))
