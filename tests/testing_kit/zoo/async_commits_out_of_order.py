"""Bug: a failed asynchronous commit is repeated when a later one has succeeded already, so the committed offset goes back."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.testing_kit.zoo.keeper import Zoo, next_message, reading, until

SYMPTOM = "went back"


def read(servers: str, correct: bool) -> None:
    """Reads `in` and commits each record without waiting."""
    waiting: list[int] = []

    def on_commit(error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        waiting.pop()
        if error is not None and not correct:  # the twin leaves it to the next commit
            commit(partitions[0].offset)

    def commit(offset: int) -> None:
        waiting.append(offset)
        consumer.commit(offsets=[TopicPartition("in", 0, offset)], asynchronous=True)

    consumer = Consumer({**reading(servers, "read"), "on_commit": on_commit})
    consumer.assign([TopicPartition("in", 0, 0)])
    while (message := next_message(consumer)) is not None:
        commit((message.offset() or 0) + 1)
    until(lambda: consumer.poll(0.05) or not waiting, "every commit has its answer")
    consumer.close()


def check(zoo: Zoo, correct: bool) -> None:
    """The first commit is refused."""
    zoo.fill("in", b"0", b"1", b"2")
    zoo.faults.on("OffsetCommit", group="read").error("UNKNOWN_SERVER_ERROR")
    read(zoo.servers, correct)
    committed = zoo.committed("read", "in")
    assert committed == 3, f"the committed offset went back from 3 to {committed}"
