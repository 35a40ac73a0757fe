"""The procedures of docs/security.md on running clusters, while a copy goes on: TLS, logins, ACLs, another authority, a lost administrator."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from barnabas.client import Admin, AuthenticationFailed, Consumer, CopyProgress, NewMessage, NewTopic, Producer
from barnabas.client import exactly_once as copied_exactly_once
from barnabas.client.admin import AclBinding, AclOperation, AclResourceType
from barnabas.client.errors import ResponseError
from tests.support.processes.ports import free_ports
from tests.support.processes.served import ServedBroker  # not the kit: listeners change between starts
from tests.support.security.certificates import CertificateAuthority
from tests.support.waiting import until

pytestmark = pytest.mark.process

LOGIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule required"
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
NODE, RESCUE = "planted-node", "planted-rescue"  # passwords of PLAIN
ADMIN, ALICE, NEW_ADMIN = "planted-admin", "planted-alice", "planted-new-admin"  # and of SCRAM
SCRAM: Final = "SCRAM-SHA-256"


class Nodes:
    """Three nodes, each broker and controller, whose settings change from one restart to the next."""

    def __init__(self, folder: Path, ca: CertificateAuthority) -> None:
        self.ports = free_ports(9)
        self.ca = ca
        self.settings: dict[str, str] = {
            "process.roles": "broker,controller",
            "controller.quorum.voters": ",".join(f"{n}@127.0.0.1:{self.ports[n + 5]}" for n in (1, 2, 3)),
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "OLD:PLAINTEXT,NEW:SASL_SSL,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "OLD",
            "offsets.topic.num.partitions": "2",
            "transaction.state.log.num.partitions": "2",
            "group.initial.rebalance.delay.ms": "0",
        }
        self.names = ["OLD"]
        self.each = [ServedBroker(folder / f"node-{n}", node_id=n, listens=False) for n in (1, 2, 3)]

    def address(self, listener: str) -> str:
        first = {"OLD": 0, "NEW": 3}[listener]
        return ",".join(f"127.0.0.1:{port}" for port in self.ports[first : first + 3])

    def configure(self, node: ServedBroker) -> None:
        """Writes the present settings into the node's "file"."""
        at = node.node_id - 1
        ports = {"OLD": self.ports[at], "NEW": self.ports[at + 3]}
        clients = ",".join(f"{name}://127.0.0.1:{ports[name]}" for name in self.names)
        own = {
            "listeners": f"{clients},CONTROLLER://127.0.0.1:{self.ports[at + 6]}",
            "advertised.listeners": clients,
            **self.ca.issue(f"node-{node.node_id}").by_file(),
            **self.ca.truststore(),
        }
        node.port = ports[self.names[0]]
        node.settings = tuple(f"{name}={value}" for name, value in (self.settings | own).items())

    async def start(self) -> None:
        """Starts all at once."""
        for node in self.each:
            self.configure(node)
            node.launch()
        for node in self.each:
            await asyncio.to_thread(node.await_ready)

    async def roll(self, *names: str, **changes: str | None) -> None:
        """Changes settings (`__` for a dot; None removes one) and the client listeners, and restarts one node after the other."""
        self.names = list(names) or self.names
        for name, value in changes.items():
            self.settings.pop(name.replace("__", "."), None)
            if value is not None:
                self.settings[name.replace("__", ".")] = value
        for node in self.each:
            assert await asyncio.to_thread(node.stop, 60) == 0, node.log()[-2000:]
            self.configure(node)
            await asyncio.to_thread(node.start)

    def client(
        self, listener: str, name: str = "alice", password: str = ALICE, mechanism: str = SCRAM
    ) -> dict[str, Any]:
        """What a client needs for a listener."""
        if listener == "OLD":
            return {"bootstrap_servers": self.address("OLD")}
        return {
            "bootstrap_servers": self.address("NEW"),
            "security_protocol": "SASL_SSL",
            "ssl_cafile": str(self.ca.certificate),
            "sasl_mechanism": mechanism,
            "sasl_plain_username": name,
            "sasl_plain_password": password,
        }

    def plain_users(self, *more: str) -> str:
        users = " ".join((f'user_node="{NODE}"', *more))
        return f'{LOGIN_MODULE} required username="node" password="{NODE}" {users};'


@pytest.fixture
async def nodes(tmp_path: Path, ca: CertificateAuthority) -> AsyncIterator[Nodes]:
    found = Nodes(tmp_path, ca)
    try:
        await found.start()
        yield found
        for node in found.each:
            await asyncio.to_thread(node.end)
    finally:
        for node in found.each:
            node.kill()


class Copy:
    """Records from `source` to `target`, exactly once, by a client that can be started again with other settings."""

    def __init__(self) -> None:
        self.sent = self.copied = 0

    @asynccontextmanager
    async def running(self, settings: Mapping[str, Any]) -> AsyncIterator[None]:
        """Feeds and copies until the end of the block; then everything that was sent is copied."""
        ended, fed, begun = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def feed() -> None:
            async with Producer(**settings) as producer:
                while not fed.is_set():
                    if ended.is_set():
                        last[0] = self.sent
                        fed.set()  # the transaction of the last record ends the copy
                    await producer.send_and_wait("source", b"%d" % self.sent)
                    self.sent += 1
                    await asyncio.sleep(0.01)

        before = self.copied
        last = [0]  # number of the record that is sent last

        async def on_transaction(progress: CopyProgress) -> bool:
            begun.set()
            self.copied = before + progress.records_in
            return fed.is_set() and self.copied > last[0]

        async def copy() -> None:
            consumer: Any = Consumer(
                "source",
                group_id="copy",
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                isolation_level="read_committed",
                **settings,
            )
            async with consumer, Producer(transactional_id="copy", **settings) as producer:
                await copied_exactly_once(
                    consumer,
                    producer,
                    lambda record: [NewMessage("target", record.value)],
                    transaction_records_max=50,
                    on_transaction=on_transaction,
                )

        async with asyncio.timeout(360), asyncio.TaskGroup() as group:
            copying = group.create_task(copy())
            feeding = group.create_task(feed())
            await begun.wait()
            yield
            ended.set()
            await feeding
            await copying

    async def check(self, settings: Mapping[str, Any]) -> None:
        """Every record is in the target once, in order."""
        found: list[bytes] = []
        reading: Any = Consumer("target", auto_offset_reset="earliest", isolation_level="read_committed", **settings)
        async with reading as consumer:
            while len(found) < self.sent:
                polled = await consumer.getmany(timeout_ms=60_000)
                assert polled, f"the target ends after {len(found)} of {self.sent} records"
                found += [record.value for records in polled.values() for record in records]
            assert not await consumer.getmany(timeout_ms=500)
        assert [int(each) for each in found] == list(range(self.sent))


@pytest.mark.soak
async def test_a_plaintext_cluster_gets_tls_logins_and_acls_while_a_copy_goes_on(nodes: Nodes) -> None:
    old, new = nodes.client("OLD"), nodes.client("NEW")
    admin, copy = nodes.client("NEW", "admin", ADMIN), Copy()
    async with Admin(**old) as anyone:
        await anyone.create_topics([NewTopic("source", 1, 3), NewTopic("target", 1, 3)])
        for name, password in (("admin", ADMIN), ("alice", ALICE)):
            await anyone.set_scram_password(name, password, mechanism=SCRAM)
    jaas = {"listener__name__new__plain__sasl__jaas__config": nodes.plain_users()}
    async with copy.running(old):
        await nodes.roll(  # 1: the new listener beside the old one
            "OLD",
            "NEW",
            sasl__enabled__mechanisms=f"PLAIN,{SCRAM}",
            sasl__mechanism__inter__broker__protocol="PLAIN",
            **jaas,
        )
        await nodes.roll(inter__broker__listener__name="NEW")  # 2: brokers use it
    async with copy.running(new):  # 3: clients use it
        await nodes.roll("NEW")  # 4: the old one is gone
        await nodes.roll(  # 5: the authorizer, which allows what no ACL is about
            authorizer__class__name=AUTHORIZER,
            super__users="User:node;User:admin;User:ANONYMOUS",
            allow__everyone__if__no__acl__found="true",
        )
        async with Admin(**admin) as administrator:  # 6: ACLs
            await administrator.create_acls(
                AclBinding(kind, name, "User:alice", operation)
                for kind, name, operations in (
                    (AclResourceType.TOPIC, "source", (AclOperation.READ, AclOperation.WRITE)),
                    (AclResourceType.TOPIC, "target", (AclOperation.READ, AclOperation.WRITE)),
                    (AclResourceType.GROUP, "copy", (AclOperation.READ,)),
                    (AclResourceType.TRANSACTIONAL_ID, "copy", (AclOperation.WRITE,)),
                )
                for operation in operations
            )
        await nodes.roll(allow__everyone__if__no__acl__found=None)  # 7: and denies everything else
        async with Admin(**new) as alice:
            with pytest.raises(ResponseError, match="AUTHORIZATION_FAILED"):
                await alice.create_topics([NewTopic("of-alice", 1, 1)])
        async with Admin(**admin) as administrator:  # another mechanism between brokers
            await administrator.set_scram_password("node", NODE, mechanism=SCRAM)
        await nodes.roll(
            sasl__mechanism__inter__broker__protocol=SCRAM,
            **{
                f"listener__name__new__{SCRAM.lower()}__sasl__jaas__config": f'{SCRAM_MODULE} username="node" password="{NODE}";'
            },
        )
        # 8: connections between controllers: all nodes at once
        nodes.settings["listener.security.protocol.map"] = "OLD:PLAINTEXT,NEW:SASL_SSL,CONTROLLER:SASL_SSL"
        nodes.settings["listener.name.controller.sasl.enabled.mechanisms"] = "PLAIN"
        nodes.settings["sasl.mechanism.controller.protocol"] = "PLAIN"
        nodes.settings["listener.name.controller.plain.sasl.jaas.config"] = nodes.plain_users()
        nodes.settings["super.users"] = "User:node;User:admin"
        for node in nodes.each:
            os.kill(node.pid, signal.SIGTERM)
        for node in nodes.each:
            await asyncio.to_thread(node.stop, 60)
        await nodes.start()
    await copy.check(new)

    async with Admin(**admin) as administrator:  # the last administrator deletes itself
        await administrator.delete_scram_credential("admin", mechanism=SCRAM)
    with pytest.raises(AuthenticationFailed):
        await Admin(**admin).start()
    async with copy.running(new):  # the way back: a user of the file, which is a super user for a time
        await nodes.roll(
            super__users="User:node;User:admin;User:rescue",
            listener__name__new__plain__sasl__jaas__config=nodes.plain_users(f'user_rescue="{RESCUE}"'),
        )
        async with Admin(**nodes.client("NEW", "rescue", RESCUE, "PLAIN")) as rescuer:
            await rescuer.set_scram_password("admin", NEW_ADMIN, mechanism=SCRAM)
        await nodes.roll(super__users="User:node;User:admin", **jaas)
        with pytest.raises(AuthenticationFailed):
            await Admin(**nodes.client("NEW", "rescue", RESCUE, "PLAIN")).start()
        async with Admin(**nodes.client("NEW", "admin", NEW_ADMIN)) as administrator:
            assert len(await administrator.describe_acls()) == 6
    await copy.check(new)


def trusted_issuer(address: tuple[str, int], ca: CertificateAuthority) -> bool:
    """Whether a client that trusts this authority alone accepts the certificate of a node."""
    context = ssl.create_default_context(cafile=ca.certificate)
    try:
        with (
            socket.create_connection(address, timeout=60) as raw,
            context.wrap_socket(raw, server_hostname="127.0.0.1"),
        ):
            return True
    except ssl.SSLCertVerificationError:
        return False


async def test_another_authority_takes_over_without_a_restart(tmp_path: Path) -> None:
    """Nodes with TLS between all: they trust both authorities, then get new certificates, then trust the new one alone."""
    old, new = CertificateAuthority(tmp_path / "old", "Old CA"), CertificateAuthority(tmp_path / "new", "New CA")
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(old.certificate.read_bytes())
    ports = free_ports(4)
    stores = [tmp_path / f"store-{n}.pem" for n in (0, 1)]
    nodes = []
    for at in (0, 1):
        stores[at].write_bytes(old.issue(f"node-{at}").both.read_bytes())
        settings = {
            "process.roles": "broker,controller" if at == 0 else "broker",
            "listeners": f"SSL://127.0.0.1:{ports[at]}" + (f",CONTROLLER://127.0.0.1:{ports[2]}" if at == 0 else ""),
            "listener.security.protocol.map": "SSL:SSL,CONTROLLER:SSL",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": f"1@127.0.0.1:{ports[2]}",
            "inter.broker.listener.name": "SSL",
            "ssl.client.auth": "required",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(stores[at]),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(trusted),
        }
        given = (f"{name}={value}" for name, value in settings.items())
        node = ServedBroker(tmp_path / f"data-{at}", *given, node_id=at + 1, listens=False)
        node.port = ports[at]
        nodes.append(node)

    async def reload(times: int) -> None:
        for node in nodes:
            os.kill(node.pid, signal.SIGHUP)
        line = "TLS stores are reloaded: listener=SSL"
        await until(lambda: all(node.log().count(line) >= times for node in nodes))

    def client(authority: CertificateAuthority, of: CertificateAuthority) -> dict[str, Any]:
        identity = of.issue("client")
        return {
            "bootstrap_servers": f"127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}",
            "security_protocol": "SSL",
            "ssl_cafile": str(authority.certificate),
            "ssl_certfile": str(identity.certificate),
            "ssl_keyfile": str(identity.key),
        }

    try:
        for node in nodes:
            node.launch()
        for node in nodes:
            await asyncio.to_thread(node.await_ready)
        async with Admin(**client(old, old)) as admin:
            await admin.create_topics([NewTopic("t", 1, 2)])
        async with Producer(acks="all", **client(old, old)) as producer:  # one connection over all steps
            await producer.send_and_wait("t", b"before")
            trusted.write_bytes(old.certificate.read_bytes() + new.certificate.read_bytes())
            await reload(1)
            for at in (0, 1):
                stores[at].write_bytes(new.issue(f"node-{at}").both.read_bytes())
            await reload(2)
            assert [trusted_issuer(("127.0.0.1", port), new) for port in ports[:2]] == [True, True]
            assert not trusted_issuer(("127.0.0.1", ports[0]), old)
            async with Producer(acks="all", **client(new, old)) as other:  # a client with an old certificate
                await other.send_and_wait("t", b"both")
            trusted.write_bytes(new.certificate.read_bytes())
            await reload(3)
            await producer.send_and_wait("t", b"after")
        await asyncio.to_thread(nodes[1].restart)  # it registers and replicates with the new certificates only
        async with Producer(acks="all", **client(new, new)) as producer:
            await producer.send_and_wait("t", b"new")
        with pytest.raises(AuthenticationFailed, match="refuses this client's certificate"):
            await Admin(**client(new, old)).start()
        for node in reversed(nodes):
            await asyncio.to_thread(node.end)
    finally:
        for node in nodes:
            node.kill()
