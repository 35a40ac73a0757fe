"""Rule: one fault as data: validation, and matching of requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import cache
from hashlib import blake2b
from itertools import islice
from typing import Any, Final

from barnabas.errors import ErrorCode
from barnabas.protocol import registry, wire
from barnabas.testing.errors import KitError, unknown

PLACES: Final = ("received", "applied", "replicated", "half_answered")
ACTIONS: Final = ("error", "disconnect", "delay", "hold", "drop", "duplicate", "late", "throttle", "rewrite")
DELAY_S_MAX: Final = 3_600.0
COUNT_MAX: Final = 2**31 - 1  # of `nth`, `times` and `partition`
PATTERN_CHARS_MAX: Final = 1_000
SUBJECTS_MAX: Final = 10_000  # names that are looked at in one request

# Fields of requests, by the filter that they answer. A field `name` is a topic's in a structure that is called one.
_FIELDS: Final = {
    "txn": frozenset({"transactional_id", "transactional_ids", "v3_and_below_transactional_id"}),
    "group": frozenset({"group_id", "groups", "group_ids", "groups_names"}),
    "topic": frozenset({"topic", "topic_name", "topic_names", "subscribed_topic_names"}),
    "partition": frozenset({"partition", "partition_index", "partition_indexes", "partitions", "index"}),
}
_TOPIC_ID: Final = "topic_id"
_COORDINATOR_KEYS: Final = frozenset({"key", "coordinator_keys"})
_KIND_OF_KEY: Final = {0: "group", 1: "txn"}  # FindCoordinator


# How a test writes a field that has another name here.
WORDS: Final = {
    "throttle_ms": "throttle",
    "seconds": "delay",
    "jitter_s": "jitter",
    "at": "disconnect",
    "until": "late",
}


def apis() -> dict[str, registry.Api]:
    return {api.name: api for api in registry.API.values() if "broker" in api.listeners}


def _kind(owner: type[Any], name: str) -> str | None:
    if name in _COORDINATOR_KEYS and owner.__name__ == "FindCoordinatorRequest":
        return "key"
    if name == _TOPIC_ID or (name == "name" and "Topic" in owner.__name__ and "Config" not in owner.__name__):
        return "topic"
    return next((kind for kind, names in _FIELDS.items() if name in names), None)


def _declared(cls: type[Any]) -> Iterator[tuple[type[Any], str]]:
    for each in cls.FIELDS:
        kind = each.wire.element if isinstance(each.wire, wire.Array) else each.wire
        if isinstance(kind, type):
            yield from _declared(kind)
        else:
            yield cls, each.name


@cache
def filters_of(api_name: str) -> frozenset[str]:
    """Of "txn", "group", "topic", "partition"."""
    kinds = {_kind(owner, name) for owner, name in _declared(apis()[api_name].request)}
    if "key" in kinds:
        kinds |= set(_KIND_OF_KEY.values())
    return frozenset(kind for kind in kinds if kind in _FIELDS)


def subjects(request: Any, topic_name: Callable[[bytes], str | None]) -> dict[str, set[Any]]:
    """Names in a request by filter, the first SUBJECTS_MAX. `topic_name` maps a topic id to its name, or None."""
    found: dict[str, set[Any]] = {kind: set() for kind in _FIELDS}
    for owner, name, value in islice(leaves(request), SUBJECTS_MAX):
        kind = _kind(owner, name)
        if kind == "key":
            kind = _KIND_OF_KEY.get(request.key_type)
        if name == _TOPIC_ID:
            value = topic_name(value)
        if kind is not None and value is not None:
            found[kind].add(value)
    return found


def leaves(message: Any) -> Iterator[tuple[type[Any], str, Any]]:
    """Leaf fields of a message: owner, name, value; list elements one by one."""
    for each in message.FIELDS:
        value = getattr(message, each.name)
        for part in value if isinstance(value, list) else (value,):
            if hasattr(part, "FIELDS"):
                yield from leaves(part)
            else:
                yield type(message), each.name, part


@dataclass(frozen=True)
class Rule:
    """One fault; sent to brokers as JSON. Matching order: API, client id, names in the request, `nth`, `probability`."""

    api: str  # "*": every one
    client: str | None = None  # pattern with `*` and `?`, as those below; None: everything
    txn: str | None = None
    group: str | None = None
    topic: str | None = None
    partition: int | None = None
    nth: int = 1  # first match that is hit, from 1, on each broker
    times: int | None = 1  # hits; None: no limit
    probability: float = 1.0
    broker: int | None = None  # its id; None: all brokers
    strict: bool = True  # `Faults.verify` reports the fault if it hit nothing
    action: str = "error"
    error: str = ""  # Kafka's name
    after: bool = False  # the effect precedes the error response
    at: str = "received"  # one of PLACES
    seconds: float = 0.0
    jitter_s: float = 0.0  # maximum random addition
    throttle_ms: int = 0
    until: str = ""  # late requests take effect after the next response of this API
    stream: str = ""  # seeds the random numbers

    def check(self) -> Rule:
        """Raises KitError, with the nearest valid word, if the rule can never have an effect."""
        self._check_types()
        known = apis()
        if self.api != "*" and self.api not in known:
            raise KitError(unknown("API", self.api, known))
        for name in _FIELDS:
            if getattr(self, name) is not None and self.api != "*" and name not in filters_of(self.api):
                possible = ", ".join(sorted(filters_of(self.api))) or "none of them"
                raise KitError(f"{self.api} requests name no {name}: of txn, group, topic and partition use {possible}")
        if not 1 <= self.nth <= COUNT_MAX or not (self.times is None or 1 <= self.times <= COUNT_MAX):
            raise KitError(f"nth={self.nth}, times={self.times}: both count from 1; times=None hits every request")
        if self.partition is not None and not 0 <= self.partition <= COUNT_MAX:
            raise KitError(f"partition={self.partition}: partitions count from 0")
        if not 0 < self.probability <= 1:
            raise KitError(f"probability={self.probability}: above 0, at most 1")
        self._check_action()
        return self

    def _check_types(self) -> None:
        for name in ("client", "txn", "group", "topic"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise KitError(f"{name}={value!r}: write a pattern as text, for example {name}='orders-*'")
            if value is not None and len(value) > PATTERN_CHARS_MAX:
                raise KitError(f"{name} has {len(value)} characters: {PATTERN_CHARS_MAX} are possible")
        for name in ("api", "action", "error", "at", "until"):
            if not isinstance(getattr(self, name), str):
                raise KitError(f"{WORDS.get(name, name)}={getattr(self, name)!r}: write a name")
        if not isinstance(self.strict, bool):
            raise KitError(f"strict={self.strict!r}: write true or false")
        for name in ("partition", "nth", "times", "throttle_ms", "broker"):
            value = getattr(self, name)
            if not (_is(value, int) or (value is None and name in ("partition", "times", "broker"))):
                raise KitError(f"{WORDS.get(name, name)}={value!r}: write a whole number")
        for name in ("probability", "seconds", "jitter_s"):
            if not _is(getattr(self, name), int, float):
                raise KitError(f"{WORDS.get(name, name)}={getattr(self, name)!r}: write a number")

    def _check_action(self) -> None:
        if self.action not in ACTIONS:
            raise KitError(unknown("action", self.action, ACTIONS))
        if self.action == "error" and (self.error not in ErrorCode.__members__ or self.error == "NONE"):
            raise KitError(unknown("error", self.error, [each.name for each in ErrorCode if each]))
        if self.action == "disconnect" and self.at not in PLACES:
            raise KitError(unknown("place of a disconnect", self.at, PLACES))
        if self.action == "delay" and not (
            min(self.seconds, self.jitter_s) >= 0 and self.seconds + self.jitter_s <= DELAY_S_MAX
        ):
            raise KitError(f"delay({self.seconds}, jitter={self.jitter_s}): 0 to {DELAY_S_MAX:g} seconds in all")
        if self.action == "late" and self.until not in apis():
            raise KitError(unknown("API", self.until, apis()))
        if self.action == "throttle" and not 0 <= self.throttle_ms <= DELAY_S_MAX * 1000:
            raise KitError(f"throttle({self.throttle_ms}): 0 to {DELAY_S_MAX * 1000:.0f} milliseconds")
        if self.action == "throttle" and not self._has_throttle_time():
            raise KitError(f"answers of {self.api} have no throttle_time_ms")

    def _has_throttle_time(self) -> bool:
        if self.api == "*":
            return False
        return any(each.name == "throttle_time_ms" for each in apis()[self.api].response.FIELDS)

    def drawn(self, number: int, purpose: str) -> float:
        """A random number in [0, 1) from the stream, the match's number on its broker and the purpose alone: restarts do not change it."""
        digest = blake2b(f"{self.stream}/{purpose}/{number}".encode(), digest_size=8).digest()
        return (int.from_bytes(digest, "big") >> 11) / 2**53

    @property
    def selects_by_content(self) -> bool:
        return any(getattr(self, name) is not None for name in _FIELDS)

    def matches(self, api: str, client: str | None, named: Mapping[str, set[Any]]) -> bool:
        """Before `nth`, `times` and `probability`. `named`: from `subjects`, only read with such a filter."""
        if self.api not in ("*", api) or not _like(self.client, client or ""):
            return False
        for name in ("txn", "group", "topic"):
            pattern = getattr(self, name)
            if pattern is not None and not any(_like(pattern, each) for each in named[name]):
                return False
        return self.partition is None or self.partition in named["partition"]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def _is(value: object, *kinds: type) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


def _like(pattern: str | None, text: str) -> bool:
    return pattern is None or fnmatchcase(text, pattern)
