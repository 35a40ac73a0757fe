"""How a command finds its cluster: options, environment, --command-config, profile, default; profiles; client properties."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from barnabas.cli.client_properties import (
    CLIENT_PROPERTIES,
    ClientProperties,
    WrongCall,
    read_client_properties,
    security_arguments,
)
from barnabas.cli.profiles import Profiles, config_path
from barnabas.cli.session import Connection
from barnabas.client import Consumer, Producer
from barnabas.client.admin import Admin
from tests.support.processes.cli import called


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("BARNABAS_BOOTSTRAP", "BARNABAS_PROFILE"):
        monkeypatch.delenv(name, raising=False)


def test_the_first_place_that_has_a_setting_gives_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the whole command line: the address stands in the error."""
    config = tmp_path / "client.properties"
    config.write_text("bootstrap.servers=127.0.0.1:3\nrequest.timeout.ms=3000\n")
    Profiles().create("mine", {"bootstrap.servers": "127.0.0.1:4", "request.timeout.ms": "4000"})
    Profiles().create("other", {"bootstrap.servers": "127.0.0.1:5"})

    def port(*options: str) -> str:
        said = called("topic", "list", *options).stderr
        return said.partition("127.0.0.1:")[2].partition(":")[0].partition(" ")[0]

    file = ("--command-config", str(config))
    assert port() == "4", "the profile in use"
    assert port("--profile", "other") == "5"
    assert port(*file) == "3"
    monkeypatch.setenv("BARNABAS_PROFILE", "other")
    assert port() == "5"
    assert port("--profile", "mine") == "4"
    monkeypatch.setenv("BARNABAS_BOOTSTRAP", "127.0.0.1:2")
    assert port(*file) == "2"
    assert port(*file, "-b", "127.0.0.1:1") == "1"
    Profiles().delete("mine")
    monkeypatch.delenv("BARNABAS_BOOTSTRAP")
    monkeypatch.delenv("BARNABAS_PROFILE")
    assert Connection().bootstrap == "localhost:9092"
    assert Connection(bootstrap_server="one, [::1],two:7").bootstrap == "one:9092,[::1]:9092,two:7"
    assert Connection().timeout_ms == 5_000


def test_timeouts_come_from_the_same_places(tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text("request.timeout.ms=3000\nclient.id=me\n")
    Profiles().create("mine", {"request.timeout.ms": "4000", "client.id": "profile", "retry.backoff.ms": "7"})
    assert Connection().timeout_ms == 4_000
    assert Connection(command_config=config).timeout_ms == 3_000
    assert Connection(command_config=config, timeout=0.25).timeout_ms == 250
    assert Connection(command_config=config)._arguments("admin") == {
        "bootstrap_servers": "localhost:9092",
        "request_timeout_ms": 3_000,
        "client_id": "me",
        "retry_backoff_ms": 7,
    }
    for wrong in (0, -1, float("nan"), float("inf"), 1e9):
        with pytest.raises(WrongCall, match="--timeout"):
            _ = Connection(timeout=wrong).timeout_s


def test_every_property_is_an_argument_of_its_clients() -> None:
    """Each client takes what the table says that it takes."""
    values = {
        "bootstrap.servers": "127.0.0.1:1",
        "acks": "all",
        "enable.idempotence": "true",
        "compression.type": "ZSTD",
        "group.protocol": "consumer",
        "auto.offset.reset": "EARLIEST",
        "isolation.level": "read_committed",
        "transaction.two.phase.commit.enable": "false",
        "enable.auto.commit": "false",
        "check.crcs": "true",
        "partition.assignment.strategy": "org.apache.kafka.clients.consumer.RangeAssignor,roundrobin",
        "max.in.flight.requests.per.connection": "5",
    }
    for name, known in CLIENT_PROPERTIES.items():
        value = values.get(name, "1000" if known.read.__name__ == "_whole" else "text")
        properties = ClientProperties(
            {name: value, **({"group.protocol": "consumer"} if "remote" in name else {})}, "x"
        )
        assert properties.without_effect == []
        for kind, client in (("admin", Admin), ("producer", Producer), ("consumer", Consumer)):
            arguments = properties.arguments(kind)  # type: ignore[arg-type]  # a literal of the tuple above
            assert (known.argument in arguments) == (kind in known.kinds)
            client(**arguments)


@pytest.mark.parametrize(
    ("pair", "reason"),
    [
        (("request.timeout.ms", "soon"), "is not a whole number"),
        (("enable.auto.commit", "yes"), "is neither true nor false"),
    ],
)
def test_values_that_are_refused(pair: tuple[str, str], reason: str) -> None:
    with pytest.raises(WrongCall, match=reason):
        ClientProperties(dict([pair]), "x")


def test_security_comes_from_all_places_together() -> None:
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="planted-secret";'
    file = ClientProperties({"sasl.jaas.config": jaas, "sasl.mechanism": "PLAIN"}, "file")
    profile = ClientProperties({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256"}, "profile")
    arguments = security_arguments([file, profile])
    assert arguments["sasl_mechanism"] == "PLAIN"
    Admin(**arguments)
    with pytest.raises(WrongCall, match=r"^file: sasl\.jaas\.config needs security\.protocol"):
        security_arguments([file])
    wrong = ClientProperties({"security.protocol": "TLS"}, "x")
    with pytest.raises(WrongCall, match=r"x: security\.protocol='TLS' is none of PLAINTEXT"):
        security_arguments([wrong])
    assert security_arguments([ClientProperties({"client.id": "x"}, "x")]) == {}


def test_properties_without_effect_are_named() -> None:
    found = ClientProperties(
        {"security.protocol": "plaintext", "ssl.provider": "x", "retries": "3", "bootstrap.server": "a:1"}, "x"
    )
    assert found.without_effect == [
        "x: ssl.provider has no effect",
        "x: retries has no effect",
        "x: unknown property 'bootstrap.server' has no effect; did you mean 'bootstrap.servers'?",
    ]


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "large").write_bytes(b"#" * 2_000_000)
    for name, reason in (("missing", "No such file"), ("binary", "UTF-8"), ("large", "bytes"), ("", "Is a directory")):
        with pytest.raises(WrongCall, match=reason):
            read_client_properties(tmp_path / name)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("-b", "nothing:x"), "--bootstrap-server: 'nothing:x' is not host:port"),
        (("-b", ""), "contains no address"),
        (("-b", "http://x:1"), "is a URL or path"),
        (("-b", "x:99999"), "the port must be a number from 1 to 65535"),
        (("--timeout", "0"), "--timeout 0: it must be above 0"),
        (("--timeout", "soon"), "unable to convert"),
        (("--profile", "nobody"), "there is no profile 'nobody'"),
        (("--command-config", "missing.properties"), "cannot read missing.properties: No such file or directory"),
        (("--nonsense",), "Unknown option"),
    ],
)
def test_wrong_calls_exit_with_2_and_one_line(options: tuple[str, ...], reason: str) -> None:
    done = called("topic", "list", *options)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done
    assert reason in done.stderr


class TestProfiles:
    def test_they_are_kept_with_the_comments_of_the_file(self) -> None:
        path = config_path()
        path.parent.mkdir()
        path.write_text('# mine\n[profile.hand]  # by hand\nbootstrap.servers = ["a:1", "b:2"]\n[other]\nx = 1\n')
        profiles = Profiles()
        assert (profiles.known, profiles.used) == ({"hand": {"bootstrap.servers": "a:1,b:2"}}, None)
        profiles.create("two.2", {"client.id": 'quoted " \\ text'})
        profiles.use("hand")
        again = Profiles()
        assert again.known == {"hand": {"bootstrap.servers": "a:1,b:2"}, "two.2": {"client.id": 'quoted " \\ text'}}
        assert again.used == "hand"
        assert "# mine" in path.read_text()
        assert "# by hand" in path.read_text()
        again.delete("hand")
        assert (list(Profiles().known), Profiles().used) == (["two.2"], None)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, "it may hold secrets"

    def test_the_first_one_is_used(self) -> None:
        Profiles().create("a", {"client.id": "x"})
        Profiles().create("b", {"client.id": "x"})
        assert Profiles().used == "a"

    @pytest.mark.parametrize(
        "text",
        ["use = ", "profile = 3", "profile.x = 3", "use = 7", "\udcff"],
        ids=["toml", "table", "name", "use", "utf"],
    )
    def test_a_damaged_file_is_told_and_left_alone(self, text: str) -> None:
        path = config_path()
        path.parent.mkdir()
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        for command in (("profile", "list"), ("profile", "create", "x", "-b", "a:1"), ("topic", "list", "-b", "a:1")):
            done = called(*command)
            assert (done.returncode, done.stderr.count("\n")) == (2, 1), done
            assert str(path) in done.stderr
        assert path.read_bytes() == text.encode("utf-8", "surrogateescape")

    @pytest.mark.parametrize(
        ("command", "reason"),
        [
            (("create", "a"), "give its brokers with -b"),
            (("create", "a/b", "-b", "x:1"), "cannot be a profile's name"),
            (("create", "a", "-b", "x:y"), "is not host:port"),
            (("create", "a", "--set", "x"), "'x' is not key=value"),
            (("create", "here", "-b", "x:1"), "--replace replaces it"),
            (("use", "a"), "there is no profile 'a'"),
            (("delete", "a"), "there is no profile 'a'"),
            (("show", "a"), "there is no profile 'a'"),
        ],
    )
    def test_wrong_calls(self, command: tuple[str, ...], reason: str) -> None:
        Profiles().create("here", {"client.id": "x"})
        done = called("profile", *command)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done
        assert reason in done.stderr
        assert Profiles().known == {"here": {"client.id": "x"}}

    def test_profiles_in_one_line_are_changed_too(self) -> None:
        config_path().parent.mkdir()
        config_path().write_text('profile = { a = { "client.id" = "x" } }\n')
        Profiles().create("b", {"client.id": "y"})
        assert Profiles().known == {"a": {"client.id": "x"}, "b": {"client.id": "y"}}

    @pytest.mark.parametrize("key", ["ssl.key.password", "x.private.key.passphrase", "basic.auth.user.info"])
    def test_secrets_are_hidden(self, key: str) -> None:
        called("profile", "create", "a", "-b", "x:1", "--set", f"{key}=open sesame")
        assert "sesame" not in called("profile", "show").stdout + called("profile", "list", "--json").stdout

    def test_a_directory_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "barnabas").write_text("a file")
        done = called("profile", "create", "a", "-b", "x:1")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done
