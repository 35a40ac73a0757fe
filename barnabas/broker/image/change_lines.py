"""Log lines about a new metadata image: topics, settings, brokers, leaderships and in-sync replicas.

Invariant: one image writes at most NAMED_MAX lines of each kind that names a topic or partition; more of them become one line with their
number. So a request that creates 10,000 partitions writes a few lines. The slices are the same at every level of the log, so that a
simulated run does not depend on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Final

from barnabas.broker.config.key import shown_address
from barnabas.broker.config.server_keys import is_per_broker
from barnabas.broker.image.image import (
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    NO_LEADER,
    PARTITIONS_PER_UNIT,
    TOPIC_RESOURCE,
    MetadataDelta,
    MetadataImage,
    PartitionImage,
)
from barnabas.loggers import logger
from barnabas.work import Work

log = logger("kafka.server.metadata")
state_log = logger("state.change.logger")

NAMED_MAX: Final = 5  # of one image and one kind; more are counted
SETTINGS_MAX: Final = 20  # of one resource in a line
_KINDS: Final = {
    TOPIC_RESOURCE: "topic",
    BROKER_RESOURCE: "broker",
    CLIENT_METRICS_RESOURCE: "client-metrics",
    GROUP_RESOURCE: "group",
}
_SHOWN: Final = frozenset(
    {TOPIC_RESOURCE, CLIENT_METRICS_RESOURCE, GROUP_RESOURCE}
)  # settings of brokers may be secrets


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
        yield from _log_partitions(node_id, former, image, delta)
        return
    yield from _log_created(image, delta)
    yield from _log_widened(former, image, delta)
    _log_deleted(delta)
    yield from _log_settings(former, image, delta)
    for broker_id in delta.brokers:
        _log_broker(former, image, broker_id)
    if delta.features:
        changed = {name: level for name, level in image.features.items() if former.features.get(name) != level}
        log.info("Features changed: levels=%s", _settings({}, {name: str(level) for name, level in changed.items()}))
    yield from _log_partitions(node_id, former, image, delta)


def _log_created(image: MetadataImage, delta: MetadataDelta) -> Work:
    created = 0
    for count, topic_id in enumerate(delta.created):
        topic = image.topics_by_id.get(topic_id)
        created += topic is not None
        if topic is not None and created <= NAMED_MAX:
            log.info(
                "Topic is created: topic=%s partitions=%d replicas=%d topic_id=%s",
                topic.name,
                len(topic.partitions),
                len(topic.partitions[0].replicas) if topic.partitions else 0,
                topic_id.hex(),
            )
        if count % PARTITIONS_PER_UNIT == 0:
            yield 1
    if created > NAMED_MAX:
        log.info("More topics are created: topics=%d", created - NAMED_MAX)


def _log_deleted(delta: MetadataDelta) -> None:
    for topic in islice(delta.deleted.values(), NAMED_MAX):
        log.info("Topic is deleted: topic=%s partitions=%d", topic.name, len(topic.partitions))
    if len(delta.deleted) > NAMED_MAX:
        log.info("More topics are deleted: topics=%d", len(delta.deleted) - NAMED_MAX)


def _log_widened(former: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> Work:
    widened = 0
    for count, topic_id in enumerate(delta.partitions):
        before, now = former.topics_by_id.get(topic_id), image.topics_by_id.get(topic_id)
        if before is not None and now is not None and len(before.partitions) < len(now.partitions):
            widened += 1
            if widened <= NAMED_MAX:
                log.info(
                    "Partitions are added: topic=%s partitions=%d before=%d",
                    now.name,
                    len(now.partitions),
                    len(before.partitions),
                )
        if count % PARTITIONS_PER_UNIT == 0:
            yield 1
    if widened > NAMED_MAX:
        log.info("Partitions are added to more topics: topics=%d", widened - NAMED_MAX)


def _log_settings(former: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> Work:
    changed = 0
    for count, (kind, name) in enumerate(delta.configs):
        if count % PARTITIONS_PER_UNIT == 0:
            yield 1
        if kind == TOPIC_RESOURCE and (former.topic(name) is None or image.topic(name) is None):
            continue  # settings of a new topic are part of its creation, and those of a deleted one of its deletion
        changed += 1
        if changed <= NAMED_MAX:
            log.info(
                "Settings changed: resource=%s name=%s changes=%s",
                _KINDS.get(kind, str(kind)),
                name or "<default>",
                _settings(former.config(kind, name), image.config(kind, name), values=kind in _SHOWN),
            )
    if changed > NAMED_MAX:
        log.info("More settings changed: resources=%d", changed - NAMED_MAX)


def _settings(before: Mapping[str, str], now: Mapping[str, str], *, values: bool = True) -> str:
    """The settings that differ, as text; "-key" was removed."""
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


class _Changes:
    """Changes of partitions that concern a node, of which the first are named."""

    def __init__(self) -> None:
        self.taken = self.lost = self.shrunk = self.expanded = self.leaderless = 0
        self._named = 0

    def may_name(self) -> bool:
        """Whether the next change has a line of its own."""
        self._named += 1
        return self._named <= NAMED_MAX

    @property
    def more(self) -> bool:
        """Whether there are changes without a line."""
        return self._named > NAMED_MAX


def _log_partitions(node_id: int, former: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> Work:
    changes = _Changes()
    for topic_id, numbers in delta.partitions.items():
        topic, before = image.topics_by_id.get(topic_id), former.topics_by_id.get(topic_id)
        if topic is None:
            continue
        for count, number in enumerate(numbers):
            old = before.partitions[number] if before is not None and number < len(before.partitions) else None
            _log_partition(node_id, (topic.name, number), old, topic.partitions[number], changes)
            if count % PARTITIONS_PER_UNIT == 0:
                yield 1
    if changes.more:
        state_log.info(
            "Partitions changed, in all: leaderships_taken=%d leaderships_lost=%d isr_shrunk=%d isr_expanded=%d leaderless=%d",
            changes.taken,
            changes.lost,
            changes.shrunk,
            changes.expanded,
            changes.leaderless,
        )


def _log_partition(
    node_id: int, which: tuple[str, int], old: PartitionImage | None, new: PartitionImage, changes: _Changes
) -> None:
    led = old is not None and old.leader == node_id
    if new.leader == node_id and (old is None or not led):
        changes.taken += 1
        if changes.may_name():
            state_log.info(
                "Leadership is taken: topic=%s partition=%d leader_epoch=%d isr=%s",
                *which,
                new.leader_epoch,
                _ids(new.isr),
            )
    elif led and new.leader != node_id:
        changes.lost += 1
        if changes.may_name():
            state_log.info(
                "Leadership is lost: topic=%s partition=%d leader_epoch=%d leader=%d",
                *which,
                new.leader_epoch,
                new.leader,
            )
    elif led and old is not None and set(old.isr) != set(new.isr):
        shrunk = len(new.isr) < len(old.isr)
        changes.shrunk, changes.expanded = changes.shrunk + shrunk, changes.expanded + (not shrunk)
        if changes.may_name():
            state_log.info(
                "In-sync replicas changed: topic=%s partition=%d isr=%s before=%s", *which, _ids(new.isr), _ids(old.isr)
            )
    if new.leader == NO_LEADER and old is not None and old.leader != NO_LEADER and node_id in new.replicas:
        changes.leaderless += 1
        if changes.may_name():
            state_log.info("Partition has no leader: topic=%s partition=%d isr=%s", *which, _ids(new.isr))


def _ids(brokers: tuple[int, ...]) -> str:
    return ",".join(map(str, brokers))
