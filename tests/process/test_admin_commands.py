"""`barnabas quorum`, `log-dirs`, `features`, `broker` and `records`: what they show, change and refuse."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.client import Producer
from barnabas.testing import Cluster
from tests.support.processes.attempts import attempts
from tests.support.processes.cli import Called, called

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three brokers; the topic `administered` has two partitions and five records in each."""
    with Cluster(brokers=3) as cluster:
        cluster.create_topic("administered", partitions=2)
        asyncio.run(fill(cluster.bootstrap_servers))
        yield cluster


async def fill(bootstrap_servers: str) -> None:
    async with Producer(bootstrap_servers=bootstrap_servers) as producer:
        for number in range(10):
            await producer.send("administered", str(number).encode(), partition=number % 2)
        await producer.flush()


def call(cluster: Cluster, *arguments: str) -> Called:
    return called(*arguments, "-b", cluster.bootstrap_servers)


class TestQuorum:
    def test_description(self, cluster: Cluster) -> None:
        shown = call(cluster, "quorum", "describe", "--json").document
        assert shown["leader_id"] in (1, 2, 3)
        assert shown["high_watermark"] > 0
        assert [each["node_id"] for each in shown["voters"]] == [1, 2, 3]
        assert all(len(each["directory_id"]) == 22 and each["endpoints"] for each in shown["voters"])
        assert f"leader          {shown['leader_id']} in epoch" in call(cluster, "quorum", "describe").stdout

    def test_replication(self, cluster: Cluster) -> None:
        rows = call(cluster, "quorum", "replication", "--json").document
        assert sorted(row["status"] for row in rows) == ["follower", "follower", "leader"]
        assert all(0 <= row["lag"] < 100 for row in rows)
        assert len(call(cluster, "quorum", "replication").rows) == 4

    def test_the_port_of_a_controller_is_recognised(self, cluster: Cluster) -> None:
        endpoint = call(cluster, "quorum", "describe", "--json").document["voters"][0]["endpoints"][0]
        done = called("topic", "list", "-b", endpoint.rpartition("/")[2])
        assert (done.returncode, "is a controller's port; use the address of a broker" in done.stderr) == (1, True), (
            done
        )


class TestLogDirs:
    def test_all_brokers_and_their_replicas(self, cluster: Cluster) -> None:
        shown = call(cluster, "log-dirs", "--topic", "administered", "--json").document
        assert [each["broker"] for each in shown] == [1, 2, 3]
        assert all(len(each["replicas"]) == 2 for each in shown)
        sizes = {replica["size_bytes"] for each in shown for replica in each["replicas"]}
        assert len(sizes) == 1
        assert min(sizes) > 0, "each replica has the same records"
        assert len(call(cluster, "log-dirs", "--broker", "2", "--topic", "administered").rows) == 6

    def test_refusals(self, cluster: Cluster) -> None:
        assert "broker 9 does not serve; these do: 1, 2, 3" in call(cluster, "log-dirs", "--broker", "9").stderr
        assert call(cluster, "log-dirs", "--topic", "missing", "--timeout", "1").returncode == 1


class TestFeatures:
    def test_metadata_version_has_a_name(self, cluster: Cluster) -> None:
        shown = {each["name"]: each for each in call(cluster, "features", "describe", "--json").document}
        assert shown["metadata.version"]["finalized_level_name"] == "4.3-IV0"
        assert shown["transaction.version"]["finalized_level"] == 2
        assert ["metadata.version", "3.3-IV3", "4.3-IV0", "4.3-IV0"] in call(cluster, "features", "describe").rows

    def test_a_feature_goes_down_and_up(self, cluster: Cluster) -> None:
        def level() -> int:
            shown = call(cluster, "features", "describe", "--json").document
            return int(next(each["finalized_level"] for each in shown if each["name"] == "group.version"))

        assert call(cluster, "features", "downgrade", "group.version=0", "--dry-run").returncode == 0
        assert level() == 1
        assert call(cluster, "features", "downgrade", "group.version=0").stdout == "changed group.version: 1 → 0\n"
        assert call(cluster, "features", "upgrade", "group.version=1", "--json").document[0]["before"] == 0

    @pytest.mark.parametrize(
        ("arguments", "code", "said"),
        [
            (("upgrade",), 2, "nothing to change"),
            (("upgrade", "4.3-IV0"), 2, "the cluster has these levels already"),
            (("upgrade", "9.9-IV1"), 2, "'9.9-IV1' is no metadata.version"),
            (("upgrade", "transaction.version=two"), 2, "is not FEATURE=LEVEL"),
            (("upgrade", "x=1", "x=2"), 2, "named twice"),
            (("upgrade", "group.versions=1"), 1, "unknown feature 'group.versions'"),
            (("upgrade", "transaction.version=1"), 1, "`features downgrade` lowers it"),
            (("downgrade", "transaction.version=3"), 1, "`features upgrade` raises it"),
            (("downgrade", "4.2"), 1, "INVALID_UPDATE_VERSION"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
    )
    def test_refusals(self, cluster: Cluster, arguments: tuple[str, ...], code: int, said: str) -> None:
        refused = call(cluster, "features", *arguments)
        assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (code, "", 1)
        assert said in refused.stderr


class TestBroker:
    def test_racks_are_shown(self) -> None:
        with Cluster(brokers=1, config={"broker.rack": "north-1a"}) as cluster:
            assert [row["rack"] for row in call(cluster, "broker", "list", "--json").document] == ["north-1a"]
            assert re.search(r"127\.0\.0\.1:\d+ +north-1a +serves", call(cluster, "broker", "list").stdout)
            assert [row["rack"] for row in call(cluster, "cluster", "--json").document["brokers"]] == ["north-1a"]
            assert re.search(r"broker 1  127\.0\.0\.1:\d+  rack north-1a\n", call(cluster, "cluster").stdout)

    def test_a_stopped_broker_is_fenced_and_unregistered(self) -> None:
        with Cluster(brokers=4) as cluster:
            cluster.create_topic("held", partitions=4)
            cluster.kill(4)
            for _ in attempts("the session of broker 4 has ended"):
                rows = call(cluster, "broker", "list", "--json").document
                if rows[3]["is_fenced"]:
                    break
            assert [row["is_fenced"] for row in rows] == [False, False, False, True]
            holds = call(cluster, "broker", "unregister", "4", "--yes")
            assert (holds.returncode, "holds replicas of" in holds.stderr) == (1, True)
            listed = call(cluster, "partition", "list", "--internal", "--json").document
            moves = [f"{each['topic']}:{each['partition']}=1,2,3" for each in listed if 4 in each["replicas"]]
            assert call(cluster, "partition", "reassign", *moves, "--wait", "--every", "0.1").returncode == 0
            gone = call(cluster, "broker", "unregister", "4", "--yes")
            assert gone.stdout == "broker 4 is no longer registered\n"
            assert len(call(cluster, "broker", "list", "--json").document) == 3

    def test_refusals(self, cluster: Cluster) -> None:
        assert "broker 2 serves now" in call(cluster, "broker", "unregister", "2", "--yes").stderr
        assert "BROKER_ID_NOT_REGISTERED" in call(cluster, "broker", "unregister", "7", "--yes").stderr


class TestRecords:
    def test_records_below_an_offset_are_deleted(self, cluster: Cluster, tmp_path: Path) -> None:
        shown = call(cluster, "records", "delete", "administered:0:2", "--dry-run", "--json").document
        assert [(row["records"], row["low_watermark"]) for row in shown] == [(2, None)]
        done = call(cluster, "records", "delete", "administered:0:2", "--yes", "--json").document
        assert [(row["log_start_offset"], row["low_watermark"]) for row in done] == [(0, 2)]
        file = tmp_path / "offsets.json"
        entries = [{"topic": "administered", "partition": number, "offset": -1} for number in (0, 1)]
        file.write_text(json.dumps({"partitions": entries, "version": 1}))
        done = call(cluster, "records", "delete", "--file", str(file), "--yes", "--json").document
        assert [(row["records"], row["low_watermark"]) for row in done] == [(3, 5), (5, 5)]

    @pytest.mark.parametrize(
        ("arguments", "code", "said"),
        [
            ((), 2, "nothing to delete"),
            (("administered:0:0",), 2, "give --yes"),
            (("administered:0",), 2, "is not TOPIC:PARTITION:OFFSET"),
            (("administered:0:-2", "--yes"), 2, "is not TOPIC:PARTITION:OFFSET"),
            (("administered:0:1", "administered:0:2"), 2, "administered:0 is named twice"),
            (("--file", "/nowhere.json"), 2, "cannot read /nowhere.json"),
            (("missing:0:1", "--yes", "--timeout", "0.5"), 1, "UNKNOWN_TOPIC_OR_PARTITION"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
    )
    def test_refusals(self, cluster: Cluster, arguments: tuple[str, ...], code: int, said: str) -> None:
        refused = call(cluster, "records", "delete", *arguments)
        assert refused.returncode == code
        assert said in refused.stderr.splitlines()[-1]

    def test_an_offset_above_the_high_watermark_fails(self, cluster: Cluster) -> None:
        refused = call(cluster, "records", "delete", "administered:0:99", "administered:1:0", "--yes", "--json")
        assert refused.returncode == 1
        errors = [row["error"] for row in json.loads(refused.stdout)]
        assert errors == ["OFFSET_OUT_OF_RANGE: the high watermark is 5", None]
