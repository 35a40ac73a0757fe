"""`barnabas serve` and `barnabas up` on settings that are not served, have no effect, or are not known."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes.cli import called
from tests.support.processes.served import ServedBroker  # not the kit: the command is tested

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            ["listeners=SSL://127.0.0.1:0"],
            ["listener SSL speaks TLS", "ssl.keystore.location is not set", "ssl.keystore.type=PEM"],
        ),
        (["authorizer.class.name=a.B"], ["authorizer.class.name", "a.B", "StandardAuthorizer"]),
        (
            ["controller.quorum.bootstrap.servers=127.0.0.1:9093"],
            ["controller.quorum.bootstrap.servers", "127.0.0.1:9093", "controller.quorum.voters is not set"],
        ),
    ],
    ids=["TLS", "authorizer", "no voters"],
)
def test_a_node_that_would_serve_less_than_it_is_told_to_does_not_start(
    tmp_path: Path, settings: list[str], words: list[str]
) -> None:
    sets = [argument for setting in settings for argument in ("--set", setting)]
    refused = called("serve", "--data", str(tmp_path / "data"), *sets)
    assert (refused.returncode, refused.stdout) == (2, "")
    (line,) = refused.stderr.splitlines()
    assert line.startswith("barnabas serve: ")
    assert all(word in line for word in words), line
    assert not (tmp_path / "data").exists()


IGNORED = {
    "min.insync.replica=2": "unknown setting 'min.insync.replica' ignored; did you mean 'min.insync.replicas'?",
    "retention.ms=5": "unknown setting 'retention.ms' ignored: it is a topic's; brokers have 'log.retention.ms'",
    "my.plugin=x": "unknown setting 'my.plugin' ignored",
    "num.io.threads=9": "setting 'num.io.threads' has no effect here: one event loop does this work",
}
SETS = [argument for setting in IGNORED for argument in ("--set", setting)]


def test_a_node_names_every_setting_that_it_ignores(tmp_path: Path) -> None:
    broker = ServedBroker(tmp_path / "data", *IGNORED, "num.partitions=3").start()
    broker.end()
    said = broker.log()
    assert all(remark in said for remark in IGNORED.values()), said
    assert "num.partitions" not in said


def test_a_strict_node_refuses_them(tmp_path: Path) -> None:
    refused = called("serve", "--strict", "--data", str(tmp_path / "data"), *SETS)
    assert (refused.returncode, refused.stdout) == (2, "")
    (line,) = refused.stderr.splitlines()
    assert all(remark in line for remark in IGNORED.values()), line
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--strict", "--set", "num.partition=2"], "did you mean 'num.partitions'?"),
        (["--set", "num.partitions=0"], "Invalid value 0 for configuration num.partitions: Value must be at least 1"),
    ],
)
def test_a_cluster_is_not_begun_with_a_setting_that_its_nodes_refuse(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    refused = called("up", "--data", str(tmp_path / "data"), *arguments)
    assert (refused.returncode, refused.stdout) == (2, "")
    (line,) = refused.stderr.splitlines()
    assert line.startswith("barnabas up: ")
    assert words in line
    assert not (tmp_path / "data").exists()
