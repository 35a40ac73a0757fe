"""Bug: a commit whose outcome is unknown is taken for a failure of the work, which is then done again."""

from __future__ import annotations

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from tests.testing_kit.zoo.keeper import Zoo, same

SYMPTOM = "twice"


def charge(servers: str, charged: list[bytes], correct: bool) -> None:
    """Charges each payment of `in`."""
    place = TopicPartition("in", 0)
    consumer = KafkaConsumer(bootstrap_servers=servers, group_id="charge", enable_auto_commit=False)
    consumer.assign([place])
    consumer.seek_to_beginning(place)
    end = consumer.end_offsets([place])[place]
    while consumer.position(place) < end:
        for record in consumer.poll(100, max_records=1).get(place, []):
            charged.append(record.value)
            try:
                consumer.commit()
            except KafkaError:
                if not correct:  # the twin goes on: the next commit covers this record
                    consumer.seek(place, record.offset)
    consumer.close()


def check(zoo: Zoo, correct: bool) -> None:
    """A commit takes effect, and its answer is an error."""
    zoo.fill("in", b"10 EUR", b"20 EUR")
    zoo.faults.on("OffsetCommit", group="charge").error("UNKNOWN_SERVER_ERROR", after="apply")
    charged: list[bytes] = []
    charge(zoo.servers, charged, correct)
    same(charged, [b"10 EUR", b"20 EUR"])
