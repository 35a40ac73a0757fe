"""Providers of tokens for OAUTHBEARER that Kafka's client properties can name: a file, and tokens without a signature.

Driven by: `security.py`, before each authentication. Emits: tokens. The objects can be sent to other processes.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from barnabas.runtime.clock import SystemClock

__all__ = ["FileTokens", "UnsecuredTokens"]

_LIFETIME_S: Final = 3_600  # as Kafka's unsecured tokens
_FILE_BYTES_MAX: Final = 1024 * 1024


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


def _encoded(part: Mapping[str, object]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
