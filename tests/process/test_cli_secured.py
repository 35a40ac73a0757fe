"""Commands over SASL_SSL: `--command-config`, profiles and `-X`, and what the errors say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.processes.cli import Called, called
from tests.support.processes.served import ServedBroker  # not the kit: its only listener is SASL_SSL
from tests.support.security.certificates import CertificateAuthority
from tests.support.security.identity_server import CLIENT, SECRET, identity_server
from tests.support.security.sasl_node import address_of, sasl_node

pytestmark = pytest.mark.process

PASSWORD = "planted-secret"
LOGIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, ca: CertificateAuthority) -> Iterator[ServedBroker]:
    """One node whose only listener is SASL_SSL."""
    settings = {
        "listeners": "SASL_SSL://127.0.0.1:0",
        "inter.broker.listener.name": "SASL_SSL",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": f'{LOGIN_MODULE} required user_alice="{PASSWORD}";',
        **ca.issue("commands").by_file(),
    }
    folder = tmp_path_factory.mktemp("commands")
    running = ServedBroker(folder / "data", *(f"{k}={v}" for k, v in settings.items()), listens=False).start()
    yield running
    running.end()


Properties = Callable[..., Path]


@pytest.fixture
def properties(tmp_path: Path, ca: CertificateAuthority) -> Properties:
    """Writes a file of client properties; an empty value removes one."""

    def write(**changes: str) -> Path:
        found = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f'{LOGIN_MODULE} required username="alice" password="{PASSWORD}";',
            **ca.truststore(),
            **{name.replace("__", "."): value for name, value in changes.items()},
        }
        path = tmp_path / "client.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in found.items() if value))
        return path

    return write


def run(broker: ServedBroker, path: Path, *arguments: str) -> Called:
    done = called(*arguments, "-b", broker.address, "--command-config", str(path))
    assert PASSWORD not in done.shown
    return done


def test_commands_reach_a_listener_with_sasl_ssl(broker: ServedBroker, properties: Properties, tmp_path: Path) -> None:
    path = properties()
    transcript = [
        (("topic", "create", "t", "--partitions", "1"), "created t"),
        (("consume", "t", "--from-beginning", "--exit-at-end"), "one\ntwo\n"),
        (("topic", "list"), "t"),
        (("cluster",), broker.address),
        (("topic", "describe", "t"), "t"),
        (("group", "list"), ""),
    ]
    extra = [text for line in path.read_text().splitlines() for text in ("-X", line)]
    assert run(broker, path, *transcript.pop(0)[0]).returncode == 0
    produced = called("produce", "t", "-b", broker.address, *extra, stdin="one\ntwo\n")
    assert produced.returncode == 0, produced.stderr
    for arguments, shown in transcript:
        done = run(broker, path, *arguments)
        assert done.returncode == 0, (arguments, done.shown)
        assert shown in done.shown, (arguments, done.shown)
    home = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "HOME": str(tmp_path)}
    sets = [text for line in path.read_text().splitlines() for text in ("--set", line)]
    assert called("profile", "create", "safe", "-b", broker.address, *sets, environment=home).returncode == 0
    assert "t" in called("topic", "list", "--profile", "safe", environment=home).stdout
    shown = called("profile", "show", "safe", environment=home).shown
    assert "sasl.jaas.config" in shown
    assert PASSWORD not in shown


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        (
            {"sasl__jaas__config": f'{LOGIN_MODULE} required username="alice" password="wrong";'},
            1,
            "PLAIN: the broker refused the login: Authentication failed",
        ),
        ({"sasl__mechanism": ""}, 2, "needs sasl.mechanism: choose from PLAIN"),
        ({"sasl__jaas__config": ""}, 2, "write sasl.jaas.config=org.apache.kafka"),
        ({"security__protocol": ""}, 2, "needs security.protocol=SSL, SASL_PLAINTEXT or SASL_SSL"),
        ({"ssl__truststore__location": "/no/ca.pem"}, 2, "/no/ca.pem"),
        ({"security__protocol": "SSL"}, 1, "SASL"),
        ({"security__protocol": "SASL_PLAINTEXT"}, 1, "TLS"),
        ({"security__protocol": "PLAINTEXT"}, 1, "TLS"),
    ],
    ids=lambda each: next(iter(each)) + "=" + str(next(iter(each.values())))[-9:] if isinstance(each, dict) else None,
)
def test_errors_say_what_to_do(
    broker: ServedBroker, properties: Properties, changes: dict[str, str], code: int, says: str
) -> None:
    done = run(broker, properties(**changes), "topic", "list", "--timeout", "2")
    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr
    assert len(done.stderr.splitlines()) <= 2 + ("no effect" in done.stderr)


def test_another_authority(broker: ServedBroker, properties: Properties, tmp_path: Path) -> None:
    other = CertificateAuthority(tmp_path / "other", "Another CA")
    path = properties(ssl__truststore__location=str(other.certificate))
    done = run(broker, path, "topic", "list")
    assert done.returncode == 1
    assert "set ssl_cafile (ssl.truststore.location) to the certificate of the authority" in done.stderr


async def test_commands_get_tokens_of_an_identity_provider(tmp_path: Path) -> None:
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"
    with identity_server() as idp:
        keys = {"sasl.enabled.mechanisms": "OAUTHBEARER", "sasl.oauthbearer.jwks.endpoint.url": idp.keys_url}
        async with sasl_node(keys, "SASL") as node:
            lines = [
                "security.protocol=SASL_PLAINTEXT",
                "sasl.mechanism=OAUTHBEARER",
                f"sasl.jaas.config={module}",
                f"sasl.oauthbearer.token.endpoint.url={idp.token_url}",
                f"sasl.oauthbearer.client.credentials.client.id={CLIENT}",
            ]
            right, wrong = tmp_path / "right", tmp_path / "wrong"
            secret = "sasl.oauthbearer.client.credentials.client.secret"
            right.write_text("\n".join([*lines, f"{secret}={SECRET}"]))
            wrong.write_text("\n".join([*lines, f"{secret}=planted-wrong"]))
            command = ("cluster", "-b", address_of(node, "SASL"), "--command-config")
            done = await asyncio.to_thread(called, *command, str(right))
            assert done.returncode == 0, done.shown
            assert "has no effect" not in done.shown
            done = await asyncio.to_thread(called, *command, str(wrong))
    assert done.returncode != 0
    assert "the token endpoint answered with status 401" in done.shown
    assert "planted" not in done.shown
