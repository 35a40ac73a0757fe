"""A node of the test's process with SASL listeners, and users in its metadata."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

from barnabas.broker.config import BrokerConfig
from barnabas.broker.metadata.image import ScramCredentialImage
from barnabas.broker.node import Node
from barnabas.runtime.clock import SystemClock
from barnabas.runtime.network import AsyncioNetwork
from barnabas.runtime.randomness import SystemRng
from barnabas.storage.disk import MemoryDisk

__all__ = ["SCRAM_CODES", "add_scram_user", "address_of", "sasl_node", "scram_credential"]

SCRAM_CODES: Final = {"SCRAM-SHA-256": (1, "sha256"), "SCRAM-SHA-512": (2, "sha512")}


def scram_credential(password: str, hash_name: str, iterations: int = 4_096) -> ScramCredentialImage:
    salt = hashlib.sha256(password.encode()).digest()[:16]
    salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, iterations)
    stored_key = hashlib.new(hash_name, hmac.digest(salted, b"Client Key", hash_name)).digest()
    return ScramCredentialImage(salt, stored_key, hmac.digest(salted, b"Server Key", hash_name), iterations)


def add_scram_user(node: Node, name: str, password: str, mechanism: str) -> None:
    """Puts a credential into the node's image."""
    code, hash_name = SCRAM_CODES[mechanism]
    image = node.current_image.image
    credentials = {**image.scram_credentials, (code, name): scram_credential(password, hash_name)}
    node.current_image.image = replace(image, scram_credentials=credentials)


@asynccontextmanager
async def sasl_node(settings: Mapping[str, str], *listeners: str) -> AsyncIterator[Node]:
    """A started node with a plaintext listener and SASL listeners on free ports."""
    names = ("PLAINTEXT", *listeners)
    mapped = ",".join(f"{name}:SASL_PLAINTEXT" for name in listeners)
    config = BrokerConfig(
        {
            "node.id": "1",
            "log.dirs": "data",
            "listeners": ",".join(f"{name}://127.0.0.1:0" for name in names),
            "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,{mapped}",
            "inter.broker.listener.name": "PLAINTEXT",
            **settings,
        }
    )
    node = Node(config, clock=SystemClock(), rng=SystemRng(), disk=MemoryDisk(), network=AsyncioNetwork())
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


def address_of(node: Node, listener: str) -> str:
    """The bound address of a listener."""
    host, port = node.server.addresses[listener]
    return f"{host}:{port}"
