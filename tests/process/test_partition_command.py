"""`barnabas partition`: list, reassign, elect, balance and cancel on three brokers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas.testing import Cluster
from tests.support.processes.attempts import attempts
from tests.support.processes.cli import Called, called

pytestmark = pytest.mark.process

RATES = {"leader.replication.throttled.rate", "follower.replication.throttled.rate"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A topic of two partitions, on brokers 1 and 2, and on 2 and 3."""
    name = request.node.name.partition("[")[0]
    cluster.create_topic(name, partitions=2)
    assert partition(cluster, "reassign", f"{name}:0=1,2", f"{name}:1=2,3", "--wait", "--every", "0.1").returncode == 0
    assert partition(cluster, "elect", "--topic", name).returncode == 0
    yield name
    cluster.delete_topics(name)


def partition(cluster: Cluster, *arguments: str) -> Called:
    return called("partition", *arguments, "-b", cluster.bootstrap_servers)


def listed(cluster: Cluster, topic: str, *filters: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = partition(cluster, "list", "--topic", topic, *filters, "--json").document
    return found


def replicas(cluster: Cluster, topic: str) -> list[list[int]]:
    return [each["replicas"] for each in listed(cluster, topic)]


def throttled(cluster: Cluster) -> set[str]:
    """Throttles that are set, as resource and key."""
    found = called("config", "list", "--json", "-b", cluster.bootstrap_servers).document
    return {f"{each['resource_name']} {each['name']}={each['value']}" for each in found if "throttled" in each["name"]}


def test_partitions_are_listed(cluster: Cluster, topic: str) -> None:
    assert [each["leader"] for each in listed(cluster, topic)] == [1, 2]
    rows = partition(cluster, "list", topic).rows
    assert rows[1][:2] == [f"{topic}-0", "1"]
    assert listed(cluster, topic, "--under-replicated") == listed(cluster, topic, "--offline") == []
    assert partition(cluster, "list", "--topic", topic, "--reassigning").stderr == "no partition matches\n"


def test_partitions_are_moved_by_arguments_and_by_a_file(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    back = tmp_path / "back.json"
    moved = partition(cluster, "reassign", f"{topic}:0=3,1", "--save", str(back), "--wait", "--every", "0.1")
    assert (moved.returncode, moved.rows[1]) == (0, [f"{topic}-0", "1,2", "3,1"])
    assert replicas(cluster, topic) == [[3, 1], [2, 3]]
    with_file = ("reassign", "--file", str(back))
    differs = partition(cluster, *with_file, "--verify", "--json")
    assert (differs.returncode, [each["state"] for each in json.loads(differs.stdout)]) == (1, ["differs", "complete"])
    assert partition(cluster, *with_file, "--watch", "--every", "0.1").returncode == 0
    assert replicas(cluster, topic) == [[1, 2], [2, 3]]
    assert partition(cluster, *with_file, "--verify").returncode == 0
    again = partition(cluster, *with_file)
    assert (again.returncode, "nothing to change" in again.stderr) == (2, True)


def test_throttles_are_set_and_removed_as_by_kafka(cluster: Cluster, topic: str) -> None:
    move = ("reassign", f"{topic}:0=3,1", "--throttle", "50M")
    assert partition(cluster, *move).returncode == 0
    rates = {f"{node} {key}={50 * 2**20}" for node in (1, 2, 3) for key in RATES}
    lists = {
        f"{topic} leader.replication.throttled.replicas=0:1,0:2",
        f"{topic} follower.replication.throttled.replicas=0:3",
    }
    assert throttled(cluster) == rates | lists
    for _ in attempts(f"{topic}-0 has moved"):
        shown = partition(cluster, "reassign", f"{topic}:0=3,1", "--verify")
        if not shown.returncode:
            break
        assert "in progress" in shown.stdout
    assert "throttles removed" in shown.stderr
    assert throttled(cluster) == set()
    assert (
        partition(cluster, "reassign", f"{topic}:0=1,2", "--throttle", "9", "--wait", "--keep-throttles").returncode
        == 0
    )
    assert len(throttled(cluster)) == 8
    assert partition(cluster, "reassign", f"{topic}:0=1,2", "--verify").returncode == 0
    assert throttled(cluster) == set()


def test_a_plan_is_generated_and_executed(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    generated = partition(cluster, "reassign", "--generate", "--topic", topic, "--brokers", "1,3")
    plan.write_text(generated.stdout)
    assert generated.document["version"] == 1
    assert partition(cluster, "reassign", "--file", str(plan), "--wait", "--every", "0.1").returncode == 0
    assert [sorted(each) for each in replicas(cluster, topic)] == [[1, 3], [1, 3]]
    wider = partition(cluster, "reassign", "--generate", "--topic", topic, "--replication-factor", "3").document
    assert all(len(each["replicas"]) == 3 for each in wider["partitions"])


def test_a_reassignment_is_cancelled(cluster: Cluster, topic: str) -> None:
    cluster.pause(3)  # a new replica there cannot catch up
    try:
        assert partition(cluster, "reassign", f"{topic}:0=3,1").returncode == 0
        (moving,) = listed(cluster, topic, "--reassigning")
        assert (moving["adding_replicas"], moving["removing_replicas"]) == ([3], [2])
        refused = partition(cluster, "reassign", f"{topic}:1=1,2")
        assert (refused.returncode, "--additional" in refused.stderr) == (1, True)
        assert "is not being reassigned" in partition(cluster, "cancel", f"{topic}:1").stderr
        assert partition(cluster, "cancel", f"{topic}:0").stdout == f"cancelled {topic}-0\n"
        assert replicas(cluster, topic)[0] == [1, 2]
        assert (partition(cluster, "cancel", "--all").returncode, listed(cluster, topic, "--reassigning")) == (2, [])
    finally:
        cluster.resume(3)


def test_leaders_are_balanced(cluster: Cluster, topic: str) -> None:
    assert partition(cluster, "reassign", f"{topic}:0=2,1", "--wait").returncode == 0
    assert [each["partition"] for each in listed(cluster, topic, "--not-preferred")] == [0]
    plan = partition(cluster, "balance", "--topic", topic, "--json").document
    assert [(each["partition"], each["leader"], each["new_leader"], each["executed"]) for each in plan] == [
        (0, 1, 2, False)
    ]
    assert listed(cluster, topic, "--not-preferred"), "the plan was only shown"
    assert partition(cluster, "balance", "--topic", topic, "--execute").returncode == 0
    assert listed(cluster, topic, "--not-preferred") == []
    assert partition(cluster, "balance", "--topic", topic).stderr == "balanced: there is nothing to move\n"


def test_replicas_are_spread(cluster: Cluster, topic: str) -> None:
    crowded = (f"{topic}:0=1,2", f"{topic}:1=1,2")
    assert partition(cluster, "reassign", *crowded, "--wait", "--every", "0.1").returncode == 0
    spread = ("balance", "--replicas", "--topic", topic, "--execute", "--wait", "--every", "0.1", "--throttle", "1G")
    assert partition(cluster, *spread).returncode == 0
    assert sum(3 in each for each in replicas(cluster, topic)) == 1
    assert listed(cluster, topic, "--not-preferred") == []
    assert throttled(cluster) == set()


def test_preferred_leaders_are_elected(cluster: Cluster, topic: str) -> None:
    assert partition(cluster, "reassign", f"{topic}:0=2,1", "--wait").returncode == 0
    results = partition(cluster, "elect", f"{topic}:0", f"{topic}:1", "--json").document
    assert [each["result"] for each in results] == ["elected", "not needed"]
    assert partition(cluster, "elect", "--all").returncode == 0
    unclean = partition(cluster, "elect", f"{topic}:0", "--unclean", "--yes", "--json").document
    assert [each["result"] for each in unclean] == ["not needed"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("list", "--topic", "missing", "--timeout", "0.5"), 1, "UNKNOWN_TOPIC_OR_PARTITION"),
        (("reassign",), 2, "nothing to reassign"),
        (("reassign", "x:0"), 2, "is not TOPIC:PARTITION=BROKER"),
        (("reassign", "x:0=1", "x:0=2"), 2, "x:0 is named twice"),
        (("reassign", "x:0=1", "--throttle", "fast"), 2, "'fast' is no number of bytes a second"),
        (("reassign", "x:0=1", "--generate"), 2, "--generate makes a plan"),
        (("reassign", "--generate", "--verify"), 2, "exclude each other"),
        (("reassign", "x:0=1", "--brokers", "1"), 2, "need --generate"),
        (("reassign", "--generate", "--replication-factor", "-1"), 2, "at least one replica"),
        (("reassign", "x:0=1", "--wait", "--every", "nan"), 2, "--every nan: it must be above 0"),
        (("elect", "x:" + "9" * 5000), 2, "is not TOPIC:PARTITION"),
        (("reassign", "--generate", "--brokers", "1,1"), 2, "no list of different node ids"),
        (("reassign", "--generate", "--brokers", "1,9"), 1, "broker 9 does not serve"),
        (("reassign", "--file", "/nowhere"), 2, "cannot read /nowhere"),
        (("elect",), 2, "or else --all"),
        (("elect", "x:0", "--all"), 2, "or else --all"),
        (("elect", "--all", "--unclean"), 2, "give --yes"),
        (("cancel",), 2, "or else --all"),
        (("balance", "--throttle", "0"), 2, "no number of bytes a second"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_is_wrong_is_said_in_one_line(cluster: Cluster, arguments: tuple[str, ...], code: int, said: str) -> None:
    refused = partition(cluster, *arguments)
    assert (refused.returncode, refused.stderr.count("\n")) == (code, 1), refused.stderr
    assert said in refused.stderr


def test_unknown_partitions_and_brokers(cluster: Cluster, topic: str) -> None:
    assert f"there is no partition {topic}-9" in partition(cluster, "reassign", f"{topic}:9=1").stderr
    assert "there is no broker 8; the brokers are 1, 2, 3" in partition(cluster, "reassign", f"{topic}:0=8").stderr
    assert replicas(cluster, topic) == [[1, 2], [2, 3]]
