"""What a user reads of a query that fails: the cause is on the first line of Spark's error, without a Python traceback."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra `pipeline` is not installed")

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as F

from barnabas.client import Admin
from barnabas.client.admin import AclBinding, AclOperation, AclResourceType
from barnabas.pipeline.errors import PipelineError, cause_first
from tests.support.pipeline import topics
from tests.support.pipeline.spark_kafka import Kafka, into_parquet, numbers
from tests.support.processes.served import ServedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.clients


@pytest.fixture
def kafka(spark: SparkSession, broker: ServedBroker) -> Kafka:
    return Kafka(spark, broker, "barnabas")


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[ServedBroker]:
    """A broker with a topic `secret` that only alice may read: users without login may not."""
    authorizer = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    running = ServedBroker(tmp_path / "data", authorizer, "allow.everyone.if.no.acl.found=true").start()
    topics.new_topic(running.address, name="secret")

    async def protect() -> None:
        async with Admin(bootstrap_servers=running.address) as admin:
            await admin.create_acls([AclBinding(AclResourceType.TOPIC, "secret", "User:alice", AclOperation.READ)])

    asyncio.run(protect())
    yield running
    running.end()


def cause(error: pytest.ExceptionInfo[PySparkException]) -> str:
    """The first line of the message, after Spark's own words."""
    text = str(error.value)
    assert "Traceback" not in text
    return text.removeprefix("An exception was thrown from the Python worker:\n").splitlines()[0]


def test_an_option_at_load(kafka: Kafka) -> None:
    with pytest.raises(AnalysisException) as error:
        kafka.stream(subscribe="a", startingOffset="earliest")
    assert cause(error).endswith("is not known: write 'startingOffsets' if that is meant")
    assert len(str(error.value).splitlines()) <= 2


def test_a_row_above_the_request_size(kafka: Kafka, tmp_path: Path) -> None:
    source, target = topics.new_topic(kafka.bootstrap), topics.new_topic(kafka.bootstrap)
    topics.send(kafka.bootstrap, source, numbers(0, 1))
    row = F.repeat(F.lit("x"), 3_000_000).alias("value")
    stream, batch = kafka.stream(subscribe=source).select(row), kafka.read(subscribe=source).select(row)
    with pytest.raises(PySparkException) as error:
        kafka.write_stream(stream, tmp_path / "checkpoint", topic=target)
    assert "option 'kafka.max.request.size' (a batch of 30000" in cause(error)
    options: dict[str, Any] = {"kafka.bootstrap.servers": kafka.bootstrap, "topic": target}
    with pytest.raises(PySparkException) as error:
        batch.write.format("barnabas").mode("append").options(**options).save()
    assert "is too small: raise it" in cause(error)
    assert topics.read_committed(kafka.bootstrap, target) == []


def test_a_topic_that_this_user_may_not_see(spark: SparkSession, guarded: ServedBroker, tmp_path: Path) -> None:
    stream = Kafka(spark, guarded, "barnabas").stream(subscribe="secret")
    with pytest.raises(PySparkException) as error:
        into_parquet(stream, tmp_path)
    assert "option 'subscribe' = 'secret' names a topic that this user may not see: secret: allow" in cause(error)


def test_other_errors_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    with pytest.raises(ZeroDivisionError), cause_first():
        _ = 1 / 0
    assert os.environ["SPARK_HIDE_TRACEBACK"] == ""
    with pytest.raises(PipelineError), cause_first():
        raise PipelineError("topic", "t", "create it")
    assert os.environ["SPARK_HIDE_TRACEBACK"] == "1"
