"""TLS context of an OAuth endpoint, from `ssl.…` options of a JAAS text, as in Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from barnabas.protocol.oauth_settings import OAuthInvalid

if TYPE_CHECKING:
    import ssl


def endpoint_tls(url: str, options: Mapping[str, str]) -> ssl.SSLContext | None:
    """None if the URL is not https. Without a trust store the system's authorities are trusted. Raises OAuthInvalid."""
    if not url.startswith("https:"):
        return None
    from barnabas.runtime.tls import TlsSettings, client_context
    from barnabas.runtime.tls_stores import TlsError

    try:
        return client_context(TlsSettings.from_keys(options.get, "sasl.jaas.config: "))
    except TlsError as error:
        raise OAuthInvalid(str(error)) from None
