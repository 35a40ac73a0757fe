"""Import paths of the client: the public names, and the packages that also export them."""

from __future__ import annotations

import importlib
import pickle

import pytest

from barnabas import client
from barnabas.client import Record, TopicPartition

ALSO_IN = {
    "admin": ["Admin", "NewTopic"],
    "consumer": ["Consumer", "ConsumerConfig"],
    "errors": ["KafkaError", "ProducerFenced"],
    "exactly_once": ["CopyProgress", "NewMessage", "exactly_once"],
    "group": ["RebalanceListener"],
    "producer": ["Producer", "ProducerConfig", "Transaction"],
    "types": ["OffsetAndMetadata", "Record", "RecordMetadata", "TopicPartition"],
}


def test_every_public_name_exists() -> None:
    assert len(set(client.__all__)) == len(client.__all__)
    assert all(hasattr(client, name) for name in client.__all__)


@pytest.mark.parametrize("module", ALSO_IN)
def test_names_are_the_same_in_their_module(module: str) -> None:
    found = importlib.import_module(f"barnabas.client.{module}")
    for name in ALSO_IN[module]:
        assert getattr(found, name) is getattr(client, name)


def test_a_record_is_a_generic_tuple_without_attributes_of_its_own() -> None:
    record = Record[bytes, bytes](7, 1, b"k", b"v", (), "t", 2, 0, 3)
    assert type(record) is Record
    assert record.topic_partition == TopicPartition("t", 2)
    assert record._replace(value=4).value == 4
    assert pickle.loads(pickle.dumps(record)) == record
    assert record == (7, 1, b"k", b"v", (), "t", 2, 0, 3)
    assert not hasattr(record, "__dict__")
