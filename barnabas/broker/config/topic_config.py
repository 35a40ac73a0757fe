"""Topic configuration: Kafka 4.3.1's names, bounds and server-key fallbacks, and the resulting LogConfig."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from barnabas.broker.config.key import (
    INT64_MAX,
    ConfigKey,
    ConfigType,
    ConfigValue,
    Validator,
    at_least,
    between,
    one_of,
    without_effect,
)
from barnabas.broker.config.log_keys import COMPRESSION_TYPES, SEGMENT_BYTES_MIN, TIMESTAMP_TYPES, gzip_level
from barnabas.errors import BrokerError, ErrorCode
from barnabas.storage.log_config import LogConfig

if TYPE_CHECKING:
    from barnabas.broker.config.broker_config import BrokerConfig

_HOUR_MS = 3_600_000
_MINUTE_MS = 60_000
_REPLICA_LIST = re.compile(r"\d+:\d+\Z")


@dataclass(frozen=True, slots=True)
class Synonym:
    """A server key that gives a topic key its default; `unit_ms` turns its value into milliseconds."""

    name: str
    unit_ms: int = 1


@dataclass(frozen=True, slots=True)
class TopicKey:
    """A topic key and its server keys, best first."""

    key: ConfigKey
    synonyms: tuple[Synonym, ...] = ()


def _throttled_replicas(value: ConfigValue) -> str | None:
    members = value if isinstance(value, tuple) else ()
    if members == ("*",) or all(_REPLICA_LIST.match(member) for member in members):
        return None
    return "Must be the literal '*' or a list of [partitionId]:[brokerId],[partitionId]:[brokerId],..."


def _topic_key(
    name: str,
    kind: ConfigType,
    default: ConfigValue,
    doc: str,
    check: Validator | None = None,
    synonyms: str | tuple[Synonym, ...] = (),
    *,
    no_effect: str | None = None,
) -> TopicKey:
    where = (Synonym(synonyms),) if isinstance(synonyms, str) else synonyms
    key = ConfigKey(name, kind, default, doc, check, dynamic=True, free_list=check is _throttled_replicas)
    return TopicKey(key if no_effect is None else without_effect(key, no_effect), where)


_RETENTION = (
    Synonym("log.retention.ms"),
    Synonym("log.retention.minutes", _MINUTE_MS),
    Synonym("log.retention.hours", _HOUR_MS),
)
_ROLL = (Synonym("log.roll.ms"), Synonym("log.roll.hours", _HOUR_MS))
_JITTER = (Synonym("log.roll.jitter.ms"), Synonym("log.roll.jitter.hours", _HOUR_MS))
_FLUSH = (Synonym("log.flush.interval.ms"), Synonym("log.flush.scheduler.interval.ms"))
_B, _S, _I, _L, _D, _LIST = (
    ConfigType.BOOLEAN,
    ConfigType.STRING,
    ConfigType.INT,
    ConfigType.LONG,
    ConfigType.DOUBLE,
    ConfigType.LIST,
)

_KEYS = [
    _topic_key("cleanup.policy", _LIST, ("delete",), "What becomes of old segments: delete, compact or both.", one_of("compact", "delete"), "log.cleanup.policy"),
    _topic_key("compression.gzip.level", _I, -1, "Level at which batches of another codec are compressed where compression.type is gzip; -1: the library's.", gzip_level, "compression.gzip.level"),
    _topic_key("compression.lz4.level", _I, 9, "Level of lz4 where the broker compresses.", between(1, 17), "compression.lz4.level"),
    _topic_key("compression.type", _S, "producer", "Codec of stored batches; producer keeps what was sent.", one_of(*COMPRESSION_TYPES), "compression.type"),
    _topic_key("compression.zstd.level", _I, 3, "Level of zstd where the broker compresses.", between(-131_072, 22), "compression.zstd.level"),
    _topic_key("delete.retention.ms", _L, 86_400_000, "How long a tombstone outlives cleaning.", at_least(0), "log.cleaner.delete.retention.ms"),
    _topic_key("file.delete.delay.ms", _L, 60_000, "Wait before the file of a deleted segment goes.", at_least(0), "log.segment.delete.delay.ms"),
    _topic_key("flush.messages", _L, INT64_MAX, "Sync after this many records; 1: before every acknowledgement.", at_least(1), "log.flush.interval.messages"),
    _topic_key("flush.ms", _L, INT64_MAX, "Sync unsynced records after this.", at_least(0), _FLUSH),
    _topic_key("follower.replication.throttled.replicas", _LIST, (), "Replicas whose fetching is throttled, partition:broker.", _throttled_replicas),
    _topic_key("index.interval.bytes", _I, 4_096, "Bytes of log between two index entries.", at_least(0), "log.index.interval.bytes"),
    _topic_key("leader.replication.throttled.replicas", _LIST, (), "Replicas whose serving is throttled, partition:broker.", _throttled_replicas),
    _topic_key("local.retention.bytes", _L, -2, "Bytes a tiered partition keeps here.", at_least(-2), "log.local.retention.bytes", no_effect="no tiered storage"),
    _topic_key("local.retention.ms", _L, -2, "How long a tiered partition keeps records here.", at_least(-2), "log.local.retention.ms", no_effect="no tiered storage"),
    _topic_key("max.compaction.lag.ms", _L, INT64_MAX, "A record is cleaned at the latest after this.", at_least(1), "log.cleaner.max.compaction.lag.ms"),
    _topic_key("max.message.bytes", _I, 1_048_588, "Largest record batch a producer may send.", at_least(0), "message.max.bytes"),
    _topic_key("message.timestamp.after.max.ms", _L, 3_600_000, "How far a record's time may lie ahead of the broker's.", at_least(0), "log.message.timestamp.after.max.ms"),
    _topic_key("message.timestamp.before.max.ms", _L, INT64_MAX, "How far a record's time may lie behind the broker's.", at_least(0), "log.message.timestamp.before.max.ms"),
    _topic_key("message.timestamp.type", _S, "CreateTime", "Whose time a record carries: the producer's or the append's.", one_of(*TIMESTAMP_TYPES), "log.message.timestamp.type"),
    _topic_key("min.cleanable.dirty.ratio", _D, 0.5, "Share of uncleaned bytes at which the log is cleaned.", between(0, 1), "log.cleaner.min.cleanable.ratio"),
    _topic_key("min.compaction.lag.ms", _L, 0, "A record is never cleaned before this.", at_least(0), "log.cleaner.min.compaction.lag.ms"),
    _topic_key("min.insync.replicas", _I, 1, "In-sync replicas that acks=all needs before it is accepted.", at_least(1), "min.insync.replicas"),
    _topic_key("preallocate", _B, False, "Whether segments get their full size at once.", None, "log.preallocate", no_effect="segments grow as they are written"),
    _topic_key("remote.log.copy.disable", _B, False, "Whether tiering stops.", no_effect="no tiered storage"),
    _topic_key("remote.log.delete.on.disable", _B, False, "Whether tiered data goes when tiering ends.", no_effect="no tiered storage"),
    _topic_key("remote.storage.enable", _B, False, "Tiered storage; true is refused.", no_effect="no tiered storage"),
    _topic_key("retention.bytes", _L, -1, "Bytes a partition keeps; -1: no limit.", None, "log.retention.bytes"),
    _topic_key("retention.ms", _L, 604_800_000, "How long records are kept; -1: no limit.", at_least(-1), _RETENTION),
    _topic_key("segment.bytes", _I, 1_073_741_824, "Size at which a segment is closed.", at_least(SEGMENT_BYTES_MIN), "log.segment.bytes"),
    _topic_key("segment.index.bytes", _I, 10_485_760, "Largest offset index of a segment.", at_least(4), "log.index.size.max.bytes"),
    _topic_key("segment.jitter.ms", _L, 0, "Random part taken off segment.ms, so that segments close apart.", at_least(0), _JITTER),
    _topic_key("segment.ms", _L, 604_800_000, "Age at which a segment is closed.", at_least(1), _ROLL),
    _topic_key("unclean.leader.election.enable", _B, False, "Whether a replica out of sync may lead when no other is left.", None, "unclean.leader.election.enable"),
]  # fmt: skip

TOPIC_KEYS: Final[dict[str, TopicKey]] = {entry.key.name: entry for entry in _KEYS}


def validate_topic_config(overrides: Mapping[str, str | None]) -> None:
    """Raises BrokerError(INVALID_CONFIG) with Kafka's text: an unknown key, null, a wrong type, or out of bounds."""
    nulls = [name for name, value in overrides.items() if value is None]
    if nulls:
        raise BrokerError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(nulls)}")
    values: dict[str, ConfigValue] = {}
    for name, text in overrides.items():
        entry = TOPIC_KEYS.get(name)
        if entry is None:
            raise BrokerError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
        values[name] = entry.key.parse(text or "")
    least = values.get("min.compaction.lag.ms", 0)
    most = values.get("max.compaction.lag.ms", INT64_MAX)
    if isinstance(least, int) and isinstance(most, int) and least > most:
        raise BrokerError(
            ErrorCode.INVALID_CONFIG,
            f"conflict topic config setting min.compaction.lag.ms ({least}) > max.compaction.lag.ms ({most})",
        )
    if values.get("remote.storage.enable") is True:
        raise BrokerError(
            ErrorCode.INVALID_CONFIG,
            "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage.",
        )


def topic_value(config: BrokerConfig, overrides: Mapping[str, str], name: str) -> ConfigValue:
    """The topic's own, else the broker's, else the default. Raises KeyError for an unknown topic key."""
    entry = TOPIC_KEYS[name]
    own = overrides.get(name)
    if own is not None:
        return entry.key.parse_stored(own)
    for synonym in entry.synonyms:
        value = config.value(synonym.name)
        if value is not None:
            if synonym.unit_ms != 1 and isinstance(value, int):
                return value * synonym.unit_ms if value >= 0 else -1
            return value
    return entry.key.default


# Lists without a relevant order.
_SETS: Final = (
    "cleanup.policy",
    "follower.replication.throttled.replicas",
    "leader.replication.throttled.replicas",
)

# Topic keys that LogConfig has under the same name, with underscores for dots.
_LOG_KEYS: Final = tuple(
    name
    for name in TOPIC_KEYS
    if name.replace(".", "_") in {field.name for field in fields(LogConfig)} and name not in _SETS
)


def log_config(
    config: BrokerConfig, overrides: Mapping[str, str], randrange: Callable[[int], int] | None = None
) -> LogConfig:
    """`randrange`: of the Rng port; segment.jitter.ms has no effect without it."""
    values: dict[str, Any] = {name.replace(".", "_"): topic_value(config, overrides, name) for name in _LOG_KEYS}
    if randrange is not None:
        values["randrange"] = randrange
    for name in _SETS:
        members = topic_value(config, overrides, name)
        values[name.replace(".", "_")] = frozenset(members if isinstance(members, tuple) else ())
    return LogConfig(
        **values,
        producer_id_expiration_ms=config.get_int("producer.id.expiration.ms"),
        transaction_partition_verification_enable=config.get_bool("transaction.partition.verification.enable"),
        record_validation=config.get_str("record.validation") or "full",
    )
