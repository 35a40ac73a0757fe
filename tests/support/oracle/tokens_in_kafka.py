"""Asks a real Kafka 4.3.1 the requests of `token_script`.

To write the golden file anew: python -m tests.support.oracle.tokens_in_kafka
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.oracle.permissions_in_kafka import AclWire, settle
from tests.support.oracle.real_kafka import SCRAM_MODULE, running_kafka
from tests.support.oracle.token_script import ACLS, GOLDEN, JAAS, SECRET, asked, asked_without_tokens
from tests.support.processes.ports import free_port_block


@contextmanager
def started(**more: str) -> Iterator[tuple[str, str]]:
    """The addresses of a Kafka: without a login, and with one. Its controller listener has SASL, too: without it Kafka makes no tokens."""
    port = free_port_block(4)
    plaintext, guarded = f"PLAINTEXT://127.0.0.1:{port}", f"GUARDED://127.0.0.1:{port + 2}"
    settings = {
        "listeners": f"{plaintext},CONTROLLER://127.0.0.1:{port + 1},{guarded}",
        "advertised.listeners": f"{plaintext},{guarded}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_PLAINTEXT,GUARDED:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.guarded.plain.sasl.jaas.config": JAAS,
        "listener.name.guarded.scram-sha-256.sasl.jaas.config": SCRAM_MODULE,
        "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.controller.plain.sasl.jaas.config": JAAS,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:admin",
        **more,
    }
    given = [f"{key}={value}" for key, value in settings.items()]
    with tempfile.TemporaryDirectory() as folder, running_kafka(Path(folder), port, given):
        yield f"127.0.0.1:{port}", f"127.0.0.1:{port + 2}"


def kafka_answers() -> dict[str, Any]:
    """Kafka's answers, with tokens turned on and without."""
    found: dict[str, Any] = {}
    worlds: list[tuple[dict[str, str], Callable[[str, str], dict[str, Any]]]] = [
        ({"delegation.token.secret.key": SECRET}, asked),
        ({}, asked_without_tokens),
    ]
    for settings, ask in worlds:
        with started(**settings) as (plaintext, guarded):
            with AclWire(plaintext) as wire:
                wire.create_acls(ACLS)
                settle(partial(_knows_acls, wire))
            found |= ask(plaintext, guarded)
    return found


def _knows_acls(wire: AclWire) -> bool:
    return wire.acl_count() == len(set(ACLS))


def write_golden() -> None:
    """Writes the answers of Kafka: one line a case."""
    lines = [f"{json.dumps(name)}: {json.dumps(answer)}" for name, answer in kafka_answers().items()]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    write_golden()
