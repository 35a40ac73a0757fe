"""The exactly-once copy on SASL_SSL with ACLs everywhere, while brokers are killed, certificates replaced and a password changed.

The tests ask their own questions on a plaintext listener, whose user ANONYMOUS is a super user here; nothing else uses it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.runtime.certificate_authority import Authority
from tests.support.processes.cli import barnabas
from tests.support.processes.cluster import Cluster
from tests.support.processes.ports import free_ports
from tests.support.processes.served import ServedBroker  # not the kit: the controllers' listeners have TLS
from tests.support.security.planted import PLANTED

pytest.importorskip("confluent_kafka")

from tests.support.processes.copying import CopyRun

# In the suite: tests/simulation/test_secured_cluster.py for the copy, test_security_procedures.py and test_tls.py for certificates.
pytestmark = [pytest.mark.process, pytest.mark.soak]

NODES = (1, 2, 3)
RECORDS = 30_000
HOSTS = ("localhost", "127.0.0.1")
ACLS = {
    "app": (("write", "topic:input"), ("read", "topic:output"), ("read", "group:reader")),
    "copier": (
        ("read", "topic:input"),
        ("write", "topic:output"),
        ("read", "group:copier"),
        ("write", "transactional-id:copier"),
    ),
}


def settings_of(node: int, clients: dict[int, int], plain: dict[int, int], secrets: Path) -> list[str]:
    plain_module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    scram_module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    node_login = f'{plain_module} required username="broker" password="planted-between-brokers" user_broker="planted-between-brokers";'
    return [
        f"listeners=PLAINTEXT://127.0.0.1:{plain[node]},SECURE://127.0.0.1:{clients[node]}",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SECURE:SASL_SSL,CONTROLLER:SSL",
        "inter.broker.listener.name=SECURE",
        "sasl.mechanism.inter.broker.protocol=PLAIN",
        "listener.name.secure.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256",
        f"listener.name.secure.plain.sasl.jaas.config={node_login}",
        f"listener.name.secure.scram-sha-256.sasl.jaas.config={scram_module} required;",
        "ssl.keystore.type=PEM",
        f"ssl.keystore.location={secrets}/node-{node}.pem",
        "ssl.truststore.type=PEM",
        f"ssl.truststore.location={secrets}/ca.pem",
        "listener.name.controller.ssl.client.auth=required",
        "connections.max.reauth.ms=2000",
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users=User:ANONYMOUS;User:broker;User:CN=node-1;User:CN=node-2;User:CN=node-3",
    ]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority(tmp_path / "secrets")
    for node in NODES:
        made.issue(f"node-{node}", HOSTS)
    return made


@pytest.fixture
def secured(tmp_path: Path, authority: Authority) -> Iterator[tuple[Cluster, str]]:
    """Three nodes, and the addresses of their secured listeners."""
    ports = free_ports(9)
    plain, clients, quorum = (dict(zip(NODES, ports[at : at + 3], strict=True)) for at in (0, 3, 6))
    voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in quorum.items())
    nodes = [
        ServedBroker(
            tmp_path / f"node-{node}",
            *settings_of(node, clients, plain, authority.directory),
            node_id=node,
            port=plain[node],
            listens=False,
            arguments=("--controller-listen", f"127.0.0.1:{quorum[node]}", "--quorum", voters),
        )
        for node in NODES
    ]
    with Cluster(nodes) as cluster:
        yield cluster, ",".join(f"127.0.0.1:{port}" for port in clients.values())


def set_password(cluster: Cluster, user: str, password: str) -> None:
    done = barnabas("user", "create", user, "-b", cluster.bootstrap, stdin=password + "\n")
    assert done.returncode == 0, done.stderr


def test_the_copy_through_kills_new_certificates_and_a_new_password(
    secured: tuple[Cluster, str], authority: Authority, tmp_path: Path
) -> None:
    cluster, bootstrap = secured
    set_password(cluster, "copier", "planted-first-password")
    set_password(cluster, "app", "planted-own-password")
    for user, acls in ACLS.items():
        for acl in acls:
            done = barnabas("acl", "add", f"User:{user}", *acl, "-b", cluster.bootstrap)
            assert done.returncode == 0, done.stderr
    settings = {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(authority.file),
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "app",
        "sasl.password": "planted-own-password",
    }
    copier = {"sasl.username": "copier", "sasl.password": "planted-first-password"}
    with CopyRun(cluster, tmp_path, settings=settings, worker_settings=copier) as run:
        for node in NODES:
            run.feed(RECORDS // 3)
            if node == 1:
                for each in NODES:
                    (authority.directory / f"node-{each}.pem").unlink()
                    authority.issue(f"node-{each}", HOSTS)
                    os.kill(cluster.nodes[each].pid, signal.SIGHUP)
            if node == 2:
                set_password(cluster, "copier", "planted-second-password")
                run.restart_worker(**{"sasl.password": "planted-second-password"})
            cluster.kill(node)
            run.wait_until_copied()
            cluster.start_node(node)
            cluster.wait_in_sync("input", "output")
    run.judge()
    for text in (PLANTED, "BEGIN PRIVATE KEY", "does not let this node log in"):
        assert not [number for number, each in cluster.nodes.items() if text in each.log()]
