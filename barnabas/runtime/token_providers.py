"""OAUTHBEARER token providers of Kafka's keys: an endpoint, a file, unsigned tokens. They can be pickled."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from barnabas.protocol.oauth_settings import (
    FileLogin,
    OAuthSettings,
    UnsecuredLogin,
    Value,
    extensions_of,
    login_settings,
)
from barnabas.runtime.clock import SystemClock

_LIFETIME_S: Final = 3_600  # as Kafka's unsecured tokens
_PROVIDERS_MAX: Final = 16  # of one node: more have been replaced
_FILE_BYTES_MAX: Final = 1024 * 1024


class Tokens(Protocol):
    """Provides the token of each login."""

    async def token(self) -> str:
        """A valid token. Any exception fails the login."""
        ...

    def extensions(self) -> Mapping[str, str]:
        """SASL extensions of each login (KIP-342)."""
        ...

    def token_refused(self, token: str) -> None:
        """A broker has rejected a token."""
        ...


class LoginTokens:
    """Creates the provider of Kafka's keys; the same one until they change.

    `shared`: providers of an endpoint are those of this process.
    """

    def __init__(self, *, shared: bool = False) -> None:
        self._shared = shared
        self._made: dict[object, Tokens] = {}

    def of(self, value: Value, options: Mapping[str, str]) -> Tokens:
        """The provider, by keys and the `options` of the JAAS text. Raises OAuthInvalid."""
        settings, extensions = login_settings(value, options, os.environ), extensions_of(options)
        key = settings, tuple(sorted(extensions.items()))
        made = self._made.get(key)
        if made is None:
            if len(self._made) >= _PROVIDERS_MAX:
                self._made.clear()
            made = self._made[key] = _provider(settings, extensions, self._shared)
        return made


def _provider(
    settings: OAuthSettings | FileLogin | UnsecuredLogin, extensions: Mapping[str, str], shared: bool
) -> Tokens:
    if isinstance(settings, FileLogin):
        return FileTokens(settings.path, extensions)
    if isinstance(settings, UnsecuredLogin):
        return UnsecuredTokens(settings.subject, extensions)
    from barnabas.runtime.endpoint_tokens import EndpointTokens, tokens_of_process  # few logins need http and TLS

    return tokens_of_process(settings, extensions) if shared else EndpointTokens(settings, extensions)


@dataclass(frozen=True)
class FileTokens:
    """A token from a file, which another program renews."""

    path: str
    own_extensions: Mapping[str, str] = field(default_factory=dict, repr=False)

    async def token(self) -> str:
        """Raises OSError, UnicodeDecodeError."""
        return self._read()  # a small file, once for each authentication

    def _read(self) -> str:
        with Path(self.path).open("rb") as file:
            return file.read(_FILE_BYTES_MAX).decode().strip()

    def extensions(self) -> Mapping[str, str]:
        return self.own_extensions

    def token_refused(self, token: str) -> None:
        """The file is read for each login."""


@dataclass(frozen=True)
class UnsecuredTokens:
    """Unsigned tokens for a subject. Brokers accept them only in test configurations."""

    subject: str
    own_extensions: Mapping[str, str] = field(default_factory=dict, repr=False)

    async def token(self) -> str:
        now_s = SystemClock().now_ms() // 1000
        parts: tuple[dict[str, object], ...] = (
            {"alg": "none"},
            {"sub": self.subject, "iat": now_s, "exp": now_s + _LIFETIME_S},
        )
        return ".".join(map(_encoded, parts)) + "."

    def extensions(self) -> Mapping[str, str]:
        return self.own_extensions

    def token_refused(self, token: str) -> None:
        """Each login has a new token."""


def _encoded(part: Mapping[str, object]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
