"""Decisions about configurations. Codes and words are those of Apache Kafka 4.3.1 for the same requests."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.broker.controller.core.config_remarks import remarks_on_change
from barnabas.broker.controller.core.configs import ConfigOperation, alter_configs, incremental_alter_configs
from barnabas.broker.image.image import MetadataImage
from barnabas.broker.image.records import ClearElrRecord, ConfigRecord, FeatureLevelRecord, MetadataRecord
from barnabas.errors import ErrorCode
from barnabas.protocol.messages.admin import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsRequestConfig,
    AlterConfigsRequestResource,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.support.broker.metadata_images import cluster, replayed, view, with_topic

SET, DELETE, APPEND, SUBTRACT = ConfigOperation
TOPIC, BROKER, GROUP = 2, 4, 32
Change = tuple[str, str | None, int]


def orders() -> MetadataImage:
    return with_topic(cluster(), "orders", bytes(15) + b"a", ([1], [1], 1))


def alter(
    image: MetadataImage, kind: int, name: str, *changes: Change, validate_only: bool = False
) -> tuple[int, str | None, list[MetadataRecord]]:
    configs = [AlterableConfig(name=key, value=value, config_operation=op) for key, value, op in changes]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    decision = incremental_alter_configs(view(image), request)
    (response,) = decision.answer.responses
    assert (response.resource_type, response.resource_name) == (kind, name)
    return response.error_code, response.error_message, list(decision.records)


def settings(*steps: Change) -> dict[str, str]:
    image = orders()
    for step in steps:
        code, message, records = alter(image, TOPIC, "orders", step)
        assert code == 0, message
        image = replayed(image, records)
    return dict(image.topic_config("orders"))


def test_set_and_delete() -> None:
    assert settings(("retention.ms", "5", SET), ("segment.ms", "7", SET)) == {"retention.ms": "5", "segment.ms": "7"}
    assert settings(("retention.ms", "5", SET), ("retention.ms", "whatever", DELETE)) == {}


def test_append_and_subtract_start_from_the_value_that_holds() -> None:
    assert settings(("cleanup.policy", "compact", APPEND)) == {"cleanup.policy": "delete,compact"}
    assert settings(("cleanup.policy", "delete", APPEND)) == {"cleanup.policy": "delete"}
    steps: list[Change] = [("cleanup.policy", "compact", SET), ("cleanup.policy", "delete", APPEND)]
    assert settings(*steps) == {"cleanup.policy": "compact,delete"}
    assert settings(*steps, ("cleanup.policy", "delete,compact", SUBTRACT)) == {"cleanup.policy": ""}


def test_a_value_does_not_grow_beyond_what_a_record_holds() -> None:
    """A record of the metadata log with a longer value could be read by no node, at the next start either."""
    key = "follower.replication.throttled.replicas"
    first, second = (",".join(f"{n}:1" for n in range(start, start + 4_000)) for start in (1_000, 5_000))
    image = replayed(orders(), alter(orders(), TOPIC, "orders", (key, first, SET))[2])
    code, message, records = alter(image, TOPIC, "orders", (key, second, APPEND))
    assert (code, records) == (ErrorCode.INVALID_CONFIG, [])
    assert message is not None
    assert "exceeds the maximum value size of 32767 bytes" in message
    assert image.topic_config("orders")[key] == first
    assert alter(image, TOPIC, "orders", (key, "9999:1", APPEND))[0] == 0


def test_only_what_changes_is_written() -> None:
    image = replayed(orders(), alter(orders(), TOPIC, "orders", ("retention.ms", "5", SET))[2])
    assert alter(image, TOPIC, "orders", ("retention.ms", "5", SET)) == (0, None, [])
    assert alter(image, TOPIC, "orders", ("segment.ms", None, DELETE)) == (0, None, [])
    assert alter(image, TOPIC, "orders", ("nope", None, DELETE)) == (0, None, [])
    assert alter(image, TOPIC, "orders", ("retention.ms", "6", SET), validate_only=True) == (0, None, [])
    assert alter(image, TOPIC, "orders") == (0, None, [])


@pytest.mark.parametrize(
    ("kind", "name", "changes", "code", "message"),
    [
        (TOPIC, "nope", [("retention.ms", "5", SET)], 3, "The topic 'nope' does not exist."),
        (TOPIC, "", [("retention.ms", "5", SET)], 42, "Default topic resources are not allowed."),
        (TOPIC, "..", [("retention.ms", "5", SET)], 17, "Topic name is invalid: '..' is not allowed"),
        (TOPIC, "orders", [("nope", "5", SET)], 40, "Unknown topic config name: nope"),
        (TOPIC, "orders", [("retention.ms", "5", SET), ("nope", "5", SET)], 40, "Unknown topic config name: nope"),
        (
            TOPIC, "orders", [("retention.ms", "5", APPEND)], 40,
            "Can't APPEND to key retention.ms because its type is not LIST.",
        ),
        (
            TOPIC, "orders", [("retention.ms", "5", SET), ("retention.ms", "6", SET)], 42,
            "Error due to duplicate config keys",
        ),
        (TOPIC, "orders", [("retention.ms", None, SET)], 42, "Null value not supported for : retention.ms"),
        (
            TOPIC, "orders", [("cleanup.policy", "bogus", APPEND)], 40,
            "Invalid value bogus for configuration cleanup.policy: String must be one of: compact, delete",
        ),
        (
            TOPIC, "orders", [("max.compaction.lag.ms", "5", SET), ("min.compaction.lag.ms", "10", SET)], 40,
            "conflict topic config setting min.compaction.lag.ms (10) > max.compaction.lag.ms (5)",
        ),
        (TOPIC, "orders", [("retention.ms", "5", 7)], 42, "Unknown config operation 7"),
        (BROKER, "1", [("log.dirs", "/x", SET)], 42, "Cannot update these configs dynamically: [log.dirs]"),
        (BROKER, "", [("num.partitions", "4", SET)], 42, "Cannot update these configs dynamically: [num.partitions]"),
        (
            BROKER, "", [("sasl.jaas.config", "x", SET), ("listener.name.a.sasl.jaas.config", "x", SET)], 42,
            "Cannot update these configs at default cluster level, broker id must be specified: "
            "[sasl.jaas.config, listener.name.a.sasl.jaas.config]",
        ),
        (
            BROKER, "", [("log.cleaner.threads", "x", SET)], 42,
            "Invalid value x for configuration log.cleaner.threads: Not a number of type INT",
        ),
        (
            BROKER, "1", [("log.segment.bytes", "20", SET)], 42,
            "Invalid value 20 for configuration log.segment.bytes: Value must be at least 1048576",
        ),
        (
            BROKER, "", [("min.insync.replicas", None, DELETE)], 40,
            "Cluster-level min.insync.replicas cannot be removed while ELR is enabled.",
        ),
        (
            BROKER, "1", [("min.insync.replicas", "2", SET)], 40,
            "Broker-level min.insync.replicas cannot be altered while ELR is enabled.",
        ),
        (BROKER, "", [("min.insync.replicas", "0", SET)], 42,
            "Invalid value 0 for configuration min.insync.replicas: Value must be at least 1"),
        (8, "", [("x", "y", SET)], 42, "Unknown resource type 8"),
    ],
)  # fmt: skip
def test_refusals_are_kafkas_and_write_nothing(
    kind: int, name: str, changes: list[Change], code: int, message: str
) -> None:
    assert alter(orders(), kind, name, *changes) == (code, message, [])


@pytest.mark.parametrize("broker", ["1", ""], ids=["one broker", "all brokers"])
def test_every_setting_of_brokers_can_be_deleted(broker: str) -> None:
    """Also one that cannot be set any more: an earlier version may have accepted it."""
    for name in ("log.dirs", "ssl.keystore.location", "sasl.jaas.config", "listener.name.a.ssl.client.auth"):
        old, gone = (
            ConfigRecord(resource_type=BROKER, resource_name=broker, name=name, value=value) for value in ("x", None)
        )
        assert alter(replayed(orders(), [old]), BROKER, broker, (name, None, DELETE)) == (0, None, [gone])


def test_a_limit_of_a_listener_is_set_for_all_brokers() -> None:
    assert alter(orders(), BROKER, "", ("listener.name.a.max.connections", "9", SET))[0] == 0


def test_brokers_keep_keys_that_nobody_knows() -> None:
    code, _, records = alter(orders(), BROKER, "1", ("some.plugin.key", "x", SET))
    assert code == 0
    assert replayed(orders(), records).broker_config(1) == {"some.plugin.key": "x"}


def test_another_min_isr_forgets_the_eligible_leaders() -> None:
    def cleared(records: list[MetadataRecord]) -> list[str]:
        return [record.topic_name for record in records if isinstance(record, ClearElrRecord)]

    assert cleared(alter(orders(), TOPIC, "orders", ("min.insync.replicas", "2", SET))[2]) == ["orders"]
    assert cleared(alter(orders(), BROKER, "", ("min.insync.replicas", "2", SET))[2]) == [""]
    assert cleared(alter(orders(), BROKER, "", ("min.insync.replicas", "1", SET))[2]) == []
    assert cleared(alter(orders(), TOPIC, "orders", ("retention.ms", "2", SET))[2]) == []


def test_without_eligible_leaders_a_broker_may_have_its_own_min_isr() -> None:
    image = replayed(orders(), [FeatureLevelRecord(name="eligible.leader.replicas.version", feature_level=0)])
    assert alter(image, BROKER, "1", ("min.insync.replicas", "2", SET))[0] == 0


def test_each_resource_is_decided_by_itself_and_a_repeated_one_not_at_all() -> None:
    def resource(kind: int, name: str, *changes: Any) -> AlterConfigsResource:
        configs = [AlterableConfig(name=key, value=value, config_operation=SET) for key, value in changes]
        return AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)

    request = IncrementalAlterConfigsRequest(
        resources=[
            resource(TOPIC, "orders", ("retention.ms", "5")),
            resource(TOPIC, "nope", ("retention.ms", "5")),
            resource(BROKER, "1", ("log.retention.ms", "5")),
            resource(BROKER, "1", ("log.retention.ms", "6")),
        ]
    )
    decision = incremental_alter_configs(view(orders()), request)
    assert [response.error_code for response in decision.answer.responses] == [0, 3, 42]
    assert len(decision.records) == 1


def test_dynamic_settings_that_promise_what_is_not_served_are_refused() -> None:
    for name, value in (
        ("ssl.keystore.location", "/k"),  # served, with the prefix of a listener
        ("sasl.login.class", "x.Y"),
        ("config.providers", "f"),
    ):
        code, message, records = alter(orders(), BROKER, "1", (name, value, SET))
        assert (code, records) == (ErrorCode.INVALID_REQUEST, [])
        assert message is not None
        assert name in message
    code, message, _ = alter(orders(), GROUP, "g", ("share.auto.offset.reset", "earliest", SET))
    assert (code, message) == (
        ErrorCode.INVALID_CONFIG,
        "Unknown group config name: share.auto.offset.reset (share groups are not served)",
    )


def test_one_remark_for_each_key_without_effect() -> None:
    records = [
        *alter(orders(), TOPIC, "orders", ("preallocate", "true", SET), ("retention.ms", "5", SET))[2],
        ConfigRecord(resource_type=TOPIC, resource_name="more", name="preallocate", value="true"),
        ConfigRecord(resource_type=TOPIC, resource_name="gone", name="preallocate", value=None),
        *alter(orders(), BROKER, "1", ("num.io.threads", "4", SET), ("log.initial.task.delay.ms", "4", SET))[2],
    ]
    assert remarks_on_change(records) == [
        "setting 'preallocate' of topic 'orders' and 1 more has no effect here: segments grow as they are written",
        "setting 'num.io.threads' of broker '1' has no effect here: one event loop does this work",
        "setting 'log.initial.task.delay.ms' of broker '1' has no effect here: it is for tests of Kafka itself",
    ]
    assert remarks_on_change(alter(orders(), TOPIC, "orders", ("retention.ms", "5", SET))[2]) == []


def test_the_keys_of_one_resource_are_decided_in_slices() -> None:
    names = [f"key{number}" for number in range(10_000)]
    altered = AlterConfigsResource(
        resource_type=TOPIC,
        resource_name="orders",
        configs=[AlterableConfig(name=name, config_operation=SET, value="1") for name in names],
    )
    replaced = AlterConfigsRequestResource(
        resource_type=TOPIC,
        resource_name="orders",
        configs=[AlterConfigsRequestConfig(name=name, value="1") for name in names],
    )
    for work in (
        incremental_alter_configs.in_slices(view(orders()), IncrementalAlterConfigsRequest(resources=[altered])),
        alter_configs.in_slices(view(orders()), AlterConfigsRequest(resources=[replaced])),
    ):
        units = [step for step in work if isinstance(step, int)]
        assert max(units) <= 2
        assert len(units) > 2 * 10_000 // 4
