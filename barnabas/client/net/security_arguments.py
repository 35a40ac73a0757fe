"""TLS and SASL settings as keyword arguments `**security`; separate because it must not import `ssl`."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import TypedDict

from barnabas.client.net.security_config import SaslMechanism, SecurityProtocol, TokenProvider


class SecurityArguments(TypedDict, total=False):
    """The settings of SecurityConfig as keyword arguments."""

    security_protocol: SecurityProtocol
    ssl_context: ssl.SSLContext | None
    ssl_cafile: str | None
    ssl_certfile: str | None
    ssl_keyfile: str | None
    ssl_password: str | None
    ssl_properties: Mapping[str, str] | None
    ssl_check_hostname: bool
    sasl_mechanism: SaslMechanism | None
    sasl_plain_username: str | None
    sasl_plain_password: str | None
    sasl_delegation_token: bool
    sasl_oauth_token_provider: TokenProvider | None
    sasl_kerberos_service_name: str
    sasl_kerberos_domain_name: str | None
    sasl_kerberos_principal: str | None
    sasl_kerberos_keytab: str | None
    sasl_kerberos_ticket_cache: str | None
