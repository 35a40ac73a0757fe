"""The kit's command that gives a node a release of Kafka (`versions.py`), before it starts. `node_commands.py` has its name."""

from __future__ import annotations

from barnabas.broker.controller.core.features import FEATURES, METADATA_VERSION
from barnabas.broker.image.records import FeatureLevelRecord, encode_record
from barnabas.broker.quorum.core.snapshots import BOOTSTRAP, encode_snapshot
from barnabas.ports import Disk
from barnabas.testing.node_host import NodeHost
from barnabas.testing.versions import Release, kafka_release


def set_release(host: NodeHost, name: str) -> None:
    """Before the start of the node: it serves clients as this release does."""
    host.release = kafka_release(name)
    _format(host.disks[0], host.release)


def _format(disk: Disk, limits: Release) -> None:
    """Writes the feature levels of a new cluster, as Kafka's storage tool does. A disk that has them keeps them."""
    if disk.exists(BOOTSTRAP):
        return
    levels = {name: each.initial for name, each in FEATURES.items()}
    levels.update({name: 0 for name in levels if name != METADATA_VERSION})
    levels.update({name: each[2] for name, each in limits.features.items() if name != METADATA_VERSION})
    records = [FeatureLevelRecord(name=name, feature_level=level) for name, level in levels.items() if level > 0]
    values = [encode_record(each) for each in records]
    disk.replace(BOOTSTRAP, encode_snapshot(values, epoch=0, last_timestamp_ms=0, now_ms=0))
