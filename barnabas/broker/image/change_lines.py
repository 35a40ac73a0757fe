"""Log lines about a new metadata image. The output of the log limits how many of each kind it writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from barnabas.broker.config.key import shown_address
from barnabas.broker.config.table import is_per_broker
from barnabas.broker.image.image import (
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    NO_LEADER,
    TOPIC_RESOURCE,
    MetadataDelta,
    MetadataImage,
    PartitionImage,
)
from barnabas.loggers import logger
from barnabas.work import Work

log = logger("kafka.server.metadata")
state_log = logger("state.change.logger")

SETTINGS_MAX: Final = 20  # of one resource in a line
_KINDS: Final = {
    TOPIC_RESOURCE: "topic",
    BROKER_RESOURCE: "broker",
    CLIENT_METRICS_RESOURCE: "client-metrics",
    GROUP_RESOURCE: "group",
}


def log_changes(node_id: int, former: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> Work:
    """Writes the lines of the change from `former` to `image`, as the node `node_id` sees it."""
    if (BROKER_RESOURCE, "") in delta.configs:
        ignored = sorted(filter(is_per_broker, image.cluster_config))
        if ignored:
            log.warning(
                "Settings of single brokers that are stored for all brokers are ignored: settings=%s",
                ",".join(ignored[:SETTINGS_MAX]),
            )
    if former.offset < 0:
        log.info(
            "Metadata is loaded: offset=%d topics=%d brokers=%d",
            image.offset,
            len(image.topics_by_id),
            len(image.brokers),
        )
    else:
        yield from _log_topics(former, image, delta)
        yield from _log_settings(former, image, delta)
        for broker_id in delta.brokers:
            _log_broker(former, image, broker_id)
        if delta.features:
            log.info(
                "Features changed: levels=%s", ",".join(f"{name}={level}" for name, level in image.features.items())
            )
    for topic_id, numbers in delta.partitions.items():
        topic, before = image.topics_by_id.get(topic_id), former.topics_by_id.get(topic_id)
        if topic is None:
            continue
        for number in numbers:
            old = before.partitions[number] if before is not None and number < len(before.partitions) else None
            _log_partition(node_id, (topic.name, number), old, topic.partitions[number])
            yield 1


def _log_topics(former: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> Work:
    for topic_id in delta.partitions:
        before, now = former.topics_by_id.get(topic_id), image.topics_by_id.get(topic_id)
        if now is not None and before is None:
            log.info(
                "Topic is created: topic=%s partitions=%d replicas=%d topic_id=%s",
                now.name,
                len(now.partitions),
                len(now.partitions[0].replicas),
                topic_id.hex(),
            )
        elif now is not None and before is not None and len(before.partitions) < len(now.partitions):
            log.info(
                "Partitions are added: topic=%s partitions=%d before=%d",
                now.name,
                len(now.partitions),
                len(before.partitions),
            )
        yield 1
    for topic in delta.deleted.values():
        log.info("Topic is deleted: topic=%s partitions=%d", topic.name, len(topic.partitions))
        yield 1


def _log_settings(former: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> Work:
    for kind, name in delta.configs:
        yield 1
        if kind == TOPIC_RESOURCE and (former.topic(name) is None or image.topic(name) is None):
            continue  # settings of a new topic are part of its creation, and those of a deleted one of its deletion
        log.info(
            "Settings changed: resource=%s name=%s changes=%s",
            _KINDS.get(kind, str(kind)),
            name or "<default>",
            _settings(former.config(kind, name), image.config(kind, name), values=kind != BROKER_RESOURCE),
        )


def _settings(before: Mapping[str, str], now: Mapping[str, str], *, values: bool) -> str:
    """The settings that differ, as text; "-key" was removed. Those of brokers are shown without values: they may be secrets."""
    found = [f"{key}={value}" if values else key for key, value in now.items() if before.get(key) != value]
    found += [f"-{key}" for key in before if key not in now]
    more = f" and {len(found) - SETTINGS_MAX} more" if len(found) > SETTINGS_MAX else ""
    return ",".join(found[:SETTINGS_MAX]) + more


def _log_broker(former: MetadataImage, image: MetadataImage, broker_id: int) -> None:
    before, now = former.brokers.get(broker_id), image.brokers.get(broker_id)
    if now is None:
        log.info("Broker is unregistered: broker=%d", broker_id)
        return
    if before is None or before.epoch != now.epoch:
        addresses = ",".join(f"{point.name}://{shown_address(point.host, point.port)}" for point in now.end_points)
        log.info("Broker is registered: broker=%d epoch=%d addresses=%s", broker_id, now.epoch, addresses)
    if before is not None and before.fenced != now.fenced:
        if now.fenced:
            log.info("Broker is fenced: broker=%d epoch=%d", broker_id, now.epoch)
        else:
            log.info("Broker is unfenced: broker=%d epoch=%d", broker_id, now.epoch)
    if now.in_controlled_shutdown and not (before is not None and before.in_controlled_shutdown):
        log.info("Broker shuts down: broker=%d epoch=%d", broker_id, now.epoch)


def _log_partition(node_id: int, which: tuple[str, int], old: PartitionImage | None, new: PartitionImage) -> None:
    led = old is not None and old.leader == node_id
    if new.leader == node_id and not led:
        state_log.info(
            "Leadership is taken: topic=%s partition=%d leader_epoch=%d isr=%s",
            *which,
            new.leader_epoch,
            _ids(new.isr),
        )
    elif led and new.leader != node_id:
        state_log.info(
            "Leadership is lost: topic=%s partition=%d leader_epoch=%d leader=%d", *which, new.leader_epoch, new.leader
        )
    elif led and old is not None and set(old.isr) != set(new.isr):
        state_log.info(
            "In-sync replicas changed: topic=%s partition=%d isr=%s before=%s", *which, _ids(new.isr), _ids(old.isr)
        )
    if new.leader == NO_LEADER and old is not None and old.leader != NO_LEADER and node_id in new.replicas:
        state_log.info("Partition has no leader: topic=%s partition=%d isr=%s", *which, _ids(new.isr))


def _ids(brokers: tuple[int, ...]) -> str:
    return ",".join(map(str, brokers))
