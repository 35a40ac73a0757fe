"""Bug: what is counted in memory is not rolled back when a rebalance takes the partition away before the commit."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaException

from tests.testing_kit.zoo.keeper import Zoo, next_message, reading, start

SYMPTOM = "counted 6 for 3"


class Totals:
    """Sums the records of `in`; saves the sum and commits at the end of the partition."""

    def __init__(self, servers: str, correct: bool) -> None:
        self.consumer = Consumer(reading(servers, "totals"))
        self.correct = correct
        self.total = self.saved = 0

    def run(self) -> None:
        self.consumer.subscribe(["in"])
        while not self.saved:
            if (message := next_message(self.consumer)) is not None:
                self.total += int(message.value() or b"")
                continue
            try:
                self.consumer.commit(asynchronous=False)
            except KafkaException:  # the records since the last commit come again
                if self.correct:
                    self.total = self.saved
            else:
                self.saved = self.total
        self.consumer.close()


def check(zoo: Zoo, correct: bool) -> None:
    """The member is evicted before its commit arrives."""
    zoo.fill("in", b"1", b"1", b"1")
    held = zoo.faults.on("OffsetCommit", group="totals").hold()
    totals = Totals(zoo.servers, correct)
    application = start(totals.run)
    held.wait(timeout=60)
    zoo.evict("totals")
    held.release()
    application.join()
    assert totals.saved == 3, f"counted {totals.saved} for 3"
