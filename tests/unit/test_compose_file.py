"""docker-compose.yml and the Dockerfile, read as text: what no container is needed for."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from barnabas.cli.serve import node_config
from tests.support.security.planted import PLANTED

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
SERVICES = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]


@pytest.mark.parametrize("name", SERVICES)
def test_a_service(name: str) -> None:
    service = SERVICES[name]
    assert service["restart"] == "unless-stopped"
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert "--metrics-listen=0.0.0.0:9404" in service["command"]
    assert "healthcheck" not in service, "the image has one"


def test_the_image() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert re.search(r"^USER barnabas$", text, re.MULTILINE)
    assert re.search(r"^STOPSIGNAL SIGTERM$", text, re.MULTILINE)
    assert "/dev/tcp/127.0.0.1/9404" in text


@pytest.mark.parametrize(
    ("script", "arguments", "expected"),
    [
        ("entrypoint.sh", ["topic", "list"], "barnabas topic list"),
        ("entrypoint.sh", ["sh", "-c", "echo a shell"], "a shell"),
        ("entrypoint.sh", ["/bin/echo", "a path"], "a path"),
        ("run.sh", [], "barnabas serve --environment"),
    ],
)
def test_the_scripts_of_the_image_run(tmp_path: Path, script: str, arguments: list[str], expected: str) -> None:
    """testcontainers starts a shell that waits for a script, which calls /etc/kafka/docker/run."""
    assert _called(tmp_path, script, *arguments).stdout.strip() == expected


def test_arguments_of_the_start_are_variables(tmp_path: Path) -> None:
    assert "KAFKA_NODE_ID=7\n" in _called(tmp_path, "run.sh", "KAFKA_NODE_ID=7").stderr
    refused = _called(tmp_path, "run.sh", "--help")
    assert (refused.returncode, refused.stderr) == (2, "run: write NAME=VALUE, not --help\n")


@pytest.mark.parametrize(
    ("file", "variables"),
    [
        (None, ["KAFKA_LOG_DIR=/data", "KAFKA_METRICS_LISTEN=0.0.0.0:9404"]),
        ("node.id=1\n#log.dir=/x\n", ["KAFKA_LOG_DIR=/data", "KAFKA_METRICS_LISTEN=0.0.0.0:9404"]),
        ("log.dir=/var/lib/kafka/data\n", ["KAFKA_METRICS_LISTEN=0.0.0.0:9404"]),
        (" log.dirs : /a,/b\nmetrics.listen=0.0.0.0:1", []),
    ],
)
def test_a_mounted_file_wins_over_the_defaults_of_the_image(
    tmp_path: Path, file: str | None, variables: list[str]
) -> None:
    mounted = tmp_path / "server.properties"
    if file is not None:
        mounted.write_text(file)
    script = tmp_path / "run.sh"
    text = (ROOT / "docker" / "run.sh").read_text()
    script.write_text(text.replace("/mnt/shared/config/server.properties", str(mounted)))
    called = _called(tmp_path, str(script))
    assert called.stdout.strip() == "barnabas serve --environment" + (f" --config {mounted}" if file else "")
    assert sorted(called.stderr.splitlines()) == variables


def _called(folder: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a script of the image with a `barnabas` that prints how it is called, and its variables."""
    program = folder / "barnabas"
    program.write_text('#!/bin/sh\necho "barnabas $*"\nenv | grep ^KAFKA_ >&2\n')
    program.chmod(0o755)
    return subprocess.run(
        ["bash", str(ROOT / "docker" / script), *arguments],
        env={"PATH": f"{folder}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_secured_file_serves_no_plaintext_listener() -> None:
    """Each node has TLS everywhere and the same settings; the secrets are made before any node starts."""
    services = yaml.safe_load((ROOT / "docker-compose.secure.yml").read_text())["services"]
    brokers = {name: service for name, service in services.items() if name != "secrets"}
    assert sorted(brokers) == ["broker-1", "broker-2", "broker-3"]
    for name, service in brokers.items():
        assert service["depends_on"] == {"secrets": {"condition": "service_completed_successfully"}}
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        assert f"broker-{service['environment']['NODE_ID']}" == name
        node = service["environment"]["NODE_ID"]
        assert service["volumes"] == [f"secrets-{node}:/secrets:ro", f"broker-{node}:/data"], (
            "no node reads others' keys"
        )
        assert f"secrets-{node}:/nodes/{name}" in services["secrets"]["volumes"]
        assert ":?" in service["environment"]["ADMIN_PASSWORD"], "no password has a default"
    script = (ROOT / "docker" / "node.sh").read_text()
    protocols = re.search(r"^listener.security.protocol.map=(.*)$", script, re.MULTILINE)
    assert protocols is not None
    assert dict(each.split(":") for each in protocols[1].split(",")) == {
        "INTERNAL": "SSL",
        "EXTERNAL": "SASL_SSL",
        "CONTROLLER": "SSL",
    }
    assert "StandardAuthorizer" in script
    assert "!docker" in (ROOT / ".dockerignore").read_text().split(), "the image holds the scripts"


@pytest.mark.parametrize("password", [f"{PLANTED}a,b", f'{PLANTED}a"b', f"{PLANTED}a\\b", f" {PLANTED}a"])
def test_the_secrets_refuse_a_password_that_their_files_cannot_hold(password: str) -> None:
    script = str(ROOT / "docker" / "secrets.sh")
    done = subprocess.run(
        ["bash", script, "make", "broker-1"], env={"ADMIN_PASSWORD": password}, capture_output=True, text=True
    )
    assert (done.returncode, "the password of admin" in done.stderr, PLANTED in done.stderr) == (2, True, False)


@pytest.mark.parametrize(
    ("user", "environment", "login"),
    [
        ("admin", {}, 'username="admin" password="planted-admin";'),
        ("alice", {"PASSWORD": "planted, alice"}, 'username="alice" password="planted, alice";'),
        ("alice", {}, ""),
        ("alice", {"PASSWORD": 'planted"alice'}, ""),
    ],
    ids=["administrator", "user", "no password", "quotation mark"],
)
def test_a_client_file_has_the_password_of_its_user(user: str, environment: dict[str, str], login: str) -> None:
    done = subprocess.run(
        ["bash", str(ROOT / "docker" / "secrets.sh"), "client-file", user, "ca.pem"],
        env={"ADMIN_PASSWORD": "planted-admin", "BOOTSTRAP": "localhost:9092", **environment},
        capture_output=True,
        text=True,
    )
    if login:
        assert (done.returncode, done.stdout.strip().endswith(login)) == (0, True)
    else:
        assert (done.returncode, "password" in done.stderr, "planted" in done.stderr + done.stdout) == (2, True, False)


def test_the_service_of_docs_cluster_md_is_a_node() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "cluster.md").read_text(), re.DOTALL)
    (service,) = yaml.safe_load(text)["services"].values()
    variables = {name: str(value) for name, value in service["environment"].items()}
    config = node_config("/data", None, None, None, None, None, (), None, variables)
    assert (config.node_id, config.roles) == (1, frozenset({"broker", "controller"}))
    (advertised,) = config.advertised_listeners
    assert (advertised.host, f"{advertised.port}:{advertised.port}") == ("localhost", service["ports"][0])
