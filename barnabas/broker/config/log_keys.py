"""Server keys for logs: defaults of topic keys, cleaner, retention, rolling and syncing."""

from __future__ import annotations

from typing import Final

from barnabas.broker.config.key import (
    DOUBLE_MAX,
    INT64_MAX,
    ConfigValue,
    at_least,
    between,
    boolean,
    double,
    integer,
    long,
    one_of,
    several,
    string,
    without_effect,
)

COMPRESSION_TYPES = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
SEGMENT_BYTES_MIN = 1024 * 1024


def gzip_level(value: ConfigValue) -> str | None:
    """Checks compression.gzip.level: 1 to 9, or -1 for the library's default."""
    right = value == -1 or (isinstance(value, int) and 1 <= value <= 9)
    return None if right else "Value must be between 1 and 9 or equal to -1"


LOG_KEYS: Final = [
    integer("compression.gzip.level", -1, "Level of gzip where the broker compresses.", gzip_level, dynamic=True),
    integer("compression.lz4.level", 9, "Level of lz4 where the broker compresses.", between(1, 17), dynamic=True),
    string(
        "compression.type",
        "producer",
        "Codec of stored batches; producer keeps what was sent.",
        one_of(*COMPRESSION_TYPES),
        dynamic=True,
    ),
    integer(
        "compression.zstd.level",
        3,
        "Level of zstd where the broker compresses.",
        between(-131_072, 22),
        dynamic=True,
    ),
    long("log.cleaner.backoff.ms", 15_000, "Sleep of the cleaner that found no work.", at_least(0), dynamic=True),
    long("log.cleaner.dedupe.buffer.size", 134_217_728, "Memory for the keys of one cleaning, in bytes.", dynamic=True),
    long(
        "log.cleaner.delete.retention.ms",
        86_400_000,
        "How long a tombstone outlives cleaning.",
        at_least(0),
        dynamic=True,
    ),
    boolean("log.cleaner.enable", True, "Whether compacted topics are cleaned."),
    without_effect(
        double("log.cleaner.io.buffer.load.factor", 0.9, "How full the cleaner's key map may get.", dynamic=True),
        "the key map is a dict",
    ),
    without_effect(
        integer(
            "log.cleaner.io.buffer.size",
            524_288,
            "Memory for the cleaner's reads and writes.",
            at_least(0),
            dynamic=True,
        ),
        "a segment is read a megabyte at once",
    ),
    double(
        "log.cleaner.io.max.bytes.per.second", DOUBLE_MAX, "Ceiling of the cleaner's reads and writes.", dynamic=True
    ),
    long(
        "log.cleaner.max.compaction.lag.ms",
        INT64_MAX,
        "A record is cleaned at the latest after this.",
        at_least(1),
        dynamic=True,
    ),
    double(
        "log.cleaner.min.cleanable.ratio",
        0.5,
        "Share of uncleaned bytes at which a log is cleaned.",
        between(0, 1),
        dynamic=True,
    ),
    long("log.cleaner.min.compaction.lag.ms", 0, "A record is never cleaned before this.", at_least(0), dynamic=True),
    without_effect(
        integer("log.cleaner.threads", 1, "Threads that clean logs.", at_least(0), dynamic=True),
        "one cleaner runs on the loop",
    ),
    several(
        "log.cleanup.policy",
        ("delete",),
        "What becomes of old segments: delete, compact or both.",
        one_of("compact", "delete"),
        dynamic=True,
    ),
    long(
        "log.dir.failure.timeout.ms",
        30_000,
        "Wait for the controller before a failed directory stops the broker.",
        at_least(1),
    ),
    long(
        "log.flush.interval.messages",
        INT64_MAX,
        "Sync after this many records; 1: before every acknowledgement.",
        at_least(1),
        dynamic=True,
    ),
    long(
        "log.flush.interval.ms",
        None,
        "Sync unsynced records after this; the scheduler's interval where not set.",
        dynamic=True,
    ),
    integer("log.flush.offset.checkpoint.interval.ms", 60_000, "How often recovery points are written.", at_least(0)),
    long("log.flush.scheduler.interval.ms", INT64_MAX, "How often logs are checked for syncs by flush.ms."),
    without_effect(
        integer(
            "log.flush.start.offset.checkpoint.interval.ms", 60_000, "How often log starts are written.", at_least(0)
        ),
        "log starts are written with the recovery points, by log.flush.offset.checkpoint.interval.ms",
    ),
    integer("log.index.interval.bytes", 4_096, "Bytes of log between two index entries.", at_least(0), dynamic=True),
    integer("log.index.size.max.bytes", 10_485_760, "Largest offset index of a segment.", at_least(4), dynamic=True),
    without_effect(
        long("log.local.retention.bytes", -2, "Bytes a tiered partition keeps here.", at_least(-2), dynamic=True),
        "no tiered storage",
    ),
    without_effect(
        long(
            "log.local.retention.ms", -2, "How long a tiered partition keeps records here.", at_least(-2), dynamic=True
        ),
        "no tiered storage",
    ),
    long(
        "log.message.timestamp.after.max.ms",
        3_600_000,
        "How far a record's time may lie ahead of the broker's.",
        at_least(0),
        dynamic=True,
    ),
    long(
        "log.message.timestamp.before.max.ms",
        INT64_MAX,
        "How far a record's time may lie behind the broker's.",
        at_least(0),
        dynamic=True,
    ),
    string(
        "log.message.timestamp.type",
        "CreateTime",
        "Whose time a record carries: the producer's or the append's.",
        one_of(*TIMESTAMP_TYPES),
        dynamic=True,
    ),
    without_effect(
        boolean("log.preallocate", False, "Whether segments get their full size at once.", dynamic=True),
        "segments grow as they are written",
    ),
    long("log.retention.bytes", -1, "Bytes a partition keeps; -1: no limit.", dynamic=True),
    long("log.retention.check.interval.ms", 300_000, "How often retention is applied.", at_least(1)),
    integer("log.retention.hours", 168, "Retention in hours, where neither minutes nor ms are set."),
    integer("log.retention.minutes", None, "Retention in minutes, where ms is not set."),
    long("log.retention.ms", None, "How long records are kept; -1: no limit.", dynamic=True),
    integer("log.roll.hours", 168, "Age in hours at which a segment is closed, where ms is not set.", at_least(1)),
    integer("log.roll.jitter.hours", 0, "Random part of the age in hours, where ms is not set.", at_least(0)),
    long("log.roll.jitter.ms", None, "Random part taken off log.roll.ms, so that segments close apart.", dynamic=True),
    long("log.roll.ms", None, "Age at which a segment is closed.", dynamic=True),
    integer(
        "log.segment.bytes",
        1_073_741_824,
        "Size at which a segment is closed.",
        at_least(SEGMENT_BYTES_MIN),
        dynamic=True,
    ),
    long(
        "log.segment.delete.delay.ms",
        60_000,
        "Wait before the file of a deleted segment goes.",
        at_least(0),
        dynamic=True,
    ),
    integer("message.max.bytes", 1_048_588, "Largest record batch a producer may send.", at_least(0), dynamic=True),
    without_effect(
        integer(
            "num.recovery.threads.per.data.dir",
            2,
            "Threads that recover logs, a directory.",
            at_least(1),
            dynamic=True,
        ),
        "logs are recovered one by one",
    ),
    string(
        "record.validation",
        "full",
        "Barnabas only: full checks the lengths, offsets and timestamps of every produced record, as Kafka does; header checks those in the batch header alone.",
        one_of("header", "full"),
    ),
    integer(
        "producer.id.expiration.ms",
        86_400_000,
        "Idle time after which a partition forgets a producer.",
        at_least(1),
        dynamic=True,
    ),
    integer(
        "producer.id.expiration.check.interval.ms",
        600_000,
        "How often idle producers are looked for (hidden in Kafka).",
        at_least(1),
    ),
]
