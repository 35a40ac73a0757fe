"""Options of the source: what they mean, and what is refused with which words."""

from __future__ import annotations

import pickle

import pytest

from barnabas.client.net.offsets import EARLIEST, LATEST
from barnabas.client.types import TopicPartition
from barnabas.pipeline.errors import PipelineError
from barnabas.pipeline.options import SourceOptions
from barnabas.pipeline.sink_options import SinkOptions

BASE = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "a"}


def parse(streaming: bool = False, **more: str) -> SourceOptions:
    return SourceOptions.parse(
        BASE | {name.replace("__", "."): value for name, value in more.items()}, streaming=streaming
    )


def test_defaults_of_a_batch() -> None:
    found = parse()
    assert found.subscription.topics == ("a",)
    assert (found.start.everywhere, found.end.everywhere) == (EARLIEST, LATEST)
    assert found.read_committed
    assert found.fail_on_data_loss
    assert found.columns == ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


def test_a_stream_begins_at_the_end() -> None:
    assert parse(streaming=True).start.everywhere == LATEST
    assert parse(streaming=True, startingOffsets="earliest").start.everywhere == EARLIEST


def test_names_in_any_case() -> None:
    found = SourceOptions.parse(
        {"KAFKA.BOOTSTRAP.SERVERS": "h:1", "SubScribe": " a , b,a", "includeheaders": "TRUE", "minpartitions": "5"},
        streaming=False,
    )
    assert found.subscription.topics == ("a", "b")
    assert found.columns[-1] == "headers"
    assert found.min_partitions == 5


def test_offsets_and_times_by_partition() -> None:
    found = parse(startingOffsets='{"a":{"0":23,"1":-2}}', endingOffsetsByTimestamp='{"a":{"0":1000,"1":2000}}')
    assert found.start.at == {TopicPartition("a", 0): 23, TopicPartition("a", 1): EARLIEST}
    assert found.end.by_time
    assert found.end.at[TopicPartition("a", 1)] == 2000
    assert parse(startingTimestamp="5").start.everywhere == 5


@pytest.mark.parametrize("epochs", ['"leader epochs {\\"a\\":{\\"0\\":5}}":{}', '"leader epochs":{"a":{"0":5}}'])
def test_a_stream_begins_at_the_offsets_of_a_checkpoint(epochs: str) -> None:
    found = parse(streaming=True, startingOffsets=f'{{"a":{{"0":23,"1":0}},{epochs}}}').start
    assert found.at == {TopicPartition("a", 0): 23, TopicPartition("a", 1): 0}
    assert found.epochs == {TopicPartition("a", 0): 5}


def test_epochs_of_a_checkpoint_that_cannot_be_read() -> None:
    with pytest.raises(PipelineError, match=r"startingOffsets.*has 'x' for partition 0"):
        parse(streaming=True, startingOffsets='{"a":{"0":23},"leader epochs":{"a":{"0":"x"}}}')
    with pytest.raises(PipelineError, match=r"startingOffsets.*has another form"):
        parse(streaming=True, startingOffsets='{"a":{"0":23},"leader epochs":[5]}')
    with pytest.raises(PipelineError, match=r"startingOffsets.*is no JSON"):
        parse(streaming=True, startingOffsets='{"a":{"0":23},"leader epochs {5":{}}')


def test_columns_in_their_order() -> None:
    assert parse(columns="Value, offset").columns == ("value", "offset")


def test_a_pattern_fits_whole_names() -> None:
    del_subscribe = {"kafka.bootstrap.servers": "h", "subscribePattern": "a.*|b"}
    found = SourceOptions.parse(del_subscribe, streaming=False).subscription
    assert [name for name in ("a", "abc", "b", "bc", "xa") if found.matches(name)] == ["a", "abc", "b"]


REFUSED = [
    ({"kafka__bootstrap__servers": ""}, r"kafka\.bootstrap\.servers' is missing"),
    ({"kafka__bootstrap__servers": "host:port"}, r"kafka\.bootstrap\.servers.*write host:port"),
    ({"subscribePattern": "b"}, "subscribe and subscribePattern.*contradict.*exactly one"),
    ({"subscribe": " , "}, "subscribe.*names no topic"),
    ({"startingOffset": "earliest"}, "startingoffset.*is not known: write 'startingOffsets'"),
    ({"startingOffsets": "latest"}, "startingOffsets' = 'latest' leaves a batch nothing"),
    ({"startingOffsets": "first"}, "startingOffsets' = 'first' is no JSON"),
    ({"startingOffsets": '{"a":{"0":"x"}}'}, "startingOffsets.*has 'x' for partition 0"),
    ({"startingOffsets": '{"a":{"0":-1}}'}, r"startingOffsets.*has -1 \(latest\)"),
    ({"startingOffsets": '{"a":{"0":-3}}'}, "startingOffsets.*has -3"),
    ({"startingOffsets": '{"a":[0]}'}, "startingOffsets.*has another form"),
    ({"startingOffsets": '{"b":{"0":1}}'}, "startingOffsets' = 'b-0' is not among what is read"),
    ({"startingOffsets": "{}"}, "startingOffsets.*names no partition"),
    ({"startingOffsets": "earliest", "startingTimestamp": "5"}, "startingOffsets and startingTimestamp.*contradict"),
    ({"startingTimestamp": "yesterday"}, "startingTimestamp' = 'yesterday' is out of range or no number"),
    ({"endingOffsets": "earliest"}, "endingOffsets' = 'earliest' leaves"),
    ({"endingOffsets": '{"a":{"0":-2}}'}, "endingOffsets.*-2 .earliest."),
    ({"minPartitions": "0"}, "minPartitions' = '0'.*whole number from 1"),
    ({"failOnDataLoss": "no"}, "failOnDataLoss' = 'no' is neither true nor false"),
    ({"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger.*streams only.*maxRecordsPerPartition"),
    ({"minOffsetsPerTrigger": "5"}, "minOffsetsPerTrigger.*streams only"),
    ({"maxTriggerDelay": "1m"}, "maxTriggerDelay.*streams only"),
    ({"minPartitions": "5", "maxPartitions": "4"}, "minPartitions' = '5' is more than 'maxPartitions'.*at most 4"),
    ({"maxPartitions": "4", "maxRecordsPerPartition": "9"}, "maxPartitions.*contradicts 'maxRecordsPerPartition'"),
    ({"path": "a"}, "path.*by 'subscribe'"),
    ({"kafka__auto__offset__reset": "latest"}, r"kafka\.auto\.offset\.reset.*'startingOffsets'"),
    ({"kafka__value__deserializer": "x"}, r"value\.deserializer.*CAST"),
    ({"kafka__sasl__jaas__config": "hunter2"}, r"kafka\.sasl\.jaas\.config' .*needs security\.protocol"),
    ({"kafka__sasl__jaas__confi": "hunter2"}, r"kafka\.sasl\.jaas\.confi' \(its value is not shown\)"),
    ({"kafka__security__protocol": "TLS"}, r"security\.protocol' .*'TLS' is none of PLAINTEXT, SSL"),
    ({"kafka__security__protocol": "SASL_SSL"}, r"kafka\.s.*needs sasl\.mechanism: choose from PLAIN"),
    ({"kafka__isolation__level": "serializable"}, r"isolation\.level' = 'serializable' is not known"),
    ({"startingOffsetsByTimestampStrategy": "x"}, "Strategy' = 'x'"),
    ({"columns": "key,valu"}, "columns.*has no column 'valu'"),
    ({"columns": "key,key"}, "columns.*twice"),
    ({"columns": "key", "includeHeaders": "true"}, "columns.*has no headers"),
]


@pytest.mark.parametrize(("options", "words"), REFUSED, ids=lambda each: str(each)[:40])
def test_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(PipelineError, match=words) as raised:
        parse(False, **options)
    assert raised.value.remedy


def test_batches_of_a_stream_have_a_least_size_and_a_longest_delay() -> None:
    assert parse(True).min_offsets_per_trigger is None
    found = parse(True, minOffsetsPerTrigger="5", maxOffsetsPerTrigger="5", maxTriggerDelay="90s")
    assert (found.min_offsets_per_trigger, found.max_trigger_delay_ms) == (5, 90_000)
    with pytest.raises(PipelineError, match="minOffsetsPerTrigger' = '6' is more than 'maxOffsetsPerTrigger'"):
        parse(True, minOffsetsPerTrigger="6", maxOffsetsPerTrigger="5")


@pytest.mark.parametrize(
    ("text", "ms"), [("15m", 900_000), ("2 min", 120_000), ("250", 250), ("250ms", 250), ("1H", 3_600_000)]
)
def test_times_as_spark_writes_them(text: str, ms: int) -> None:
    assert parse(True, maxTriggerDelay=text).max_trigger_delay_ms == ms
    with pytest.raises(PipelineError, match=f"maxTriggerDelay' = '{text}y' is no time"):
        parse(True, maxTriggerDelay=text + "y")


def test_tasks_are_shared_unless_an_option_of_the_connector_makes_the_plan() -> None:
    assert parse(True).shares_tasks
    assert parse(True, minPartitions="2", maxPartitions="9").shares_tasks
    assert not parse(True, minPartitions="2").shares_tasks
    assert not parse(True, maxRecordsPerPartition="2").shares_tasks


def test_a_stream_has_no_end() -> None:
    with pytest.raises(PipelineError, match=r"endingOffsets.*a stream has no end"):
        parse(streaming=True, endingOffsets="latest")


@pytest.mark.parametrize(
    ("value", "words"), [("{}", "names no partition"), ('{"a":{"0":1}}', "another form"), ('{"a":["x"]}', "has 'x'")]
)
def test_partitions_are_assigned_by_json(value: str, words: str) -> None:
    with pytest.raises(PipelineError, match=f"assign.*{words}"):
        SourceOptions.parse({"kafka.bootstrap.servers": "h", "assign": value}, streaming=False)


def test_security_has_the_names_of_kafka_and_is_hidden() -> None:
    """Spark sends the options to other processes, so they can be pickled."""
    jaas = "org.apache.kafka.common.security.scram.ScramLoginModule required username=alice password=planted-secret;"
    given = {
        "kafka.bootstrap.servers": "a:1",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-256",
        "kafka.sasl.jaas.config": jaas,
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": "planted-certificate",
    }
    source = SourceOptions.parse({**given, "subscribe": "a"}, streaming=False)
    sink = SinkOptions.parse({**given, "topic": "a"}, streaming=False)
    for client in (source.client, sink.client):
        assert pickle.loads(pickle.dumps(client)) == client
        assert client.sasl_plain_password == "planted-secret"
        assert client.ssl_properties == {
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": "planted-certificate",
        }
    assert "planted" not in repr(source) + repr(sink)
    assert sink.producer_settings()["sasl_mechanism"] == "SCRAM-SHA-256"


def test_tokens_of_an_identity_provider() -> None:
    keys = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;",
        "sasl.oauthbearer.token.endpoint.url": "http://idp/token",
        "sasl.oauthbearer.client.credentials.client.id": "orders",
        "sasl.oauthbearer.client.credentials.client.secret": "planted-secret",
        "sasl.login.read.timeout.ms": "7",
    }
    given = {"kafka.bootstrap.servers": "a:1", **{f"kafka.{name}": value for name, value in keys.items()}}
    source = SourceOptions.parse({**given, "subscribe": "a"}, streaming=False)
    sink = SinkOptions.parse({**given, "topic": "a"}, streaming=False)
    for client in (source.client, sink.client):
        assert pickle.loads(pickle.dumps(client)) == client
        assert client.sasl_oauth_token_provider is source.client.sasl_oauth_token_provider
        assert repr(client.sasl_oauth_token_provider) == "EndpointTokens(http://idp/token)"
    assert "planted" not in repr(source) + repr(sink)
    del given["kafka.sasl.oauthbearer.client.credentials.client.id"]
    with pytest.raises(PipelineError, match=r"needs sasl\.oauthbearer\.client\.credentials\.client\.id") as refused:
        SourceOptions.parse({**given, "subscribe": "a"}, streaming=False)
    assert "planted" not in str(refused.value)


def test_kerberos_by_the_names_of_kafka() -> None:
    given = {
        "kafka.bootstrap.servers": "a:1",
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "GSSAPI",
        "kafka.sasl.kerberos.service.name": "broker",
        "kafka.sasl.jaas.config": "com.sun.security.auth.module.Krb5LoginModule required useTicketCache=true;",
    }
    client = SourceOptions.parse({**given, "subscribe": "a"}, streaming=False).client
    assert pickle.loads(pickle.dumps(client)) == client
    assert (client.sasl_mechanism, client.sasl_kerberos_service_name) == ("GSSAPI", "broker")
