"""Where the package of GSSAPI is missing, brokers and clients say what to install."""

from __future__ import annotations

import sys

import pytest

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.config.sasl_settings import SaslSettings
from barnabas.broker.scheduling.slices import in_place
from barnabas.broker.security.kerberos_logins import KerberosLogins
from barnabas.client.errors import IllegalState
from barnabas.client.net.security import check_security
from barnabas.errors import BrokerError
from barnabas.runtime.kerberos import kerberos_is_missing

INSTALL = r"pip install 'barnabas\[gssapi\]'"


@pytest.fixture(autouse=True)
def without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)


def test_the_package_is_missing() -> None:
    assert "barnabas[gssapi]" in (kerberos_is_missing() or "")


def test_a_client() -> None:
    with pytest.raises(IllegalState, match=INSTALL):
        check_security({"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "GSSAPI"})


def test_a_broker() -> None:
    config = BrokerConfig(
        {
            "listeners": "PLAINTEXT://127.0.0.1:0,CLIENT://127.0.0.1:0",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENT:SASL_PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": "GSSAPI",
            "sasl.kerberos.service.name": "kafka",
            "listener.name.client.gssapi.sasl.jaas.config": "com.sun.security.auth.module.Krb5LoginModule required "
            "useKeyTab=true keyTab=k principal=kafka/h@R;",
        }
    )
    with pytest.raises(BrokerError, match=INSTALL):
        KerberosLogins([SaslSettings(config, "CLIENT")], in_place)


def test_other_mechanisms_do_not_need_it() -> None:
    check_security(
        {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": "alice",
            "sasl_plain_password": "planted-secret",
        }
    )
