#!/usr/bin/env python3
"""CPU of the broker for a client's login, by listener and mechanism: TCP connection, TLS handshake, SASL, one ApiVersions, close.

usage: logins.py [--rounds 7] [--logins 200]

The CPU is that of all threads of the broker, as the scheduler counts it; the figures are medians of the rounds. With SCRAM only the
client computes the iterations: the broker keeps keys that were derived when the password was set.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from barnabas.client import Admin  # noqa: E402  # after the path
from barnabas.client.admin.types import ScramMechanism  # noqa: E402  # as above
from barnabas.protocol.messages.authentication import SaslAuthenticateRequest, SaslHandshakeRequest  # noqa: E402  # as above
from barnabas.protocol.messages.metadata import ApiVersionsRequest  # noqa: E402  # as above
from tests.support.oracle.sasl_script import Scram, plain  # noqa: E402  # as above
from tests.support.oracle.wire import Wire  # noqa: E402  # as above
from tests.support.processes.ports import free_port_block  # noqa: E402  # as above
from tests.support.processes.served import ServedBroker  # noqa: E402  # as above
from tests.support.security.certificates import CertificateAuthority  # noqa: E402  # as above

USER, PASSWORD = "alice", "alice-secret"
MODULES: Final = "org.apache.kafka.common.security"
LISTENERS: Final = {
    "PLAINTEXT": "PLAINTEXT",
    "SSL": "SSL",
    "MUTUAL": "SSL",
    "SASL_PLAINTEXT": "SASL_PLAINTEXT",
    "SASL_SSL": "SASL_SSL",
}
CASES: Final = (
    ("PLAINTEXT", ""),
    ("SASL_PLAINTEXT", "PLAIN"),
    ("SASL_PLAINTEXT", "SCRAM-SHA-256"),
    ("SASL_PLAINTEXT", "SCRAM-SHA-512"),
    ("SSL", ""),
    ("MUTUAL", ""),
    ("SASL_SSL", "PLAIN"),
    ("SASL_SSL", "SCRAM-SHA-512"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--logins", type=int, default=200)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="barnabas-bench-") as scratch:
        folder = Path(scratch)
        authority = CertificateAuthority(folder / "ca")
        first = free_port_block(len(LISTENERS))
        addresses = {name: f"127.0.0.1:{first + number}" for number, name in enumerate(LISTENERS)}
        broker = ServedBroker(folder / "data", *settings(addresses, authority), listens=False).start()
        try:
            asyncio.run(add_user(addresses["PLAINTEXT"]))
            client = ssl.create_default_context(cafile=str(authority.certificate))
            identity = authority.issue("client")
            client.load_cert_chain(identity.certificate, identity.key)
            found: dict[tuple[str, str], list[float]] = {case: [] for case in CASES}
            for turn in range(-1, arguments.rounds):  # the first one warms up
                for case in CASES if turn % 2 else reversed(CASES):
                    context = client if LISTENERS[case[0]].endswith("SSL") else None
                    cpu_us = measured(
                        broker.pid, arguments.logins, partial(login, addresses[case[0]], case[1], context)
                    )
                    if turn >= 0:
                        found[case].append(cpu_us)
        finally:
            broker.stop()
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {time.strftime('%Y-%m-%d')}, {ssl.OPENSSL_VERSION}\n"
    )
    print("| listener | mechanism | broker CPU a login | least |\n|---|---|---|---|")
    for (listener, mechanism), each in found.items():
        print(f"| {listener} | {mechanism} | {statistics.median(each):.0f} µs | {min(each):.0f} µs |")


def settings(addresses: dict[str, str], authority: CertificateAuthority) -> list[str]:
    """The broker's settings."""
    keys = {
        "listeners": ",".join(f"{name}://{address}" for name, address in addresses.items()),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in LISTENERS.items()),
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.mutual.ssl.client.auth": "required",
        **authority.issue("node").by_file(),
        **authority.truststore(),
    }
    for listener in ("sasl_plaintext", "sasl_ssl"):
        prefix = f"listener.name.{listener}"
        keys[f"{prefix}.plain.sasl.jaas.config"] = (
            f'{MODULES}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
        )
        for mechanism in ("scram-sha-256", "scram-sha-512"):
            keys[f"{prefix}.{mechanism}.sasl.jaas.config"] = f"{MODULES}.scram.ScramLoginModule required;"
    return [f"{key}={value}" for key, value in keys.items()]


async def add_user(address: str) -> None:
    async with Admin(bootstrap_servers=address) as admin:
        mechanisms: tuple[ScramMechanism, ...] = ("SCRAM-SHA-256", "SCRAM-SHA-512")
        for mechanism in mechanisms:
            await admin.set_scram_password(USER, PASSWORD, mechanism=mechanism)


def login(address: str, mechanism: str, context: ssl.SSLContext | None) -> None:
    """One client, from its connection to its close."""
    with Wire(address) as wire:
        if context is not None:
            wire.socket = context.wrap_socket(wire.socket, server_hostname="127.0.0.1")
        if mechanism:
            wire.call(SaslHandshakeRequest(mechanism=mechanism), 1)
            if mechanism == "PLAIN":
                answer = wire.call(SaslAuthenticateRequest(auth_bytes=plain(USER, PASSWORD)), 2)
            else:
                client = Scram(USER, PASSWORD, mechanism.removeprefix("SCRAM-").replace("-", "").lower())
                challenge = wire.call(SaslAuthenticateRequest(auth_bytes=client.first()), 2)
                answer = wire.call(SaslAuthenticateRequest(auth_bytes=client.final(challenge.auth_bytes)), 2)
            if answer.error_code:
                raise ConnectionError(f"the login failed: {answer.error_message}")
        wire.call(ApiVersionsRequest(client_software_name="bench", client_software_version="1"), 3)


def measured(pid: int, count: int, act: Callable[[], None]) -> float:
    """Microseconds of the process's CPU for one of `count` calls."""
    before = cpu_ns(pid)
    for _ in range(count):
        act()
    return (cpu_ns(pid) - before) / count / 1e3


def cpu_ns(pid: int) -> int:
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir())


if __name__ == "__main__":
    main()
