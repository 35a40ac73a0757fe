"""Certificates and a user for `Cluster(security_protocol="SASL_SSL")` without own security settings: one authority, certificate and password for each
test process, in a temporary directory.
"""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import ssl
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from barnabas.errors import BarnabasError
from barnabas.testing.errors import KitError

USER: Final = "kit"
MECHANISM: Final = "PLAIN"
HOSTS: Final = ("127.0.0.1", "localhost", "::1")
PASSWORD_BYTES: Final = 16
_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"


class _Files(NamedTuple):
    authority: Path
    node: Path  # key and certificate


def is_left_to_the_kit(protocol: str, config: Mapping[str, str]) -> bool:
    """Whether the listener for clients needs security, and the settings of the test have none."""
    return protocol != "PLAINTEXT" and not any(part in f".{name}" for name in config for part in (".ssl.", ".sasl."))


def broker_settings(protocol: str) -> dict[str, str]:
    """Settings of a broker whose listener for clients has this protocol.

    Raises KitError: certificates cannot be made; the text says what to install.
    """
    found: dict[str, str] = {}
    if protocol.endswith("SSL"):
        found |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(_files().node)}
    if protocol.startswith("SASL"):
        found["sasl.enabled.mechanisms"] = MECHANISM
        key = f"listener.name.{protocol.lower()}.{MECHANISM.lower()}.sasl.jaas.config"
        found[key] = f'{_MODULE} required user_{USER}="{_password()}";'
    return found


def aio_settings(protocol: str) -> dict[str, Any]:
    """Arguments of clients of aiokafka, of kafka-python and of the bundled client."""
    found: dict[str, Any] = {"security_protocol": protocol}
    if protocol.endswith("SSL"):
        found["ssl_context"] = ssl.create_default_context(cafile=str(_files().authority))
    if protocol.startswith("SASL"):
        found |= {"sasl_mechanism": MECHANISM, "sasl_plain_username": USER, "sasl_plain_password": _password()}
    return found


def librdkafka_settings(protocol: str) -> dict[str, str]:
    """Settings of clients of librdkafka."""
    found = {"security.protocol": protocol}
    if protocol.endswith("SSL"):
        found["ssl.ca.location"] = str(_files().authority)
    if protocol.startswith("SASL"):
        found |= {"sasl.mechanism": MECHANISM, "sasl.username": USER, "sasl.password": _password()}
    return found


@cache
def _files() -> _Files:
    """The certificates of this process."""
    from barnabas.runtime.certificate_authority import Authority  # it imports a library

    folder, owner = Path(tempfile.mkdtemp(prefix="barnabas-kit-tls-")), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not at the end of a forked child
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    try:
        authority = Authority(folder)
        return _Files(authority.file, authority.issue("node", HOSTS))
    except BarnabasError as error:
        raise KitError(str(error)) from None


@cache
def _password() -> str:
    return secrets.token_urlsafe(PASSWORD_BYTES)
