"""A node whose certificate another authority has signed stays outside of a cluster with TLS on all listeners."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.elsewhere import wait_until
from tests.support.processes.ports import free_ports
from tests.support.processes.served import ServedBroker  # not the kit: the brokers' own listeners have TLS
from tests.support.security.certificates import CertificateAuthority

pytestmark = pytest.mark.process


def settings(
    ca: CertificateAuthority, node: int, client_port: int, controller_port: int, quorum: str
) -> dict[str, str]:
    return {
        "listeners": f"SSL://127.0.0.1:{client_port},CONTROLLER://127.0.0.1:{controller_port}",
        "listener.security.protocol.map": "SSL:SSL,CONTROLLER:SSL",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": quorum,
        "security.inter.broker.protocol": "SSL",
        "ssl.client.auth": "required",
        **ca.issue(f"cluster-{node}", hosts=("127.0.0.1",)).by_file(),
        **ca.truststore(),
    }


def test_a_node_with_a_certificate_of_another_authority_stays_outside(tmp_path: Path, ca: CertificateAuthority) -> None:
    other = CertificateAuthority(tmp_path / "other", "Another CA")
    ports = free_ports(4)
    quorum = f"1@127.0.0.1:{ports[2]},2@127.0.0.1:{ports[3]}"
    started = []
    try:
        for node in (1, 2):
            values = settings(ca, node, ports[node - 1], ports[node + 1], quorum)
            if node == 2:
                trusted = tmp_path / "both.pem"  # a node must trust its own certificate
                trusted.write_bytes(ca.certificate.read_bytes() + other.certificate.read_bytes())
                values |= {
                    **other.issue("outside", hosts=("127.0.0.1",)).by_file(),
                    "ssl.truststore.location": str(trusted),
                }
            texts = [f"{key}={text}" for key, text in values.items()]
            started.append(ServedBroker(tmp_path / f"node-{node}", *texts, node_id=node, listens=False))
            started[-1].launch()
        wait_until(lambda: "the certificate is refused: self-signed certificate" in started[0].log())
        wait_until(lambda: "the other side refused: unknown ca" in started[1].log())
        assert not any("leads the metadata quorum" in each.log() for each in started)
    finally:
        for each in started:
            each.kill()
