"""Source options, named as in Spark's Kafka connector, and their checks. Pure.
Unlike the connector it rejects unknown or ambiguous options, and consumer settings that change what is read.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from barnabas.client.errors import IllegalState
from barnabas.client.net.core.connection_config import ConnectionConfig, parse_bootstrap
from barnabas.client.net.offsets import EARLIEST, LATEST
from barnabas.client.net.security_properties import SECURITY_PROPERTIES, security_from_properties
from barnabas.client.types import TopicPartition
from barnabas.pipeline.errors import PipelineError
from barnabas.pipeline.planning import without_epochs

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")

_CHOICES = ("assign", "subscribe", "subscribePattern")
_STARTS = ("startingOffsets", "startingOffsetsByTimestamp", "startingTimestamp")
_ENDS = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")
_STREAM_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
_SOURCE = (
    *_CHOICES,
    *_STARTS,
    *_ENDS,
    *_STREAM_ONLY,
    "columns",
    "failOnDataLoss",
    "includeHeaders",
    "kafkaConsumer.pollTimeoutMs",
    "maxPartitions",
    "maxRecordsPerPartition",
    "minPartitions",
    "startingOffsetsByTimestampStrategy",
)
_WITHOUT_EFFECT = ("fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "groupIdPrefix")
_ABSENT = {
    "path": "leave load() empty and name topics by 'subscribe'",
}
_KAFKA_ABSENT = {
    "key.deserializer": "keys are bytes: convert the column, as by CAST(key AS STRING)",
    "value.deserializer": "values are bytes: convert the column, as by CAST(value AS STRING)",
    "auto.offset.reset": "say where to begin by 'startingOffsets'",
    "enable.auto.commit": "leave it out: offsets are kept in the query's checkpoint",
    "interceptor.classes": "leave it out: there are no interceptors",
}
_KAFKA_TUNING = (  # consumer settings that do not affect which records are read; accepted without effect
    "allow.auto.create.topics",
    "auto.commit.interval.ms",
    "client.dns.lookup",
    "client.rack",
    "connections.max.idle.ms",
    "default.api.timeout.ms",
    "enable.metrics.push",
    "exclude.internal.topics",
    "fetch.max.bytes",
    "fetch.min.bytes",
    "group.id",
    "group.instance.id",
    "group.protocol",
    "heartbeat.interval.ms",
    "max.poll.interval.ms",
    "max.poll.records",
    "partition.assignment.strategy",
    "receive.buffer.bytes",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "retry.backoff.max.ms",
    "send.buffer.bytes",
    "session.timeout.ms",
    "socket.connection.setup.timeout.ms",
    "socket.connection.setup.timeout.max.ms",
)
_KAFKA = (
    "bootstrap.servers",
    "check.crcs",
    "client.id",
    "fetch.max.wait.ms",
    "isolation.level",
    "max.partition.fetch.bytes",
    "metadata.max.age.ms",
    "request.timeout.ms",
    "retry.backoff.ms",
    *SECURITY_PROPERTIES,
)
_INT64_MAX = 2**63 - 1
_DURATION = re.compile(r"(-?\d+)\s*(us|ms|s|m|min|h|d)?")
_UNIT_MS = {"us": 0.001, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


class Options:
    """Options of one read or write. Names are case-insensitive.

    Args:
        given: the options from Spark.
        known: the valid names, as manuals spell them.
        prefix: names that begin with it are valid, too.
    """

    def __init__(self, given: Mapping[str, str], known: tuple[str, ...], prefix: str | None = None) -> None:
        self._given = {name.lower(): str(value) for name, value in given.items()}
        self._known = known
        self.prefixed = {
            name.removeprefix(prefix): value
            for name, value in self._given.items()
            if prefix is not None and name.startswith(prefix)
        }
        for name in self.prefixed:
            del self._given[f"{prefix}{name}"]

    def check_names(self) -> None:
        known = {name.lower() for name in self._known}
        for name, value in self._given.items():
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                meant = next((k for k in self._known if near and k.lower() == near[0]), None)
                remedy = f"write {meant!r} if that is meant" if meant else "leave it out"
                raise PipelineError(name, value, remedy, "is not known")

    def text(self, name: str) -> str | None:
        """The value without surrounding spaces, or None."""
        value = self._given.get(name.lower())
        return None if value is None else value.strip()

    def given(self, *names: str) -> list[str]:
        return [name for name in names if name.lower() in self._given]

    def flag(self, name: str, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise PipelineError(name, value, "write 'true' or 'false'", "is neither true nor false")
        return value.lower() == "true"

    def number(self, name: str, least: int, most: int = _INT64_MAX) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not re.fullmatch(r"[+-]?\d{1,19}", value) or not least <= int(value) <= most:
            within = f"from {least} on" if most == _INT64_MAX else f"from {least} to {most}"
            raise PipelineError(name, value, f"write a whole number {within}", "is out of range or no number")
        return int(value)

    def duration_ms(self, name: str, default: str) -> int:
        """A time as Spark's settings have it: a number with a unit, or milliseconds without one."""
        value = self.text(name) or default
        found = _DURATION.fullmatch(value.lower())
        if found is None:
            raise PipelineError(name, value, "write a number with a unit, as in '30s', '15m' or '1h'", "is no time")
        return int(int(found[1]) * _UNIT_MS[found[2] or "ms"])


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions(ConnectionConfig):
    """Options `kafka.*`: how to reach the cluster."""

    bootstrap_servers: str
    client_id: str = "barnabas-spark"

    @classmethod
    def parse(cls, options: Options) -> ClientOptions:
        servers = options.text("kafka.bootstrap.servers")
        if not servers:
            raise PipelineError("kafka.bootstrap.servers", None, "name brokers, as in 'localhost:9092'", "is missing")
        try:
            parse_bootstrap(servers)
        except IllegalState as error:
            raise PipelineError(
                "kafka.bootstrap.servers", servers, "write host:port, several with commas between", str(error)
            ) from error
        default = cls(bootstrap_servers=servers)
        return cls(
            bootstrap_servers=servers,
            client_id=options.text("kafka.client.id") or default.client_id,
            request_timeout_ms=options.number("kafka.request.timeout.ms", 1, 2**31 - 1) or default.request_timeout_ms,
            retry_backoff_ms=options.number("kafka.retry.backoff.ms", 1, 2**31 - 1) or default.retry_backoff_ms,
            metadata_max_age_ms=options.number("kafka.metadata.max.age.ms", 1, 2**31 - 1)
            or default.metadata_max_age_ms,
            **_security(options),
        )


def _security(options: Options) -> dict[str, Any]:
    """TLS and SASL settings. Each task reads the stores; a process shares one token."""
    found = {
        name: options.text(f"kafka.{name}") or "" for name in SECURITY_PROPERTIES if options.given(f"kafka.{name}")
    }
    try:
        return security_from_properties(found, shared=True)
    except IllegalState as error:
        option = next((name for name in SECURITY_PROPERTIES if error.message.startswith(name)), "security.protocol")
        raise PipelineError(f"kafka.{option}", None, error.message, "does not fit the others") from None


@dataclass(frozen=True)
class ConsumerStrategy:
    """Partitions to read: topics, a pattern, or partitions."""

    option: str  # which of `assign`, `subscribe`, `subscribePattern`
    value: str
    topics: tuple[str, ...] = ()
    pattern: str = ""
    partitions: tuple[TopicPartition, ...] = ()

    def matches(self, topic: str) -> bool:
        return topic in self.topics if self.option != "subscribePattern" else bool(re.fullmatch(self.pattern, topic))


@dataclass(frozen=True)
class Bound:
    """Where reading begins or ends in each partition.

    Attributes:
        option: name of the option, for errors.
        everywhere: EARLIEST, LATEST or a timestamp (ms) for every partition; None if `at` names each partition.
        at: offset (also EARLIEST or LATEST) or timestamp of each partition.
        by_time: the numbers are timestamps.
        epochs: leader epochs of the offsets, if they come from a checkpoint.
    """

    option: str
    everywhere: int | None
    at: Mapping[TopicPartition, int] = field(default_factory=dict)
    by_time: bool = False
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True)
class SourceOptions:
    """Options of a read or a stream, checked as far as possible without the cluster."""

    client: ClientOptions
    subscription: ConsumerStrategy
    start: Bound
    end: Bound
    columns: tuple[str, ...]
    no_later_start: str  # `error` or `latest`: for a start time after the last record
    min_partitions: int | None
    max_partitions: int | None
    max_records_per_partition: int | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    fail_on_data_loss: bool
    read_committed: bool
    check_crcs: bool
    fetch_bytes: int
    fetch_max_wait_ms: int
    poll_timeout_ms: int

    @classmethod
    def parse(cls, given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
        """Raises PipelineError for the first invalid option."""
        options = _checked(given, streaming)
        strategy = (options.text("startingOffsetsByTimestampStrategy") or "error").lower()
        if strategy not in ("error", "latest"):
            raise PipelineError(
                "startingOffsetsByTimestampStrategy", strategy, "write 'error' or 'latest'", "is not known"
            )
        isolation = (options.text("kafka.isolation.level") or "read_committed").lower()
        if isolation not in ("read_committed", "read_uncommitted"):
            raise PipelineError(
                "kafka.isolation.level", isolation, "write 'read_committed' or 'read_uncommitted'", "is not known"
            )
        found = cls(
            client=ClientOptions.parse(options),
            subscription=_subscription(options),
            start=_bound(options, _STARTS, "latest" if streaming else "earliest"),
            end=_bound(options, _ENDS, "latest"),
            columns=columns_of(given),
            no_later_start=strategy,
            min_partitions=options.number("minPartitions", 1, 1_000_000),
            max_partitions=options.number("maxPartitions", 1, 1_000_000),
            max_records_per_partition=options.number("maxRecordsPerPartition", 1),
            max_offsets_per_trigger=options.number("maxOffsetsPerTrigger", 1),
            min_offsets_per_trigger=options.number("minOffsetsPerTrigger", 1),
            max_trigger_delay_ms=options.duration_ms("maxTriggerDelay", "15m"),
            fail_on_data_loss=options.flag("failOnDataLoss", True),
            read_committed=isolation == "read_committed",
            check_crcs=options.flag("kafka.check.crcs", True),
            fetch_bytes=options.number("kafka.max.partition.fetch.bytes", 1, 2**30) or 1024 * 1024,
            fetch_max_wait_ms=options.number("kafka.fetch.max.wait.ms", 1, 2**31 - 1) or 500,
            poll_timeout_ms=options.number("kafkaConsumer.pollTimeoutMs", 1, 2**31 - 1) or 120_000,
        )
        if not streaming and found.start.everywhere == LATEST and not found.start.by_time:
            raise PipelineError("startingOffsets", "latest", "write 'earliest' or offsets", "leaves a batch nothing")
        if found.end.everywhere == EARLIEST and not found.end.by_time:
            raise PipelineError("endingOffsets", "earliest", "write 'latest' or offsets", "leaves a batch nothing")
        for bound, refused, word in ((found.start, LATEST, "latest"), (found.end, EARLIEST, "earliest")):
            if (bound is found.end or not streaming) and not bound.by_time and refused in bound.at.values():
                raise PipelineError(
                    bound.option, options.text(bound.option), "give offsets", f"has {refused} ({word}) for a partition"
                )
        _check_numbers(found)
        _check_partitions(found)
        return found

    @property
    def shares_tasks(self) -> bool:
        """Whether one task may read ranges of several partitions."""
        return self.max_partitions is not None or self.min_partitions is self.max_records_per_partition is None


def has_end(given: Mapping[str, str]) -> bool:
    """Whether an option sets the end, which only a batch has."""
    return bool(Options(given, ()).given(*_ENDS))


def columns_of(given: Mapping[str, str]) -> tuple[str, ...]:
    options = Options(given, ())
    headers = options.flag("includeHeaders", False)
    value = options.text("columns")
    if value is None:
        return COLUMNS if headers else COLUMNS[:-1]
    names = tuple(name.strip() for name in value.split(","))
    by_lower = {name.lower(): name for name in COLUMNS}
    for name in names:
        if name.lower() not in by_lower:
            raise PipelineError("columns", value, f"choose from {', '.join(COLUMNS)}", f"has no column {name!r}")
    found = tuple(by_lower[name.lower()] for name in names)
    if len(set(found)) < len(found):
        raise PipelineError("columns", value, "name each column once", "names a column twice")
    if headers and "headers" not in found:
        raise PipelineError("columns", value, "add 'headers', or leave out 'includeHeaders'", "has no headers")
    return found


def _checked(given: Mapping[str, str], streaming: bool) -> Options:
    known = (*_SOURCE, *_WITHOUT_EFFECT, *(f"kafka.{name}" for name in (*_KAFKA, *_KAFKA_TUNING)))
    options = Options(given, known)
    for name, remedy in _ABSENT.items():
        if options.given(name):
            raise PipelineError(name, options.text(name), remedy, "is not supported")
    for name, remedy in _KAFKA_ABSENT.items():
        if options.given(f"kafka.{name}"):
            raise PipelineError(f"kafka.{name}", options.text(f"kafka.{name}"), remedy, "is not supported")
    options.check_names()
    if streaming:
        for name in options.given(*_ENDS):
            raise PipelineError(
                name,
                options.text(name),
                "leave it out, or read a batch by spark.read",
                "is not possible: a stream has no end",
            )
    else:
        for name in options.given(*_STREAM_ONLY):
            raise PipelineError(
                name, options.text(name), "leave it out, or use 'maxRecordsPerPartition'", "is for streams only"
            )
    return options


def _subscription(options: Options) -> ConsumerStrategy:
    chosen = options.given(*_CHOICES)
    if len(chosen) != 1:
        raise PipelineError(
            " and ".join(chosen) or "subscribe",
            None,
            "give exactly one of 'subscribe', 'subscribePattern' and 'assign'",
            "contradict each other" if chosen else "is missing",
        )
    option = chosen[0]
    value = options.text(option) or ""
    if option == "subscribe":
        topics = tuple(dict.fromkeys(t.strip() for t in value.split(",") if t.strip()))
        if not topics:
            raise PipelineError(option, value, "name topics, with commas between", "names no topic")
        return ConsumerStrategy(option, value, topics=topics)
    if option == "subscribePattern":
        try:
            re.compile(value)
        except re.error as error:
            raise PipelineError(option, value, "write a regular expression", f"is no pattern ({error})") from error
        if not value:
            raise PipelineError(option, value, "write a regular expression", "is empty")
        return ConsumerStrategy(option, value, pattern=value)
    partitions = tuple(_json_partitions(option, value, lists=True))
    if not partitions:
        raise PipelineError(option, value, 'write JSON as in {"topic":[0,1]}', "names no partition")
    topics = tuple(dict.fromkeys(tp.topic for tp in partitions))
    return ConsumerStrategy(option, value, topics=topics, partitions=partitions)


def _bound(options: Options, names: tuple[str, ...], default: str) -> Bound:
    by_offsets, by_times, by_time = names
    chosen = options.given(*names)
    if len(chosen) > 1:
        raise PipelineError(" and ".join(chosen), None, "give one of them", "contradict each other")
    option = chosen[0] if chosen else by_offsets
    if option == by_time:
        return Bound(option, options.number(option, 0), by_time=True)
    value = options.text(option) or default
    if option == by_times:
        return Bound(option, None, _json_partitions(option, value, least=0), by_time=True)
    if value.lower() in ("earliest", "latest"):
        return Bound(option, EARLIEST if value.lower() == "earliest" else LATEST)
    offsets, epochs = _apart(value)
    return Bound(
        option,
        None,
        _json_partitions(option, offsets, least=EARLIEST),
        epochs=_json_partitions(option, epochs, least=0),
    )


def _apart(value: str) -> tuple[str, str]:
    try:
        parsed: Any = json.loads(value)
    except ValueError:
        return value, "{}"  # the check of the offsets rejects it
    if not isinstance(parsed, dict):
        return value, "{}"
    offsets, epochs = without_epochs(parsed)
    return json.dumps(offsets), epochs


def _json_partitions(option: str, value: str, *, least: int = 0, lists: bool = False) -> dict[TopicPartition, int]:
    """A number per partition from JSON like {"topic":{"0":23}}, or partitions only from {"topic":[0,1]}."""
    example = '{"topic":[0,1]}' if lists else '{"topic":{"0":23,"1":-2}}' if least < 0 else '{"topic":{"0":1000}}'
    words = "" if lists or least == 0 else "'earliest', 'latest' or "
    remedy = f"write {words}JSON as in {example}"
    try:
        parsed: Any = json.loads(value)
    except ValueError as error:
        raise PipelineError(option, value, remedy, f"is no JSON ({error})") from error
    found: dict[TopicPartition, int] = {}
    wanted = list if lists else dict
    if not isinstance(parsed, dict) or not all(isinstance(each, wanted) for each in parsed.values()):
        raise PipelineError(option, value, remedy, "has another form")
    for topic, each in parsed.items():
        for key in each:
            number = 0 if lists else each[key]
            if not str(key).isdecimal() or isinstance(key, bool):
                raise PipelineError(option, value, remedy, f"has {key!r} where the number of a partition belongs")
            if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= _INT64_MAX:
                raise PipelineError(option, value, remedy, f"has {number!r} for partition {key} of {topic!r}")
            found[TopicPartition(topic, int(key))] = number
    return found


def _check_numbers(found: SourceOptions) -> None:
    """Raises PipelineError for numbers that contradict each other."""
    for least, option, value, most in (
        (found.min_partitions, "minPartitions", found.max_partitions, "maxPartitions"),
        (found.min_offsets_per_trigger, "minOffsetsPerTrigger", found.max_offsets_per_trigger, "maxOffsetsPerTrigger"),
    ):
        if least is not None and value is not None and least > value:
            raise PipelineError(option, least, f"make it at most {value}", f"is more than {most!r}")
    if found.max_partitions is not None and found.max_records_per_partition is not None:
        raise PipelineError(
            "maxPartitions", found.max_partitions, "give one of them", "contradicts 'maxRecordsPerPartition'"
        )


def _check_partitions(found: SourceOptions) -> None:
    """Raises PipelineError unless offsets or times are given for exactly the partitions to read."""
    for bound in (found.start, found.end):
        if bound.everywhere is not None:
            continue
        if not bound.at:
            raise PipelineError(bound.option, "{}", "name every partition that is read", "names no partition")
        for tp in bound.at:
            if not found.subscription.matches(tp.topic) or (
                found.subscription.partitions and tp not in found.subscription.partitions
            ):
                raise PipelineError(
                    bound.option,
                    f"{tp.topic}-{tp.partition}",
                    f"name partitions of {found.subscription.option!r} only",
                    "is not among what is read",
                )
