"""The `barnabas` command as a user types it: output, errors in one line, exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from barnabas.testing import Broker
from tests.support.processes.cli import as_in_a_terminal, barnabas, called, shown_until

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    "command",
    [
        (),
        ("serve",),
        ("up",),
        ("cluster",),
        ("cluster", "health"),
        ("topic",),
        *(("topic", verb) for verb in ("create", "list", "describe", "alter", "delete")),
        ("produce",),
        ("consume",),
        ("txn",),
        ("txn", "list"),
        ("txn", "describe"),
        ("txn", "explain"),
        ("txn", "commit"),
        ("txn", "abort"),
        ("sink",),
        ("sink", "list"),
        ("sink", "describe"),
        *(("txn", verb) for verb in ("describe-producers", "find-hanging", "abort-hanging")),
        ("group",),
        *(("group", v) for v in ("list", "describe", "reset-offsets", "delete", "delete-offsets", "remove-members")),
        ("completion",),
        ("profile",),
        *(("profile", verb) for verb in ("create", "list", "use", "show", "delete")),
        ("config",),
        *(("config", verb) for verb in ("describe", "alter", "delete", "list")),
        ("partition",),
        *(("partition", verb) for verb in ("list", "reassign", "elect", "balance", "cancel")),
        ("storage",),
        *(("storage", verb) for verb in ("info", "check", "random-uuid", "format")),
        ("quorum",),
        ("quorum", "describe"),
        ("quorum", "replication"),
        ("log-dirs",),
        ("records",),
        ("records", "delete"),
        ("features",),
        *(("features", verb) for verb in ("describe", "upgrade", "downgrade")),
        ("broker",),
        ("broker", "list"),
        ("broker", "unregister"),
        ("dump",),
        ("export",),
    ],
    ids=" ".join,
)
def test_help_is_complete(command: tuple[str, ...]) -> None:
    shown = called(*command, "--help")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("Usage: barnabas")
    assert "Examples:" in shown.stdout
    assert " ".join(("barnabas", *command)) in shown.stdout.partition("Examples:")[2]


def test_cluster_shows_who_serves_and_is_a_check_for_scripts(shared_broker: Broker) -> None:
    at = ("-b", shared_broker.bootstrap_servers)
    shown = called("cluster", *at)
    assert shown.returncode == 0
    assert f"broker 1  {shared_broker.bootstrap_servers}" in shown.stdout
    assert "transaction.version 2" in shown.stdout

    wanted = called("cluster", "--brokers", "2", *at)
    assert (wanted.returncode, wanted.stderr) == (1, "barnabas cluster: 1 brokers serve, 2 are wanted\n")
    nobody = called("cluster", "-b", "127.0.0.1:1", "--timeout", "1")
    assert nobody.returncode == 1
    assert "127.0.0.1:1" in nobody.stderr


def test_topics_records_and_transactions(shared_broker: Broker) -> None:
    at = ("-b", shared_broker.bootstrap_servers)
    created = called("topic", "create", "cli", "--partitions", "2", "--config", "retention.ms=3600000", *at)
    assert created.stdout == "created cli with 2 partitions, replication factor 1\n"
    assert "cli" in called("topic", "list", *at).stdout.splitlines()

    plain = barnabas("produce", "cli", "--partition", "0", "--key-separator", ":", *at, stdin="a:1\nb:2\nplain\n")
    assert plain.stderr == "wrote 3 records to cli\n"
    transactional = ("produce", "cli", "--partition", "1", "--transactional-id", "cli-1", "--compression", "zstd", *at)
    assert barnabas(*transactional, stdin="x\ny\n").stderr == "wrote 2 records to cli\n"

    values = barnabas("consume", "cli", "--from-beginning", "--exit-at-end", *at)
    assert sorted(values.stdout.split()) == ["1", "2", "plain", "x", "y"]
    as_json = ("consume", "cli", "--from-beginning", "--exit-at-end", "--format", "json", "--group", "cli-group", *at)
    records = [json.loads(line) for line in barnabas(*as_json).stdout.splitlines()]
    assert [(r["key"], r["value"]) for r in records if r["partition"] == 0] == [("a", "1"), ("b", "2"), (None, "plain")]
    assert barnabas(*as_json).stdout == "", "the group has committed all of it"

    described = called("topic", "describe", "cli", *at).stdout
    assert "retention.ms=3600000" in described
    assert described.splitlines()[-1].split()[:8] == [
        "1",
        "1",
        "0",
        "1",
        "1",
        "0",
        "3",
        "3",
    ]  # two records, their commit marker
    listed = called("txn", "list", "--state", "CompleteCommit", *at).stdout
    assert [row.split()[::2] for row in listed.splitlines()[1:]] == [["cli-1", "CompleteCommit", "-"]]
    assert called("txn", "describe", "cli-1", *at).stdout.startswith("cli-1  CompleteCommit\n")

    assert called("topic", "alter", "cli", "--partitions", "3", "--unset", "retention.ms", *at).returncode == 0
    altered = called("topic", "describe", "cli", *at).stdout
    assert "partitions 3" in altered
    assert "retention.ms" not in altered
    assert called("topic", "delete", "cli", *at).stdout == "deleted cli\n"
    assert "cli" not in called("topic", "list", *at).stdout.splitlines()


def test_groups_are_shown_and_moved(shared_broker: Broker) -> None:
    at = ("-b", shared_broker.bootstrap_servers)
    called("topic", "create", "dishes", "--partitions", "2", *at)
    lines = "".join(f"{n}\n" for n in range(10))
    for partition in ("0", "1"):
        barnabas("produce", "dishes", "--partition", partition, *at, stdin=lines)
    reading = ("consume", "dishes", "--from-beginning", "--exit-at-end", "--group", "kitchen", *at)
    assert len(barnabas(*reading).stdout.split()) == 20
    assert ["kitchen", "classic", "Empty"] in [row.split() for row in called("group", "list", *at).stdout.splitlines()]
    described = called("group", "describe", "kitchen", *at).stdout
    assert described.startswith("kitchen  Empty  classic")
    assert "lag 0" in described
    assert [row.split()[:4] for row in described.splitlines()[2:]] == [
        ["dishes-0", "10", "10", "0"],
        ["dishes-1", "10", "10", "0"],
    ]

    def reset(*how: str) -> list[str]:
        done = called("group", "reset-offsets", "kitchen", *how, *at)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    assert reset("--to", "earliest") == ["dishes-0  10 → 0", "dishes-1  10 → 0"]
    assert "lag 0" in called("group", "describe", "kitchen", *at).stdout, "it was only shown"
    assert reset("--by", "-3", "--partition", "1", "--execute") == ["dishes-1  10 → 7"]
    assert barnabas(*reading).stdout.split() == ["7", "8", "9"]
    assert reset("--to", "99", "--topic", "dishes", "--partition", "0") == ["dishes-0  10 → 10"]
    assert reset("--to", "2001-01-01T00:00:00", "--execute") == ["dishes-0  10 → 0", "dishes-1  10 → 0"]
    assert "lag 20" in called("group", "describe", "kitchen", *at).stdout

    for wrong in ((), ("--to", "1", "--by", "1"), ("--to", "never")):
        refused = called("group", "reset-offsets", "kitchen", *wrong, *at)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1), refused.stderr
    nothing = called("group", "reset-offsets", "nobody", "--to", "latest", *at)
    assert (nothing.returncode, "has committed nothing" in nothing.stderr) == (1, True)
    assert called("group", "delete", "kitchen", *at).stdout == "deleted kitchen\n"
    assert "kitchen" not in called("group", "list", *at).stdout


def test_the_lag_is_a_live_table(shared_broker: Broker) -> None:
    """It follows what is written and committed meanwhile, on a terminal in place, until Ctrl-C."""
    at = ("-b", shared_broker.bootstrap_servers)
    called("topic", "create", "plates", *at)
    barnabas("produce", "plates", *at, stdin="1\n2\n")
    reading = ("consume", "plates", "--from-beginning", "--exit-at-end", "--group", "waiters", *at)
    assert barnabas(*reading).stdout == "1\n2\n"
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "barnabas.cli.main", "group", "describe", "waiters", "--watch", "--every", "0.2"]
    watching = subprocess.Popen([*command, *at], stdout=theirs, stderr=subprocess.PIPE, preexec_fn=as_in_a_terminal)
    os.close(theirs)
    try:
        shown = shown_until(ours, r"plates-0\s+2\s+2\s+0\s")
        barnabas("produce", "plates", *at, stdin="3\n4\n5\n")
        shown += shown_until(ours, r"plates-0\s+2\s+5\s+\x1b\[33m3\x1b")
        barnabas(*reading)
        shown += shown_until(ours, r"plates-0\s+5\s+5\s+0\s")
        assert "\x1b[1A" in shown, "each table takes the place of the one before"
        watching.send_signal(signal.SIGINT)
        assert watching.wait(60) == 130
    finally:
        watching.kill()
        _, said = watching.communicate()
        os.close(ours)
    assert said == b""


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        (("topic", "create", "no spaces"), "INVALID_TOPIC_EXCEPTION"),
        (("topic", "create", "x", "--partitions", "0"), "INVALID_PARTITIONS"),
        (("topic", "create", "x", "--config", "nonsense=1"), "nonsense"),
        (("topic", "describe", "missing"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (("consume", "missing"), "no such topic"),
        (("txn", "describe", "missing"), "TRANSACTIONAL_ID_NOT_FOUND"),
        (("group", "delete", "missing"), "there is no such group"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_refusals_are_told_in_one_line(shared_broker: Broker, command: tuple[str, ...], complaint: str) -> None:
    refused = (
        barnabas(*command, "-b", shared_broker.bootstrap_servers)
        if command[0] == "consume"
        else called(*command, "-b", shared_broker.bootstrap_servers)
    )
    assert refused.returncode == 1
    assert complaint in refused.stderr
    assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "code", "complaint"),
    [
        (("topic", "create", "t", "--partitions", "1.5"), 2, "--partitions: '1.5' is not a whole number"),
        (("consume", "t", "-n", "2.0"), 2, "-n: '2.0' is not a whole number"),
        (("profile", "create", "p", "bootstrap.servers=x"), 2, "unexpected argument 'bootstrap.servers=x'"),
        (("topic", "create", "\udcff"), 2, r"the argument '\udcff' is not UTF-8 text"),
        (("group", "describe", "g\udcff"), 2, r"the argument 'g\udcff' is not UTF-8 text"),
        (("group", "delete", "g\udcff"), 2, r"the argument 'g\udcff' is not UTF-8 text"),
        (("consume", "t\udcff"), 2, r"the argument 't\udcff' is not UTF-8 text"),
        (("up", "--port", "65535"), 2, "--port 65535: ports 65535 to 65537 are not within 1 to 65535"),
        (("produce", "t", "--file", "/"), 1, "cannot read /: Is a directory"),
    ],
    ids=lambda value: " ".join(value).encode("ascii", "replace").decode() if isinstance(value, tuple) else "",
)
def test_arguments_of_another_kind(shared_broker: Broker, command: tuple[str, ...], code: int, complaint: str) -> None:
    at = () if command[0] == "up" else ("-b", shared_broker.bootstrap_servers)
    done = called(*command, *at)
    assert (done.returncode, done.stdout) == (code, "")
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1


def test_no_broker_there() -> None:
    refused = called("topic", "list", "-b", "127.0.0.1:1")
    assert refused.returncode == 1
    assert "no broker answers at 127.0.0.1:1: is one running? try `barnabas up`" in refused.stderr


def test_config_without_equals_sign_is_a_wrong_call() -> None:
    refused = called("topic", "create", "x", "--config", "retention.ms", "-b", "127.0.0.1:1")
    assert refused.returncode == 2
    assert "'retention.ms' is not key=value" in refused.stderr


def test_dump_shows_every_file_a_broker_leaves(served_broker: Broker) -> None:
    at = ("-b", served_broker.bootstrap_servers)
    assert barnabas("produce", "dumped", "--transactional-id", "d-1", *at, stdin="one\ntwo\n").returncode == 0
    grouped = ("consume", "dumped", "--from-beginning", "--exit-at-end", "--group", "g", *at)
    assert barnabas(*grouped).stdout.split() == ["one", "two"]
    served_broker.stop_broker()
    files = [
        str(path)
        for path in sorted(served_broker.broker(1).directory.rglob("*"))
        if path.is_file() and path.name != ".lock"
    ]
    shown = barnabas("dump", *files)
    assert shown.returncode == 0, shown.stdout[-2000:]
    for expected in (
        "value 'one'",
        "COMMIT coordinator epoch",
        "'d-1' TransactionLogValue(",
        "OffsetCommitKey(group='g', topic='dumped'",
        "FeatureLevelRecord(name='transaction.version', feature_level=2)",
        "cluster.id=",
    ):
        assert expected in shown.stdout


def test_dump_of_a_damaged_log(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(bytes(range(1, 200)))
    shown = barnabas("dump", str(path), str(tmp_path / "missing.log"))
    assert shown.returncode == 1
    assert shown.stdout.count("  ! ") == 2
    assert "Traceback" not in shown.stderr


def test_a_file_is_no_data_directory_for_up(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    refused = called("up", "--brokers", "1", "--port", "0", "--data", str(tmp_path / "data"))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"{tmp_path / 'data'} is a file: name a directory" in refused.stderr
