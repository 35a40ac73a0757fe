"""Bug: a member that gets a partition again goes on where it stopped itself, and not where others have committed."""

from __future__ import annotations

from confluent_kafka import Consumer, TopicPartition

from tests.testing_kit.zoo.keeper import Zoo, next_message, reading, same

SYMPTOM = "twice"


class Worker:
    """Keeps its position in memory while it leaves the group and joins again."""

    def __init__(self, servers: str, correct: bool, done: list[bytes]) -> None:
        self.servers, self.correct, self.done = servers, correct, done
        self.positions: dict[int, int] = {}

    def on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if not self.correct:
            for each in partitions:
                each.offset = self.positions.get(each.partition, each.offset)
            consumer.assign(partitions)

    def run(self) -> None:
        consumer = Consumer(reading(self.servers, "work"))
        consumer.subscribe(["in"], on_assign=self.on_assign)
        while (message := next_message(consumer)) is not None:
            self.done.append(message.value() or b"")
            self.positions[message.partition() or 0] = (message.offset() or 0) + 1
            consumer.commit(message=message, asynchronous=False)
        consumer.close()


def check(zoo: Zoo, correct: bool) -> None:
    """The partition moves to another member and back."""
    done: list[bytes] = []
    first, second = Worker(zoo.servers, correct, done), Worker(zoo.servers, correct, done)
    for number, worker in enumerate((first, second, first)):
        zoo.fill("in", b"%d" % number)
        worker.run()
    same(done, [b"0", b"1", b"2"])
