"""What a newcomer writes wrong is refused at once, with the right word."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from barnabas.client import IllegalState
from barnabas.testing import Broker, KitError
from barnabas.testing.clients import KitConsumer, KitProducer, Maker, maker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def consumers(broker: Broker) -> Iterator[Maker[KitConsumer]]:
    yield from maker(KitConsumer, broker, {"bootstrap_servers": broker.bootstrap_servers})


@pytest.mark.parametrize(
    ("written", "meant"),
    [("kil", "kill"), ("get_bootstrap_servers", "bootstrap_servers"), ("restart_broker", "stop_broker")],
)
def test_unknown_attributes_of_a_broker(broker: Broker, written: str, meant: str) -> None:
    with pytest.raises(AttributeError, match=f"unknown attribute of Broker '{written}'; did you mean '{meant}'"):
        getattr(broker, written)
    assert not hasattr(broker, "__unknown__")


def test_unknown_attributes_of_faults(broker: Broker) -> None:
    faults: Any = broker.faults
    with pytest.raises(AttributeError, match="unknown attribute of Fault 'eror'; did you mean 'error'"):
        faults.on("Produce").eror("UNKNOWN_SERVER_ERROR")
    broker.faults.clear()


def test_methods_of_other_clients(broker: Broker, consumers: Maker[KitConsumer]) -> None:
    consumer: Any = consumers()
    with pytest.raises(AttributeError, match=r"unknown attribute of KitConsumer 'poll'.*'take'.* coroutine of \.aio"):
        consumer.poll(1)
    settings = {"bootstrap_servers": broker.bootstrap_servers}
    makers = maker(KitProducer, broker, settings)
    producer: Any = next(makers)()
    with pytest.raises(AttributeError, match=r"unknown attribute of KitProducer 'produce'.*'send'"):
        producer.produce("orders", b"tea")
    next(makers, None)


@pytest.mark.parametrize("kind", [KitProducer, KitConsumer])
def test_unknown_options_of_clients(broker: Broker, kind: type) -> None:
    made: Any = Maker(kind, broker, {"bootstrap_servers": broker.bootstrap_servers})
    name = kind.__name__.removeprefix("Kit")
    with pytest.raises(TypeError, match=rf"{name}\(\): unknown option 'client_idd'; did you mean 'client_id'"):
        made(client_idd="x")


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (lambda kafka: kafka.create_topic("a", "3"), "partitions='3': write a whole number from 1"),
        (
            lambda kafka: kafka.create_topic("a", 1, replication_factor="x"),
            "replication_factor='x': write a whole number",
        ),
        (lambda kafka: kafka.create_topic("a", config=[1]), r"config=\[1\]: write a dict of Kafka's settings"),
        (lambda kafka: kafka.delete_topics(["a"]), r"delete_topics\(\['a'\]\): write each name as text"),
        (lambda kafka: kafka.leader("a", "0"), "partition='0': write a whole number from 0"),
        (
            lambda kafka: kafka.faults.on("EndTxn", strict=False).drop().wait("2"),
            "wait: hits='2': write a whole number",
        ),
        (lambda kafka: kafka.faults.load(3), r"load\(3\): write the path of a file of faults"),
        (lambda kafka: type(kafka).connect(None), "bootstrap_servers=None: write HOST:PORT"),
        (lambda kafka: type(kafka).connect(" "), "bootstrap_servers=' ': write HOST:PORT"),
    ],
)
def test_values_of_another_type(broker: Broker, written: Callable[[Any], object], text: str) -> None:
    with pytest.raises(KitError, match=text):
        written(broker)
    broker.faults.clear()


def test_wrong_numbers_of_records(consumers: Maker[KitConsumer]) -> None:
    take: Any = consumers().take
    with pytest.raises(KitError, match="take: count='1': write a whole number from 0"):
        take("1")
    with pytest.raises(KitError, match="take: timeout='x': write a number of seconds from 0, at most 86,400"):
        take(1, timeout="x")


def test_a_consumer_that_reads_nothing_says_so(consumers: Maker[KitConsumer]) -> None:
    with pytest.raises(IllegalState, match=r"not subscribed to any topics .* call subscribe\(\) or assign\(\)"):
        consumers(group_id="nothing").take(1, timeout=0.1)


def test_wrong_topics(broker: Broker) -> None:
    create: Any = broker.create_topic
    with pytest.raises(TypeError, match="unknown option 'partition'; did you mean 'partitions'"):
        create("orders", partition=3)
    with pytest.raises(KitError, match=r"a topic name must be a str, not \['orders'\]"):
        create(["orders"])
    assert broker.topics() == []
