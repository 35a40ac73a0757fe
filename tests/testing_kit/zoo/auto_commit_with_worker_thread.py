"""Bug: the consumer commits automatically what it has returned, while a thread still works on it."""

from __future__ import annotations

import queue
import threading
from typing import Any

from confluent_kafka import Consumer, Producer

from tests.testing_kit.zoo.keeper import Zoo, next_message, reading, same, start

SYMPTOM = "lost"


def copy(servers: str, correct: bool, stop: threading.Event) -> None:
    """Copies `in` to `out`: one thread reads, one writes."""
    settings = reading(servers, "copy", enable_auto_commit=True, enable_auto_offset_store=not correct)
    consumer, producer = Consumer(settings), Producer({"bootstrap.servers": servers})
    work: queue.Queue[Any] = queue.Queue()

    def write() -> None:
        for message in iter(work.get, None):
            producer.produce("out", message.value())
            while producer.flush(0.05):
                if stop.is_set():  # the process ends
                    producer.purge()
                    return
            if correct:
                consumer.store_offsets(message)

    thread = start(write)
    consumer.subscribe(["in"])
    while (message := next_message(consumer)) is not None:
        work.put(message)
    work.put(None)
    thread.join() if not stop.is_set() else stop.wait()
    consumer.close()


def check(zoo: Zoo, correct: bool) -> None:
    """The process ends while its first write has no answer, and starts again."""
    zoo.fill("in", b"0", b"1", b"2")
    dropped = zoo.faults.on("Produce", topic="out", times=None).drop()
    stop = threading.Event()
    application = start(copy, zoo.servers, correct, stop)
    dropped.wait(timeout=60)
    stop.set()
    application.join()
    dropped.remove()
    copy(zoo.servers, correct, threading.Event())
    same(zoo.written("out"), [b"0", b"1", b"2"])
