"""Requests of administrators, as functions that return what a broker answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from barnabas.broker.config.table import TOPIC_KEYS
from tests.support.oracle.wire import Wire
from tests.support.requests import Fields, request_of

Observe = Callable[[Wire], Any]
COMPARED = sorted(set(TOPIC_KEYS) - {"min.insync.replicas"})  # kafka-up sets that one in server.properties
WRITTEN_MS = int(time.time() * 1000)
SETTLED_SECONDS_MAX = 60


def topic(
    name: str,
    partitions: int = 1,
    replicas: int = 1,
    assigned: Sequence[tuple[int, list[int]]] = (),
    **configs: str | None,
) -> Fields:
    return {
        "name": name,
        "num_partitions": -1 if assigned else partitions,
        "replication_factor": -1 if assigned else replicas,
        "assignments": [{"partition_index": index, "broker_ids": ids} for index, ids in assigned],
        "configs": [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()],
    }


def create(*topics: Fields, validate_only: bool = True) -> Observe:
    def observe(wire: Wire) -> Any:
        answer = wire.call(
            request_of("CreateTopics", topics=list(topics), validate_only=validate_only, timeout_ms=30_000), 7
        )
        return sorted(
            (
                each.name,
                each.error_code,
                each.error_message,
                each.num_partitions,
                each.replication_factor,
                sorted(
                    (config.name, config.value, config.read_only, config.config_source, config.is_sensitive)
                    for config in each.configs or ()
                ),
            )
            for each in answer.topics
        )

    return observe


def delete(*states: Fields) -> Observe:
    def observe(wire: Wire) -> Any:
        answer = wire.call(request_of("DeleteTopics", topics=list(states), timeout_ms=30_000), 6)
        return sorted((each.name or "", each.error_code, each.error_message) for each in answer.responses)

    return observe


def widen(name: str, count: int, assigned: list[list[int]] | None = None) -> Observe:
    assignments = None if assigned is None else [{"broker_ids": ids} for ids in assigned]
    asked = {"name": name, "count": count, "assignments": assignments}

    def observe(wire: Wire) -> Any:
        answer = wire.call(request_of("CreatePartitions", topics=[asked], timeout_ms=30_000), 3)
        return [(each.name, each.error_code, each.error_message) for each in answer.results]

    return observe


def alter(kind: int, name: str, *changes: tuple[str, str | None, int], validate_only: bool = False) -> Observe:
    configs = [{"name": key, "value": value, "config_operation": operation} for key, value, operation in changes]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}

    def observe(wire: Wire) -> Any:
        answer = wire.call(request_of("IncrementalAlterConfigs", resources=[resource], validate_only=validate_only), 1)
        return [(each.resource_name, each.error_code, each.error_message) for each in answer.responses]

    return observe


def describe(kind: int, name: str, *keys: str) -> Observe:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": list(keys) or None}
    request = request_of("DescribeConfigs", resources=[resource], include_synonyms=True)

    def observe_unchanging(wire: Wire) -> Any:
        (result,) = wire.call(request, 4).results
        configs = sorted(
            (
                config.name,
                config.value,
                config.read_only,
                config.config_source,
                config.is_sensitive,
                config.config_type,
                [(each.name, each.value, each.source) for each in config.synonyms],
            )
            for config in result.configs
        )
        return result.error_code, result.error_message, configs

    return observe_unchanging


def replace(*resources: tuple[int, str, dict[str, str | None]], validate_only: bool = False) -> Observe:
    request = request_of(
        "AlterConfigs",
        resources=[
            {
                "resource_type": kind,
                "resource_name": name,
                "configs": [{"name": key, "value": value} for key, value in settings.items()],
            }
            for kind, name, settings in resources
        ],
        validate_only=validate_only,
    )

    def observe(wire: Wire) -> Any:
        answer = wire.call(request, 2)
        return [(one.resource_type, one.resource_name, one.error_code, one.error_message) for one in answer.responses]

    return observe


def update(*updates: tuple[str, int, int], version: int = 2, validate_only: bool = False) -> Observe:
    request = request_of(
        "UpdateFeatures",
        feature_updates=[
            {"feature": name, "max_version_level": level, "upgrade_type": kind} for name, level, kind in updates
        ],
        validate_only=validate_only,
    )

    def observe(wire: Wire) -> Any:
        answer = wire.call(request, version)
        return answer.error_code, answer.error_message, [(each.feature, each.error_code) for each in answer.results]

    return observe


def elect(kind: int, *topics: tuple[str, list[int]]) -> Observe:
    asked = [{"topic": name, "partitions": numbers} for name, numbers in topics]

    def observe(wire: Wire) -> Any:
        answer = wire.call(request_of("ElectLeaders", election_type=kind, topic_partitions=asked), 2)
        return answer.error_code, [
            (each.topic, [(one.partition_id, one.error_code, one.error_message) for one in each.partition_result])
            for each in answer.replica_election_results
        ]

    return observe


def unregister(broker_id: int) -> Observe:
    def observe(wire: Wire) -> Any:
        answer = wire.call(request_of("UnregisterBroker", broker_id=broker_id), 0)
        return answer.error_code, answer.error_message

    return observe


def config_resources(*kinds: int, version: int = 1, of: tuple[int, ...] = (16, 32)) -> Observe:
    """Lists resources; only those of the types `of` are compared, because other tests make topics."""

    def observe_unchanging(wire: Wire) -> Any:
        answer = wire.call(request_of("ListConfigResources", resource_types=list(kinds)), version)
        found = [(each.resource_type, each.resource_name) for each in answer.config_resources]
        types = sorted({kind for kind, _ in found if kind in (2, 4, 8)})
        return answer.error_code, types, sorted(each for each in found if each[0] in of and each[1].startswith("adm."))

    return observe_unchanging


def log_dirs(*topics: tuple[str, list[int]], version: int = 5) -> Observe:
    asked = [{"topic": name, "partitions": numbers} for name, numbers in topics]

    def observe(wire: Wire) -> Any:
        answer = wire.call(request_of("DescribeLogDirs", topics=asked), version)
        (result,) = answer.results
        assert result.log_dir.startswith("/")
        sizes = sorted(
            (topic.name, one.partition_index, one.partition_size, one.offset_lag, one.is_future_key)
            for topic in result.topics
            for one in topic.partitions
        )
        return answer.error_code, result.error_code, result.total_bytes, sizes, result.is_cordoned

    return observe


def producers(name: str, *numbers: int) -> Observe:
    request = request_of("DescribeProducers", topics=[{"name": name, "partition_indexes": list(numbers)}])

    def observe_unchanging(wire: Wire) -> Any:
        (answer,) = wire.call(request, 0).topics
        return answer.name, [
            (
                one.partition_index,
                one.error_code,
                one.error_message,
                sorted(
                    (
                        each.producer_id,
                        each.producer_epoch,
                        each.last_sequence,
                        each.last_timestamp,
                        each.coordinator_epoch,
                        each.current_txn_start_offset,
                    )
                    for each in one.active_producers
                ),
            )
            for one in answer.partitions
        ]

    return observe_unchanging


def write(name: str, producer_id: int, epoch: int, sequence: int, count: int) -> Observe:
    stamp: dict[str, Any] = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence}

    def observe(wire: Wire) -> Any:
        return wire.produce(9, name, 0, [b"x"] * count, timestamp=WRITTEN_MS, **stamp).error_code

    return observe


def delete_records(name: str, partition: int, offset: int) -> Observe:
    wanted = {"partition_index": partition, "offset": offset}
    request = request_of("DeleteRecords", topics=[{"name": name, "partitions": [wanted]}], timeout_ms=5_000)

    def observe(wire: Wire) -> Any:
        (answer,) = wire.call(request, 2).topics[0].partitions
        return answer.low_watermark, answer.error_code

    return observe


def produce(name: str, count: int) -> Observe:
    def observe(wire: Wire) -> Any:
        wire.create_topic(name)
        return wire.produce(9, name, 0, [b"x"] * count).error_code

    return observe
