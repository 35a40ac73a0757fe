"""An outbox: an order and its event are written to SQLite in one transaction, and a relay sends the events to Kafka.

The relay works at least once and in order: it deletes an event after Kafka has acknowledged it. An event that is sent again
has the same header `id`, so `apply_once` on the other side has its effect once.
"""

from __future__ import annotations

import sqlite3
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

__all__ = ["apply_once", "open_database", "place_order", "relay"]

TABLES = """
    CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL);
    CREATE TABLE IF NOT EXISTS outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, item TEXT NOT NULL);
    CREATE TABLE IF NOT EXISTS applied (id INTEGER PRIMARY KEY, item TEXT NOT NULL);
"""


def open_database(path: str) -> sqlite3.Connection:
    """Opens the database of the shop or of the reader."""
    database = sqlite3.connect(path)
    database.executescript(TABLES)
    return database


def place_order(database: sqlite3.Connection, item: str) -> None:
    """Stores an order together with its event; Kafka need not run."""
    with database:
        database.execute("INSERT INTO orders (item) VALUES (?)", (item,))
        database.execute("INSERT INTO outbox (item) VALUES (?)", (item,))


def relay(kafka: dict[str, Any], database: sqlite3.Connection, topic: str, timeout_s: float = 30) -> int:
    """Sends the events one after the other, until one is not acknowledged in `timeout_s`. Returns how many are left."""
    failed: list[KafkaError] = []

    def note(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer({**kafka, "enable.idempotence": True, "delivery.timeout.ms": int(timeout_s * 1000)})
    for number, item in database.execute("SELECT id, item FROM outbox ORDER BY id").fetchall():
        producer.produce(topic, item, headers={"id": str(number)}, on_delivery=note)
        producer.flush()
        if failed:  # Kafka may have the event or not: it stays, and so do those after it
            break
        with database:
            database.execute("DELETE FROM outbox WHERE id = ?", (number,))
    left: int = database.execute("SELECT count(*) FROM outbox").fetchone()[0]
    return left


def apply_once(database: sqlite3.Connection, event_id: bytes, item: bytes) -> None:
    """What a reader of the topic does with each event: one that comes again has no effect."""
    with database:
        database.execute("INSERT OR IGNORE INTO applied VALUES (?, ?)", (int(event_id), item.decode()))
