"""Bug: a member commits positions of partitions that a rebalance has given to another one, so that one's commit goes back."""

from __future__ import annotations

from confluent_kafka import Consumer, TopicPartition

from tests.testing_kit.zoo.keeper import Zoo, reading, until

SYMPTOM = "went back"
TOPICS = {"in": 2}


class Worker:
    """Remembers its position in each partition and commits all of them."""

    def __init__(self, servers: str, correct: bool) -> None:
        self.consumer = Consumer(reading(servers, "work", enable_partition_eof=False))
        self.correct = correct
        self.positions: dict[int, int] = {}
        self.consumer.subscribe(["in"], on_revoke=self.on_revoke)

    def on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if self.correct:
            self.commit()
            self.positions.clear()

    def step(self) -> dict[int, int]:
        message = self.consumer.poll(0.05)
        if message is not None and message.error() is None:
            self.positions[message.partition() or 0] = (message.offset() or 0) + 1
        return self.positions

    def commit(self) -> None:
        offsets = [TopicPartition("in", partition, offset) for partition, offset in self.positions.items()]
        if offsets:
            self.consumer.commit(offsets=offsets, asynchronous=False)


def check(zoo: Zoo, correct: bool) -> None:
    """A second member joins and commits; then the first one commits."""
    for partition in (0, 1):
        zoo.fill("in", b"0", b"1", partition=partition)
    first = Worker(zoo.servers, correct)
    until(lambda: first.step() == {0: 2, 1: 2}, "the first member has read everything")
    first.commit()
    second = Worker(zoo.servers, correct)
    members = (first, second)

    def shared() -> bool:
        assigned = [each.consumer.assignment() for each in members if each.step() is not None]
        return [len(each) for each in assigned] == [1, 1]

    until(shared, "each member has one partition")
    [moved] = [each.partition for each in second.consumer.assignment()]
    zoo.fill("in", b"2", b"3", partition=moved)
    until(lambda: first.step() is not second.step() and second.positions.get(moved) == 4, "the second member reads")
    second.commit()
    first.commit()
    committed = zoo.committed("work", "in", moved)
    for each in members:
        each.consumer.close()
    assert committed == 4, f"the committed offset went back from 4 to {committed}"
