"""Spark over SASL_SSL: an exactly-once stream from topic to topic, a batch, an export; and secrets stay out of plans and checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra `pipeline` is not installed")

from barnabas.client import Admin, NewTopic, Producer
from barnabas.pipeline import BarnabasDataSource
from barnabas.pipeline.export import export_topics
from tests.support.pipeline.committed import committed
from tests.support.processes.served import ServedBroker
from tests.support.security.certificates import CertificateAuthority

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PASSWORD = "planted-secret"
LOGIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
ROWS = 20


@pytest.fixture
def secured(tmp_path: Path, ca: CertificateAuthority) -> Iterator[ServedBroker]:
    """One node whose only listener is SASL_SSL."""
    settings = {
        "listeners": "SASL_SSL://127.0.0.1:0",
        "inter.broker.listener.name": "SASL_SSL",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": f'{LOGIN_MODULE} required user_alice="{PASSWORD}";',
        **ca.issue("spark").by_file(),
    }
    running = ServedBroker(tmp_path / "data", *(f"{k}={v}" for k, v in settings.items()), listens=False).start()
    yield running
    running.end()


def test_a_copy_over_sasl_ssl(
    spark: SparkSession, secured: ServedBroker, ca: CertificateAuthority, tmp_path: Path
) -> None:
    spark.dataSource.register(BarnabasDataSource)
    client: dict[str, Any] = {
        "bootstrap_servers": secured.address,
        "security_protocol": "SASL_SSL",
        "ssl_cafile": str(ca.certificate),
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "alice",
        "sasl_plain_password": PASSWORD,
    }
    properties = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{LOGIN_MODULE} required username="alice" password="{PASSWORD}";',
        **ca.truststore_inline(),
    }
    options = {"kafka.bootstrap.servers": secured.address, **{f"kafka.{k}": v for k, v in properties.items()}}

    async def create() -> None:
        async with Admin(**client) as admin:
            await admin.create_topics([NewTopic("source", 1), NewTopic("target", 1)])
        async with Producer(**client) as producer:
            for number in range(ROWS):
                await producer.send("source", b"%d" % number)

    asyncio.run(create())
    wanted = [b"%d" % number for number in range(ROWS)]
    checkpoint = tmp_path / "checkpoint"
    reading = spark.readStream.format("barnabas").options(**options, subscribe="source", startingOffsets="earliest")
    frame = reading.load()
    query = (
        frame.select("value")
        .writeStream.format("barnabas")
        .options(**options, **{"topic": "target", "sink.id": "secured", "checkpointLocation": str(checkpoint)})
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    assert asyncio.run(committed(client, "target")) == wanted
    batch = spark.read.format("barnabas").options(**options, subscribe="target").load()
    assert batch.count() == ROWS
    plan = batch._jdf.queryExecution().toString()
    files = b"".join(each.read_bytes() for each in checkpoint.rglob("*") if each.is_file())
    assert PASSWORD not in plan
    assert PASSWORD.encode() not in files
    assert PASSWORD not in str(query.lastProgress)
    exported = export_topics(lambda: spark, secured.address, ["target"], tmp_path / "files", properties=properties)
    assert exported.rows == ROWS
    wrong = {**options, "kafka.sasl.jaas.config": properties["sasl.jaas.config"].replace(PASSWORD, "planted-wrong")}
    refused = spark.read.format("barnabas").options(**wrong, subscribe="target").load()
    with pytest.raises(Exception, match=r"does not open the cluster: .*PLAIN: the broker refused the login") as error:
        refused.count()
    assert "planted" not in str(error.value)
