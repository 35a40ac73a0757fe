"""Placeholders in settings, with the answers of Kafka 4.4.0 to the same files."""

import re
from pathlib import Path

import pytest

from barnabas.broker.config.entries import broker_entries
from barnabas.broker.controller.core.config_remarks import remarks
from barnabas.broker.node.config_providers import ConfigProviders, broker_config
from barnabas.cli.client_properties import ClientProperties, WrongCall
from barnabas.cli.serve import node_config
from barnabas.errors import BrokerError, ErrorCode

JAVA = "org.apache.kafka.common.config.provider."
DECLARED = {
    "config.providers": "file, dir,env",
    "config.providers.file.class": f"{JAVA}FileConfigProvider",
    "config.providers.dir.class": f"{JAVA}DirectoryConfigProvider",
    "config.providers.env.class": f"{JAVA}EnvVarConfigProvider",
}


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "file.properties").write_text("threads=5\nnested=${env:HOURS}\npassword=hunter2\n")
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "threads").write_bytes(b"9\r\n")
    monkeypatch.setenv("HOURS", "44")
    return tmp_path


def resolved(text: str, **more: str) -> str:
    return ConfigProviders({**DECLARED, **more}).resolve({"x": text})["x"]


def test_values_of_files_directories_and_variables(secrets: Path) -> None:
    file = secrets / "file.properties"
    assert resolved(f"${{file:{file}:threads}}") == "5"
    assert resolved(f"${{dir:{secrets}/dir:threads}}") == "9\r\n"
    assert resolved("${env:HOURS}") == "44"
    assert resolved(f"1${{env:HOURS}}-${{file:{file}:threads}}0") == "144-50"
    assert resolved(f"${{file:{file}:nested}}") == "${env:HOURS}"  # a value is not resolved again


@pytest.mark.parametrize(
    "text",
    [
        "${other:HOURS}",
        "${env:NOT_SET}",
        "${env:}",
        "${HOURS}",
        "${file:threads}",
        "${dir:/not/there:x}",
        "${env:HOURS",
        "${dir:@:file.properties/..}",
        "${file:@/file.properties:nope}",
        "${dir:@/file.properties:threads}",
        "${dir:@:dir}",
    ],
)
def test_a_placeholder_without_a_value_stays(secrets: Path, text: str) -> None:
    text = text.replace("@", str(secrets))
    assert resolved(text) == text


def test_allowed_paths_and_variables(secrets: Path) -> None:
    file, paths = f"${{file:{secrets}/dir/../file.properties:threads}}", "config.providers.file.param.allowed.paths"
    assert resolved(file, **{paths: f"/,{secrets}/dir"}) == "5"
    assert resolved(file, **{paths: f"{secrets}/dir"}) == file
    pattern = "config.providers.env.param.allowlist.pattern"
    assert resolved("${env:HOURS}", **{pattern: "HO.*"}) == "44"
    assert resolved("${env:HOURS}", **{pattern: "HO"}) == "${env:HOURS}"


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"config.providers.env.class": "a.B"}, r"value a\.B for configuration config\.providers\.env\.class: other"),
        ({"config.providers.file.param.allowed.paths": "relative"}, "relative must be an absolute path that exists"),
        ({"config.providers.dir.param.allowed.paths": "/not/there"}, "/not/there must be an absolute path that exists"),
        ({"config.providers.env.param.allowlist.pattern": "("}, "it is no regular expression"),
        ({"num.partitions": "${file:/not/there:x}"}, "cannot read /not/there: No such file"),
        ({"num.partitions": "${env:path:x}"}, "variables have no path"),
        ({"num.partitions": "${env:NOT_SET}"}, r"Invalid value \$\{env:NOT_SET\} for configuration num\.partitions"),
    ],
)
def test_wrong_declarations_are_refused(settings: dict[str, str], what: str) -> None:
    with pytest.raises(BrokerError, match=what) as refused:
        broker_config({**DECLARED, **settings})
    assert refused.value.code is ErrorCode.INVALID_CONFIG


def test_secrets_are_not_described(secrets: Path) -> None:
    password = f"${{file:{secrets}/file.properties:password}}"
    config = broker_config(
        {**DECLARED, "num.io.threads": "${env:HOURS}", "ssl.key.password": password, "own": password}
    )
    assert config.get_str("ssl.key.password") == "hunter2"
    assert config.unknown_keys == ("own",)
    entries = {each.name: each for each in broker_entries(config)}
    assert entries["num.io.threads"].value == "44"
    assert entries["config.providers"].value == "file,dir,env"
    shown = [(each.value, each.synonyms) for each in entries.values() if not each.sensitive]
    assert "hunter2" not in repr(shown) + repr(remarks(config))
    assert JAVA not in repr(shown)


def test_dynamic_settings_are_described_as_they_were_written(secrets: Path) -> None:
    config = broker_config(DECLARED)
    name = "listener.name.plaintext.ssl.cipher.suites"
    config.reconfigure({}, {name: "${env:HOURS}", "metric.reporters": f"${{file:{secrets}/file.properties:password}}"})
    assert config.listener_value("PLAINTEXT", "ssl.cipher.suites") == ("44",)
    assert config.get_list("metric.reporters") == ("hunter2",)
    entries = {each.name: each for each in broker_entries(config)}
    assert entries[name].value == "${env:HOURS}"
    assert "hunter2" not in repr(entries)
    (secrets / "file.properties").unlink()
    config.reconfigure({}, dict(config.dynamic))  # its values were checked when they were altered
    assert config.get_list("metric.reporters")[0].startswith("${file:")


def test_a_node_resolves_its_listeners_first(secrets: Path) -> None:
    file = secrets / "server.properties"
    lines = [f"{name}={text}" for name, text in DECLARED.items()]
    file.write_text("\n".join([*lines, "listeners=${env:HOST}", "log.dirs=/data-${env:HOURS}", "num.partitions=1"]))
    with pytest.MonkeyPatch.context() as variables:
        variables.setenv("HOST", "PLAINTEXT://:9092,CONTROLLER://:9093")
        config = node_config(None, 1, None, None, "1@a:9093,2@b:9093", file, ("num.partitions=${env:HOURS}",))
    assert [each.port for each in config.listeners] == [9092]
    assert config.log_dirs == ("/data-44",)
    assert config.get_int("num.partitions") == 44


def test_a_placeholder_that_stays_is_named() -> None:
    config = broker_config({**DECLARED, "ssl.key.password": "${env:NOT_SET}"})
    assert [each for each in remarks(config) if "ssl.key.password" in each and "no provider replaces" in each]


def test_properties_of_clients(secrets: Path) -> None:
    password = f"${{file:{secrets}/file.properties:password}}"
    properties = ClientProperties({**DECLARED, "client.id": "c-${env:HOURS}", "ssl.key.password": password}, "f")
    assert properties.get("client.id") == "c-44"
    assert properties.security == {"ssl.key.password": "hunter2"}
    assert properties.without_effect == []
    assert "hunter2" not in repr(properties.pairs)
    with pytest.raises(WrongCall, match=re.escape("f: A config provider cannot read /not/there")):
        ClientProperties({**DECLARED, "client.id": "${file:/not/there:x}"}, "f")
