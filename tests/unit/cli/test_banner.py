"""The banner of a secured cluster: what protects it, its files, and commands that can be copied."""

from __future__ import annotations

import io
import shlex
from pathlib import Path

import pytest
from rich.console import Console

from barnabas.cli.banner import banner
from barnabas.cli.cluster_security import ClusterSecurity, Sasl

WIDTH = 80


def shown(security: ClusterSecurity | None, directory: Path) -> str:
    console = Console(file=io.StringIO(), width=WIDTH, color_system=None)
    bootstrap = "127.0.0.1:9092,127.0.0.1:9093"
    console.print(banner(bootstrap, directory, temporary=False, quorum=[19092, 19093], security=security))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("tls", "sasl", "acls", "described", "user"),
    [
        (True, "scram", True, "TLS, users admin and client (SCRAM), ACLs", "admin"),
        (False, "plain", False, "users admin and client (PLAIN)", "admin"),
        (True, None, True, "TLS, ACLs", "admin"),
        (True, None, False, "TLS", "client"),
    ],
    ids=["all", "sasl", "tls acl", "tls"],
)
@pytest.mark.parametrize("path", ["/data/mine", "/data/my cluster"])
def test_a_secured_cluster(tls: bool, sasl: Sasl | None, acls: bool, described: str, user: str, path: str) -> None:
    directory = Path(path)
    text = shown(ClusterSecurity(directory, tls, sasl, acls), directory)
    lines = [line.strip() for line in text.splitlines()]
    (said,) = (line.split(maxsplit=1)[1] for line in lines if line.startswith("security "))
    assert said == described
    assert f"{path}/security/*.properties" in text
    admin = '"$ADMIN"' if " " in path else "$ADMIN"
    commands = lines[lines.index("In another terminal:") + 1 :][:5]
    assert commands == [
        f"ADMIN={shlex.quote(f'{path}/security/{user}.properties')}",
        f"barnabas topic create orders --command-config {admin}",
        f"echo hello | barnabas produce orders --command-config {admin}",
        f"barnabas consume orders --from-beginning --command-config {admin}",
        f"barnabas cluster --command-config {admin}",
    ]


@pytest.mark.parametrize("bootstrap", ["", "kafka:9092"])
def test_without_security_the_commands_name_an_address_if_they_need_one(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BARNABAS_BOOTSTRAP", bootstrap) if bootstrap else monkeypatch.delenv(
        "BARNABAS_BOOTSTRAP", raising=False
    )
    text = shown(None, Path("/data"))
    lines = [line.strip() for line in text.splitlines()]
    assert f"barnabas topic create orders{' -b 127.0.0.1:9092' if bootstrap else ''}" in lines
    assert "security" not in text
    assert "ADMIN" not in text
