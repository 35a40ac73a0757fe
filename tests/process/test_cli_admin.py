"""topic, group, txn, sink and cluster: good and bad calls on a running broker, and the keys of their JSON."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from barnabas.client.admin import Admin
from barnabas.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    InitProducerIdRequest,
)
from barnabas.testing import Broker, Cluster
from tests.support.json_keys import documented, fitting, paths
from tests.support.oracle.wire import Wire
from tests.support.processes.cli import Called, called

pytestmark = pytest.mark.process
SECONDS_MAX = 60.0


@pytest.fixture(scope="module")
def kafka() -> Iterator[Broker]:
    """A broker that believes transactional records without asking their coordinator, as older ones did."""
    with Broker(config={"transaction.partition.verification.enable": "false"}) as broker:
        yield broker


@pytest.fixture
def call(kafka: Broker, tmp_path: Path) -> Any:
    environment = {"BARNABAS_BOOTSTRAP": kafka.bootstrap_servers, "XDG_CONFIG_HOME": str(tmp_path)}

    def run(*arguments: str, stdin: str = "") -> Called:
        return called(*arguments, stdin=stdin, environment=environment)

    return run


def open_transaction(kafka: Broker, topic: str, transactional_id: str, *, known: bool = True) -> int:
    """Writes one record in a transaction and leaves it open; returns the producer id.

    Unless it is `known`, nobody adds the partition to the transaction: its coordinator does not know it.
    """
    with Wire(kafka.bootstrap_servers) as wire:
        wire.find_coordinator(transactional_id, 1)
        found = wire.call(InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000), 4)
        assert found.error_code == 0
        if known:
            added = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=transactional_id,
                v3_and_below_producer_id=found.producer_id,
                v3_and_below_producer_epoch=found.producer_epoch,
                v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=[0])],
            )
            wire.call(added, 3)
        written = wire.produce(
            11,
            topic,
            0,
            [b"x"],
            transactional_id=transactional_id,
            producer_id=found.producer_id,
            producer_epoch=found.producer_epoch,
            base_sequence=0,
        )
        assert written.error_code == 0
    return int(found.producer_id)


OURS = ("topic", "group", "txn", "sink", "cluster", "profile")


def test_json_has_the_documented_keys(kafka: Broker, call: Any) -> None:
    call("topic", "create", "menu", "--config", "retention.ms=3600000")
    call("profile", "create", "local", "-b", "localhost:9092")
    open_transaction(kafka, "menu", "open")
    open_transaction(kafka, "menu", "invoices.100-0.1.7")
    kafka.create_topic("hung")
    open_transaction(kafka, "hung", "hung", known=False)
    at = ("-b", kafka.bootstrap_servers)
    member = subprocess.Popen(
        [sys.executable, "-m", "barnabas.cli.main", "consume", "menu", "--group", "guests", *at],
        stdout=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + SECONDS_MAX
        while (
            not json.loads(call("group", "describe", "guests", "--json").stdout or "[{}]")[0:1]
            or not json.loads(call("group", "describe", "guests", "--json").stdout)[0]["offsets"]
        ):
            assert time.monotonic() < deadline, "the member has no partition"
        calls = {
            "topic list": ("topic", "list"),
            "topic list --long": ("topic", "list", "--long"),
            "topic describe": ("topic", "describe", "menu"),
            "group list": ("group", "list"),
            "group describe": ("group", "describe", "guests"),
            "group reset-offsets": ("group", "reset-offsets", "others", "--to", "latest", "--topic", "menu"),
            "txn list": ("txn", "list"),
            "txn describe": ("txn", "describe", "open"),
            "txn describe-producers": ("txn", "describe-producers", "menu", "--partition", "0"),
            "txn find-hanging": ("txn", "find-hanging", "--older-than", "0s"),
            "sink list": ("sink", "list"),
            "sink describe": ("sink", "describe", "invoices"),
            "cluster": ("cluster",),
            "cluster health": ("cluster", "health"),
            "profile list": ("profile", "list"),
            "profile show": ("profile", "show"),
        }
        known = {name: keys for name, keys in documented().items() if name.split()[0] in OURS}
        assert known.keys() == calls.keys()
        for name, arguments in calls.items():
            done = call(*arguments, "--json")
            assert done.returncode == 0, done.stderr
            found = fitting(paths(json.loads(done.stdout)), known[name])
            if name == "cluster health":  # a healthy cluster has no such partitions
                absent = ("partitions[]", "brokers_down[]", "stalled_sinks[]")
                found |= {path for path in known[name] if any(each in path for each in absent)}
            assert found == known[name], name
    finally:
        member.terminate()
        member.wait(SECONDS_MAX)


def test_offsets_begin_a_group(call: Any) -> None:
    call("topic", "create", "begun")
    refused = call("group", "reset-offsets", "new", "--to", "latest", "--execute")
    assert (refused.returncode, "name a --topic to begin one" in refused.stderr) == (1, True)
    assert call("group", "reset-offsets", "new", "--to", "latest", "--topic", "begun", "--execute").stderr == ""
    assert ["begun-0", "0", "0", "0"] in [
        row.split()[:4] for row in call("group", "describe", "new").stdout.splitlines()
    ]


def test_topic_ids_are_printed_as_kafka_prints_them(kafka: Broker, call: Any) -> None:
    """32 digits of hex in Metadata, 22 characters of base64 for URLs here."""
    call("topic", "create", "named")
    described = json.loads(call("topic", "describe", "named", "--json").stdout)[0]

    async def topic_id() -> bytes:
        async with Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
            return (await admin.describe_topics(["named"]))["named"].topic_id

    assert base64.urlsafe_b64decode(described["topic_id"] + "==") == asyncio.run(topic_id())
    assert re.fullmatch(r"[A-Za-z0-9_-]{22}", described["topic_id"])
    assert described["topic_id"] in call("topic", "describe", "named").stdout


def test_hanging_transactions_are_found_and_aborted(kafka: Broker, call: Any) -> None:
    kafka.create_topic("stuck")
    producer = open_transaction(kafka, "stuck", "lost", known=False)
    kafka.create_topic("busy")
    open_transaction(kafka, "busy", "known")
    find = ("txn", "find-hanging", "--topic", "stuck", "--topic", "busy")
    assert call(*find).stderr == "there are no hanging transactions\n", "they may still be going on"
    found = call(*find, "--older-than", "0s")
    assert [row.split()[:2] for row in found.stdout.splitlines()[1:]] == [["stuck-0", str(producer)]]
    assert "barnabas txn abort-hanging stuck --partition 0 --start-offset 0" in found.stderr

    refused = call("txn", "abort-hanging", "busy", "--partition", "0", "--start-offset", "0")
    assert (refused.returncode, "`barnabas txn abort known` ends it" in refused.stderr) == (1, True), refused
    wrong = call("txn", "abort-hanging", "stuck", "--partition", "0", "--start-offset", "1")
    assert (wrong.returncode, "no open transaction that begins at offset 1" in wrong.stderr) == (1, True)
    done = call("txn", "abort-hanging", "stuck", "--partition", "0", "--start-offset", "0")
    assert done.stdout == f"aborted the transaction of producer {producer} in stuck-0\n", done.stderr
    assert call(*find, "--older-than", "0s").stdout == ""
    assert "Ongoing" in call("txn", "describe", "known").stdout, "it was left alone"


def test_what_an_abandoned_sink_left_is_aborted(kafka: Broker, call: Any) -> None:
    kafka.create_topic("copies")
    for partition in (0, 1):
        open_transaction(kafka, "copies", f"till.100-0.{partition}.{partition + 7}")
    open_transaction(kafka, "copies", "till.receipts")  # of other software
    row = next(row for row in call("sink", "list").stdout.splitlines() if row.startswith("till "))
    assert row.split()[1:5] == ["-", "0", "2", "0"]
    assert call("sink", "describe", "till").stdout.splitlines()[:4] == [
        "till",
        "  no batch is decided",
        mock.ANY,
        "    copies-0",
    ]
    kept = call("txn", "abort", "--sink", "till")
    assert (kept.returncode, "confirm with y, or give --yes" in kept.stderr) == (2, True), kept
    assert [call("txn", "describe", f"till.100-0.{n}.{n + 7}").stdout.split()[1] for n in (0, 1)] == ["Ongoing"] * 2
    done = call("txn", "abort", "--sink", "till", "--yes")
    assert [row.rpartition(":")[0].rpartition(" ")[0] for row in done.stdout.splitlines()] == [
        "aborted till.100-0.0.7",
        "aborted till.100-0.1.8",
    ], done.stderr
    assert "CompleteAbort" in call("txn", "describe", "till.100-0.0.7").stdout
    assert "Ongoing" in call("txn", "describe", "till.receipts").stdout
    again = call("txn", "abort", "--sink", "till", "--yes")
    assert (again.returncode, "sink 'till' has no open transaction" in again.stderr) == (1, True)
    assert "no sink 'till'" in call("sink", "describe", "till").stderr


def test_open_transactions_have_a_duration(kafka: Broker, call: Any) -> None:
    kafka.create_topic("slow")
    open_transaction(kafka, "slow", "slow-1")
    row = next(row for row in call("txn", "list", "--state", "ongoing").stdout.splitlines() if "slow-1" in row)
    assert re.search(r"slow-1 +\d+  Ongoing +\d+ m?s +1 min$", row)
    assert "slow-1" in call("txn", "list", "--longer-than", "0s").stdout
    assert "slow-1" not in call("txn", "list", "--longer-than", "1h").stdout
    assert re.search(r"open since \d{4}-.*Z, for \d+ m?s\n  slow-0\n", call("txn", "describe", "slow-1").stdout)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("topic create", "TOPICS is missing"),
        ("topic create x --replica-assignment 1:2 --partitions 3", "excludes --partitions"),
        ("topic create x --replica-assignment 1:b", "is not as in 1:2,2:3"),
        ("topic create x --config retention.ms", "'retention.ms' is not key=value"),
        ("topic create x --partitions 99999999999", "cannot carry this value"),
        ("topic delete", "TOPICS is missing"),
        ("topic alter x", "give a change"),
        ("topic alter", "barnabas topic alter: TOPIC is missing; `barnabas topic alter --help` shows"),
        ("txn describe-producers x", "--partition is missing"),
        ("produce x --acks", "--acks needs a value"),
        ("group describe", "name a group, or give --all"),
        ("group describe x --all", "--all excludes names"),
        ("group describe x --members --state", "--members excludes --state"),
        ("group list --state Foo", "--state Foo must be one of Empty, "),
        ("group list --type Foo", "--type Foo must be one of classic, consumer"),
        ("group delete", "GROUPS is missing"),
        ("group delete-offsets x", "name the topics with --topic"),
        ("group remove-members x", "give --member, --instance or --all"),
        ("group reset-offsets x", "give one of --to, --ago, --by and --file"),
        ("group reset-offsets x --to latest --by 1", "give one of"),
        ("group reset-offsets x --to never", "'never' is no offset, no time"),
        ("group reset-offsets x --to 99999999999999999999", "above the largest offset"),
        ("group reset-offsets x --ago yesterday", "is not a duration"),
        ("group reset-offsets x --file missing.csv", "cannot read missing.csv"),
        ("group reset-offsets x --to latest --export --json", "--export excludes --json"),
        ("txn list --state Foo", "--state Foo must be one of Empty, Ongoing, "),
        ("txn list --longer-than x", "is not a duration"),
        ("txn describe", "TRANSACTIONAL_IDS is missing"),
        ("txn abort", "or a sink by --sink"),
        ("txn abort x --sink y", "or a sink by --sink"),
        ("txn abort --sink y --only 1:2", "or a sink by --sink"),
        ("sink describe", "SINK-ID is missing"),
        ("txn find-hanging --older-than x", "is not a duration"),
        ("cluster health --within 5", "--within is a number above 0"),
        ("cluster nonsense", "unexpected argument 'nonsense'"),
        ("topic list --watch --every 0", "--every 0: it must be above 0"),
        ("topic list --watch --every nan", "--every nan: it must be above 0"),
        ("nonsense", "Unknown command"),
        ("completion ksh", "Choose from"),
    ],
)
def test_wrong_calls_change_nothing_and_exit_with_2(call: Any, words: str, reason: str) -> None:
    done = call(*words.split())
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done
    assert reason in done.stderr


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("topic create bad/name", "INVALID_TOPIC_EXCEPTION"),
        ("topic create x --replica-assignment 7", "INVALID_REPLICA_ASSIGNMENT"),
        ("topic create x --partitions 0", "INVALID_PARTITIONS"),
        ("topic create x --config nonsense=1", "nonsense"),
        ("topic describe missing", "UNKNOWN_TOPIC_OR_PARTITION"),
        ("topic describe missing --watch", "UNKNOWN_TOPIC_OR_PARTITION"),
        ("group describe missing --watch", "GROUP_ID_NOT_FOUND"),
        ("txn describe missing --watch", "TRANSACTIONAL_ID_NOT_FOUND"),
        ("topic alter missing --partitions 3", "UNKNOWN_TOPIC_OR_PARTITION"),
        ("topic delete missing", "UNKNOWN_TOPIC_OR_PARTITION"),
        ("group describe missing", "GROUP_ID_NOT_FOUND"),
        ("group delete missing", "missing: GROUP_ID_NOT_FOUND"),
        ("group reset-offsets missing --to latest", "has committed nothing"),
        ("group reset-offsets missing --to latest --topic nothing", "UNKNOWN_TOPIC_OR_PARTITION"),
        ("group delete-offsets missing --topic x", "has committed nothing"),
        ("group remove-members missing --all", "GROUP_ID_NOT_FOUND"),
        ("txn describe missing", "TRANSACTIONAL_ID_NOT_FOUND"),
        ("txn abort missing", "TRANSACTIONAL_ID_NOT_FOUND"),
        ("txn describe-producers missing --partition 0", "UNKNOWN_TOPIC_OR_PARTITION"),
    ],
)
def test_refusals_exit_with_1_and_one_line(call: Any, words: str, reason: str) -> None:
    done = call(*words.split())
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done
    assert reason in done.stderr


def test_one_refusal_does_not_stop_the_others(call: Any) -> None:
    created = call("topic", "create", "one", "bad/name", "two")
    assert (created.returncode, created.stdout.count("created"), created.stderr.count("\n")) == (1, 2, 1)
    described = call("topic", "describe", "one", "missing", "two")
    assert (described.returncode, described.stdout.count(" id "), described.stderr.count("\n")) == (1, 2, 1)
    deleted = call("topic", "delete", "one", "missing", "two")
    assert (deleted.returncode, deleted.stdout) == (1, "deleted one\ndeleted two\n")
    assert call("topic", "delete", "one", "two", "--if-exists").returncode == 0
    assert call("topic", "alter", "one", "--partitions", "3", "--if-exists").stdout == "one does not exist\n"


def test_health_tells_what_is_missing(tmp_path: Path) -> None:
    """A broker is killed and comes back: the exit code follows, and what waits for it ends."""
    with Cluster(brokers=3) as kafka:
        kafka.create_topic("t", partitions=3, replication_factor=3)
        kafka.create_topic("alone", replication_factor=1)
        environment = {"BARNABAS_BOOTSTRAP": kafka.bootstrap_servers, "XDG_CONFIG_HOME": str(tmp_path)}
        assert called("cluster", "health", environment=environment).returncode == 0
        victim = kafka.leader("alone")
        kafka.kill(victim)
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            done = called("cluster", "health", "--json", environment=environment)
            found = json.loads(done.stdout)
            if found["brokers_down"] and found["leaderless_partitions"] and found["under_replicated_partitions"]:
                break
            assert time.monotonic() < deadline, done
        assert done.returncode == 10
        assert found["brokers_down"] == [victim]
        assert {"topic": "alone", "partition": 0} in found["leaderless_partitions"]
        assert called("cluster", "health", environment=environment).stdout.startswith("healthy: no\n")
        shown = called("topic", "describe", "--unavailable", environment=environment)
        assert [line.split()[:2] for line in shown.stdout.splitlines()[2:]] == [["0", "none"]], shown
        waiting = called("cluster", "health", "--exit-when-healthy", "--within", "0.5", environment=environment)
        assert (waiting.returncode, "not healthy after 0.5 s" in waiting.stderr) == (10, True)
        kafka.restart(victim)
        waited = called("cluster", "health", "--exit-when-healthy", "--within", "60", "--json", environment=environment)
        assert waited.returncode == 0, waited
        assert json.loads(waited.stdout.splitlines()[-1])["healthy"] is True


def test_many_topics_are_created_and_deleted_by_one_request(call: Any) -> None:
    names = [f"load-{number}" for number in range(300)]
    with mock.patch.object(Admin, "create_topics", autospec=True, side_effect=Admin.create_topics) as create:
        done = call("topic", "create", "-p", "1", "-r", "1", "-c", "retention.ms=1000", *names)
    assert (done.returncode, done.stderr, len(create.call_args_list)) == (0, "", 1)
    assert done.stdout.splitlines() == [f"created {name} with 1 partition, replication factor 1" for name in names]
    assert call("topic", "ls", "load-1?").stdout.split() == [f"load-1{digit}" for digit in range(10)]
    with mock.patch.object(Admin, "delete_topics", autospec=True, side_effect=Admin.delete_topics) as delete:
        done = call("topic", "delete", "load-*")
    assert (done.returncode, len(done.stdout.splitlines()), len(delete.call_args_list)) == (0, 300, 1), done


def test_patterns_name_topics(kafka: Broker, call: Any) -> None:
    for name in ("pat-one", "pat-two", "other-pat-one"):
        kafka.create_topic(name)
    assert call("topic", "list", "pat-*").stdout == "pat-one\npat-two\n"
    assert call("topic", "list", "-r", "pat-.*|.*-one").stdout == "other-pat-one\npat-one\npat-two\n"
    assert call("topic", "describe", "pat-*").stdout.count(" id ") == 2
    assert call("topic", "list", "nothing-*").stderr == "no topic matches\n"
    for command in ("describe", "delete"):
        refused = call("topic", command, "nothing-*")
        assert (refused.returncode, "no topic matches 'nothing-*'" in refused.stderr) == (1, True)
        assert call("topic", command, "nothing-*", "--if-exists").returncode == 0
        assert call("topic", command, "-r", "[").returncode == 2
    assert call("topic", "delete", "-r", "pat").returncode == 1, "an expression matches whole names"
    assert call("topic", "delete", "-r", "pat-.*").stdout == "deleted pat-one\ndeleted pat-two\n"
    assert call("topic", "delete", "__*").returncode == 1, "patterns match no internal topics"


def test_records_and_sizes_of_topics_are_shown(kafka: Broker, call: Any) -> None:
    kafka.create_topic("sized", partitions=2)
    empty, sized = ({"name": "sized", "records": 0, "size_bytes": 0}, ("topic", "list", "sized", "--long", "--json"))
    found = json.loads(call(*sized).stdout)[0]
    assert {key: found[key] for key in empty} == empty
    assert found["leaders"] == {"1": 2}
    assert call("produce", "sized", "-p", "1", stdin="a\nb\n").returncode == 0
    found = json.loads(call(*sized).stdout)[0]
    assert (found["records"], found["size_bytes"] > 50) == (2, True)
    described = json.loads(call("topic", "describe", "sized", "--json").stdout)[0]["partitions"]
    assert [each["size_bytes"] for each in described] == [0, found["size_bytes"]]
    assert "  records 2  size " in call("topic", "describe", "sized").stdout


def test_a_number_with_a_unit_is_told_as_kafka_takes_it(call: Any) -> None:
    for setting, number in (("retention.ms=7d", "604800000"), ("segment.bytes=64M", "67108864")):
        done = call("topic", "create", "units", "-c", setting)
        assert (done.returncode, f"write {setting.partition('=')[0]}={number}" in done.stderr) == (2, True), done
