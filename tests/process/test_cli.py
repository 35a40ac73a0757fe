"""The `barnabas` command as a user types it: output, errors in one line, exit codes."""

from __future__ import annotations

import pytest

from barnabas.testing import Broker
from tests.support.processes.cli import called

pytestmark = pytest.mark.process


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


def test_groups_are_shown_and_moved(shared_broker: Broker) -> None:
    at = ("-b", shared_broker.bootstrap_servers)
    called("topic", "create", "dishes", "--partitions", "2", *at)
    lines = "".join(f"{n}\n" for n in range(10))
    for partition in ("0", "1"):
        called("produce", "dishes", "--partition", partition, *at, stdin=lines)
    reading = ("consume", "dishes", "--from-beginning", "--exit-at-end", "--group", "kitchen", *at)
    assert len(called(*reading).stdout.split()) == 20
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
    assert called(*reading).stdout.split() == ["7", "8", "9"]
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
        (("up", "--brokers", "0"), 2, "--brokers 0: 1 to 9 are possible"),
        (("up", "--brokers", "10"), 2, "--brokers 10: 1 to 9 are possible"),
        (("up", "--set", "no-value"), 2, "--set no-value: write key=value"),
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


def test_dump_shows_every_file_a_broker_leaves(served_broker: Broker) -> None:
    at = ("-b", served_broker.bootstrap_servers)
    assert called("produce", "dumped", "--transactional-id", "d-1", *at, stdin="one\ntwo\n").returncode == 0
    grouped = ("consume", "dumped", "--from-beginning", "--exit-at-end", "--group", "g", *at)
    assert called(*grouped).stdout.split() == ["one", "two"]
    served_broker.stop_broker()
    files = [
        str(path)
        for path in sorted(served_broker.broker(1).directory.rglob("*"))
        if path.is_file() and path.name != ".lock"
    ]
    shown = called("dump", *files)
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
