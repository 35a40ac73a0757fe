"""The same administrative requests to Kafka and to Barnabas: the same answers, codes and words.

Settings of brokers that are changed here are harmless ones: other tests share both brokers.
"""

from __future__ import annotations

import time

import pytest

from tests.support.oracle.admin_requests import (
    COMPARED,
    SETTLED_SECONDS_MAX,
    Observe,
    alter,
    config_resources,
    create,
    delete,
    delete_records,
    describe,
    elect,
    log_dirs,
    produce,
    producers,
    replace,
    topic,
    unregister,
    update,
    widen,
    write,
)
from tests.support.oracle.real_kafka import SETTINGS
from tests.support.oracle.wire import Wire

pytestmark = pytest.mark.oracle

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = range(1, 4)
SET, DELETE, APPEND, SUBTRACT = range(4)
TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
LOGS = "state.change.logger"  # both have it
READS_ONLY = "observe_unchanging"  # may be asked again


ASSIGNMENTS: list[list[tuple[int, list[int]]]] = [
    [(0, [1]), (1, [1])],
    [(1, [1]), (0, [1])],
    [(0, [1, 1])],
    [(0, [7])],
    [(0, [])],
    [(0, [1]), (2, [1])],
    [(1, [1])],
    [(0, [-1])],
]
WIDENED: list[tuple[int, list[list[int]]]] = [
    (6, [[3]]),
    (7, [[1]]),
    (6, [[1]]),
    (7, [[1, 1]]),
    (7, [[]]),
    (7, []),
]
REPLACEMENTS: list[dict[str, str | None]] = [
    {"retention.ms": "2000"},
    {"min.insync.replicas": "1"},
    {"retention.ms": "x"},
    {"nope": "x"},
    {"retention.ms": None},
    {"cleanup.policy": "compact", "flush.ms": "9"},
    {},
]
SCRIPTS: dict[str, list[Observe]] = {
    "names": [
        create(topic("adm.a"), validate_only=False),
        *(create(topic(name)) for name in ("adm.a", "adm_a", "", ".", "..", "a/b", "a b", "z" * 249, "z" * 250)),
        create(topic("dup"), topic("dup", 2), topic("nodup")),
        create(topic("q.r"), topic("q_r")),
    ],
    "counts": [
        create(topic("x", partitions, replicas))
        for partitions, replicas in ((0, 1), (-2, 1), (1, 0), (1, -2), (1, 5), (-1, -1), (3, 1), (20_000, 1))
    ],
    "assignments": [create(topic("x", assigned=assigned)) for assigned in ASSIGNMENTS],
    "topic settings": [
        create(topic("x", 1, 1, (), **{key: value}))
        for key, value in (
            ("nope", "1"),
            ("retention_ms", "abc"),
            ("retention_ms", None),
            ("retention_ms", "-1"),
            ("retention_ms", "-2"),
            ("retention_ms", "99999999999999999999"),
            ("cleanup_policy", "foo"),
            ("cleanup_policy", ""),
            ("cleanup_policy", "compact,delete"),
            ("cleanup_policy", "none,delete"),
            ("min_insync_replicas", "0"),
            ("segment_bytes", "1"),
            ("unclean_leader_election_enable", "xx"),
            ("max_message_bytes", "-5"),
            ("compression_type", "foo"),
            ("compression_gzip_level", "0"),
            ("compression_lz4_level", "18"),
            ("compression_zstd_level", "23"),
            ("max_compaction_lag_ms", "0"),
            ("remote_storage_enable", "true"),
            ("preallocate", "TRUE"),
            ("preallocate", "1"),
            ("leader_replication_throttled_replicas", "1:1,0:1"),
            ("leader_replication_throttled_replicas", "*"),
            ("message_timestamp_type", "foo"),
            ("min_cleanable_dirty_ratio", "2"),
            ("message_format_version", "2.0"),
        )
    ]
    + [create(topic("x", min_compaction_lag_ms="10", max_compaction_lag_ms="5"))],
    "partitions": [
        create(topic("adm.wide", 2), validate_only=False),
        *(widen("adm.wide", count) for count in (5, 5, 2, 0, -1)),
        *(widen("adm.wide", count, assigned) for count, assigned in WIDENED),
        widen("adm.nope", 2),
        widen("a/b", 2),
    ],
    "client metrics": [
        describe(CLIENT_METRICS, "adm.m"),
        describe(CLIENT_METRICS, ""),
        alter(CLIENT_METRICS, "adm.m", ("metrics", "*", SET), ("interval.ms", "1000", SET)),
        alter(CLIENT_METRICS, "adm.m", ("match", "client_software_name=a.*,client_id=b", SET)),
        describe(CLIENT_METRICS, "adm.m"),
        config_resources(),
        config_resources(CLIENT_METRICS),
        config_resources(version=0),
        config_resources(TOPIC),
        config_resources(BROKER, LOGGER, BROKER),
        config_resources(3),
        config_resources(CLIENT_METRICS, 64),
        *(
            alter(CLIENT_METRICS, "adm.m", change)
            for change in (
                ("interval.ms", "99", SET),
                ("interval.ms", "3600001", SET),
                ("interval.ms", "x", SET),
                ("interval.ms", "7", APPEND),
                ("nope", "1", SET),
                ("match", "client_id", SET),
                ("match", "nobody=x", SET),
                ("match", "client_id=(", SET),
                ("match", "client_id=a=b", SET),
                ("match", "client_source_port=1", APPEND),
                ("match", "client_id=b", SUBTRACT),
                ("metrics", "", SET),
                ("metrics", "a,b,a", SET),
            )
        ),
        describe(CLIENT_METRICS, "adm.m"),
        alter(CLIENT_METRICS, "", ("metrics", "*", SET)),
        replace((CLIENT_METRICS, "adm.m", {"metrics": "org."})),
        describe(CLIENT_METRICS, "adm.m", "metrics", "match"),
        *(alter(CLIENT_METRICS, "adm.m", (name, None, DELETE)) for name in ("metrics", "interval.ms", "match")),
        config_resources(CLIENT_METRICS),
        describe(CLIENT_METRICS, "adm.m"),
        alter(GROUP, "adm.g", ("consumer.session.timeout.ms", "50000", SET)),
        config_resources(GROUP, CLIENT_METRICS),
        alter(GROUP, "adm.g", ("consumer.session.timeout.ms", None, DELETE)),
        config_resources(GROUP),
    ],
    "deletion": [
        create(topic("adm.d1"), topic("adm.d2"), validate_only=False),
        delete({"name": "adm.d1"}),
        delete({"name": "adm.d1"}),
        delete({"name": "adm.d2"}, {"name": "adm.d2"}),
        delete({"topic_id": bytes(15) + b"x"}, {"name": "a/b"}),
        delete({}),
        delete({"name": "adm.d2", "topic_id": bytes(15) + b"x"}),
    ],
    "changes of a topic": [
        create(topic("adm.c", cleanup_policy="compact", retention_ms="1000"), validate_only=False),
        describe(TOPIC, "adm.c", *COMPARED),
        *(
            step
            for changes in (
                [("cleanup.policy", "delete", APPEND)],
                [("cleanup.policy", "compact", SUBTRACT)],
                [("cleanup.policy", "delete", APPEND)],
                [("cleanup.policy", "delete,compact", SUBTRACT)],
                [("retention.ms", "5", APPEND)],
                [("retention.ms", None, DELETE)],
                [("retention.ms", "junk", DELETE)],
                [("nope", "5", SET)],
                [("nope", None, DELETE)],
                [("retention.ms", "x", SET)],
                [("retention.ms", "5", SET), ("retention.ms", "6", SET)],
                [("cleanup.policy", "bogus", APPEND)],
                [("min.insync.replicas", None, SET)],
                [("cleanup.policy", None, APPEND)],
                [("max.compaction.lag.ms", "5", SET), ("min.compaction.lag.ms", "10", SET)],
                [],
                [("cleanup.policy", "", SET)],
                [("", "5", SET)],
                [("segment.ms", "7", SET), ("nope", "1", SET)],
                [("segment.ms", "7", SET), ("flush.ms", "9", SET)],
            )
            for step in (alter(TOPIC, "adm.c", *changes), describe(TOPIC, "adm.c", *COMPARED))
        ),
        alter(TOPIC, "adm.c", ("segment.ms", "8", SET), validate_only=True),
        describe(TOPIC, "adm.c", "segment.ms", "nope"),
        alter(TOPIC, "adm.nope", ("retention.ms", "5", SET)),
        alter(TOPIC, "a/b", ("retention.ms", "5", SET)),
        alter(TOPIC, "", ("retention.ms", "5", SET)),
    ],
    "changes of a broker": [
        *(
            alter(BROKER, *changes)
            for changes in (
                ("1", ("log.cleaner.backoff.ms", "14000", SET)),
                ("", ("log.cleaner.backoff.ms", "13000", SET)),
                ("1", ("log.dirs", "/x", SET)),
                ("", ("num.partitions", "4", SET)),
                ("9", ("log.cleaner.backoff.ms", "2", SET)),
                ("-1", ("log.cleaner.backoff.ms", "2", SET)),
                ("abc", ("log.cleaner.backoff.ms", "2", SET)),
                ("", ("min.insync.replicas", None, DELETE)),
                ("", ("min.insync.replicas", "0", SET)),
                ("1", ("min.insync.replicas", "2", SET)),
                ("", ("log.cleaner.threads", "x", SET)),
                ("", ("message.max.bytes", "-1", SET)),
                ("1", ("log.segment.bytes", "20", SET)),
                ("", ("advertised.listeners", "x", SET)),
            )
        ),
        describe(BROKER, "1", "log.cleaner.backoff.ms", "log.retention.ms", "log.roll.hours", "message.max.bytes"),
        describe(BROKER, "1", "node.id", "broker.id", "of.a.plugin", *(each.partition("=")[0] for each in SETTINGS)),
        describe(BROKER, "1", "leader.replication.throttled.rate"),
        alter(BROKER, "1", ("leader.replication.throttled.rate", "1000000000", SET)),
        describe(BROKER, "1", "leader.replication.throttled.rate"),
        alter(BROKER, "1", ("leader.replication.throttled.rate", "x", SET)),
        alter(BROKER, "1", ("leader.replication.throttled.rate", "-1", SET)),
        alter(BROKER, "1", ("leader.replication.throttled.rate", None, DELETE)),
        alter(BROKER, "1", ("log.cleaner.backoff.ms", None, DELETE)),
        describe(BROKER, "1", "log.cleaner.backoff.ms"),
        describe(BROKER, "", "log.cleaner.backoff.ms"),
        alter(BROKER, "", ("log.cleaner.backoff.ms", None, DELETE)),
        describe(BROKER, "", "log.cleaner.backoff.ms"),
        describe(BROKER, "9"),
        describe(BROKER, "abc"),
        describe(TOPIC, "adm.nope"),
        describe(TOPIC, ".."),
    ],
    "levels of loggers": [
        *(describe(LOGGER, name, "root") for name in ("", "7", "x")),
        describe(LOGGER, "1", "nope"),
        alter(LOGGER, "1", ("root", "WARN", SET)),
        describe(LOGGER, "1", "root", LOGS),
        *(
            step
            for change in (
                *((LOGS, level, SET) for level in ("DEBUG", "debug", "LOUD", "OFF", "", None, "FATAL", "TRACE")),
                *((LOGS, "INFO", operation) for operation in (APPEND, SUBTRACT)),
                *((name, None, DELETE) for name in (LOGS, LOGS, "root", "nope")),
                ("nope", "INFO", SET),
                ("nope", None, SET),
                ("root", "ERROR", SET),
                ("root", "WARN", SET),
            )
            for step in (alter(LOGGER, "1", change), describe(LOGGER, "1", "root", LOGS))
        ),
        alter(LOGGER, "1", (LOGS, "INFO", SET), ("nope", "INFO", SET)),
        alter(LOGGER, "1", (LOGS, "INFO", SET), (LOGS, "DEBUG", SET)),
        alter(LOGGER, "1", (LOGS, "INFO", SET), validate_only=True),
        describe(LOGGER, "1", LOGS),
        *(alter(LOGGER, name, (LOGS, "INFO", SET)) for name in ("", "7", "x")),
        alter(LOGGER, "1"),
        replace((LOGGER, "1", {LOGS: "INFO"}), (LOGGER, "7", {})),
    ],
    "replaced settings": [
        create(topic("adm.l", retention_ms="1000", segment_ms="7"), validate_only=False),
        *(
            step
            for settings in REPLACEMENTS
            for step in (replace((TOPIC, "adm.l", settings)), describe(TOPIC, "adm.l", *COMPARED))
        ),
        replace((TOPIC, "adm.l", {"flush.ms": "1"}), validate_only=True),
        describe(TOPIC, "adm.l", "flush.ms"),
        replace((TOPIC, "adm.nope", {"flush.ms": "1"}), (TOPIC, "adm.l", {}), (BROKER, "9", {})),
        replace((BROKER, "x", {}), (TOPIC, "a/b", {}), (TOPIC, "", {"flush.ms": "1"})),
        replace((LOGGER, "1", {}), (99, "x", {})),
        *(
            replace((BROKER, broker, {key: value}))
            for broker, key, value in (
                ("1", "log.cleaner.backoff.ms", "14000"),
                ("1", "log.dirs", "/x"),
                ("1", "message.max.bytes", "-1"),
                ("1", "min.insync.replicas", "1"),
                ("", "log.cleaner.backoff.ms", "13000"),
                ("", "min.insync.replicas", "0"),
                ("", "min.insync.replicas", "1"),
            )
        ),
        describe(BROKER, "1", "log.cleaner.backoff.ms"),
        replace((BROKER, "1", {})),
        describe(BROKER, "1", "log.cleaner.backoff.ms"),
    ],
    "directories": [
        produce("adm.d", 10),
        *(log_dirs(("adm.d", [0]), version=version) for version in range(1, 4)),
        log_dirs(("adm.d", [0, 1]), ("adm.nope", [0]), version=3),
        log_dirs(("adm.d", []), version=3),
        log_dirs(version=3),
    ],
    "features": [
        update(),
        *(
            update((name, level, kind), validate_only=True)
            for name, level, kind in (
                ("transaction.version", 1, UPGRADE),
                ("transaction.version", 1, SAFE_DOWNGRADE),
                ("transaction.version", 1, UNSAFE_DOWNGRADE),
                ("transaction.version", 2, UPGRADE),
                ("transaction.version", 9, UPGRADE),
                ("transaction.version", -1, SAFE_DOWNGRADE),
                ("transaction.version", 2, 0),
                ("transaction.version", 2, 7),
                ("nope", 1, UPGRADE),
                ("metadata.version", 29, UPGRADE),
                ("metadata.version", 30, UPGRADE),
                ("metadata.version", 99, UPGRADE),
                ("group.version", 9, UPGRADE),
            )
        ),
        update(("transaction.version", 2, UPGRADE), ("group.version", 9, UPGRADE)),
        update(("transaction.version", 9, UPGRADE), version=1),
        update(("transaction.version", 2, UPGRADE), version=1),
    ],
    "elections": [
        create(topic("adm.e", 2), validate_only=False),
        lambda wire: wire.create_topic("adm.e", 2),
        elect(0, ("adm.e", [0, 7]), ("adm.nope", [0])),
        elect(1, ("adm.e", [1])),
        elect(5, ("adm.e", [0])),
        elect(0),
        unregister(77),
    ],
    "producers": [
        produce("adm.p", 2),
        write("adm.p", 4000, 0, 0, 3),
        write("adm.p", 4001, 7, 0, 1),
        write("adm.p", 4000, 0, 3, 1),
        producers("adm.p", 0),
        producers("adm.p", 1, 0),
        producers("adm.p"),
        *(producers(name, 0) for name in ("adm.nope", "a/b")),
    ],
    "records": [
        produce("adm.r", 10),
        *(delete_records("adm.r", 0, offset) for offset in (4, 3, 11, -2, -1, 10)),
        delete_records("adm.r", 1, 0),
        delete_records("adm.nope", 0, 0),
        create(topic("adm.compact", cleanup_policy="compact"), validate_only=False),
        lambda wire: wire.create_topic("adm.compact"),
        delete_records("adm.compact", 0, 0),
    ],
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_same_answers(script: str, kafka: str, barnabas: str) -> None:
    with Wire(kafka) as theirs, Wire(barnabas) as ours:
        for index, observe in enumerate(SCRIPTS[script]):
            expected, answer = observe(theirs), observe(ours)
            deadline = time.monotonic() + SETTLED_SECONDS_MAX
            # Kafka answers a change before its broker has replayed it; ours never does.
            while answer != expected and observe.__name__ == READS_ONLY and time.monotonic() < deadline:
                time.sleep(0.05)
                expected = observe(theirs)
            assert answer == expected, f"step {index} of {script}"
