"""ConfigKey: type, default, bounds and documentation of a configuration key; parses and prints values as Kafka does."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Final

from barnabas.errors import BrokerError, ErrorCode

WILDCARDS = ("0.0.0.0", "::")  # hosts of a listener on every address; no client can connect to them
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
DOUBLE_MAX = 1.7976931348623157e308
_REPLICA: Final = re.compile(r"\d+:\d+\Z")

ConfigValue = bool | str | int | float | tuple[str, ...] | None
Validator = Callable[[ConfigValue], str | None]  # None if the value is valid, else the error text


class ConfigType(IntEnum):
    """Types of configuration values, numbered as in DescribeConfigsResponse."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigSource(IntEnum):
    """Source of an effective value, numbered as in DescribeConfigsResponse; the lower number wins."""

    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


_INTEGER_BOUNDS = {
    ConfigType.INT: (-(2**31), INT32_MAX),
    ConfigType.SHORT: (-(2**15), 2**15 - 1),
    ConfigType.LONG: (-(2**63), INT64_MAX),
}


def at_least(low: float) -> Validator:

    def check(value: ConfigValue) -> str | None:
        return None if isinstance(value, (int, float)) and value >= low else f"Value must be at least {low}"

    return check


def between(low: float, high: float) -> Validator:

    def check(value: ConfigValue) -> str | None:
        if isinstance(value, (int, float)) and low <= value <= high:
            return None
        is_low = isinstance(value, (int, float)) and value < low
        return f"Value must be at least {low}" if is_low else f"Value must be no more than {high}"

    return check


def one_of(*choices: str, any_case: bool = False) -> Validator:
    """For a string or every list member; `any_case` also accepts upper case."""

    def check(value: ConfigValue) -> str | None:
        members = value if isinstance(value, tuple) else (value,)
        given = [str(member).lower() for member in members] if any_case else members
        return None if all(member in choices for member in given) else f"String must be one of: {', '.join(choices)}"

    return check


def some_of(*choices: str, needed: str = "") -> Validator:
    """Like `one_of` for a non-empty list, which must contain `needed`."""
    known = one_of(*choices)

    def check(value: ConfigValue) -> str | None:
        if not value or not isinstance(value, tuple):
            return "Value must not be empty"
        return known(value) or (f"{needed} must be in the list" if needed and needed not in value else None)

    return check


def not_empty(value: ConfigValue) -> str | None:
    return None if value else "must not be empty"


def shown_address(host: str, port: int) -> str:
    """HOST:PORT, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def gzip_level(value: ConfigValue) -> str | None:
    """1 to 9, or -1 for the library's default."""
    right = value == -1 or (isinstance(value, int) and 1 <= value <= 9)
    return None if right else "Value must be between 1 and 9 or equal to -1"


def throttled_replicas(value: ConfigValue) -> str | None:
    """Replicas of {leader,follower}.replication.throttled.replicas."""
    members = value if isinstance(value, tuple) else ()
    if members == ("*",) or all(_REPLICA.match(member) for member in members):
        return None
    return "Must be the literal '*' or a list of [partitionId]:[brokerId],[partitionId]:[brokerId],..."


def check_overrides(value: ConfigValue) -> str | None:
    """ADDRESS:COUNT pairs of max.connections.per.ip.overrides, separated by commas (KIP-402)."""
    try:
        parse_overrides(str(value or ""))
    except ValueError:
        return "write pairs of an IP address and a number of connections, e.g. 192.0.2.7:100,::1:20"
    return None


def parse_overrides(text: str) -> dict[str, int]:
    """Connections by address. Raises ValueError."""
    found = {}
    for pair in filter(None, map(str.strip, text.split(","))):
        host, _, count = pair.rpartition(":")
        number = int(count)
        if number < 0:
            raise ValueError(pair)
        found[str(ipaddress.ip_address(host.strip("[] ")))] = number
    return found


def host_and_port(value: ConfigValue) -> str | None:
    """HOST:PORT, with an IPv6 address in brackets."""
    host, colon, port = str(value).rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    fits = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65_535
    if colon and fits and "/" not in host and (bare is not host or ":" not in host):
        return None
    return "write HOST:PORT, e.g. 127.0.0.1:9404; port 0 takes a free one"


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """A configuration key. `parse(render(value)) == value`; parsed lists are tuples, without empty or duplicate members unless `free_list`.

    `default`: None means "not set". `dynamic`: alterable on a running broker (IncrementalAlterConfigs). `no_effect`: why the key is stored
    and shown but changes nothing here, as the end of "No effect here: …"; None for every other key. `synonyms`: of a topic key, the server
    keys that give its default, best first; one that ends in .hours or .minutes has that unit, and the topic key milliseconds.
    """

    type: ConfigType
    default: ConfigValue
    summary: str
    check: Validator | None = None
    dynamic: bool = False
    synonyms: tuple[str, ...] = ()
    free_list: bool = False
    no_effect: str | None = None
    name: str = ""

    @property
    def doc(self) -> str:
        return self.summary if self.no_effect is None else f"{self.summary} No effect here: {self.no_effect}."

    def parse_stored(self, text: str) -> ConfigValue:
        """Like `parse`, for the metadata log: older Kafka releases stored lists with duplicates. Raises BrokerError."""
        if self.type is ConfigType.LIST and not self.free_list:
            members = dict.fromkeys(member.strip() for member in text.split(","))
            text = ",".join(member for member in members if member)
        return self.parse(text)

    def parse(self, text: str) -> ConfigValue:
        """Raises BrokerError(INVALID_CONFIG): a wrong type or out of bounds."""
        value = self._typed(text.strip())
        members = () if self.free_list or not isinstance(value, tuple) else value
        if len(set(members)) != len(members):
            raise invalid_config(self.name, text, "values must not be duplicated")
        if self.check is not None:
            wrong = self.check(value)
            if wrong is not None:
                members = value if isinstance(value, tuple) else ()
                shown = next((member for member in members if self.check((member,)) is not None), self.render(value))
                raise invalid_config(self.name, shown, wrong)
        if "" in members:
            raise invalid_config(self.name, text, "values must not be empty")
        return value

    def _typed(self, text: str) -> ConfigValue:
        kind = self.type
        if kind is ConfigType.BOOLEAN:
            lowered = text.lower()
            if lowered not in ("true", "false"):
                raise invalid_config(self.name, text, "Expected value to be either true or false")
            return lowered == "true"
        if kind in _INTEGER_BOUNDS:
            low, high = _INTEGER_BOUNDS[kind]
            try:
                number = int(text) if text.lstrip("+-").isdigit() and text.isascii() else None
            except ValueError:
                number = None
            if number is None or not low <= number <= high:
                raise invalid_config(self.name, text, f"Not a number of type {kind.name}")
            return number
        if kind is ConfigType.DOUBLE:
            try:
                return float(text)
            except ValueError:
                raise invalid_config(self.name, text, "Not a number of type DOUBLE") from None
        if kind is ConfigType.LIST:
            return tuple(part.strip() for part in text.split(",")) if text else ()
        return text

    def render(self, value: ConfigValue) -> str | None:
        """As DescribeConfigs shows it; None for "not set"."""
        if value is None:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        if isinstance(value, float):
            return "1.7976931348623157E308" if value == DOUBLE_MAX else repr(value)
        return str(value)

    @property
    def sensitive(self) -> bool:
        """Never shown."""
        return self.type is ConfigType.PASSWORD


def invalid_config(name: str, value: str | None, wrong: str) -> BrokerError:
    """The error of a setting, with its value and what is wrong or would be right."""
    return BrokerError(ErrorCode.INVALID_CONFIG, f"Invalid value {value} for configuration {name}: {wrong}")


# Rows of the table, by type.
boolean = partial(ConfigKey, ConfigType.BOOLEAN)
string = partial(ConfigKey, ConfigType.STRING)
integer = partial(ConfigKey, ConfigType.INT)
short = partial(ConfigKey, ConfigType.SHORT)
long = partial(ConfigKey, ConfigType.LONG)
double = partial(ConfigKey, ConfigType.DOUBLE)
several = partial(ConfigKey, ConfigType.LIST)
java_class = partial(ConfigKey, ConfigType.CLASS)
password = partial(ConfigKey, ConfigType.PASSWORD)
