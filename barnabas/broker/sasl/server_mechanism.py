"""ServerMechanism: server side of one SASL exchange; and PLAIN (RFC 4616). Error texts are Kafka's."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol

from barnabas.errors import BarnabasError

USERNAME_LENGTH_MAX: Final = 4_096  # bytes; a longer name is not looked up


class LoginFailed(BarnabasError):
    """Failed authentication. `message`, for the client, holds no secret; None: invalid credentials."""

    def __init__(self, message: str | None = None, *, why: str = "") -> None:
        super().__init__(message or why or "invalid credentials")
        self.message = message


class LoginIdentity(NamedTuple):
    """An authenticated client.

    Attributes:
        name: of its principal, whose type is User.
        expires_at_ms: end of its credential, in ms since 1970; None: never.
        token: authenticated by a delegation token.
    """

    name: str
    expires_at_ms: int | None = None
    token: bool = False


class ServerMechanism(Protocol):
    """Server side of one exchange, used once."""

    @property
    def identity(self) -> LoginIdentity | None:
        """None until the exchange is complete."""
        ...

    def work(self, token: bytes) -> Callable[[], None] | None:
        """Slow computation of `step`, for a thread; None if it is quick. It raises nothing."""
        ...

    def step(self, token: bytes, now_ms: int) -> bytes:
        """Responds to a token at `now_ms` since 1970. Raises LoginFailed."""
        ...


class PlainServer:
    """PLAIN (RFC 4616): name and password in one token, checked by `users`."""

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = users
        self.identity: LoginIdentity | None = None

    def work(self, token: bytes) -> None:
        """A step is quick."""

    def step(self, token: bytes, now_ms: int) -> bytes:
        parts = token.split(b"\0")
        if len(parts) != 3:
            raise LoginFailed(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
        authorize, name, password = parts
        if not name:
            raise LoginFailed("Authentication failed: username not specified")
        if not password:
            raise LoginFailed("Authentication failed: password not specified")
        user = name.decode("utf-8", "replace") if len(name) <= USERNAME_LENGTH_MAX else ""
        expected = self._users.get(user)
        # An unknown user costs the same comparison.
        equal = hmac.compare_digest((expected if expected is not None else "").encode(), password)
        if expected is None or not equal:
            raise LoginFailed("Authentication failed: Invalid username or password")
        if authorize and authorize != name:
            raise LoginFailed(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        self.identity = LoginIdentity(user)
        return b""
