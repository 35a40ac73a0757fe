"""The marker with `security_protocol`, in pytest runs of its own."""

from __future__ import annotations

import pytest

from tests.support.pytest_runs import plugin

for needed in ("aiokafka", "confluent_kafka", "kafka"):
    pytest.importorskip(needed)

pytest_plugins = ("pytester",)
__all__ = ["plugin"]

LOGIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
PLAINTEXT_LOGIN = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_plain_username": "alice",
    "sasl_plain_password": "planted-secret",
}
MARKED = f"""
import pytest
from barnabas.client import KafkaError

CONFIG = {{
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": '{LOGIN_MODULE} required user_alice="planted-secret";',
}}
LOGIN = {PLAINTEXT_LOGIN!r}

@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.kafka(brokers=2, config=CONFIG, topics={{"orders": 1}}, security_protocol="SASL_PLAINTEXT")
def test_a_login_is_needed(make_kafka_producer, n):
    assert make_kafka_producer(**LOGIN).send("orders", b"tea").offset == 0
    with pytest.raises(KafkaError):
        make_kafka_producer(request_timeout_ms=1000, delivery_timeout_ms=1000).send("orders", b"milk")
"""


def test_a_marker_with_security(pytester: pytest.Pytester) -> None:
    """A cluster of several brokers, which the second test gets from the first."""
    pytester.makepyfile(MARKED)
    pytester.runpytest_inprocess().assert_outcomes(passed=2)


def test_a_marker_with_shared_brokers(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import pytest\n"
        "@pytest.mark.kafka(security_protocol='SSL', isolation='namespace')\n"
        "def test_shared(kafka): pass\n"
    )
    shared = pytester.runpytest_inprocess()
    shared.assert_outcomes(errors=1)
    shared.stdout.fnmatch_lines(["*security_protocol belongs to new brokers*"])


ONE_LINE = """
import asyncio
import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer
from kafka import KafkaProducer
from barnabas.client import KafkaError

@pytest.mark.parametrize("n", range(BROKERS))
@pytest.mark.kafka(topics={"orders": 1}, brokers=BROKERS, security_protocol="PROTOCOL", isolation="ISOLATION")
def test_every_client(n, kafka, kafka_producer, kafka_consumer, make_kafka_producer, kafka_aio_config, kafka_client_config):
    assert kafka_producer.send("orders", b"tea").offset == 0
    librdkafka = Producer(kafka_client_config)
    librdkafka.produce("orders", b"coffee")
    assert librdkafka.flush(30) == 0
    other = KafkaProducer(**kafka_aio_config)
    other.send("orders", b"milk").get(30)
    other.close()

    async def by_aiokafka():
        async with AIOKafkaProducer(**kafka.client_settings) as producer:
            await producer.send_and_wait("orders", b"water")

    asyncio.run(by_aiokafka())
    kafka_consumer.subscribe("orders")
    assert [each.value for each in kafka_consumer.take(4)] == [b"tea", b"coffee", b"milk", b"water"]
    with pytest.raises(KafkaError):
        plain = {"security_protocol": "PLAINTEXT", "ssl_context": None, "sasl_mechanism": None}
        plain |= {"sasl_plain_username": None, "sasl_plain_password": None}
        make_kafka_producer(**plain, request_timeout_ms=1000, delivery_timeout_ms=1000).send("orders", b"wine")
"""


@pytest.mark.parametrize(
    ("protocol", "brokers", "isolation"),
    [("SASL_SSL", 1, "process"), pytest.param("SSL", 2, "cluster", marks=pytest.mark.soak)],
)
def test_a_secured_kafka_by_one_word(
    protocol: str, brokers: int, isolation: str, pytester: pytest.Pytester, plugin: None
) -> None:
    """The kit makes the certificate and the user; every fixture of clients has them."""
    source = ONE_LINE.replace("PROTOCOL", protocol).replace("BROKERS", str(brokers)).replace("ISOLATION", isolation)
    pytester.makepyfile(source)
    pytester.runpytest_inprocess().assert_outcomes(passed=brokers)  # a second test gets the brokers of the first
