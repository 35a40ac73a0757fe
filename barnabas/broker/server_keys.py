"""The server's configuration keys: Kafka's names, types, defaults and bounds, with one line of meaning each.

Read by `BrokerConfig` (parsing server.properties and --set), by DescribeConfigs and IncrementalAlterConfigs. Keys that only tune
a thread pool or a purgatory of the JVM broker are accepted, shown, and say "No effect here". Keys of features that are not built
(tiered storage, share groups, TLS and SASL) are not listed: they are kept as unknown keys with a warning.

Invariants: every default passes its own check; names are sorted within a group and unique.
Defaults are those of Kafka 4.3.1, with one deviation: transaction.two.phase.commit.enable is true. Two keys are ours: record.validation and cluster.id. The replication factors and
the min ISR of the internal topics are lowered by `BrokerConfig` where the quorum has fewer than three brokers.
"""

from __future__ import annotations

from typing import Final

from barnabas.broker.config_key import (
    DOUBLE_MAX,
    INT32_MAX,
    INT64_MAX,
    Check,
    ConfigKey,
    ConfigType,
    ConfigValue,
    at_least,
    between,
    one_of,
    some_of,
)

__all__ = ["RACK_AWARE_SELECTOR", "SERVER_KEYS"]

COMPRESSION_TYPES = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
# Values of replica.selector.class: Kafka's two classes, by their names.
LEADER_SELECTOR: Final = "org.apache.kafka.common.replica.LeaderSelector"
RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
SEGMENT_BYTES_MIN = 1024 * 1024


def gzip_level(value: ConfigValue) -> str | None:
    """Checks compression.gzip.level: 1 to 9, or -1 for the library's default."""
    right = value == -1 or (isinstance(value, int) and 1 <= value <= 9)
    return None if right else "Value must be between 1 and 9 or equal to -1"


def _bool(name: str, default: bool | None, doc: str, *, dynamic: bool = False) -> ConfigKey:
    return ConfigKey(name, ConfigType.BOOLEAN, default, doc, None, dynamic)


def _int(name: str, default: int | None, doc: str, check: Check | None = None, *, dynamic: bool = False) -> ConfigKey:
    return ConfigKey(name, ConfigType.INT, default, doc, check, dynamic)


def _short(name: str, default: int | None, doc: str, check: Check | None = None) -> ConfigKey:
    return ConfigKey(name, ConfigType.SHORT, default, doc, check)


def _long(name: str, default: int | None, doc: str, check: Check | None = None, *, dynamic: bool = False) -> ConfigKey:
    return ConfigKey(name, ConfigType.LONG, default, doc, check, dynamic)


def _double(name: str, default: float, doc: str, check: Check | None = None, *, dynamic: bool = False) -> ConfigKey:
    return ConfigKey(name, ConfigType.DOUBLE, default, doc, check, dynamic)


def _string(
    name: str, default: str | None, doc: str, check: Check | None = None, *, dynamic: bool = False
) -> ConfigKey:
    return ConfigKey(name, ConfigType.STRING, default, doc, check, dynamic)


def _list(
    name: str, default: tuple[str, ...] | None, doc: str, check: Check | None = None, *, dynamic: bool = False
) -> ConfigKey:
    return ConfigKey(name, ConfigType.LIST, default, doc, check, dynamic)


_NODE = [
    _list("advertised.listeners", None, "Addresses handed to clients, name://host:port; `listeners` where not set."),
    _int("broker.id", -1, "Older name of node.id; both must agree where both are set."),
    _string("broker.rack", None, "Rack of this broker, for replica placement and fetching from the nearest replica."),
    _string("cluster.id", None, "Ours: the cluster that the data directory must belong to, or is made for."),
    _list("controller.listener.names", None, "Names of the listeners that serve the quorum."),
    _list("controller.quorum.bootstrap.servers", (), "Addresses at which the quorum is found, host:port."),
    _list("controller.quorum.voters", (), "The quorum's voters, id@host:port; this node alone where not set."),
    _string("inter.broker.listener.name", None, "Name of the listener for traffic between brokers."),
    _string(
        "listener.security.protocol.map",
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "Which security protocol each listener name speaks, NAME:PROTOCOL.",
    ),
    _list("listeners", ("PLAINTEXT://:9092",), "Addresses this node serves, name://host:port."),
    _list("log.dir", ("/tmp/kafka-logs",), "Data directory where log.dirs is not set."),
    _list("log.dirs", None, "Data directories, separated by commas."),
    _string("metadata.log.dir", None, "Which of log.dirs holds the metadata log; the first where not set."),
    _int("node.id", None, "Id of this node, unique in the cluster.", at_least(0)),
    _list("process.roles", None, "What this node is: broker, controller or both.", one_of("broker", "controller")),
    _string("security.inter.broker.protocol", "PLAINTEXT", "Security protocol between brokers."),
]

_CONNECTIONS = [
    _int("connection.failed.authentication.delay.ms", 100, "Wait before a failed login is closed.", at_least(0)),
    _long("connections.max.idle.ms", 600_000, "A connection silent for longer is closed; negative: never."),
    _long("connections.max.reauth.ms", 0, "Longest life of a SASL session; 0: no limit."),
    _int("max.connection.creation.rate", INT32_MAX, "New connections a second.", at_least(0), dynamic=True),
    _int("max.connections", INT32_MAX, "Open connections of this broker.", at_least(0), dynamic=True),
    _int("max.connections.per.ip", INT32_MAX, "Open connections from one address.", at_least(0), dynamic=True),
    _string("max.connections.per.ip.overrides", "", "host:count pairs over max.connections.per.ip.", dynamic=True),
    _long("queued.max.request.bytes", -1, "Bytes of requests held in memory over all connections; -1: our own bound."),
    _int("queued.max.requests", 500, "No effect here: requests are answered as they are read.", at_least(1)),
    _int("request.timeout.ms", 30_000, "How long a request between nodes may take."),
    _long("socket.connection.setup.timeout.max.ms", 30_000, "Ceiling of the growing connect timeout between nodes."),
    _long("socket.connection.setup.timeout.ms", 10_000, "First connect timeout between nodes."),
    _int("socket.listen.backlog.size", 50, "Connections the kernel queues before accept.", at_least(1)),
    _int("socket.receive.buffer.bytes", 102_400, "SO_RCVBUF of client connections; -1: the kernel's."),
    _int("socket.request.max.bytes", 104_857_600, "Largest request frame; checked before allocation.", at_least(1)),
    _int("socket.send.buffer.bytes", 102_400, "SO_SNDBUF of client connections; -1: the kernel's."),
]

_TOPICS = [
    _bool("auto.create.topics.enable", True, "Whether a Metadata request may create the topics it asks for."),
    ConfigKey("alter.config.policy.class.name", ConfigType.CLASS, None, "No effect here: Java classes are not loaded."),
    ConfigKey("create.topic.policy.class.name", ConfigType.CLASS, None, "No effect here: Java classes are not loaded."),
    _int("default.replication.factor", 1, "Replicas of topics created without a number.", at_least(1)),
    _bool("delete.topic.enable", True, "Whether DeleteTopics deletes anything."),
    _int("max.request.partition.size.limit", 2_000, "Partitions in one DescribeTopicPartitions answer.", at_least(1)),
    _int(
        "min.insync.replicas",
        1,
        "In-sync replicas that acks=all needs before it is accepted.",
        at_least(1),
        dynamic=True,
    ),
    _int("num.partitions", 1, "Partitions of topics created without a number.", at_least(1)),
]

_LOG = [
    _int("compression.gzip.level", -1, "Level of gzip where the broker compresses.", gzip_level, dynamic=True),
    _int("compression.lz4.level", 9, "Level of lz4 where the broker compresses.", between(1, 17), dynamic=True),
    _string(
        "compression.type",
        "producer",
        "Codec of stored batches; producer keeps what was sent.",
        one_of(*COMPRESSION_TYPES),
        dynamic=True,
    ),
    _int(
        "compression.zstd.level", 3, "Level of zstd where the broker compresses.", between(-131_072, 22), dynamic=True
    ),
    _long("log.cleaner.backoff.ms", 15_000, "Sleep of the cleaner that found no work.", at_least(0), dynamic=True),
    _long(
        "log.cleaner.dedupe.buffer.size", 134_217_728, "Memory for the keys of one cleaning, in bytes.", dynamic=True
    ),
    _long(
        "log.cleaner.delete.retention.ms",
        86_400_000,
        "How long a tombstone outlives cleaning.",
        at_least(0),
        dynamic=True,
    ),
    _bool("log.cleaner.enable", True, "Whether compacted topics are cleaned."),
    _double("log.cleaner.io.buffer.load.factor", 0.9, "No effect here: the key map is a dict.", dynamic=True),
    _int(
        "log.cleaner.io.buffer.size",
        524_288,
        "No effect here: a segment is read a megabyte at once.",
        at_least(0),
        dynamic=True,
    ),
    _double(
        "log.cleaner.io.max.bytes.per.second", DOUBLE_MAX, "Ceiling of the cleaner's reads and writes.", dynamic=True
    ),
    _long(
        "log.cleaner.max.compaction.lag.ms",
        INT64_MAX,
        "A record is cleaned at the latest after this.",
        at_least(1),
        dynamic=True,
    ),
    _double(
        "log.cleaner.min.cleanable.ratio",
        0.5,
        "Share of uncleaned bytes at which a log is cleaned.",
        between(0, 1),
        dynamic=True,
    ),
    _long("log.cleaner.min.compaction.lag.ms", 0, "A record is never cleaned before this.", at_least(0), dynamic=True),
    _int("log.cleaner.threads", 1, "No effect here: one cleaner runs on the loop.", at_least(0), dynamic=True),
    _list(
        "log.cleanup.policy",
        ("delete",),
        "What becomes of old segments: delete, compact or both.",
        one_of("compact", "delete"),
        dynamic=True,
    ),
    _long("log.dir.failure.timeout.ms", 30_000, "Wait for the controller before a failed directory stops the broker."),
    _long(
        "log.flush.interval.messages",
        INT64_MAX,
        "Sync after this many records; 1: before every acknowledgement.",
        at_least(1),
        dynamic=True,
    ),
    _long(
        "log.flush.interval.ms",
        None,
        "Sync unsynced records after this; the scheduler's interval where not set.",
        dynamic=True,
    ),
    _int("log.flush.offset.checkpoint.interval.ms", 60_000, "How often recovery points are written.", at_least(0)),
    _long("log.flush.scheduler.interval.ms", INT64_MAX, "How often logs are looked at for syncing."),
    _int("log.flush.start.offset.checkpoint.interval.ms", 60_000, "How often log starts are written.", at_least(0)),
    _int("log.index.interval.bytes", 4_096, "Bytes of log between two index entries.", at_least(0), dynamic=True),
    _int("log.index.size.max.bytes", 10_485_760, "Largest offset index of a segment.", at_least(4), dynamic=True),
    _long("log.local.retention.bytes", -2, "No effect here: no tiered storage.", at_least(-2), dynamic=True),
    _long("log.local.retention.ms", -2, "No effect here: no tiered storage.", at_least(-2), dynamic=True),
    _long(
        "log.message.timestamp.after.max.ms",
        3_600_000,
        "How far a record's time may lie ahead of the broker's.",
        at_least(0),
        dynamic=True,
    ),
    _long(
        "log.message.timestamp.before.max.ms",
        INT64_MAX,
        "How far a record's time may lie behind the broker's.",
        at_least(0),
        dynamic=True,
    ),
    _string(
        "log.message.timestamp.type",
        "CreateTime",
        "Whose time a record carries: the producer's or the append's.",
        one_of(*TIMESTAMP_TYPES),
        dynamic=True,
    ),
    _bool("log.preallocate", False, "No effect here: segments grow as they are written.", dynamic=True),
    _long("log.retention.bytes", -1, "Bytes a partition keeps; -1: no limit.", dynamic=True),
    _long("log.retention.check.interval.ms", 300_000, "How often retention is applied.", at_least(1)),
    _int("log.retention.hours", 168, "Retention in hours, where neither minutes nor ms are set."),
    _int("log.retention.minutes", None, "Retention in minutes, where ms is not set."),
    _long("log.retention.ms", None, "How long records are kept; -1: no limit.", dynamic=True),
    _int("log.roll.hours", 168, "Age in hours at which a segment is closed, where ms is not set.", at_least(1)),
    _int("log.roll.jitter.hours", 0, "Random part of the age in hours, where ms is not set.", at_least(0)),
    _long("log.roll.jitter.ms", None, "Random part taken off log.roll.ms, so that segments close apart.", dynamic=True),
    _long("log.roll.ms", None, "Age at which a segment is closed.", dynamic=True),
    _int(
        "log.segment.bytes",
        1_073_741_824,
        "Size at which a segment is closed.",
        at_least(SEGMENT_BYTES_MIN),
        dynamic=True,
    ),
    _long(
        "log.segment.delete.delay.ms",
        60_000,
        "Wait before the file of a deleted segment goes.",
        at_least(0),
        dynamic=True,
    ),
    _int("message.max.bytes", 1_048_588, "Largest record batch a producer may send.", at_least(0), dynamic=True),
    _int(
        "num.recovery.threads.per.data.dir",
        2,
        "No effect here: logs are recovered one by one.",
        at_least(1),
        dynamic=True,
    ),
    _string(
        "record.validation",
        "header",
        "Ours: full also decodes every record of an append and holds it against the batch header.",
        one_of("header", "full"),
    ),
    _int(
        "producer.id.expiration.ms",
        86_400_000,
        "Idle time after which a partition forgets a producer.",
        at_least(1),
        dynamic=True,
    ),
    _int(
        "producer.id.expiration.check.interval.ms",
        600_000,
        "How often idle producers are looked for (hidden in Kafka).",
        at_least(1),
    ),
]

_REPLICATION = [
    _bool("auto.leader.rebalance.enable", True, "Whether preferred replicas get their leadership back by themselves."),
    _int("broker.heartbeat.interval.ms", 2_000, "How often a broker reports to the controller."),
    _int("broker.session.timeout.ms", 9_000, "Silence after which the controller fences a broker."),
    _bool("controlled.shutdown.enable", True, "Whether a stopping broker hands its leaderships over first."),
    _int("initial.broker.registration.timeout.ms", 60_000, "How long a starting broker tries to register."),
    _long("leader.imbalance.check.interval.seconds", 300, "How often preferred leaders are looked at.", at_least(1)),
    _int("num.replica.fetchers", 1, "No effect here: one fetcher for each peer.", dynamic=True),
    _int("replica.fetch.backoff.ms", 1_000, "Wait of a follower after a failed fetch.", at_least(0)),
    _int("replica.fetch.max.bytes", 1_048_576, "Bytes a follower asks for, a partition.", at_least(0)),
    _int("replica.fetch.min.bytes", 1, "Bytes a leader waits for before it answers a follower."),
    _int("replica.fetch.response.max.bytes", 10_485_760, "Bytes a follower asks for in all.", at_least(0)),
    _int("replica.fetch.wait.max.ms", 500, "Longest wait of a follower's fetch."),
    _long("replica.high.watermark.checkpoint.interval.ms", 5_000, "How often high watermarks are written."),
    _long("replica.lag.time.max.ms", 30_000, "A follower behind for longer leaves the in-sync replicas."),
    _string(
        "replica.selector.class",
        None,
        "Who serves consumers that name their rack: the leader, or a replica in it. Kafka's two classes, by their names.",
        one_of(LEADER_SELECTOR, RACK_AWARE_SELECTOR),
    ),
    _int("replica.socket.receive.buffer.bytes", 65_536, "SO_RCVBUF of replication connections."),
    _int("replica.socket.timeout.ms", 30_000, "How long a replication request may take."),
    _bool(
        "unclean.leader.election.enable",
        False,
        "Whether a replica out of sync may lead when no other is left.",
        dynamic=True,
    ),
]

_QUORUM = [
    _int("controller.quorum.append.linger.ms", 25, "Wait of the quorum's leader for more records to write together."),
    _int("controller.quorum.election.backoff.max.ms", 1_000, "Ceiling of the random wait between elections."),
    _int("controller.quorum.election.timeout.ms", 1_000, "Wait for votes before another election."),
    _int("controller.quorum.fetch.max.bytes", 1_048_576, "Bytes of metadata log in one answer.", at_least(1)),
    _int("controller.quorum.fetch.snapshot.max.bytes", 1_048_576, "Bytes of snapshot in one answer.", at_least(1)),
    _int("controller.quorum.fetch.timeout.ms", 2_000, "Silence of the leader before an election."),
    _int("controller.quorum.request.timeout.ms", 2_000, "How long a quorum request may take."),
    _int("controller.quorum.retry.backoff.ms", 20, "Wait before a quorum request is tried again."),
    _int("controller.socket.timeout.ms", 30_000, "How long a broker's request to the controller may take."),
    _long(
        "metadata.log.max.record.bytes.between.snapshots",
        20_971_520,
        "Metadata bytes after which a snapshot is taken.",
        at_least(1),
    ),
    _long(
        "metadata.log.max.snapshot.interval.ms",
        3_600_000,
        "Time after which a snapshot is taken; 0: never by time.",
        at_least(0),
    ),
    _int(
        "metadata.log.segment.bytes",
        1_073_741_824,
        "Size at which a metadata segment is closed.",
        at_least(8 * 1024 * 1024),
    ),
    _long("metadata.log.segment.ms", 604_800_000, "Age at which a metadata segment is closed."),
    _int(
        "metadata.max.idle.interval.ms",
        500,
        "Interval of no-op metadata records; none are written here, for lags are told by fetches.",
        at_least(0),
    ),
    _long("metadata.max.retention.bytes", 104_857_600, "Bytes of metadata log and snapshots kept."),
    _long("metadata.max.retention.ms", 604_800_000, "Age to which metadata log and snapshots are kept."),
]

_FETCH_AND_GROUPS = [
    _int("fetch.max.bytes", 57_671_680, "Most bytes in one Fetch answer.", at_least(1024)),
    _int(
        "group.consumer.assignment.interval.ms",
        1_000,
        "Shortest time between two assignments of a consumer group.",
        at_least(0),
        dynamic=True,
    ),
    _list(
        "group.consumer.assignors",
        ("uniform", "range"),
        "Server-side assignors that members may ask for; the first is the default.",
        some_of("uniform", "range"),
    ),
    _int("group.consumer.heartbeat.interval.ms", 5_000, "How often members of consumer groups send.", at_least(1)),
    _int("group.consumer.max.assignment.interval.ms", 15_000, "Most a group may set of its own.", at_least(0)),
    _int("group.consumer.max.heartbeat.interval.ms", 15_000, "Most a group may set of its own.", at_least(1)),
    _int("group.consumer.max.session.timeout.ms", 60_000, "Most a group may set of its own.", at_least(1)),
    _int("group.consumer.max.size", INT32_MAX, "Most members of a consumer group.", at_least(1)),
    _string(
        "group.consumer.migration.policy",
        "bidirectional",
        "Whether groups change between the classic and the consumer protocol while they have members.",
        one_of("disabled", "downgrade", "upgrade", "bidirectional"),
    ),
    _int("group.consumer.min.assignment.interval.ms", 0, "Least a group may set of its own.", at_least(0)),
    _int("group.consumer.min.heartbeat.interval.ms", 5_000, "Least a group may set of its own.", at_least(1)),
    _int("group.consumer.min.session.timeout.ms", 45_000, "Least a group may set of its own.", at_least(1)),
    _int("group.consumer.session.timeout.ms", 45_000, "Silence after which a member is out.", at_least(1)),
    _int("group.initial.rebalance.delay.ms", 3_000, "Wait of a new group for more members."),
    _int("group.max.session.timeout.ms", 1_800_000, "Longest session timeout a member may ask for."),
    _int("group.max.size", INT32_MAX, "Most members of a group.", at_least(1)),
    _int("group.min.session.timeout.ms", 6_000, "Shortest session timeout a member may ask for."),
    _int("max.incremental.fetch.session.cache.slots", 1_000, "Fetch sessions kept.", at_least(0)),
    _int("offset.metadata.max.bytes", 4_096, "Longest text a committed offset may carry."),
    _int("offsets.commit.timeout.ms", 5_000, "How long an offset commit waits for its replicas.", at_least(1)),
    _int("offsets.load.buffer.size", 5_242_880, "Bytes read at once while groups are loaded.", at_least(1)),
    _long("offsets.retention.check.interval.ms", 600_000, "How often expired offsets are looked for.", at_least(1)),
    _int("offsets.retention.minutes", 10_080, "How long offsets of an empty group are kept.", at_least(1)),
    _int("offsets.topic.compression.codec", 0, "Codec of __consumer_offsets: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."),
    _int("offsets.topic.num.partitions", 50, "Partitions of __consumer_offsets.", at_least(1)),
    _short("offsets.topic.replication.factor", 3, "Replicas of __consumer_offsets.", at_least(1)),
    _int("offsets.topic.segment.bytes", 104_857_600, "Segment size of __consumer_offsets.", at_least(1)),
]

_TRANSACTIONS = [
    _int(
        "add.partitions.to.txn.retry.backoff.max.ms", 100, "Longest time a held AddPartitionsToTxn waits.", at_least(0)
    ),
    _int(
        "add.partitions.to.txn.retry.backoff.ms",
        20,
        "Wait between two tries of a held AddPartitionsToTxn.",
        at_least(1),
    ),
    _int(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        10_000,
        "How often timed-out transactions are looked for.",
        at_least(1),
    ),
    _int("transaction.max.timeout.ms", 900_000, "Longest transaction timeout a producer may ask for.", at_least(1)),
    _bool(
        "transaction.partition.verification.enable",
        True,
        "Whether an append asks the coordinator first (KIP-890).",
        dynamic=True,
    ),
    _int(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        3_600_000,
        "How often expired transactional ids are looked for.",
        at_least(1),
    ),
    _int(
        "transaction.state.log.load.buffer.size",
        5_242_880,
        "Bytes read at once while transactions are loaded.",
        at_least(1),
    ),
    _int("transaction.state.log.min.isr", 2, "min.insync.replicas of __transaction_state.", at_least(1)),
    _int("transaction.state.log.num.partitions", 50, "Partitions of __transaction_state.", at_least(1)),
    _short("transaction.state.log.replication.factor", 3, "Replicas of __transaction_state.", at_least(1)),
    _int("transaction.state.log.segment.bytes", 104_857_600, "Segment size of __transaction_state.", at_least(1)),
    _bool(
        "transaction.two.phase.commit.enable",
        True,
        "Whether producers may prepare transactions (KIP-939); false in Kafka.",
    ),
    _int(
        "transactional.id.expiration.ms",
        604_800_000,
        "Idle time after which a transactional id is forgotten.",
        at_least(1),
    ),
]

_WITHOUT_EFFECT = [
    _int("background.threads", 10, "No effect here: there are no threads.", at_least(1), dynamic=True),
    _int("delete.records.purgatory.purge.interval.requests", 1, "No effect here: waiting lists purge themselves."),
    _int("fetch.purgatory.purge.interval.requests", 1_000, "No effect here: waiting lists purge themselves."),
    _list("metric.reporters", (), "No effect here: Java classes are not loaded.", dynamic=True),
    _int("num.io.threads", 8, "No effect here: there are no threads.", at_least(1), dynamic=True),
    _int("num.network.threads", 3, "No effect here: there are no threads.", at_least(1), dynamic=True),
    _int("producer.purgatory.purge.interval.requests", 1_000, "No effect here: waiting lists purge themselves."),
]

SERVER_KEYS: Final[dict[str, ConfigKey]] = {
    key.name: key
    for group in (
        _NODE,
        _CONNECTIONS,
        _TOPICS,
        _LOG,
        _REPLICATION,
        _QUORUM,
        _FETCH_AND_GROUPS,
        _TRANSACTIONS,
        _WITHOUT_EFFECT,
    )
    for key in group
}
