"""A cluster of the kit whose clients use TLS and SASL; the kit reaches it as always."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import pytest

from barnabas.testing import Cluster
from barnabas.testing.clients import KitConsumer, KitProducer, maker
from barnabas.testing.errors import KitError
from tests.support.security.certificates import CertificateAuthority

LOGIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


def test_a_cluster_with_sasl_ssl(ca: CertificateAuthority) -> None:
    config = {
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": f'{LOGIN_MODULE} required user_alice="planted-secret";',
        **ca.issue("kit").by_file(),
    }
    settings: dict[str, Any] = {
        "security_protocol": "SASL_SSL",
        "ssl_cafile": str(ca.certificate),
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "alice",
        "sasl_plain_password": "planted-secret",
    }
    with Cluster(2, config=config, topics={"orders": 1}, security_protocol="SASL_SSL") as kafka:
        shared = {"bootstrap_servers": kafka.bootstrap_servers, **settings}
        with contextmanager(maker)(KitProducer, kafka, shared) as producers:
            producers().send("orders", b"tea")
        with contextmanager(maker)(KitConsumer, kafka, shared) as consumers:
            consumer = consumers(auto_offset_reset="earliest", group_id="g")
            consumer.subscribe("orders")
            assert [record.value for record in consumer.take(1, timeout=60)] == [b"tea"]


def test_an_unknown_protocol() -> None:
    with pytest.raises(KitError, match="unknown security_protocol 'SASL_SLS'; did you mean 'SASL_SSL'"):
        Cluster(1, security_protocol="SASL_SLS")
