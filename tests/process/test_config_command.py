"""`barnabas config`: what it shows, changes and refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.testing import Broker
from tests.support.processes.cli import Called, called
from tests.support.security.planted import PLANTED

pytestmark = pytest.mark.process

TOPIC = "configured"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        assert called("topic", "create", TOPIC, "-b", broker.bootstrap_servers).returncode == 0
        yield broker


def config(broker: Broker, *arguments: str) -> Called:
    return called("config", *arguments, "-b", broker.bootstrap_servers)


def of_topic(broker: Broker) -> dict[str, str]:
    shown = config(broker, "describe", "topic", TOPIC, "--json").document["configs"]
    return {each["name"]: each["value"] for each in shown if each["source"] == "DYNAMIC_TOPIC_CONFIG"}


def test_changes_are_made_shown_and_undone(broker: Broker) -> None:
    settings = ("retention.ms=1000", "cleanup.policy=compact,delete", "flush.ms=7")
    assert config(broker, "alter", "topic", TOPIC, *settings).returncode == 0
    assert of_topic(broker) == {"retention.ms": "1000", "cleanup.policy": "compact,delete", "flush.ms": "7"}
    changed = config(broker, "alter", "topic", TOPIC, "--subtract", "cleanup.policy=compact", "--delete", "flush.ms")
    assert changed.returncode == 0, changed.stderr
    assert of_topic(broker) == {"retention.ms": "1000", "cleanup.policy": "delete"}
    assert config(broker, "alter", "topic", TOPIC, "--append", "cleanup.policy=compact").returncode == 0
    assert of_topic(broker)["cleanup.policy"] == "delete,compact"
    listed = config(broker, "list", "topic", "--json").document
    assert [(each["resource_name"], each["name"]) for each in listed] == [
        (TOPIC, "cleanup.policy"),
        (TOPIC, "retention.ms"),
    ]
    assert config(broker, "delete", "topic", TOPIC, "--all").returncode == 0
    assert of_topic(broker) == {}


def test_a_dry_run_checks_and_changes_nothing(broker: Broker) -> None:
    shown = config(broker, "alter", "topic", TOPIC, "retention.ms=5", "--dry-run", "--json").document
    change = {"name": "retention.ms", "operation": "set", "value": "5", "before": None}
    assert (shown["dry_run"], shown["changes"]) == (True, [change])
    assert of_topic(broker) == {}
    refused = config(broker, "alter", "topic", TOPIC, "retention.ms=soon", "--dry-run")
    assert (refused.returncode, "soon" in refused.stderr) == (1, True)


def test_a_description_names_sources_and_what_would_hold_else(broker: Broker) -> None:
    assert config(broker, "alter", "broker", "default", "log.retention.ms=400000").returncode == 0
    try:
        (shown,) = config(broker, "describe", "topic", TOPIC, "--key", "retention.ms", "--json").document["configs"]
        assert (shown["value"], shown["source"]) == ("400000", "DYNAMIC_DEFAULT_BROKER_CONFIG")
        assert config(broker, "alter", "topic", TOPIC, "retention.ms=1").returncode == 0
        rows = config(broker, "describe", "topic", TOPIC).rows
        at = rows.index(["retention.ms", "1", "topic"])
        assert rows[at + 1][:4] == ["else", "default", "broker", "log.retention.ms=400000,"]
        assert ["broker", "default", "log.retention.ms", "400000"] in config(broker, "list").rows
    finally:
        config(broker, "delete", "broker", "default", "log.retention.ms")
        config(broker, "delete", "topic", TOPIC, "--all")


def test_defaults_are_shown_only_if_asked_for(broker: Broker) -> None:
    few = config(broker, "describe", "broker", "1", "--json").document["configs"]
    all_ = config(broker, "describe", "broker", "1", "--all", "--json").document["configs"]
    assert "DEFAULT_CONFIG" not in {each["source"] for each in few}
    assert len(all_) > len(few) + 50
    documented = config(broker, "describe", "broker", "1", "--key", "num.io.threads", "--documentation").stdout
    assert len(documented.splitlines()) > 2
    assert documented.splitlines()[-1].startswith("  Threads ")


def test_a_group_has_configs(broker: Broker) -> None:
    assert config(broker, "alter", "group", "kitchen", "consumer.session.timeout.ms=50000").returncode == 0
    rows = config(broker, "describe", "group", "kitchen").rows
    assert ["consumer.session.timeout.ms", "50000", "group"] in [row[:3] for row in rows]
    assert config(broker, "delete", "group", "kitchen", "consumer.session.timeout.ms").returncode == 0


def test_settings_are_read_from_a_file(broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "topic.properties").write_text("# as in Kafka\nretention.ms = 1234\nflush.ms: 9\n")
    assert config(broker, "alter", "topic", TOPIC, "--file", str(tmp_path / "topic.properties")).returncode == 0
    assert of_topic(broker) == {"retention.ms": "1234", "flush.ms": "9"}
    config(broker, "delete", "topic", TOPIC, "--all")
    missing = config(broker, "alter", "topic", TOPIC, "--file", str(tmp_path / "none"))
    assert (missing.returncode, missing.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("alter", "topic", TOPIC), 2, "nothing to change"),
        (("delete", "topic", TOPIC), 2, "name the configs to reset"),
        (("delete", "topic", TOPIC, "--all"), 2, "nothing is set on topic configured"),
        (("delete", "topic", TOPIC, "flush.ms"), 1, "'flush.ms' is not set on topic configured"),
        (("alter", "topic", TOPIC, "retention.ms"), 2, "'retention.ms' is not key=value"),
        (("alter", "topic", TOPIC, "flush.ms=1", "--delete", "flush.ms"), 2, "changed in two ways"),
        (("alter", "topic", TOPIC, "retention.mss=1"), 1, "did you mean 'retention.ms'?"),
        (("alter", "broker", "default", "log.retention.mss=1"), 1, "did you mean 'log.retention.ms'?"),
        (("describe", "topic", TOPIC, "--key", "retention"), 1, "unknown config 'retention' of topic configured"),
        (("describe", "topic", "missing", "--timeout", "0.5"), 1, "UNKNOWN_TOPIC_OR_PARTITION"),
        (("describe", "broker", "one"), 2, "'one' is no node id of a broker"),
        (("alter", "broker", "1", "log.dirs=/x"), 1, "log.dirs"),
        (("list", "broker-logger"), 2, "broker-logger resources cannot be listed"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_is_wrong_is_said_in_one_line(broker: Broker, arguments: tuple[str, ...], code: int, said: str) -> None:
    refused = config(broker, *arguments)
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (code, "", 1)
    assert said in refused.stderr


def test_any_key_leaves_the_decision_to_the_broker(broker: Broker) -> None:
    mistaken = ("topic", TOPIC, "retention.sm=1")
    refused = config(broker, "alter", *mistaken)
    assert (refused.returncode, "did you mean 'retention.ms'?" in refused.stderr) == (1, True)
    refused = config(broker, "alter", *mistaken, "--any-key")
    assert (refused.returncode, "INVALID_CONFIG: Unknown topic config name: retention.sm" in refused.stderr) == (
        1,
        True,
    )
    plugin = ("broker", "default", "my.plugin.key=7")
    assert "unknown config 'my.plugin.key'" in config(broker, "alter", *plugin).stderr
    assert config(broker, "alter", *plugin, "--any-key").returncode == 0
    names = [each["name"] for each in config(broker, "describe", "broker", "default", "--json").document["configs"]]
    assert "my.plugin.key" in names
    assert config(broker, "delete", "broker", "default", "my.plugin.key").returncode == 0


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
@pytest.mark.parametrize("all_", [(), ("--all",)], ids=["set", "all"])
def test_no_command_shows_a_secret(broker: Broker, form: tuple[str, ...], all_: tuple[str, ...]) -> None:
    """A key that the broker does not know may be a secret of a plugin."""
    secret = f"{PLANTED}word"
    changed = config(broker, "alter", "broker", "1", f"my.plugin.password={secret}", "--any-key", *form)
    assert changed.returncode == 0
    shown = config(broker, "describe", "broker", "1", *all_, *form)
    listed = config(broker, "list", "broker", *form)
    removed = config(broker, "delete", "broker", "1", "my.plugin.password", *form)
    for each in (changed, shown, listed, removed):
        assert (each.returncode, "my.plugin.password" in each.stdout) == (0, True), each
        assert secret not in each.stdout + each.stderr
    refused = config(broker, "alter", "broker", "1", f"sasl.jaas.config={secret}", "--any-key", *form)
    assert secret not in refused.stdout + refused.stderr


def test_client_metrics_are_set_listed_and_deleted(shared_broker: Broker) -> None:
    at = ("-b", shared_broker.bootstrap_servers)
    settings = ("metrics=org.apache.kafka.producer.", "interval.ms=10000", "match=client_id=shop-.*")
    assert called("config", "alter", "client-metrics", "shops", *settings, *at).returncode == 0
    shown = called("config", "describe", "client-metrics", "shops", "--json", *at).document
    assert {each["name"]: each["value"] for each in shown["configs"]} == {
        "interval.ms": "10000",
        "match": "client_id=shop-.*",
        "metrics": "org.apache.kafka.producer.",
    }
    listed = called("config", "list", "client-metrics", "--json", *at).document
    assert {each["resource_name"] for each in listed} == {"shops"}
    wrong = called("config", "alter", "client-metrics", "shops", "interval.ms=5", *at)
    assert (wrong.returncode, "between 100 and 3600000" in wrong.stderr) == (1, True)
    assert called("config", "delete", "client-metrics", "shops", "metrics", "interval.ms", "match", *at).returncode == 0
    assert called("config", "list", "client-metrics", "--json", *at).document == []
