"""One node with a listener for each security protocol, the users of the tests, and client settings for each cell of the matrix.

The same settings start a Kafka and a Barnabas. `User:ANONYMOUS` and alice are super users, bob may do what ACLs allow. Clients connect to
127.0.0.1: a network namespace need not resolve "localhost".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.processes.ports import free_port_block
from tests.support.processes.served import ServedBroker
from tests.support.security.certificates import CertificateAuthority

PASSWORD: Final = "planted-matrix"
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
PACKAGE: Final = "org.apache.kafka.common.security"
UNSECURED: Final = f"{PACKAGE}.oauthbearer.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
# Listener → security protocol. MUTUAL requires a certificate, EXPIRED and ELSEWHERE have one that a client refuses.
LISTENERS: Final[Mapping[str, str]] = {
    "PLAINTEXT": "PLAINTEXT",
    "SSL": "SSL",
    "MUTUAL": "SSL",
    "SASL_PLAINTEXT": "SASL_PLAINTEXT",
    "SASL_SSL": "SASL_SSL",
    "EXPIRED": "SSL",
    "ELSEWHERE": "SSL",
}


@dataclass(frozen=True)
class Cell:
    """A listener, and the mechanism of a login there."""

    listener: str
    mechanism: str | None = None

    @property
    def protocol(self) -> str:
        return LISTENERS[self.listener]

    @property
    def name(self) -> str:
        return self.listener.lower() + (f"-{self.mechanism.lower()}" if self.mechanism else "")


CELLS: Final = (
    Cell("PLAINTEXT"),
    Cell("SSL"),
    Cell("MUTUAL"),
    *(Cell(listener, mechanism) for listener in ("SASL_PLAINTEXT", "SASL_SSL") for mechanism in MECHANISMS),
)


class SecuredWorld:
    """Settings of a node, and the files and addresses of its clients.

    Attributes:
        ports: by listener; "CONTROLLER" for a Kafka.
    """

    def __init__(self, ca: CertificateAuthority, folder: Path) -> None:
        self.ca = ca
        self.other = CertificateAuthority(folder / "other-ca", "Another CA")
        first = free_port_block(len(LISTENERS) + 1)
        self.ports = {name: first + number for number, name in enumerate((*LISTENERS, "CONTROLLER"))}
        self.client = ca.issue("alice")
        self.old_client = ca.issue("old-alice", expired=True)

    def address(self, listener: str) -> str:
        return f"127.0.0.1:{self.ports[listener]}"

    def settings(self, *, controller: bool) -> dict[str, str]:
        """Settings of the node.

        Args:
            controller: whether they name a controller listener, as a Kafka needs.
        """
        listeners = [f"{name}://127.0.0.1:{self.ports[name]}" for name in LISTENERS]
        mapped = [f"{name}:{protocol}" for name, protocol in LISTENERS.items()]
        found = {
            "listeners": ",".join(listeners),
            "advertised.listeners": ",".join(listeners),
            "listener.security.protocol.map": ",".join((*mapped, "CONTROLLER:PLAINTEXT")),
            "inter.broker.listener.name": "PLAINTEXT",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS;User:alice;User:CN=alice",
            "group.initial.rebalance.delay.ms": "0",
            "offsets.topic.num.partitions": "3",
            "transaction.state.log.num.partitions": "3",
            "sasl.enabled.mechanisms": ",".join((*MECHANISMS, "OAUTHBEARER")),
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.expired.ssl.keystore.location": str(self.ca.issue("expired-node", expired=True).both),
            "listener.name.elsewhere.ssl.keystore.location": str(self.ca.issue("far", hosts=("far.example",)).both),
            **self.ca.issue("matrix-node").by_file(),
            **self.ca.truststore(),
        }
        if controller:
            found["listeners"] += f",CONTROLLER://{self.address('CONTROLLER')}"
            found["controller.quorum.voters"] = f"1@{self.address('CONTROLLER')}"
        for listener in ("sasl_plaintext", "sasl_ssl"):
            prefix = f"listener.name.{listener}"
            users = " ".join(f'user_{name}="{PASSWORD}"' for name in ("alice", "bob"))
            found |= {
                f"{prefix}.plain.sasl.jaas.config": f"{PACKAGE}.plain.PlainLoginModule required {users};",
                f"{prefix}.scram-sha-256.sasl.jaas.config": f"{PACKAGE}.scram.ScramLoginModule required;",
                f"{prefix}.scram-sha-512.sasl.jaas.config": f"{PACKAGE}.scram.ScramLoginModule required;",
                f"{prefix}.oauthbearer.sasl.jaas.config": f"{PACKAGE}.oauthbearer.OAuthBearerLoginModule required "
                'unsecuredLoginStringClaim_sub="node";',
                f"{prefix}.oauthbearer.sasl.server.callback.handler.class": UNSECURED,
            }
        return found


def java_properties(world: SecuredWorld, cell: Cell, user: str = "alice", password: str = PASSWORD) -> dict[str, str]:
    """Client properties for a cell, with Kafka's names."""
    found = {"bootstrap.servers": world.address(cell.listener), "security.protocol": cell.protocol}
    if cell.protocol.endswith("SSL"):
        found |= world.ca.truststore()
    if cell.listener == "MUTUAL":
        found |= world.client.by_file()
    if cell.mechanism is not None:
        module = "plain.Plain" if cell.mechanism == "PLAIN" else "scram.Scram"
        found["sasl.mechanism"] = cell.mechanism
        found["sasl.jaas.config"] = f'{PACKAGE}.{module}LoginModule required username="{user}" password="{password}";'
    return found


@contextmanager
def served_world(ca: CertificateAuthority, folder: Path) -> Iterator[SecuredWorld]:
    """A served Barnabas with these listeners. The users of SCRAM are not made yet."""
    world = SecuredWorld(ca, folder)
    texts = [f"{key}={text}" for key, text in world.settings(controller=False).items()]
    broker = ServedBroker(folder / "data", *texts, listens=False).start()
    try:
        yield world
    finally:
        broker.end()
