"""The variables of Kafka's container image become the settings that the image's own wrapper writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from barnabas.broker.config.properties import parse_properties
from barnabas.cli.kafka_environment import environment_settings
from tests.support.kafka_variables import NAMES, TESTCONTAINERS
from tests.support.oracle.tools import tool

pytestmark = pytest.mark.oracle

LOG4J = "Configuration:\n  Properties: {}\n  Appenders: {}\n  Loggers:\n    Root:\n      level: INFO\n      AppenderRef: []\n    Logger: []\n"
OTHERS = {
    "KAFKA_QUOTED": r"a\\b:c=d #e",
    "KAFKA_EMPTY": "",
    "KAFKA_HEAP_OPTS": "-Xmx512m",
    "KAFKA_LOG4J_ROOT_LOGLEVEL": "INFO",
    "KAFKA_LOG4J_LOGGERS": "kafka=INFO",
    "MY_KAFKA_X": "no setting",
    "KAFKA_NUM_PARTITIONS": "7",
}


def test_the_wrapper_of_kafkas_image_writes_the_same_settings(tmp_path: Path) -> None:
    mounted = "num.partitions=2\ndefault.replication.factor=1\n"
    folders = {name: tmp_path / name for name in ("default", "mounted", "final")}
    for folder in folders.values():
        folder.mkdir()
    (folders["mounted"] / "server.properties").write_text(mounted)
    for name in ("log4j2.yaml", "tools-log4j2.yaml"):
        (folders["default"] / name).write_text(LOG4J)
    environment = {**dict.fromkeys(NAMES, "1"), **TESTCONTAINERS, **OTHERS, "KAFKA_LOG_DIRS": str(tmp_path / "data")}
    arguments = ("-D", str(folders["default"]), "-M", str(folders["mounted"]), "-F", str(folders["final"]))
    tool("kafka.docker.KafkaDockerWrapper", "setup", *arguments, environment=environment)
    theirs = parse_properties((folders["final"] / "server.properties").read_text())
    ours = environment_settings(environment, mounted)
    assert ours.pop("cluster.id") == TESTCONTAINERS["CLUSTER_ID"]
    assert {name: theirs[name] for name in ours} == ours
    assert all(name.startswith("up.") for name in theirs if name not in ours)  # variables of the tool, KAFKA_UP_…
