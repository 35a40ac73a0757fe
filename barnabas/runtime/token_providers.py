"""Providers of tokens for OAUTHBEARER that Kafka's keys can name: an endpoint, a file, and tokens without a signature.

The objects can be sent to other processes.
"""

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
        """The SASL extensions of each login (KIP-342)."""
        ...

    def token_refused(self, token: str) -> None:
        """A broker has refused a token."""
        ...


class LoginTokens:
    """Makes the provider that Kafka's keys name; the same one as long as they do not change.

    Args:
        shared: providers of an endpoint are those of this process.
    """

    def __init__(self, *, shared: bool = False) -> None:
        self._shared = shared
        self._made: dict[object, Tokens] = {}

    def of(self, value: Value, options: Mapping[str, str]) -> Tokens:
        """The provider.

        Args:
            value: looks up a key.
            options: of the JAAS text.

        Raises:
            OAuthInvalid: a key is missing or wrong.
        """
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
        """Reads the file. OSError, UnicodeDecodeError if it cannot be read."""
        return self._read()  # a small file, once for each authentication

    def _read(self) -> str:
        with Path(self.path).open("rb") as file:
            return file.read(_FILE_BYTES_MAX).decode().strip()

    def extensions(self) -> Mapping[str, str]:
        return self.own_extensions

    def token_refused(self, token: str) -> None:
        """Nothing: the file is read for each login."""


@dataclass(frozen=True)
class UnsecuredTokens:
    """Tokens without a signature for a subject. Brokers accept them only where tests have configured them so."""

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
        """Nothing: each login has a token of its own."""


def _encoded(part: Mapping[str, object]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
