"""The broker's configuration: server.properties and --set below, what the metadata log changed at run time above.

Built once by the CLI or a test from Kafka's keys (`BrokerConfig({"node.id": "1", "log.dirs": "…"})`); `reconfigure` is called
by the replay of ConfigRecords, so that whoever asks at use time sees dynamic changes without further plumbing.
Emits typed values by Kafka's key name; BrokerError(INVALID_CONFIG) for what cannot be understood, naming key and value.

Invariants: a value comes from the first of broker (dynamic), cluster default (dynamic), server.properties, default, that sets
it; unknown keys are kept apart in `unknown_keys`, never an error (Kafka's rule: plugins bring their own keys).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from barnabas.broker.config_key import ConfigSource, ConfigValue
from barnabas.broker.server_keys import SERVER_KEYS
from barnabas.errors import BrokerError, ErrorCode, LocalProtocolError

__all__ = ["BrokerConfig", "Endpoint", "parse_properties"]

REPLICATION_FACTOR_MAX = 3  # of the internal topics, as in Kafka, where the quorum has that many brokers
SECURITY_PROTOCOLS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A listener: its name, the host and port it binds or advertises, and its security protocol."""

    name: str
    host: str  # "" binds every interface
    port: int  # 0 asks for a free one
    security_protocol: str = "PLAINTEXT"

    @property
    def security_protocol_id(self) -> int:
        """The protocol's number in registration records: 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL."""
        return SECURITY_PROTOCOLS.get(self.security_protocol, 0)


class BrokerConfig:
    """The effective configuration of one broker.

    Attributes:
        static: what server.properties and --set say, as text.
        cluster_default, dynamic: what the metadata log says for all brokers and for this one.
        unknown_keys: static keys without a meaning here, for one warning line.
    """

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        """Raises BrokerError(INVALID_CONFIG) for a value of the wrong type or outside its bounds."""
        self.static: dict[str, str] = dict(settings or {})
        self.cluster_default: Mapping[str, str] = {}
        self.dynamic: Mapping[str, str] = {}
        self.unknown_keys: tuple[str, ...] = tuple(sorted(name for name in self.static if name not in SERVER_KEYS))
        self._static_values: dict[str, ConfigValue] = {
            name: SERVER_KEYS[name].parse(text) for name, text in self.static.items() if name in SERVER_KEYS
        }
        self._defaults: dict[str, ConfigValue] = {name: key.default for name, key in SERVER_KEYS.items()}
        self._defaults.update(self._derived_defaults())
        self._values: dict[str, ConfigValue] = {**self._defaults, **self._static_values}
        self._check_node_id()
        self.listeners = tuple(self._endpoints("listeners"))
        self.advertised_listeners = tuple(self._endpoints("advertised.listeners")) or self.listeners

    @classmethod
    def from_properties(cls, text: str, overrides: Mapping[str, str] | None = None) -> BrokerConfig:
        """From the text of a server.properties file, with `overrides` (--set) above it."""
        return cls({**parse_properties(text), **(overrides or {})})

    # --- values -------------------------------------------------------------------------------------------------

    def value(self, name: str) -> ConfigValue:
        """The effective value, None where it is not set. Raises LocalProtocolError for a name that is no server key."""
        try:
            return self._values[name]
        except KeyError:
            raise LocalProtocolError(f"{name!r} is no server configuration key") from None

    def get_int(self, name: str) -> int:
        """The effective value of a BOOLEAN-less number key (INT, SHORT, LONG)."""
        value = self.value(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise LocalProtocolError(f"{name!r} is {value!r}, not a number")
        return value

    def get_bool(self, name: str) -> bool:
        """The effective value of a BOOLEAN key."""
        value = self.value(name)
        if not isinstance(value, bool):
            raise LocalProtocolError(f"{name!r} is {value!r}, not a boolean")
        return value

    def get_float(self, name: str) -> float:
        """The effective value of a DOUBLE key."""
        value = self.value(name)
        if not isinstance(value, float):
            raise LocalProtocolError(f"{name!r} is {value!r}, not a double")
        return value

    def get_str(self, name: str) -> str | None:
        """The effective value of a STRING key; None where it is not set."""
        value = self.value(name)
        if value is not None and not isinstance(value, str):
            raise LocalProtocolError(f"{name!r} is {value!r}, not a string")
        return value

    def get_list(self, name: str) -> tuple[str, ...]:
        """The effective value of a LIST key; empty where it is not set."""
        value = self.value(name)
        if value is None:
            return ()
        if not isinstance(value, tuple):
            raise LocalProtocolError(f"{name!r} is {value!r}, not a list")
        return value

    # --- what every part asks for -------------------------------------------------------------------------------

    @property
    def node_id(self) -> int:
        """node.id, or broker.id where only that is set; 1 where neither is."""
        value = self._values["node.id"]
        if isinstance(value, int):
            return value
        broker_id = self.get_int("broker.id")
        return broker_id if broker_id >= 0 else 1

    @property
    def log_dirs(self) -> tuple[str, ...]:
        """The data directories: log.dirs, else log.dir."""
        return self.get_list("log.dirs") or self.get_list("log.dir")

    @property
    def voters(self) -> tuple[str, ...]:
        """controller.quorum.voters; empty: this node alone."""
        return self.get_list("controller.quorum.voters")

    # --- layers ---------------------------------------------------------------------------------------------------

    def reconfigure(self, cluster_default: Mapping[str, str], dynamic: Mapping[str, str]) -> None:
        """Takes over what the metadata log says now. Values that no longer parse are ignored, as are unknown keys."""
        self.cluster_default = cluster_default
        self.dynamic = dynamic
        values = {**self._defaults, **self._static_values}
        for layer in (cluster_default, dynamic):
            for name, text in layer.items():
                key = SERVER_KEYS.get(name)
                if key is None or not key.dynamic:
                    continue
                try:
                    values[name] = key.parse(text)
                except BrokerError:
                    continue  # written by a newer version with wider bounds: keep what is below
        self._values = values

    def layers(self, name: str) -> Iterator[tuple[ConfigSource, str]]:
        """Where `name` is set, best source first, with the text shown there. The default comes last, where there is one."""
        key = SERVER_KEYS.get(name)
        if name in self.dynamic:
            yield ConfigSource.DYNAMIC_BROKER, self.dynamic[name]
        if name in self.cluster_default:
            yield ConfigSource.DYNAMIC_DEFAULT_BROKER, self.cluster_default[name]
        if name in self.static:
            yield ConfigSource.STATIC_BROKER, self.static[name].strip()
        default = key.render(self._defaults[name]) if key is not None else None
        if default is not None:
            yield ConfigSource.DEFAULT, default

    # --- construction -------------------------------------------------------------------------------------------

    def _derived_defaults(self) -> dict[str, ConfigValue]:
        """Defaults that depend on the size of the quorum: a lone broker must be able to hold its internal topics."""
        voters = self._static_values.get("controller.quorum.voters")
        brokers = len(voters) if isinstance(voters, tuple) and voters else 1
        factor = min(REPLICATION_FACTOR_MAX, brokers)
        return {
            "offsets.topic.replication.factor": factor,
            "transaction.state.log.replication.factor": factor,
            "transaction.state.log.min.isr": max(1, factor - 1),
        }

    def _check_node_id(self) -> None:
        node_id, broker_id = self._static_values.get("node.id"), self._static_values.get("broker.id", -1)
        if node_id is not None and broker_id not in (-1, node_id):
            raise BrokerError(
                ErrorCode.INVALID_CONFIG,
                f"node.id is {node_id} and broker.id is {broker_id}: set one, or both to the same",
            )

    def _endpoints(self, name: str) -> Iterator[Endpoint]:
        protocols = dict(
            pair.split(":", 1)
            for pair in (self.get_str("listener.security.protocol.map") or "").split(",")
            if ":" in pair
        )
        seen: set[str] = set()
        for text in self.get_list(name):
            listener, separator, address = text.partition("://")
            host, colon, port = address.rpartition(":")
            if not separator or not listener or not colon or not port.isdigit() or int(port) > 65_535:
                raise BrokerError(
                    ErrorCode.INVALID_CONFIG,
                    f"Invalid value {text} for configuration {name}: write NAME://HOST:PORT, e.g. PLAINTEXT://127.0.0.1:9092",
                )
            if listener in seen:
                raise BrokerError(
                    ErrorCode.INVALID_CONFIG,
                    f"Invalid value {text} for configuration {name}: listener {listener} is there twice",
                )
            seen.add(listener)
            yield Endpoint(listener, host.strip("[]"), int(port), protocols.get(listener, "PLAINTEXT"))


def parse_properties(text: str) -> dict[str, str]:
    """The pairs of a Java properties file: comments (# !), line continuation, `=`, `:` or blank between key and value, \\-escapes."""
    pairs: dict[str, str] = {}
    for line in _logical_lines(text):
        key, value = _split_pair(line)
        pairs[_unescape(key)] = _unescape(value)
    return pairs


def _logical_lines(text: str) -> Iterator[str]:
    pending = ""
    for raw in text.splitlines():
        line = raw.lstrip()
        if not pending and (not line or line[0] in "#!"):
            continue
        line = pending + line
        trailing = len(line) - len(line.rstrip("\\"))
        if trailing % 2:
            pending = line[:-1]
            continue
        pending = ""
        yield line
    if pending:
        yield pending


def _split_pair(line: str) -> tuple[str, str]:
    at = 0
    while at < len(line):
        if line[at] == "\\":
            at += 2
            continue
        if line[at] in "=: \t":
            break
        at += 1
    key, rest = line[:at], line[at:].lstrip(" \t")
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(" \t")
    return key, rest


_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    characters = iter(range(len(text)))
    for at in characters:
        if text[at] != "\\" or at + 1 == len(text):
            out.append(text[at])
            continue
        escaped = text[next(characters)]
        code = text[at + 2 : at + 6]
        if escaped == "u" and len(code) == 4 and all(digit in "0123456789abcdefABCDEF" for digit in code):
            out.append(chr(int(code, 16)))
            for _ in range(4):
                next(characters)
        else:
            out.append(_ESCAPES.get(escaped, escaped))
    return "".join(out)
