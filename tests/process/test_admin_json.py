"""The JSON of config, partition, quorum, log-dirs, records, features, broker, storage and dump has the keys that docs/cli.md lists."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from barnabas.testing import Cluster
from tests.support.json_keys import documented, fitting, paths
from tests.support.processes.cli import called

pytestmark = pytest.mark.process

OURS = ("config", "quota", "partition", "quorum", "log-dirs", "records", "features", "broker", "storage", "dump")
# Keys whose lists are empty here: nothing is damaged, no reassignment is in progress, and a path of one is not an object.
NOT_HERE = {
    "dump": {"headers[][]", "error", "key.*", "value"},
    "partition list": {"[].adding_replicas[]", "[].removing_replicas[]"},
    "storage info": {
        *(f"[].metadata.{each}" for each in ("leader_epoch", "leader_id", "metadata_version", "topics")),
        *(f"[].metadata.snapshots[].{each}" for each in ("end_offset", "epoch")),
        *(
            f"[].{where}.{each}"
            for where in ("metadata", "partitions[]")
            for each in (
                "topic",
                "partition",
                "topic_id",
                "segments",
                "size_bytes",
                "index_bytes",
                "log_start_offset",
                "recovery_point",
                "high_watermark",
                "log_end_offset",
                "leader_epochs[].epoch",
                "leader_epochs[].start_offset",
                "producer_snapshots[]",
                "problems.*",
            )
        ),
        "[].problems.*",
        "[].aside[]",
    },
    "quorum describe": {"observers[].node_id", "observers[].directory_id", "observers[].endpoints[]"},
}


def found_keys(folder: Path) -> dict[str, set[str]]:
    """The paths of each command's JSON, by the name of the command."""
    found = {}
    with Cluster(brokers=2) as cluster:
        at = ("-b", cluster.bootstrap_servers)
        cluster.create_topic("menu", partitions=2)
        assert called("partition", "reassign", "menu:0=1", "menu:1=1", "--wait", "--every", "0.1", *at).returncode == 0
        calls: dict[str, tuple[str, ...]] = {
            "config alter": ("topic", "menu", "flush.ms=9", *at),
            "config describe": ("topic", "menu", "--documentation", *at),
            "config list": at,
            "config delete": ("topic", "menu", "flush.ms", *at),
            "quota set": ("--user", "alice", "producer_byte_rate=1MB/s", *at),
            "quota list": at,
            "quota remove": ("--user", "alice", "--all", *at),
            "partition list": at,
            "partition balance": ("--replicas", *at),
            "partition reassign": ("menu:0=2", *at),
            "partition reassign --verify": ("menu:0=1", *at),
            "partition reassign --generate": ("--topic", "menu", *at),
            "partition elect": ("menu:1", *at),
            "quorum describe": at,
            "quorum replication": at,
            "log-dirs": at,
            "records delete": ("menu:1:0", "--yes", *at),
            "features describe": at,
            "features downgrade": ("transaction.version=1", "--dry-run", *at),
            "broker list": at,
            "storage format": (str(folder / "data"), "--node-id", "1"),
        }
        for name, arguments in calls.items():
            done = called(*name.split(), *arguments, "--json")
            assert done.stdout, (name, done.stderr)
            found[name] = paths(json.loads(done.stdout))
    os.mkdir(folder / "data" / "orders-0")
    os.mkdir(folder / "data" / "backup")
    found["storage info"] = paths(json.loads(called("storage", "info", str(folder / "data"), "--json").stdout))
    found["storage check"] = paths(json.loads(called("storage", "check", str(folder / "data"), "--json").stdout))
    found["dump"] = set()
    for line in called("dump", str(folder / "data"), "--json").stdout.splitlines():
        found["dump"] |= paths(json.loads(line))
    return found


def test_json_has_the_documented_keys(tmp_path: Path) -> None:
    known = {name: keys for name, keys in documented().items() if name.split()[0] in OURS}
    found = found_keys(tmp_path)
    assert known.keys() == found.keys()
    for name, keys in found.items():
        assert fitting(keys, known[name]) | NOT_HERE.get(name, set()) == known[name], name
