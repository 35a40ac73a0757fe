"""Bug: records are told apart by topic, partition and offset; in a topic that was deleted and made anew the offsets begin again."""

from __future__ import annotations

from kafka import KafkaConsumer, TopicPartition

from tests.testing_kit.zoo.keeper import Zoo, same

SYMPTOM = "lost"


def load(servers: str, table: dict[object, bytes], correct: bool) -> None:
    """Writes the records of `in` into a table, each once."""
    place = TopicPartition("in", 0)
    consumer = KafkaConsumer(bootstrap_servers=servers, group_id=None)
    consumer.assign([place])
    consumer.seek_to_beginning(place)
    end = consumer.end_offsets([place])[place]
    while consumer.position(place) < end:
        for record in consumer.poll(100).get(place, []):
            key = record.value if correct else (record.topic, record.partition, record.offset)
            table.setdefault(key, record.value)
    consumer.close()


def check(zoo: Zoo, correct: bool) -> None:
    """The topic is deleted and made anew."""
    table: dict[object, bytes] = {}
    zoo.fill("in", b"order 1")
    load(zoo.servers, table, correct)
    zoo.kafka.delete_topics("in")
    zoo.kafka.create_topic("in")
    zoo.fill("in", b"order 2")
    load(zoo.servers, table, correct)
    same(list(table.values()), [b"order 1", b"order 2"])
