"""Connection settings shared by producers, consumers and admin clients: one frozen, validated value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Self

from barnabas.client.errors import IllegalState
from barnabas.client.net.security_config import SecurityConfig

INT32_MAX: Final = 2**31 - 1
_LEAST: Final = {"request_timeout_ms": 1, "max_poll_records": 1, "max_poll_interval_ms": 1, "session_timeout_ms": 1}
_MOST: Final = {"buffer_memory": 2**63 - 1}
_CHECKED: Final = {"int": int, "str": str, "bool": bool}  # by annotation; other types are checked where they are used


def parse_bootstrap(servers: str | Iterable[str]) -> list[tuple[str, int]]:
    """Addresses of "host:port,host:port" or a list. The default port is 9092; IPv6 needs brackets. Raises IllegalState."""
    if isinstance(servers, str):
        servers = servers.split(",")
    parts = list(servers) if isinstance(servers, Iterable) else [servers]
    if not all(isinstance(part, str) for part in parts):
        raise IllegalState(f"bootstrap_servers must be 'host:port' or a list of such strings, not {servers!r}")
    addresses = []
    for part in (p.strip() for p in parts):
        if not part:
            continue
        if "/" in part:
            raise IllegalState(f"bootstrap_servers: {part!r} is a URL or path; use host:port")
        host, colon, port = part.rpartition(":")
        if not colon or part.endswith("]"):
            host, port = part, "9092"
        if not port.isdecimal() or not host:
            raise IllegalState(f"bootstrap_servers: {part!r} is not host:port")
        if ":" in host and not (host.startswith("[") and host.endswith("]")):
            raise IllegalState(f"bootstrap_servers: {part!r}: an IPv6 address needs brackets: '[::1]:9092'")
        if not 0 < int(port) < 65_536:
            raise IllegalState(f"bootstrap_servers: {part!r}: the port must be a number from 1 to 65535")
        addresses.append((host.strip("[]"), int(port)))
    if not addresses:
        raise IllegalState("bootstrap_servers: it contains no address; set for example 'localhost:9092'")
    return addresses


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
