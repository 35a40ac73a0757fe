"""Connection settings shared by producers, consumers and admin clients: one frozen, validated value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Self

from barnabas.client.errors import IllegalState
from barnabas.client.net.core.bootstrap import parse_bootstrap
from barnabas.client.net.security_config import SecurityConfig

INT32_MAX: Final = 2**31 - 1
_LEAST: Final = {"request_timeout_ms": 1, "max_poll_records": 1, "max_poll_interval_ms": 1, "session_timeout_ms": 1}
_MOST: Final = {"buffer_memory": 2**63 - 1}
_CHECKED: Final = {"int": int, "str": str, "bool": bool}  # by annotation; other types are checked where they are used


def check_setting(name: str, annotation: str, value: object) -> None:
    """Raises IllegalState for a wrong type or range. The error never shows a string: it may be secret."""
    kind, _, optional = annotation.partition(" | ")
    if kind in ("Serializer", "Deserializer") and value is not None and not callable(value):
        raise IllegalState(f"{name} must be a callable, not {type(value).__name__}")
    wanted = _CHECKED.get(kind)
    if wanted is None or optional not in ("", "None") or (value is None and optional):
        return
    if type(value) is not wanted and (wanted is not str or not isinstance(value, str)):
        raise IllegalState(f"{name} must be {'an' if kind == 'int' else 'a'} {kind}, not {type(value).__name__}")
    if isinstance(value, int) and not _LEAST.get(name, 0) <= value <= _MOST.get(name, INT32_MAX):
        raise IllegalState(f"{name}={value} must be from {_LEAST.get(name, 0)} to {_MOST.get(name, INT32_MAX)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionConfig(SecurityConfig):
    """Settings of a client's connections; those of TLS and SASL are in SecurityConfig.

    Attributes:
        bootstrap_servers: "host:port" or several, as string or list.
        client_id: sent with every request; appears in the broker's logs and quotas.
        request_timeout_ms: time limit of a response, ≥ 1; after it the connection is closed.
        retry_backoff_ms: shortest backoff, ≥ 0.
        metadata_max_age_ms: age at which metadata is refreshed, ≥ 0.

    Raises:
        IllegalState: a setting is invalid.
    """

    bootstrap_servers: str | Sequence[str] = "localhost:9092"
    client_id: str = "barnabas-client"
    request_timeout_ms: int = 30_000
    retry_backoff_ms: int = 20
    metadata_max_age_ms: int = 300_000

    def __post_init__(self) -> None:
        SecurityConfig.__post_init__(self)  # super() does not find the class created by `slots`
        parse_bootstrap(self.bootstrap_servers)
        for each in fields(self):
            check_setting(each.name, str(each.type), getattr(self, each.name))

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> Self:
        """Takes the settings from a constructor's arguments. Raises TypeError (unknown name), IllegalState (invalid)."""
        secured = {field.name for field in fields(SecurityConfig)}
        for name in arguments["security"]:
            if name in secured:
                continue
            from difflib import get_close_matches  # here, because its import takes longer than that of the client

            near = get_close_matches(name, [*arguments, *secured], 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"{type(arguments['self']).__name__}: unknown setting {name!r}{hint}")
        own = ({field.name for field in fields(cls)} - secured) & arguments.keys()
        return cls(**{name: arguments[name] for name in own}, **arguments["security"])

    def as_arguments(self) -> dict[str, Any]:
        """Keyword arguments of a constructor."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
