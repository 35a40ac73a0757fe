"""docker-compose.secure.yml for real, by the commands in its first lines: certificates, users, ACLs, and a killed container."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.processes.cli import barnabas
from tests.support.processes.composed import NEEDS_DOCKER, Composed
from tests.support.security.planted import PLANTED

pytestmark = [pytest.mark.process, *NEEDS_DOCKER]

FILE = "docker-compose.secure.yml"
ADMIN_PASSWORD, USER_PASSWORD = f"{PLANTED}admin $]", f"{PLANTED}alice"


def test_a_secured_cluster_in_containers(tmp_path: Path) -> None:
    composed = Composed(FILE, {"BARNABAS_ADMIN_PASSWORD": ADMIN_PASSWORD})

    def as_user(user: str, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return barnabas(*arguments, "--command-config", str(tmp_path / f"{user}.properties"), stdin=stdin)

    with composed.up():
        authority = tmp_path / "ca.pem"
        authority.write_text(composed("run", "--rm", "-T", "secrets", "cat", "/secrets/ca.pem"))
        properties = composed("run", "--rm", "-T", "secrets", "client-file", "admin", str(authority))
        (tmp_path / "admin.properties").write_text(properties)
        its_password = ("-e", f"PASSWORD={USER_PASSWORD}")
        users = composed("run", "--rm", "-T", *its_password, "secrets", "client-file", "alice", str(authority))
        (tmp_path / "alice.properties").write_text(users)
        for node in (1, 2, 3):
            composed.wait_for(node, "{{.State.Health.Status}}", "healthy")

        created = as_user("admin", "topic", "create", "orders")
        assert "replication factor 3" in created.stdout, created.stderr
        made = as_user("admin", "user", "create", "alice", stdin=f"{USER_PASSWORD}\n")
        assert made.returncode == 0, made.stderr
        denied = as_user("alice", "produce", "orders", stdin="tea\n")
        assert denied.returncode == 1
        assert "TOPIC_AUTHORIZATION_FAILED" in denied.stderr or "not authorized" in denied.stderr.lower()
        given = as_user("admin", "acl", "add", "User:alice", "write", "topic:orders")
        assert given.returncode == 0, given.stderr
        assert as_user("alice", "produce", "orders", stdin="tea\n").returncode == 0

        composed("kill", "broker-2")
        assert as_user("alice", "produce", "orders", stdin="coffee\n").returncode == 0
        composed("start", "broker-2")
        composed.wait_for(2, "{{.State.Health.Status}}", "healthy")
        read = as_user("admin", "consume", "orders", "--from-beginning", "--exit-at-end")
        assert sorted(read.stdout.split()) == ["coffee", "tea"], read.stderr

        plain = barnabas("cluster", "-b", composed.bootstrap, "--timeout", "3")
        assert (plain.returncode, "TLS" in plain.stderr) == (1, True)
        for node in (1, 2, 3):
            assert composed.inspect(node, '{{(index .NetworkSettings.Ports "9092/tcp" 0).HostIp}}') == "127.0.0.1"
        # What runs has no password in its environment, and no file of the container has it.
        environment = composed("exec", "-T", "broker-1", "cat", "/proc/1/environ")
        files = composed("exec", "-T", "broker-1", "bash", "-c", f"grep -rl {PLANTED} /tmp /data /secrets || true")
        assert (ADMIN_PASSWORD in environment, files) == (False, "")
        assert PLANTED not in composed("logs")
    assert composed.left() == ""
