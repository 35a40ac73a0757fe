"""Our administration commands beside Kafka's: the same answers about our cluster, and the same effects on a real Kafka."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.testing import Cluster
from tests.support.oracle.real_kafka import needs_java
from tests.support.oracle.tools import tool
from tests.support.processes.attempts import attempts
from tests.support.processes.cli import Called, called

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    needs_java("no tools of Kafka")
    with Cluster(brokers=3) as cluster:
        cluster.create_topic("compared", partitions=2, replication_factor=2)
        written = called("produce", "compared", "-b", cluster.bootstrap_servers, stdin="a\nb\n")
        assert written.returncode == 0
        yield cluster


def ours(cluster: Cluster, *arguments: str) -> Any:
    return called(*arguments, "--json", "-b", cluster.bootstrap_servers).document


class TestOurCluster:
    def test_configs(self, cluster: Cluster) -> None:
        settings = ("retention.ms=77000", "cleanup.policy=compact,delete")
        assert (
            called("config", "alter", "topic", "compared", *settings, "-b", cluster.bootstrap_servers).returncode == 0
        )
        entity = ("--entity-type", "topics", "--entity-name", "compared")
        at = ("--bootstrap-server", cluster.bootstrap_servers)
        theirs = tool("kafka.admin.ConfigCommand", *at, "--describe", "--all", *entity)
        found = {
            name: (value, synonyms)
            for name, value, synonyms in re.findall(r"^  (\S+)=(.*) sensitive=false synonyms=\{(.*)\}$", theirs, re.M)
        }
        shown = ours(cluster, "config", "describe", "topic", "compared", "--all")["configs"]
        assert {
            each["name"]: (
                "null" if each["value"] is None else each["value"],
                ", ".join(f"{one['source']}:{one['name']}={one['value']}" for one in each["synonyms"]),
            )
            for each in shown
        } == found

    def test_quorum(self, cluster: Cluster) -> None:
        theirs = tool("MetadataQuorumCommand", "--bootstrap-server", cluster.bootstrap_servers, "describe", "--status")
        status = dict(re.findall(r"^(\w+):\s+(.*)$", theirs, re.M))
        shown = ours(cluster, "quorum", "describe")
        assert status["ClusterId"] == shown["cluster_id"]
        assert (int(status["LeaderId"]), int(status["LeaderEpoch"])) == (shown["leader_id"], shown["leader_epoch"])
        assert int(status["HighWatermark"]) <= shown["high_watermark"]
        assert [
            {"id": each["node_id"], "directoryId": each["directory_id"], "endpoints": each["endpoints"]}
            for each in shown["voters"]
        ] == json.loads(status["CurrentVoters"])

    def test_log_dirs_and_features(self, cluster: Cluster) -> None:
        at = ("--bootstrap-server", cluster.bootstrap_servers)
        theirs = json.loads(tool("LogDirsCommand", *at, "--describe", "--topic-list", "compared").splitlines()[-1])
        assert {
            (broker["broker"], each["partition"], each["size"], each["offsetLag"], each["isFuture"])
            for broker in theirs["brokers"]
            for directory in broker["logDirs"]
            for each in directory["partitions"]
        } == {
            (
                each["broker"],
                f"{replica['topic']}-{replica['partition']}",
                replica["size_bytes"],
                replica["offset_lag"],
                replica["is_future"],
            )
            for each in ours(cluster, "log-dirs", "--topic", "compared")
            for replica in each["replicas"]
        }
        lines = tool("FeatureCommand", *at, "describe").splitlines()
        found = re.findall(
            r"Feature: (\S+)\s+SupportedMinVersion: (\S+)\s+SupportedMaxVersion: (\S+)\s+FinalizedVersionLevel: (\S+)",
            "\n".join(lines),
        )
        shown = called("features", "describe", "-b", cluster.bootstrap_servers).rows[1:]
        assert sorted(map(list, found)) == shown

    def test_throttles_and_verification(self, cluster: Cluster, tmp_path: Path) -> None:
        """Kafka's tool and ours set the same throttles for moves of the same form; Kafka's verifies ours."""
        before = {
            each["partition"]: each["replicas"] for each in ours(cluster, "partition", "list", "--topic", "compared")
        }
        command = ("reassign.ReassignPartitionsCommand", "--bootstrap-server", cluster.bootstrap_servers)
        plans, new = [], {}
        for number in (0, 1):
            plan = tmp_path / f"{number}.json"
            (added,) = {1, 2, 3} - {*before[number]}
            new[number] = [added, before[number][0]]
            entry = {"topic": "compared", "partition": number, "replicas": new[number]}
            plan.write_text(json.dumps({"version": 1, "partitions": [entry]}))
            plans.append(str(plan))

        def throttles() -> set[str]:
            return {
                f"{each['resource_type']} {each['name']}={each['value']}"
                for each in ours(cluster, "config", "list")
                if "throttled" in each["name"]
            }

        def lists(number: int) -> list[str]:
            sources = ",".join(sorted(f"{number}:{node}" for node in before[number]))
            return [
                f"leader.replication.throttled.replicas={sources}",
                f"follower.replication.throttled.replicas={number}:{new[number][0]}",
            ]

        tool(*command, "--reassignment-json-file", plans[0], "--execute", "--throttle", "9000000")
        theirs = throttles()
        verify = ("partition", "reassign", "--file", plans[0], "--verify", "-b", cluster.bootstrap_servers)
        for _ in attempts("the reassignment has ended"):
            if "in progress" not in called(*verify).stdout:
                break
        assert throttles() == set()
        throttled = ("--throttle", "9000000", "-b", cluster.bootstrap_servers)
        assert called("partition", "reassign", "--file", plans[1], *throttled).returncode == 0
        rates = {each for each in theirs if ".rate=" in each}
        assert throttles() == rates | {f"topic {key}" for key in lists(1)}
        assert theirs == rates | {f"topic {key}" for key in lists(0)}
        for _ in attempts("the second reassignment has ended"):
            said = tool(*command, "--reassignment-json-file", plans[1], "--verify")
            if "still in progress" not in said:
                break
        assert "Reassignment of partition compared-1 is completed." in said
        assert throttles() == set()


class TestRealKafka:
    def call(self, kafka: str, *arguments: str) -> Called:
        return called(*arguments, "-b", kafka)

    def wait_for_retention(self, kafka: str, expected: list[str]) -> None:
        """Returns when broker 1 shows the value and source: Kafka answers a change before its broker has replayed it."""
        for _ in attempts(f"log.retention.ms {expected}"):
            rows = self.call(kafka, "config", "describe", "broker", "1", "--key", "log.retention.ms").rows
            if rows[1][1:3] == expected:
                break

    def test_configs(self, kafka: str) -> None:
        assert self.call(kafka, "topic", "create", "administered-k").returncode == 0
        assert (
            self.call(kafka, "config", "alter", "topic", "administered-k", "cleanup.policy=compact,delete").returncode
            == 0
        )
        dry = self.call(
            kafka, "config", "alter", "topic", "administered-k", "--subtract", "cleanup.policy=compact", "--dry-run"
        )
        assert dry.returncode == 0, dry.stderr
        for _ in attempts("the setting of the topic is listed"):
            listed = self.call(kafka, "config", "list", "topic", "--json").document
            mine = [(each["name"], each["value"]) for each in listed if each["resource_name"] == "administered-k"]
            if mine:
                break
        assert mine == [("cleanup.policy", "compact,delete")]
        refused = self.call(kafka, "config", "alter", "broker", "default", "log.retention.mss=1")
        assert (refused.returncode, "did you mean 'log.retention.ms'?" in refused.stderr) == (1, True)
        assert self.call(kafka, "config", "alter", "broker", "1", "log.retention.ms=99000").returncode == 0
        self.wait_for_retention(kafka, ["99000", "broker"])
        assert self.call(kafka, "config", "delete", "broker", "1", "log.retention.ms").returncode == 0
        self.wait_for_retention(kafka, ["-", "default"])
        assert (
            self.call(kafka, "config", "alter", "group", "kitchen-k", "consumer.session.timeout.ms=50000").returncode
            == 0
        )
        assert self.call(kafka, "config", "delete", "group", "kitchen-k", "--all").returncode == 0

    def test_the_rest(self, kafka: str) -> None:
        assert self.call(kafka, "topic", "create", "deleted-k").returncode == 0
        assert called("produce", "deleted-k", "-b", kafka, stdin="a\nb\nc\n").returncode == 0
        (row,) = self.call(kafka, "records", "delete", "deleted-k:0:2", "--yes", "--json").document
        assert (row["records"], row["low_watermark"]) == (2, 2)
        assert self.call(kafka, "quorum", "describe", "--json").document["leader_id"] == 1
        (broker,) = self.call(kafka, "broker", "list", "--json").document
        assert (broker["node_id"], broker["is_fenced"]) == (1, False)
        (directory,) = self.call(kafka, "log-dirs", "--topic", "deleted-k", "--json").document
        assert [each["offset_lag"] for each in directory["replicas"]] == [0]
        levels = {each["name"]: each for each in self.call(kafka, "features", "describe", "--json").document}
        assert levels["metadata.version"]["finalized_level_name"] == "4.3-IV0"
        assert self.call(kafka, "features", "downgrade", "group.version=0", "--dry-run").returncode == 0
        assert self.call(kafka, "partition", "elect", "deleted-k:0", "--json").document[0]["result"] == "not needed"
        same = self.call(kafka, "partition", "reassign", "deleted-k:0=1")
        assert (same.returncode, "nothing to change" in same.stderr) == (2, True)
        assert self.call(kafka, "partition", "list", "--topic", "deleted-k", "--json").document[0]["leader"] == 1
