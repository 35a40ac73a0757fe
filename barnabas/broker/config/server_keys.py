"""Server configuration keys: Kafka 4.3.1's names, types, defaults and bounds. Own defaults: transaction.two.phase.commit.enable (true),
controller.quorum.append.linger.ms (0), socket.listen.backlog.size (1,024), socket buffers (the kernel's). Own keys: record.validation,
cluster.id, metrics.listen, broker.probe.enable and delegation.token.max.per.owner.
"""

from __future__ import annotations

from typing import Final

from barnabas.broker.config.authorizer_keys import AUTHORIZER_KEYS
from barnabas.broker.config.connection_overrides import check_overrides
from barnabas.broker.config.key import (
    INT32_MAX,
    INT64_MAX,
    ConfigKey,
    at_least,
    between,
    boolean,
    host_and_port,
    integer,
    long,
    not_empty,
    one_of,
    several,
    short,
    some_of,
    string,
    without_effect,
)
from barnabas.broker.config.log_keys import LOG_KEYS, SEGMENT_BYTES_MIN
from barnabas.broker.config.oauth_keys import OAUTH_KEYS
from barnabas.broker.config.peer_keys import PEER_KEYS
from barnabas.broker.config.quota_keys import QUOTA_KEYS
from barnabas.broker.config.sasl_keys import SASL_KEYS
from barnabas.broker.config.ssl_keys import SSL_KEYS
from barnabas.broker.config.token_keys import TOKEN_KEYS
from barnabas.broker.config.unserved_keys import LISTENER_KEYS

# Values of replica.selector.class: Kafka's two classes, by their names.
LEADER_SELECTOR: Final = "org.apache.kafka.common.replica.LeaderSelector"
RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"

_NODE = [
    several(
        "advertised.listeners",
        None,
        "Addresses handed to clients, name://host:port; `listeners` where not set.",
        not_empty,
    ),
    integer("broker.id", -1, "Older name of node.id; both must agree where both are set."),
    string("broker.rack", None, "Rack of this broker, for replica placement and fetching from the nearest replica."),
    string("cluster.id", None, "Barnabas only: the cluster that the data directory must belong to, or is made for."),
    several("config.providers", (), "Names of providers of values: `${name:path:key}` (KIP-297)."),
    several("controller.listener.names", None, "Names of the listeners that serve the quorum.", not_empty),
    several(
        "controller.quorum.bootstrap.servers",
        (),
        "Where controller.quorum.voters is not set: the controller listener of a node alone, localhost:PORT.",
    ),
    several("controller.quorum.voters", (), "The quorum's voters, id@host:port; this node alone where not set."),
    string("inter.broker.listener.name", None, "Name of the listener for traffic between brokers."),
    string(
        "listener.security.protocol.map",
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "Security protocol of each listener name, NAME:PROTOCOL.",
    ),
    several("listeners", ("PLAINTEXT://:9092",), "Addresses this node serves, name://host:port.", not_empty),
    several("log.dir", ("/tmp/kafka-logs",), "Data directory where log.dirs is not set.", not_empty),
    several("log.dirs", None, "Data directories, separated by commas.", not_empty),
    string(
        "metrics.listen",
        None,
        "Barnabas only: HOST:PORT of the HTTP server for metrics and health; port 0 takes a free one; off where not set.",
        host_and_port,
    ),
    string("metadata.log.dir", None, "Which of log.dirs holds the metadata log; the first where not set."),
    integer("node.id", None, "Id of this node, unique in the cluster.", at_least(0)),
    several("process.roles", None, "Roles of this node: broker, controller or both.", some_of("broker", "controller")),
    string("security.inter.broker.protocol", "PLAINTEXT", "Security protocol between brokers."),
]

_CONNECTIONS = [
    long("connections.max.idle.ms", 600_000, "A connection silent for longer is closed; negative: never."),
    integer("max.connection.creation.rate", INT32_MAX, "New connections a second.", at_least(0), dynamic=True),
    integer("max.connections", INT32_MAX, "Open connections of this broker.", at_least(0), dynamic=True),
    integer("max.connections.per.ip", INT32_MAX, "Open connections from one address.", at_least(0), dynamic=True),
    string(
        "max.connections.per.ip.overrides",
        "",
        "ADDRESS:COUNT pairs over max.connections.per.ip.",
        check_overrides,
        dynamic=True,
    ),
    long(
        "queued.max.request.bytes",
        -1,
        "Bytes of large requests that are being received or wait, over all connections; -1: socket.request.max.bytes.",
    ),
    without_effect(
        integer("queued.max.requests", 500, "Requests that wait for a handler.", at_least(1)),
        "requests are answered as they are read",
    ),
    integer("request.timeout.ms", 30_000, "How long a request between nodes may take.", at_least(1)),
    without_effect(
        long("socket.connection.setup.timeout.max.ms", 30_000, "Ceiling of the growing connect timeout between nodes."),
        "an attempt to connect to another node ends after 2 s",
    ),
    without_effect(
        long("socket.connection.setup.timeout.ms", 10_000, "First connect timeout between nodes."),
        "an attempt to connect to another node ends after 2 s",
    ),
    integer("socket.listen.backlog.size", 1_024, "Connections the kernel queues before accept.", at_least(1)),
    integer("socket.receive.buffer.bytes", -1, "SO_RCVBUF of client connections; -1: the kernel's.", at_least(-1)),
    integer(
        "socket.request.max.bytes",
        104_857_600,
        "Largest request frame, checked before allocation; where it is not set, 8 MiB for all APIs but Produce.",
        at_least(1),
    ),
    integer("socket.send.buffer.bytes", -1, "SO_SNDBUF of client connections; -1: the kernel's.", at_least(-1)),
    integer("telemetry.max.bytes", 1_048_576, "Largest push of a client's metrics, also decompressed.", at_least(1)),
]

_TOPICS = [
    boolean("auto.create.topics.enable", True, "Whether a Metadata request may create the topics it asks for."),
    integer("default.replication.factor", 1, "Replicas of topics created without a number.", at_least(1)),
    boolean("delete.topic.enable", True, "Whether DeleteTopics deletes anything."),
    integer(
        "max.request.partition.size.limit", 2_000, "Partitions in one DescribeTopicPartitions answer.", at_least(1)
    ),
    integer(
        "min.insync.replicas",
        1,
        "In-sync replicas that acks=all needs before it is accepted.",
        at_least(1),
        dynamic=True,
    ),
    integer("num.partitions", 1, "Partitions of topics created without a number.", at_least(1)),
]

_REPLICATION = [
    boolean(
        "auto.leader.rebalance.enable",
        True,
        "Whether preferred replicas get their leadership back by themselves, as soon as they are in sync.",
    ),
    integer("broker.heartbeat.interval.ms", 2_000, "How often a broker reports to the controller.", at_least(1)),
    boolean(
        "broker.probe.enable",
        True,
        "Barnabas only: whether nodes connect to a broker whose connection closed, to fence it before its session ends.",
    ),
    integer("broker.session.timeout.ms", 9_000, "Silence after which the controller fences a broker.", at_least(1)),
    boolean("controlled.shutdown.enable", True, "Whether a stopping broker hands its leaderships over first."),
    integer(
        "initial.broker.registration.timeout.ms",
        60_000,
        "How long a starting broker tries to register before it ends.",
    ),
    long(
        "leader.imbalance.check.interval.seconds",
        300,
        "How often preferred leaders are checked.",
        at_least(1),
    ),
    without_effect(
        integer("num.replica.fetchers", 1, "Fetchers for each leader.", at_least(1), dynamic=True),
        "one fetcher for each peer",
    ),
    long(
        "follower.replication.throttled.rate",
        INT64_MAX,
        "Bytes a second that this broker fetches of replicas that follower.replication.throttled.replicas names.",
        at_least(0),
        dynamic=True,
    ),
    long(
        "leader.replication.throttled.rate",
        INT64_MAX,
        "Bytes a second that this broker sends of replicas that leader.replication.throttled.replicas names.",
        at_least(0),
        dynamic=True,
    ),
    integer("replication.quota.window.num", 11, "Samples that make the rate of throttled replication.", at_least(1)),
    integer("replication.quota.window.size.seconds", 1, "Length of such a sample.", at_least(1)),
    integer("replica.fetch.backoff.ms", 1_000, "Wait of a follower after a failed fetch.", at_least(0)),
    integer("replica.fetch.max.bytes", 1_048_576, "Bytes a follower asks for, a partition.", at_least(0)),
    integer("replica.fetch.min.bytes", 1, "Bytes a leader waits for before it answers a follower."),
    integer("replica.fetch.response.max.bytes", 10_485_760, "Bytes a follower asks for in all.", at_least(0)),
    integer("replica.fetch.wait.max.ms", 500, "Longest wait of a follower's fetch.", at_least(0)),
    long("replica.high.watermark.checkpoint.interval.ms", 5_000, "How often high watermarks are written.", at_least(1)),
    long("replica.lag.time.max.ms", 30_000, "A follower behind for longer leaves the in-sync replicas.", at_least(1)),
    string(
        "replica.selector.class",
        None,
        "Who serves consumers that name their rack: the leader, or a replica in it. Kafka's two classes, by their names.",
        one_of(LEADER_SELECTOR, RACK_AWARE_SELECTOR),
    ),
    without_effect(
        integer("replica.socket.receive.buffer.bytes", 65_536, "SO_RCVBUF of replication connections."),
        "the kernel sizes the buffer",
    ),
    integer("replica.socket.timeout.ms", 30_000, "How long a replication request may take.", at_least(1)),
    boolean(
        "unclean.leader.election.enable",
        False,
        "Whether a replica out of sync may lead when no other is left.",
        dynamic=True,
    ),
]

_QUORUM = [
    integer(
        "controller.quorum.append.linger.ms",
        0,
        "How long the controller waits for more decisions to write together; 25 in Kafka.",
        at_least(0),
    ),
    integer(
        "controller.quorum.election.backoff.max.ms", 1_000, "Ceiling of the random wait between elections.", at_least(0)
    ),
    integer("controller.quorum.election.timeout.ms", 1_000, "Wait for votes before another election.", at_least(0)),
    integer("controller.quorum.fetch.max.bytes", 1_048_576, "Bytes of metadata log in one answer.", at_least(1)),
    integer("controller.quorum.fetch.snapshot.max.bytes", 1_048_576, "Bytes of snapshot in one answer.", at_least(1)),
    integer("controller.quorum.fetch.timeout.ms", 2_000, "Silence of the leader before an election.", at_least(0)),
    integer("controller.quorum.request.timeout.ms", 2_000, "How long a quorum request may take.", at_least(0)),
    integer("controller.quorum.retry.backoff.ms", 20, "Wait before a quorum request is tried again.", at_least(0)),
    integer(
        "controller.socket.timeout.ms", 30_000, "How long a broker's request to the controller may take.", at_least(1)
    ),
    long(
        "metadata.log.max.record.bytes.between.snapshots",
        20_971_520,
        "Metadata bytes after which a snapshot is taken.",
        at_least(1),
    ),
    long(
        "metadata.log.max.snapshot.interval.ms",
        3_600_000,
        "Time after which a snapshot is taken; 0: never by time.",
        at_least(0),
    ),
    integer(
        "metadata.log.segment.bytes",
        1_073_741_824,
        "Size at which a metadata segment is closed.",
        at_least(8 * 1024 * 1024),
    ),
    long("metadata.log.segment.ms", 604_800_000, "Age at which a metadata segment is closed."),
    without_effect(
        integer(
            "metadata.max.idle.interval.ms",
            500,
            "Interval of no-op metadata records.",
            at_least(0),
        ),
        "no no-op records are written: fetches show the lag",
    ),
    long("metadata.max.retention.bytes", 104_857_600, "Bytes of metadata log and snapshots kept."),
    long("metadata.max.retention.ms", 604_800_000, "Age to which metadata log and snapshots are kept."),
]

_FETCH_AND_GROUPS = [
    integer("fetch.max.bytes", 57_671_680, "Most bytes in one Fetch answer.", at_least(1024)),
    integer(
        "group.consumer.assignment.interval.ms",
        1_000,
        "Shortest time between two assignments of a consumer group.",
        at_least(0),
        dynamic=True,
    ),
    several(
        "group.consumer.assignors",
        ("uniform", "range"),
        "Server-side assignors that members may ask for; the first is the default.",
        some_of("uniform", "range"),
    ),
    integer("group.consumer.heartbeat.interval.ms", 5_000, "How often members of consumer groups send.", at_least(1)),
    integer("group.consumer.max.assignment.interval.ms", 15_000, "Most a group may set of its own.", at_least(0)),
    integer("group.consumer.max.heartbeat.interval.ms", 15_000, "Most a group may set of its own.", at_least(1)),
    integer("group.consumer.max.session.timeout.ms", 60_000, "Most a group may set of its own.", at_least(1)),
    integer("group.consumer.max.size", INT32_MAX, "Most members of a consumer group.", at_least(1)),
    string(
        "group.consumer.migration.policy",
        "bidirectional",
        "Whether groups change between the classic and the consumer protocol while they have members.",
        one_of("disabled", "downgrade", "upgrade", "bidirectional", any_case=True),
    ),
    integer("group.consumer.min.assignment.interval.ms", 0, "Least a group may set of its own.", at_least(0)),
    integer("group.consumer.min.heartbeat.interval.ms", 5_000, "Least a group may set of its own.", at_least(1)),
    integer("group.consumer.min.session.timeout.ms", 45_000, "Least a group may set of its own.", at_least(1)),
    integer("group.consumer.session.timeout.ms", 45_000, "Silence after which a member is removed.", at_least(1)),
    several(
        "group.coordinator.rebalance.protocols",
        ("classic", "consumer", "streams"),
        "Protocols that groups may use; classic must be in it. Without consumer, requests of KIP-848 get UNSUPPORTED_VERSION; "
        "streams and share change nothing.",
        some_of("classic", "consumer", "share", "streams", needed="classic"),
    ),
    integer("group.initial.rebalance.delay.ms", 3_000, "Wait of a new group for more members.", at_least(0)),
    integer("group.max.session.timeout.ms", 1_800_000, "Longest session timeout a member may ask for.", at_least(1)),
    integer("group.max.size", INT32_MAX, "Most members of a group.", at_least(1)),
    integer("group.min.session.timeout.ms", 6_000, "Shortest session timeout a member may ask for.", at_least(1)),
    integer("max.incremental.fetch.session.cache.slots", 1_000, "Fetch sessions kept.", at_least(0)),
    integer("offset.metadata.max.bytes", 4_096, "Longest text a committed offset may carry.", at_least(0)),
    integer("offsets.commit.timeout.ms", 5_000, "How long an offset commit waits for its replicas.", at_least(1)),
    without_effect(
        integer("offsets.load.buffer.size", 5_242_880, "Bytes read at once while groups are loaded.", at_least(1)),
        "logs are loaded 256 KiB at a time, so that the loop stays free",
    ),
    long("offsets.retention.check.interval.ms", 600_000, "How often expired offsets are removed.", at_least(1)),
    integer("offsets.retention.minutes", 10_080, "How long offsets of an empty group are kept.", at_least(1)),
    integer(
        "offsets.topic.compression.codec",
        0,
        "Codec of __consumer_offsets: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.",
        between(0, 4),
    ),
    integer("offsets.topic.num.partitions", 50, "Partitions of __consumer_offsets.", at_least(1)),
    short("offsets.topic.replication.factor", 3, "Replicas of __consumer_offsets.", at_least(1)),
    integer(
        "offsets.topic.segment.bytes", 104_857_600, "Segment size of __consumer_offsets.", at_least(SEGMENT_BYTES_MIN)
    ),
]

_TRANSACTIONS = [
    integer(
        "add.partitions.to.txn.retry.backoff.max.ms", 100, "Longest time a held AddPartitionsToTxn waits.", at_least(0)
    ),
    integer(
        "add.partitions.to.txn.retry.backoff.ms",
        20,
        "Wait between two tries of a held AddPartitionsToTxn.",
        at_least(1),
    ),
    without_effect(
        integer(
            "transaction.abort.timed.out.transaction.cleanup.interval.ms",
            10_000,
            "How often timed-out transactions are looked for.",
            at_least(1),
        ),
        "each transaction has a timer of its own",
    ),
    integer("transaction.max.timeout.ms", 900_000, "Longest transaction timeout a producer may ask for.", at_least(1)),
    boolean(
        "transaction.partition.verification.enable",
        True,
        "Whether an append asks the coordinator first (KIP-890).",
        dynamic=True,
    ),
    integer(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        3_600_000,
        "How often expired transactional ids are looked for.",
        at_least(1),
    ),
    without_effect(
        integer(
            "transaction.state.log.load.buffer.size",
            5_242_880,
            "Bytes read at once while transactions are loaded.",
            at_least(1),
        ),
        "logs are loaded 256 KiB at a time, so that the loop stays free",
    ),
    integer("transaction.state.log.min.isr", 2, "min.insync.replicas of __transaction_state.", at_least(1)),
    integer("transaction.state.log.num.partitions", 50, "Partitions of __transaction_state.", at_least(1)),
    short("transaction.state.log.replication.factor", 3, "Replicas of __transaction_state.", at_least(1)),
    integer(
        "transaction.state.log.segment.bytes",
        104_857_600,
        "Segment size of __transaction_state.",
        at_least(SEGMENT_BYTES_MIN),
    ),
    boolean(
        "transaction.two.phase.commit.enable",
        True,
        "Whether producers may prepare transactions (KIP-939); false in Kafka.",
    ),
    integer(
        "transactional.id.expiration.ms",
        604_800_000,
        "Idle time after which a transactional id is forgotten.",
        at_least(1),
    ),
]

_WITHOUT_EFFECT = [
    without_effect(
        integer("background.threads", 10, "Threads for background work.", at_least(1), dynamic=True),
        "one event loop does this work",
    ),
    without_effect(
        integer(
            "delete.records.purgatory.purge.interval.requests", 1, "Requests between two purges of the waiting list."
        ),
        "waiting lists purge themselves",
    ),
    without_effect(
        integer("fetch.purgatory.purge.interval.requests", 1_000, "Requests between two purges of the waiting list."),
        "waiting lists purge themselves",
    ),
    without_effect(
        several("metric.reporters", (), "Classes that report metrics.", dynamic=True), "Java classes are not loaded"
    ),
    without_effect(
        integer("num.io.threads", 8, "Threads that handle requests.", at_least(1), dynamic=True),
        "one event loop does this work",
    ),
    without_effect(
        integer("num.network.threads", 3, "Threads that serve connections.", at_least(1), dynamic=True),
        "one event loop does this work",
    ),
    without_effect(
        integer(
            "producer.purgatory.purge.interval.requests", 1_000, "Requests between two purges of the waiting list."
        ),
        "waiting lists purge themselves",
    ),
]

SERVER_KEYS: Final[dict[str, ConfigKey]] = {
    key.name: key
    for group in (
        _NODE,
        _CONNECTIONS,
        AUTHORIZER_KEYS,
        SSL_KEYS,
        SASL_KEYS,
        TOKEN_KEYS,
        PEER_KEYS,
        OAUTH_KEYS,
        _TOPICS,
        LOG_KEYS,
        _REPLICATION,
        _QUORUM,
        _FETCH_AND_GROUPS,
        _TRANSACTIONS,
        QUOTA_KEYS,
        _WITHOUT_EFFECT,
    )
    for key in group
}

# Keys that Kafka describes only where they are set: they are set at run time, or belong to the authorizer.
NOT_DESCRIBED: Final = frozenset(
    {
        "allow.everyone.if.no.acl.found",
        "follower.replication.throttled.rate",
        "leader.replication.throttled.rate",
        "replication.quota.window.num",
        "replication.quota.window.size.seconds",
        "super.users",
    }
)

# Settings of a listener that may be altered for all brokers at once.
_FOR_ALL_BROKERS: Final = frozenset({"max.connection.creation.rate", "max.connections", "num.network.threads"})


def server_key(name: str) -> ConfigKey | None:
    """Also for one listener's setting; None for an unknown key."""
    if name.startswith("listener.name."):
        return next((SERVER_KEYS[key] for key in LISTENER_KEYS if name.endswith("." + key)), None)
    return SERVER_KEYS.get(name)


def is_per_broker(name: str) -> bool:
    """As in Kafka 4.3.1, settings of a listener and of logins are per broker only."""
    if name.startswith("listener.name."):
        _, dot, setting = name.removeprefix("listener.name.").partition(".")
        return bool(dot) and setting not in _FOR_ALL_BROKERS
    return name.startswith("sasl.") and name in SERVER_KEYS
